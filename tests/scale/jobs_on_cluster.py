"""Runs the jobs on a cluster that loses executors: ``python -m tests.scale.jobs_on_cluster STORE SETTINGS OUT S3``.

A program of its own, since a process can have one Spark session, and the other tests' is a local one. It
prints a JSON object of what it saw.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.errors import OptionError
from rmq_formats.spark import session
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.support.stores.rebuilt_stores import Splits, golden_options

ROOT = Path(__file__).parents[2]
MASTER = "local-cluster[2,1,1024]"  # executors, processors of each, MiB of each
EXECUTOR = "CoarseGrainedExecutorBackend"
TASKS = 12


def executors() -> list[psutil.Process]:
    """The executors' Java processes."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(EXECUTOR in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class KillOne:
    """A task's function; the one that is given a certain argument first kills the executor that it runs in."""

    def __init__(self, function: Callable[[Any], Any], victim: Any, note: Path) -> None:
        self._function, self._victim, self._note = function, victim, note

    def __call__(self, argument: Any) -> Any:
        result = self._function(argument)  # what it wrote is there, and its result is lost
        if argument == self._victim and not self._note.exists():
            executor = next(parent for parent in psutil.Process().parents() if EXECUTOR in " ".join(parent.cmdline()))
            self._note.write_text(str(executor.pid))
            os.kill(executor.pid, signal.SIGKILL)
            time.sleep(60)  # a worker ends with its executor
        return result


class KillingRunner(SparkRunner):
    """Has an executor killed in each wave of tasks."""

    def __init__(self, spark: SparkSession, notes: Path) -> None:
        super().__init__(spark)
        notes.mkdir()
        self._notes = notes
        self.waves = 0

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        """Apply the function to each argument."""
        self.waves += 1
        victim = arguments[len(arguments) // 2]
        return super().map(KillOne(function, victim, self._notes / f"wave-{self.waves}"), arguments, on_done)

    def seen(self) -> dict[str, int]:
        """Waves, and different executors that were killed."""
        return {"waves": self.waves, "killed": len({note.read_text() for note in self._notes.iterdir()})}


class KillWhenItWorks(threading.Thread):
    """Kills an executor once a stage has ended one of its tasks and is at work on another."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(daemon=True)
        self._status = spark.sparkContext.statusTracker()
        self._over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        """Wait for the moment."""
        while not self.killed and not self._over.wait(0.005):
            stages = [self._status.getStageInfo(stage) for stage in self._status.getActiveStageIds()]
            if any(stage and stage.numCompletedTasks and stage.numActiveTasks for stage in stages):
                executors()[0].kill()
                self.killed = 1

    def stop(self) -> None:
        """Wait no longer."""
        self._over.set()
        self.join()


def run_on_s3(spark: SparkSession, settings: str, s3: str) -> dict[str, Any]:
    """Rebuild and verify in an object store; nothing is killed."""
    runner = SparkRunner(spark)
    store, out, work = (s3.replace("NAME", name) for name in ("store", "out", "work"))
    runner.check_seen("--store", store)
    report = rebuild_store(store, out, golden_options(GOLDEN_SETTINGS[settings]), Splits(TASKS, runner))
    verified = verify_store(store, VerifyOptions(), Splits(TASKS, runner), work=work)
    counts = {kind.code: count for kind, count in verified.kinds()}
    return {"rebuild": report.finding_counts, "messages": report.messages, "verify": counts}


def unseen(spark: SparkSession, out: Path) -> list[str]:
    """What is said of directories that executors do not see."""
    runner, said = SparkRunner(spark), []
    here = out / "here"
    here.mkdir()
    runner.check_seen("--store", str(here))
    runner.check_shared("--work", str(here / "not" / "yet"))
    for option, path in (
        ("--store", str(here / "gone")),
        ("--store", "s3://nobody@nowhere/x?endpoint_override=127.0.0.1:1&scheme=http"),
    ):
        try:
            runner.check_seen(option, path)
        except OptionError as error:
            said.append(str(error))
    return [*said, *(path.name for path in here.iterdir())]


def run_all(spark: SparkSession, store: str, settings: str, out: Path, s3: str) -> dict[str, Any]:
    """Rebuild, verify, export."""
    spark.sparkContext.parallelize(range(8), 8).foreach(lambda _: time.sleep(0.2))
    seen: dict[str, Any] = {"executors": len(executors())}
    seen["s3"] = run_on_s3(spark, settings, s3)
    seen["unseen"] = unseen(spark, out)
    killing = KillingRunner(spark, out / "rebuild-notes")
    report = rebuild_store(
        store, str(out / "rebuilt"), golden_options(GOLDEN_SETTINGS[settings]), Splits(TASKS, killing)
    )
    seen["rebuild"] = killing.seen() | {"finding_counts": report.finding_counts}
    killing = KillingRunner(spark, out / "verify-notes")
    verified = verify_store(store, VerifyOptions(), Splits(TASKS, killing), work=str(out))
    seen["verify"] = killing.seen() | {"findings": [finding.to_dict() for finding in verified.findings]}
    table = str(out / "table")
    killer = KillWhenItWorks(spark)
    killer.start()
    given = export_delta.parser().parse_args(["--store", store, "--table", table, "--system-topics"])
    exported, code = export_delta.main(export_delta.check(given), spark)
    killer.stop()
    rows = spark.read.format("delta").load(table).select("physical_offset").collect()
    offsets = sorted(row.physical_offset for row in rows)
    seen["export"] = {"killed": killer.killed, "code": code, "messages": exported["messages"], "offsets": offsets}
    return seen


def main(store: str, settings: str, out: str, s3: str) -> None:
    """Run on a cluster of this machine's processes."""
    more = {
        "spark_sql_warehouse_dir": f"{out}/warehouse",
        "spark_default_parallelism": str(TASKS),
        "spark_executor_extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # as the driver's, see tests/conftest.py
        "spark_executorEnv_PYTHONPATH": str(ROOT),  # the functions above are called in executors
    }
    spark = session("cluster", master=MASTER, **more)
    seen = run_all(spark, store, settings, Path(out), s3)
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
