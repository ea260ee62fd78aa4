"""Reads by time of logs whose clock jumped give the rows of a scan."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_formats import Store
from rmq_formats.read import store_times
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, Query
from rmq_formats.read.store_times import SegmentTimes, ascends, time_ranges, times_of
from rmq_formats.storage.store_files import open_store
from tests.support.stores.store_lives import FIRST_MS, LogWriter

IN_2010 = 1_262_304_000_000
IN_2066 = 3_029_529_600_000
CLOCKS = (FIRST_MS, IN_2010, FIRST_MS + 3_600_000, IN_2066, FIRST_MS + 7_200_000)
FILE_BYTES = 16384


@pytest.fixture
def jumped(tmp_path: Path) -> Path:
    """A store of 600 messages whose clock jumped back to 2010, and ahead to 2066, 120 messages each."""
    log, number = LogWriter(FILE_BYTES), 0
    for clock_ms in CLOCKS:
        for second in range(120):
            log.add("Orders", number, f"order {number:04}", clock_ms + second * 1000)
            number += 1
    return log.save(tmp_path / "store")


def rising(root: Path, count: int = 600) -> Path:
    log = LogWriter(FILE_BYTES)
    for number in range(count):
        log.add("Orders", number, f"order {number:04}", FIRST_MS + number * 1000)
    return log.save(root)


@pytest.mark.parametrize("clock_ms", CLOCKS)
def test_a_range_of_times_has_all_messages_of_a_jumped_clock(jumped: Path, clock_ms: int) -> None:
    store = Store(str(jumped))
    end_ms = clock_ms + 120_000
    assert len(list(store.messages(from_time=clock_ms, to_time=end_ms))) == 120
    assert len(list(store.messages("Orders", from_time=clock_ms, to_time=end_ms))) == 120
    times = store.to_table(["store_timestamp"], filter=pc.field("store_timestamp") >= store_time(clock_ms))
    assert times.num_rows == sum(120 for other_ms in CLOCKS if other_ms >= clock_ms)


def store_time(ms: int) -> pc.Expression:
    return pc.scalar(pa.scalar(ms * 1000, pa.timestamp("us", tz="UTC")))


def test_a_look_up_by_time_finds_the_queues_first_message_since(jumped: Path) -> None:
    store = Store(str(jumped))
    found = {
        time_ms: [message.queue_offset for message in store.query(topic="Orders", time=time_ms)]
        for time_ms in (FIRST_MS + 30_000, IN_2010 + 30_000, IN_2066 + 30_000, IN_2066 + 120_000)
    }
    assert found == {FIRST_MS + 30_000: [30], IN_2010 + 30_000: [0], IN_2066 + 30_000: [390], IN_2066 + 120_000: []}


def test_a_read_skips_segments_without_records_of_its_times(jumped: Path) -> None:
    store = open_store(str(jumped))
    query = Query(first_ms=IN_2010, end_ms=IN_2010 + 120_000)
    plan, whole = (plan_read(store, query, access_path=way) for way in (AccessPath.AUTO, AccessPath.SCAN))
    assert plan.scanned_bytes < whole.scanned_bytes / 2


def test_least_and_largest_times_are_known_and_remembered(
    jumped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(jumped))
    segments = store.segments
    times = times_of(store.storage, segments)
    assert len(times) > 3
    assert min(item.least_ms for item in times if item) == IN_2010
    assert max(item.largest_ms for item in times if item) == IN_2066 + 119_000
    assert not ascends(store.storage, segments)
    monkeypatch.setattr(store_times, "_walk", None)  # nothing is walked again
    assert times_of(store.storage, segments) == times
    assert time_ranges(store.storage, segments, 0, 1) == []


def test_a_log_of_a_sound_clock_ascends(tmp_path: Path) -> None:
    root = rising(tmp_path / "store")
    files = open_store(str(root))
    assert ascends(files.storage, files.segments)
    assert Store(str(root)).query(topic="Orders", time=FIRST_MS + 30_500)[0].queue_offset == 31
    assert len(time_ranges(files.storage, files.segments, FIRST_MS + 30_000, FIRST_MS + 31_000)) == 1


def test_a_segment_without_records_overlaps_nothing() -> None:
    assert not SegmentTimes().overlaps(0, 1 << 62)
