"""Spark Connect: sources, functions, ``session()`` and ``explain()`` from a client without a JVM."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from rmq_formats.spark import create_views, explain
from tests.spark.conftest import Load

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[str]:
    """A Spark Connect server in the tests' JVM; its URL."""
    jvm: Any = spark._jvm
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(context)
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


@pytest.mark.long
def test_a_client_reads_and_explains_as_a_session_of_its_own_does(
    server: str, spark: SparkSession, golden: Callable[[str], Path], load: Load
) -> None:
    store = golden("mixed") / "store"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", server, str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    orders = load(store, subscribe="Orders")
    assert seen.pop("session") == "pyspark.sql.connect.session"
    offsets = load(store, "rmq_offsets").groupBy("group").agg(sf.sum("committed_offset"), sf.sum("lag_messages"))
    assert seen.pop("lag") == [list(row) for row in offsets.orderBy("group").collect()]
    here = {view: spark.table(view).count() for view in create_views(spark, str(store), prefix="remote_")}
    assert seen.pop("views") == {view: count for view, count in here.items() if view != "remote_messages"}
    assert seen.pop("explained") == [explain(orders), explain(load(store, "rmq_consumequeue"))]
    assert seen == {
        "zone": "UTC",
        "messages": load(store).count(),
        "entries": load(store, "rmq_index").count(),
        "orders": orders.count(),
        "sound": orders.count(),
        "sql": 2598919,
    }


def test_a_job_says_that_connect_is_not_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs.export_delta", "--store", str(tmp_path), "--table", str(tmp_path / "table")]
    environment = {"PATH": "/usr/bin:/bin", "SPARK_REMOTE": "sc://127.0.0.1:1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("export_delta.py: a job works in the driver's JVM")
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_not_there_is_told_in_a_line() -> None:
    code = (
        "from rmq_formats.errors import ClusterError\nfrom rmq_formats.spark import session\n"
        "try:\n    session(remote='sc://127.0.0.1:1')\nexcept ClusterError as error:\n    print(error)"
    )
    environment = {"PATH": "/usr/bin:/bin", "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.startswith("Spark Connect at sc://127.0.0.1:1: Connection refused"), done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 1
