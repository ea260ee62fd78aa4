"""The part ``clusters``: a seed is one run, and what breaks a promise is found."""

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from unittest.mock import patch

import pytest

from rmq_core.client import ReceivedMessage
from rmq_core.client.consumer.consume_message import ConsumeMessageConcurrentlyService
from rmq_core.client.consumer.pulled_queue import PulledQueue
from rmq_core.ha.log_comparison import LogComparison
from rmq_core.store.commitlog.flush import LogFlusher
from tests.lab.clusters import schedule as clusters
from tests.lab.rounds import Round, ViolationError

SEED = 5


def trace(seed: int, work: Path) -> str:
    """All steps of a round."""
    one = Round("clusters", seed, work)
    one.trace = deque()
    clusters.play(one)
    assert one.tally.cases > 0
    return "\n".join(one.trace)


@pytest.mark.long
def test_a_seed_is_one_run(tmp_path: Path) -> None:
    """In another process too, where sets of names have another order; the trace ends with sums of both logs."""
    work = [tmp_path / name for name in ("here", "there")]
    for path in work:
        path.mkdir()
    first = trace(SEED, work[0])
    code = f"""import pathlib; from tests.lab.test_clusters import trace
print(trace({SEED}, pathlib.Path({str(work[1])!r})))"""
    environment = os.environ | {"PYTHONHASHSEED": "4711"}
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    assert told.stdout.rstrip("\n") == first


@pytest.mark.long
def test_what_is_careless_is_found(tmp_path: Path) -> None:
    """A slave that compares nothing, a store that forces nothing, consumers that pass over what they have pulled."""
    made, poll = LogComparison.__init__, PulledQueue.poll

    def careless(self: LogComparison, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type] # as it was called
        self.is_done = True

    def passed_over(self: ConsumeMessageConcurrentlyService, *_: object) -> None:
        del self

    def polled_in_part(self: PulledQueue, limit: int) -> list[ReceivedMessage]:
        return poll(self, limit)[:1]

    for number, broken in enumerate(
        [
            patch.object(LogComparison, "__init__", careless),
            patch.object(LogFlusher, "_fsync_files_from", lambda _self, _begin: None),
            patch.object(ConsumeMessageConcurrentlyService, "put", passed_over),
            patch.object(PulledQueue, "poll", polled_in_part),
        ]
    ):
        with broken, pytest.raises(ViolationError):  # noqa: PT012 # one of several
            for seed in range(20):
                (work := tmp_path / f"{number}.{seed}").mkdir()
                trace(seed, work)
