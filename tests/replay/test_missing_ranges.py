"""Ranges of the log that were deleted before a replay has read them: an error, or counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.errors import StoreError
from rmq_formats.read.plan import QueuesTask
from rmq_formats.storage.store_files import open_store
from rmq_offline.replay.run import count
from rmq_offline.replay.source import MissingRanges, ReplayRead, plan_replay
from tests.replay.small_stores import log_files, make_log, make_replay, run_dry
from tests.support.stores.store_with_queues import write_queue
from tests.support.stores.verified_stores import FILE_BYTES

GONE = "were deleted before the replay; --fail-on-data-loss false skips them"
SKIP = ("--fail-on-data-loss", "false")
COLUMNS = ("topic", "queue_id", "size", "record_error", "physical_offset")


def make_checkpoint(store: Path, directory: Path, next_physical_offset: int) -> tuple[str, str]:
    """Save a checkpoint as a killed run leaves it; return its argument."""
    options = "--checkpoint", str(directory)
    checkpoint = make_replay(store, *options).checkpoint
    assert checkpoint is not None
    checkpoint.save(next_physical_offset, 7)
    return options


def test_segments_that_expired_after_the_checkpoint_are_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    offsets = make_log(store)
    options = make_checkpoint(store, tmp_path / "checkpoint", offsets[50])
    for path in log_files(store)[:3]:
        path.unlink()
    with pytest.raises(StoreError, match=f"bytes {offsets[50]} to {3 * FILE_BYTES} of the CommitLog {GONE}"):
        count(make_replay(store, *options))
    report, code = run_dry(store, *options, *SKIP)
    later = sum(offset >= 3 * FILE_BYTES for offset in offsets)
    assert (code, report["missing_bytes"], report["messages"]) == (1, 3 * FILE_BYTES - offsets[50], later)


def test_a_segment_missing_in_the_middle_is_an_error_without_a_checkpoint(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_log(store)
    log_files(store)[2].unlink()
    with pytest.raises(StoreError, match=f"bytes {2 * FILE_BYTES} to {3 * FILE_BYTES} of the CommitLog {GONE}"):
        run_dry(store)
    report, code = run_dry(store, *SKIP)
    assert (code, report["missing_bytes"]) == (1, FILE_BYTES)
    report, code = run_dry(store, "--starting-physical-offset", str(3 * FILE_BYTES))
    assert (code, report["missing_bytes"]) == (0, 0)


def test_what_expired_before_the_first_run_is_not_missing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    offsets = make_log(store)
    for path in log_files(store)[:2]:
        path.unlink()
    report, code = run_dry(store, "--checkpoint", str(tmp_path / "checkpoint"))
    assert (code, report["missing_bytes"]) == (0, 0)
    assert report["starting_physical_offset"] == 2 * FILE_BYTES
    assert report["messages"] == sum(offset >= 2 * FILE_BYTES for offset in offsets)


def test_a_segment_deleted_between_count_and_send_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_log(store)
    replay = make_replay(store)
    counts = count(replay)
    log_files(store)[0].unlink()
    with pytest.raises(StoreError, match=f"bytes 0 to {FILE_BYTES} of the CommitLog {GONE}"):
        plan_replay(replay, counts, COLUMNS)


def test_a_segment_deleted_while_the_replay_reads_is_missing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    offsets = make_log(store)
    replay = make_replay(store)
    read = plan_replay(replay, count(replay), COLUMNS)
    log_files(store)[1].unlink()
    with pytest.raises(StoreError, match=GONE):
        list(read.rows(MissingRanges(str(store))))
    check_without_second_file(read, store, offsets)


def test_a_segment_that_is_deleted_with_its_units_is_missing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_log(store)
    replay = make_replay(store, "--queues", '{"Orders": [0]}')
    read = plan_replay(replay, count(replay), COLUMNS)
    rows = [row for batch in read.rows(MissingRanges(str(store))) for row in batch.to_pylist()]
    offsets = [row["physical_offset"] for row in rows]
    write_queue(store, {number: Unit(row["physical_offset"], row["size"], 0) for number, row in enumerate(rows)})
    tasks = tuple(
        QueuesTask((segment,), ("Orders",), segment.start_offset, segment.end_offset)
        for segment in open_store(str(store)).segments
    )
    read = replace(read, tasks=tasks)
    assert sum(batch.num_rows for batch in read.rows(MissingRanges(str(store)))) == len(offsets)
    log_files(store)[1].unlink()
    check_without_second_file(read, store, offsets)
    for path in sorted((store / "consumequeue" / "Orders" / "0").iterdir())[:2]:
        path.unlink()
    with pytest.raises(StoreError, match=f"bytes {FILE_BYTES} to {2 * FILE_BYTES} of the CommitLog {GONE}"):
        list(read.rows(MissingRanges(str(store))))


def check_without_second_file(read: ReplayRead, store: Path, offsets: list[int]) -> None:
    """Check that a read has all records but those of the log's second file, and counts its bytes."""
    missing = MissingRanges(str(store), fails=False)
    rows = [row["physical_offset"] for batch in read.rows(missing) for row in batch.to_pylist()]
    assert rows == [offset for offset in offsets if not FILE_BYTES <= offset < 2 * FILE_BYTES]
    assert missing.size_bytes == FILE_BYTES


def test_overlapping_ranges_count_once() -> None:
    missing = MissingRanges("store", fails=False)
    missing.add([(0, 10), (5, 20), (30, 40), (0, 10), (50, 50)])
    assert missing.size_bytes == 30
