"""Which messages of a queue a store and its tier have, where the log's part of it has expired in part, or all of it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats import Store
from rmq_lakehouse.live.options import ClusterQueue
from rmq_lakehouse.tier import QueueRanges, TierQueues

FILE_BYTES = 262_144  # of the golden store's CommitLog
BROKER = "1cfb8c9b_GoldenCluster/golden-a"
ORDERS, WARMUP = ClusterQueue("Orders", "golden-a", 0), ClusterQueue("Warmup", "golden-a", 2)


@pytest.fixture
def store(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the golden store ``tiered`` whose log has expired: the file that is left is empty."""
    root = tmp_path / "store"
    shutil.copytree(golden("tiered") / "store", root)
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    for name in names:
        (root / "commitlog" / name).unlink()
    (root / "commitlog" / f"{int(names[-1]) + FILE_BYTES:020}").write_bytes(bytes(FILE_BYTES))
    return root


@pytest.fixture
def ends(golden: Callable[[str], Path]) -> dict[ClusterQueue, int]:
    """One past the last message of each of two queues."""
    lines = (golden("tiered") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return {
        queue: 1
        + max(one["queue_offset"] for one in found if (one["topic"], one["queue_id"]) == (queue.topic, queue.queue_id))
        for queue in (ORDERS, WARMUP)
    }


def queues(store: Path) -> TierQueues:
    return TierQueues(str(store), str(store / "tiered"))


def files(store: Path, queue: ClusterQueue, kind: str) -> list[Path]:
    """A queue's files in the tier, by offset."""
    directory = store / "tiered" / BROKER / queue.topic / str(queue.queue_id) / kind
    return sorted(directory.iterdir(), key=lambda path: path.name[8:])


def cut_tier(store: Path, queue: ClusterQueue, offset: int) -> None:
    """Take a queue's messages from an offset on out of the tier, which is told by its records alone then."""
    (message,) = Store(store, tier=store / "tiered", log="tiered").query(
        topic=queue.topic, queue_id=queue.queue_id, offset=offset
    )
    first, *others = files(store, queue, "COMMIT_LOG")
    for path in [*others, *files(store, queue, "CONSUME_QUEUE")[1:]]:
        path.unlink()
    os.truncate(first, message.physical_offset)


def test_what_neither_has_of_a_queue_that_has_expired_is_a_gap(store: Path, ends: dict[ClusterQueue, int]) -> None:
    cut_tier(store, ORDERS, 120)
    link, end = queues(store), ends[ORDERS]
    assert link.bounds([ORDERS]) == {ORDERS: (0, end)}
    assert link.gaps({ORDERS: 0}, {ORDERS: end}) == [(ORDERS, 120, end)]
    assert link.gaps({ORDERS: 130}, {ORDERS: end}) == [(ORDERS, 130, end)]


def test_an_expired_queue_that_is_whole_in_the_tier_has_no_gap(store: Path, ends: dict[ClusterQueue, int]) -> None:
    link = queues(store)
    assert link.bounds(ends) == {queue: (0, end) for queue, end in ends.items()}
    assert link.gaps(dict.fromkeys(ends, 0), ends) == []


def test_an_expired_queue_that_is_not_in_the_tier_begins_at_its_end(store: Path, ends: dict[ClusterQueue, int]) -> None:
    shutil.rmtree(store / "tiered" / BROKER / "Warmup" / "2")
    link, end = queues(store), ends[WARMUP]
    assert link.bounds([WARMUP]) == {WARMUP: (end, end)}
    assert link.gaps({WARMUP: 0}, {WARMUP: end}) == []  # as with one that has expired in part: of old ones nobody knows


def test_a_queue_whose_units_have_expired_ends_where_its_files_begin(store: Path) -> None:
    shutil.rmtree(store / "tiered" / BROKER / "Warmup" / "2")
    directory = store / "consumequeue" / "Warmup" / "2"
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / f"{20 * 300:020}").write_bytes(bytes(6000))
    assert queues(store).bounds([WARMUP]) == {WARMUP: (300, 300)}


def test_records_of_the_tier_without_any_units_count(store: Path, ends: dict[ClusterQueue, int]) -> None:
    for path in files(store, ORDERS, "CONSUME_QUEUE"):
        path.unlink()
    link, end = queues(store), ends[ORDERS]
    assert link.bounds([ORDERS]) == {ORDERS: (0, end)}
    assert link.gaps({ORDERS: 0}, {ORDERS: end}) == []


@pytest.mark.parametrize(
    ("stretch", "bounds", "gap"),
    [
        (QueueRanges(0, 5, 3, 9), (0, 9), (3, 3)),  # both have 3 and 4
        (QueueRanges(0, 5, 7, 9), (0, 9), (5, 7)),
        (QueueRanges(2, 5, 9, 9), (2, 9), (5, 9)),  # the log has none any more
        (QueueRanges(2, 9, 9, 9), (2, 9), (9, 9)),
        (QueueRanges(2, 9, 8, 8), (2, 9), (8, 8)),  # the tier has more than the ConsumeQueue
        (QueueRanges(2, 9, 0, 0), (2, 9), (0, 0)),  # no ConsumeQueue
        (QueueRanges(0, 0, 7, 9), (7, 9), (0, 0)),  # never in the tier
        (QueueRanges(0, 0, 9, 9), (9, 9), (0, 0)),
        (QueueRanges(4, 4, 0, 0), (4, 4), (0, 0)),  # an empty file of the tier
        (QueueRanges(0, 0, 0, 0), (0, 0), (0, 0)),
    ],
)
def test_a_stretch_tells_bounds_and_gap(stretch: QueueRanges, bounds: tuple[int, int], gap: tuple[int, int]) -> None:
    assert (stretch.bounds, stretch.gap) == (bounds, gap)
