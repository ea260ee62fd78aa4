"""Jobs on a cluster: executors are processes of their own, and some are killed in the middle of the work."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rmq_offline.tasks.object_work_area import MANIFEST
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.scale.conftest import Bucket, new_bucket
from tests.scale.jobs_on_cluster import ROOT
from tests.support.stores.rebuilt_stores import built
from tests.support.stores.store_files import tree

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.xdist_group("cluster")]  # its run is made once


@dataclass(frozen=True)
class Run:
    """One run of all jobs."""

    golden: Path
    out: Path
    bucket: Bucket
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def run(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Run:
    """Runs all jobs once."""
    bucket = new_bucket(s3_server)
    bucket.upload(golden("crash") / "store", "store")
    out = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # where the cluster finds what its processes run
        "SPARK_WORKER_DIR": str(out / "workers"),
        "SPARK_LOCAL_DIRS": str(out / "local"),
    }
    command = [
        sys.executable,
        "-m",
        "tests.scale.jobs_on_cluster",
        str(golden("crash") / "store"),
        "crash",
        str(out),
        bucket.uri("NAME"),
    ]
    with (out / "log").open("w") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=900, check=False
        )
    assert done.returncode == 0, (out / "log").read_text()[-3000:]
    return Run(golden("crash"), out, bucket, json.loads(done.stdout.splitlines()[-1]))


def test_executors_are_processes_of_their_own(run: Run) -> None:
    assert run.seen["executors"] == 2


def test_rebuild_gives_javas_bytes_though_executors_are_killed(run: Run) -> None:
    assert run.seen["rebuild"] == {"waves": 2, "killed": 2, "finding_counts": {}}
    assert built(run.out / "rebuilt") == built(run.golden / "expected")


def test_rebuild_and_verify_run_in_an_object_store(run: Run) -> None:
    undisturbed = verify_store(str(run.golden / "store"), VerifyOptions(), ProcessRunner(1))
    lines = (run.golden / "expected" / "messages.jsonl").read_text().splitlines()
    assert run.seen["s3"] == {
        "rebuild": {}, "messages": len(lines), "verify": {kind.code: count for kind, count in undisturbed.kinds()},
    }  # fmt: skip
    objects = run.bucket.tree("out")
    del objects[MANIFEST]
    assert objects == tree(run.out / "rebuilt")
    assert run.bucket.tree("work") == {}
    assert run.bucket.tree("store") == tree(run.golden / "store")


def test_what_executors_do_not_see_is_told_in_a_line(run: Run) -> None:
    gone, nobody = run.seen["unseen"]  # and no probe is left
    assert re.search(r"--store /.*/gone: not seen on .*; give one on a mount that all machines share", gone)
    assert re.search(r"--store s3://.*: not seen on ", nobody)
    assert "\n" not in gone + nobody


def test_verify_finds_the_same_though_executors_are_killed(run: Run) -> None:
    undisturbed = verify_store(str(run.golden / "store"), VerifyOptions(), ProcessRunner(1))
    assert (run.seen["verify"]["waves"], run.seen["verify"]["killed"]) == (2, 2)
    assert run.seen["verify"]["findings"] == [finding.to_dict() for finding in undisturbed.findings] != []


def test_export_lands_each_message_once_though_an_executor_is_killed(run: Run) -> None:
    lines = (run.golden / "expected" / "messages.jsonl").read_text().splitlines()
    expected = [json.loads(line)["physical_offset"] for line in lines]
    assert run.seen["export"] == {"killed": 1, "code": 0, "messages": len(expected), "offsets": expected}
