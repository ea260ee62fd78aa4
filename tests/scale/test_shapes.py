"""Stores of unusual shapes: tasks do not follow from queues, and memory is bounded."""

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.layout import DEFAULT_DELAY_LEVELS, UNIT_BYTES
from rmq_offline.generate import generate_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.rebuilt_stores import SMALL, built, by_codecs

SIZES = replace(
    SMALL.sizes,
    consumequeue_file_bytes=6_000_000,
    index_slots=1000,
    index_entries=300_000,
    delay_levels_ms=delay_levels_ms(DEFAULT_DELAY_LEVELS),
)
OPTIONS = replace(SMALL, sizes=SIZES)
SOUND = {"checkpoint.missing", "store.layout"}


class Counting(ProcessRunner):
    """Counts tasks."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waves: list[int] = []

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        self.waves.append(len(arguments))
        return super().map(function, arguments, on_done)


def peak_bytes() -> int:
    """The most memory that this process has had; ``ru_maxrss`` would count what its parent had before the exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def work(store: str, answer: Connection) -> None:
    """Rebuild and verify in one process; its tasks, its counts and its memory."""
    runner = Counting()
    rebuilt = rebuild_store(store, None, OPTIONS, runner)
    verified = verify_store(store, VerifyOptions(), runner)
    answer.send({
        "waves": runner.waves,
        "messages": (rebuilt.messages, verified.messages),
        "queues": (rebuilt.queues, verified.queues),
        "findings": {kind.code for kind in verified.counts} | set(rebuilt.finding_counts),
        "peak_bytes": peak_bytes(),
    })  # fmt: skip


def worked(store: Path) -> dict[str, Any]:
    """``work`` in a process of its own, whose memory is none of the tests'."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=work, args=(str(store), theirs))
    process.start()
    theirs.close()
    answer: dict[str, Any] = ours.recv()
    process.join()
    return answer


@pytest.mark.long
def test_twenty_thousand_queues_are_few_tasks(tmp_path: Path) -> None:
    names = [f"Topic{number}" for number in range(200)]
    generate_store(str(tmp_path), messages=20_000, body_bytes=200, topics=names, queues=100, keys=False, tags=True)
    seen = worked(tmp_path)
    assert seen["queues"] == (20_000, 20_000)
    assert max(seen["waves"]) <= 32
    assert seen["findings"] <= SOUND
    assert seen["peak_bytes"] < 512 << 20


@pytest.mark.long
def test_a_million_tiny_records_in_one_hot_queue(tmp_path: Path) -> None:
    generate_store(str(tmp_path), messages=1_000_000, body_bytes=1, topics=["Hot"], queues=1, keys=False, tags=False)
    seen = worked(tmp_path)
    assert seen["messages"] == (1_000_000, 1_000_000)
    assert seen["findings"] <= SOUND
    assert seen["peak_bytes"] < 1 << 30
    files = sorted((tmp_path / "consumequeue" / "Hot" / "0").iterdir())
    units = np.frombuffer(
        b"".join(path.read_bytes() for path in files), dtype=[("at", ">i8"), ("size", ">i4"), ("t", ">i8")]
    )
    written = units["size"] > 0
    assert units.itemsize == UNIT_BYTES
    assert written[:1_000_000].all()
    assert not written[1_000_000:].any()
    assert (np.diff(units["at"][:1_000_000]) == units["size"][: 1_000_000 - 1]).all()


@pytest.mark.long
def test_a_record_of_four_mebibytes(tmp_path: Path) -> None:
    size = (4 << 20) - 1000
    generate_store(
        str(tmp_path),
        messages=7,
        body_bytes=size,
        topics=["Large"],
        queues=2,
        keys=True,
        tags=True,
        commitlog_file_bytes=16 << 20,
    )
    seen = worked(tmp_path)
    assert seen["messages"] == (7, 7)
    assert seen["findings"] <= SOUND
    assert seen["peak_bytes"] < 512 << 20
    assert built(tmp_path) == by_codecs(tmp_path, OPTIONS)
