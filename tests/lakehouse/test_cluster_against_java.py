"""Exports of a running cluster, at the real Java name server and broker."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_core.remoting.loop import run
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, free_port, java
from tests.lakehouse.cluster_scenarios import *  # noqa: F403 # the tests themselves
from tests.lakehouse.cluster_scenarios import ClusterExporter
from tests.spark.live.test_against_java import until_there

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.xdist_group("spark")]


@pytest.fixture
def exporter(spark: SparkSession, tmp_path: Path) -> Iterator[ClusterExporter]:
    """The job, on a topic of a Java broker."""
    peer.build()
    address, conf = f"127.0.0.1:{free_port()}", tmp_path / "broker.conf"
    conf.write_text(
        f"{SMALL_FILES}brokerName=exported-java\nnamesrvAddr={address}\n"
        f"listenPort={free_port()}\nhaListenPort={free_port()}\n"
    )
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "java.log").open("wb"))
        stack.enter_context(java(log, "namesrv", address.partition(":")[2]))
        stack.enter_context(java(log, "broker", str(tmp_path / "store"), str(conf)))
        run(until_there(address))
        yield ClusterExporter(spark, address, tmp_path / "store", tmp_path)
