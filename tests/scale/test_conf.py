"""Settings in ``conf/`` are those of the code, and the commands of the page about clusters run."""

import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tests.scale.jobs_on_cluster import ROOT

PAGE = ROOT / "docs" / "cluster.md"
MASTER = "local-cluster[1,1,1024]"  # executors, processors of each, MiB of each
# The tests' cluster is an executor of one processor and 1 GiB, to which hundreds of empty tasks are minutes.
SMALL_MACHINE = (
    "--conf spark.executor.cores=1 --conf spark.executor.memory=1g "
    '--conf "spark.executor.extraJavaOptions=$SPARK_SUBMIT_OPTS" '
    "--conf spark.sql.shuffle.partitions=2 --conf spark.databricks.delta.snapshotPartitions=2"
)
COMMANDS = re.findall(r"^spark-submit .*$", PAGE.read_text(), re.MULTILINE)


def settings(name: str) -> dict[str, str]:
    """A properties file, as Spark reads it."""
    lines = (ROOT / "conf" / f"spark-defaults-{name}.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in pairs}


def test_the_settings_are_those_of_a_session() -> None:
    code = importlib.import_module("rmq_formats.spark.session")
    java = {"spark.driver.extraJavaOptions": " ".join(code._JAVA_OPTIONS)}
    local, cluster = settings("local"), settings("cluster")
    assert local == {"spark.master": "local[*]"} | code._ALWAYS | code._LOCAL | code._DELTA | java
    everywhere = code._ALWAYS | code._DELTA | java
    assert {name: cluster.get(name) for name in everywhere} == everywhere
    assert cluster["spark.executor.extraJavaOptions"] == java["spark.driver.extraJavaOptions"]


def pack_environment(directory: Path) -> None:
    """What the page has venv-pack make, and unpacked, with a Python that stands for it: the tests' own."""
    python = directory / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(directory / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")


def test_the_page_has_a_command_for_each_job() -> None:
    found = {(re.search(r"jobs/\w+", command)[0], "$MASTER" in command) for command in COMMANDS}  # type: ignore[index]
    assert found >= {("jobs/rebuild", False), ("jobs/verify", False), ("jobs/export_delta", False)}
    assert found >= {("jobs/rebuild", True), ("jobs/verify", True), ("jobs/export_delta", True)}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_of_the_page_runs(golden: Callable[[str], Path], tmp_path: Path, command: str) -> None:
    pack_environment(tmp_path)
    for name in ("conf", "jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STORE": str(golden("mixed") / "store"),
        "OUT": str(tmp_path),
        "MASTER": MASTER,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "workers"),
    }
    environment.pop("PYSPARK_PYTHON", None)
    if "$MASTER" in command:
        command = command.replace("jobs/", f"{SMALL_MACHINE} jobs/", 1)
    else:
        environment["PYSPARK_PYTHON"] = sys.executable
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stdout, done.stderr[-3000:]
    assert done.returncode in {0, 1}
    assert json.loads(done.stdout.splitlines()[-1])["messages"] > 0
