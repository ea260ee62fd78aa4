"""What a job says when something fails in the middle of it."""

import argparse
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_formats.spark import job
from rmq_formats.spark.runner import SparkRunner

pytestmark = pytest.mark.spark


class Unstopped:
    """The tests' session, which a job does not end."""

    def __init__(self, spark: SparkSession) -> None:
        self.sparkContext = spark.sparkContext

    def stop(self) -> None:
        """Leave it to the other tests."""


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
def test_a_task_that_fails_is_told_in_a_line_and_two(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: Any, said: str
) -> None:
    monkeypatch.setattr(job, "session", lambda _: Unstopped(spark))

    def body(_: argparse.Namespace, running: Any) -> tuple[dict[str, Any], int]:
        return {"done": SparkRunner(running).map(task, range(2))}, 0

    with pytest.raises(SystemExit) as ended:
        job.run_job(job.job_parser("try", "Fails."), body, arguments=[])
    assert ended.value.code == job.EXIT_FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert len(err.splitlines()) == 1
