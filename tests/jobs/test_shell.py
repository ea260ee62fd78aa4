"""What a job says when something fails in the middle of it."""

import argparse
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_offline.job_arguments import job_parser
from rmq_offline.spark import job
from rmq_offline.spark.runner import SparkRunner
from tests.support.processes.warm_processes import Popen

pytestmark = pytest.mark.spark


class Unstopped:
    """The tests' session, which a job does not end."""

    def __init__(self, spark: SparkSession) -> None:
        self.sparkContext = spark.sparkContext

    def stop(self) -> None:
        """Leave it to the other tests."""


# A job in whose tasks so many seconds pass; each makes a file when it begins.
SLEEPS = """
import sys, time, uuid
from pathlib import Path
from rmq_offline.job_arguments import job_parser
from rmq_offline.spark import job

where = sys.argv[1]

def body(given, spark):
    def sleep(_):
        Path(where, uuid.uuid4().hex).touch()
        time.sleep(60)
    spark.sparkContext.parallelize(range(2), 2).foreach(sleep)

job.run_job(job_parser("try", "Sleeps."), body, arguments=[])
"""

# A job whose Ctrl-C comes while the process forks to start Spark's JVM.
FORKS = """
import os, signal
from rmq_offline.job_arguments import job_parser
from rmq_offline.spark import job

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
job.run_job(job_parser("try", "Forks."), lambda given, spark: ({"ran": True}, 0), arguments=[])
"""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A job that ends ignores SIGINT; the tests go on, and what they start would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def fail(_: int) -> None:
    raise StoreError("/data/out: No space left on device")


def die(_: int) -> None:
    raise ZeroDivisionError("a fault of our own")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (fail, "try.py: /data/out: No space left on device"),
        (die, "try.py: ZeroDivisionError: a fault of our own"),
    ],
)
def test_a_failed_task_is_reported_in_a_line_with_exit_code_2(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: Any, said: str
) -> None:
    monkeypatch.setattr(job, "session", lambda *_, **__: Unstopped(spark))

    def body(_: argparse.Namespace, running: Any) -> tuple[dict[str, Any], int]:
        return {"done": SparkRunner(running).map(task, range(2))}, 0

    with pytest.raises(SystemExit) as ended:
        job.run_job(job_parser("try", "Fails."), body, arguments=[])
    assert ended.value.code == job.EXIT_FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "given", "delta"),
    [
        ("rebuild", "--store {store} --out {out}", False),
        ("verify", "--store {store} --findings {out}", False),
        ("verify", "--store {store} --findings {out} --findings-format delta", True),
        ("export_delta", "--store {store} --table {out}", True),
        ("export_delta", "--store {store} --table {out} --format iceberg", False),
        ("import_delta", "--table {store} --store {out}", True),
        ("replay", "--store {store} --topics Orders --to-store {out}", False),
    ],
)
def test_a_job_has_delta_fetched_only_for_tables_of_delta(
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    given: str,
    delta: bool,
) -> None:
    def started(_: str, *, delta: bool = True) -> SparkSession:
        raise StoreError(f"delta: {delta}")

    monkeypatch.setattr(job, "session", started)
    monkeypatch.setattr(sys, "argv", [name, *given.format(store=golden("mixed") / "store", out=tmp_path / "o").split()])
    with pytest.raises(SystemExit):
        runpy.run_path(str(Path(__file__).parents[2] / "jobs" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().err == f"{name}.py: delta: {delta}\n"


def test_ctrl_c_while_spark_starts_ends_its_jvm_in_one_line(golden: Callable[[str], Path], tmp_path: Path) -> None:
    given = ["--store", str(golden("mixed") / "store"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "jobs.rebuild", *given]
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while running.poll() is None and not children.read_text():
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)  # ends when the JVM has, too
    assert (running.returncode, out, err.splitlines()[-1]) == (130, "", "rebuild.py: interrupted")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_ctrl_c_that_a_fork_swallows_ends_the_job() -> None:
    # Python drops what a signal's handler raises in a hook of a fork: by chance that came, and a job ran to its end.
    command = [sys.executable, "-c", FORKS]
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "try.py: interrupted"
    assert "Traceback" not in err


@pytest.mark.long
def test_ctrl_c_in_the_middle_is_reported_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLEEPS, str(tmp_path)]
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None and not list(tmp_path.iterdir()):
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "try.py: interrupted"
    assert "Traceback" not in err
    assert "\tat " not in err
