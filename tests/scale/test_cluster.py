"""Jobs on a cluster: executors are processes of their own, and some are killed in the middle of the work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rmq_formats.offline.runner import ProcessRunner
from rmq_formats.offline.verify_plan import VerifyOptions
from rmq_formats.offline.verify_store import verify_store
from tests.offline.rebuilding import built
from tests.scale.cluster import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("cluster")]  # its run is made once


@dataclass(frozen=True)
class Run:
    """One run of all jobs."""

    golden: Path
    out: Path
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def run(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs all jobs once."""
    out = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # where the cluster finds what its processes run
        "SPARK_WORKER_DIR": str(out / "workers"),
        "SPARK_LOCAL_DIRS": str(out / "local"),
    }
    command = [sys.executable, "-m", "tests.scale.cluster", str(golden("crash") / "store"), "crash", str(out)]
    with (out / "log").open("w") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=900, check=False
        )
    assert done.returncode == 0, (out / "log").read_text()[-3000:]
    return Run(golden("crash"), out, json.loads(done.stdout.splitlines()[-1]))


def test_executors_are_processes_of_their_own(run: Run) -> None:
    assert run.seen["executors"] == 2


def test_rebuild_gives_javas_bytes_though_executors_are_killed(run: Run) -> None:
    assert run.seen["rebuild"] == {"waves": 2, "killed": 2, "finding_counts": {}}
    assert built(run.out / "rebuilt") == built(run.golden / "expected")


def test_verify_finds_the_same_though_executors_are_killed(run: Run) -> None:
    undisturbed = verify_store(str(run.golden / "store"), VerifyOptions(), ProcessRunner(1))
    assert (run.seen["verify"]["waves"], run.seen["verify"]["killed"]) == (2, 2)
    assert run.seen["verify"]["findings"] == [finding.to_dict() for finding in undisturbed.findings] != []


def test_export_lands_each_message_once_though_an_executor_is_killed(run: Run) -> None:
    lines = (run.golden / "expected" / "messages.jsonl").read_text().splitlines()
    expected = [json.loads(line)["physical_offset"] for line in lines]
    assert run.seen["export"] == {"killed": 1, "code": 0, "messages": len(expected), "offsets": expected}
