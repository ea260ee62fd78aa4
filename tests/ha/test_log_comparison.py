"""Where a slave's log is compared with its master's next."""

import os
from pathlib import Path

from rmq_core.ha.log_comparison import FROM_START, REPEATS, REPEATS_AT_START, ComparisonStart, OtherOffsetError
from rmq_core.store.store import MessageStore
from tests.store.small_stores import NOW_MS, NoThreads, config_of, opened, put


def emptied(tmp_path: Path) -> MessageStore:
    """A store of five files, whose messages in the first four are old."""
    store = opened(config_of(tmp_path / "slave", delete_batch=10), threads=NoThreads())
    while store.max_physical_offset < 4 * 16_384:
        put(store, body=bytes(1000))
    store.dispatch()
    assert store.flush()
    for path in Path(store.config.commitlog_path).iterdir():
        os.utime(path, (1, 1))
    return store


def test_a_place_that_retention_has_deleted_is_not_compared_again_and_again(tmp_path: Path) -> None:
    store = emptied(tmp_path)
    start = ComparisonStart(store, flushed_only=False)
    assert start.move_back(OtherOffsetError(100, 16_384, at_start=False)) is None  # the master's log begins there
    assert start.next_comparison().begin == 16_384
    assert store.clean(NOW_MS, manually=True).log_files == 4
    assert start.next_comparison().begin >= store.min_physical_offset == 4 * 16_384
    assert store.shutdown()


def test_no_place_is_reported_before_which_something_is_not_forced(tmp_path: Path) -> None:
    """A report acknowledges what is before it; the master's log begins where this one's disk has not come yet."""
    config = config_of(tmp_path / "slave", flush_interval_ms=60_000)
    store = opened(config, threads=NoThreads())
    while store.max_physical_offset < 3 * 16_384:
        put(store, body=bytes(1000))
    assert store.flushed_offset < 16_384
    start = ComparisonStart(store, flushed_only=True)
    assert start.move_back(OtherOffsetError(100, 2 * 16_384, at_start=False)) is None
    assert start.next_comparison().begin <= max(store.flushed_offset, FROM_START)
    assert store.flush()
    assert start.move_back(OtherOffsetError(100, 2 * 16_384, at_start=False)) is None
    assert start.next_comparison().begin == 2 * 16_384
    assert store.shutdown()


def test_a_log_that_ends_before_its_masters_begins_is_apart_where_only_forced_places_count(tmp_path: Path) -> None:
    store = opened(config_of(tmp_path / "slave"), threads=NoThreads())
    put(store, body=bytes(1000))
    assert store.flush()
    start = ComparisonStart(store, flushed_only=True)
    assert start.move_back(OtherOffsetError(start.next_comparison().begin, 16_384, at_start=True)) == -1
    assert store.shutdown()


def test_what_retention_deletes_while_the_master_answers_is_no_other_log(tmp_path: Path) -> None:
    """The master wants more to be compared, which is not there any more: it is told so, and may agree."""
    store = emptied(tmp_path)
    start = ComparisonStart(store, flushed_only=False)
    comparison = start.next_comparison()
    assert (comparison.begin, comparison.repeats) == (4 * 16_384, REPEATS)
    assert store.clean(NOW_MS, manually=True).log_files == 4
    assert start.move_back(OtherOffsetError(comparison.begin, 16_384, at_start=False)) is None
    comparison = start.next_comparison()
    assert (comparison.begin, comparison.repeats) == (4 * 16_384, REPEATS_AT_START)
    assert start.move_back(OtherOffsetError(comparison.begin, 16_384, at_start=True)) == -1
    assert store.shutdown()
