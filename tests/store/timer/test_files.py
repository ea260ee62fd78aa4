"""The codecs, and the files on a disk that fails."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.store.files.disk import Disk
from rmq_core.store.timer.log import TimerLog
from rmq_core.store.timer.recovery import open_timers
from rmq_core.store.timer.store import TimerConfig
from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.timer import (
    BLANK,
    TIMER_UNIT_BYTES,
    WHEEL_SLOTS,
    TimerCheckpoint,
    TimerSlot,
    TimerUnit,
    decode_done_offset,
    encode_done_offset,
)
from rmq_formats.errors import FormatError, StoreSizeError
from tests.store.power_loss import LossyDisk
from tests.store.small_stores import NOW_MS, FullDisk, config_of, opened, put

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "timer.md").read_text()
FILE_BYTES = 3 * TIMER_UNIT_BYTES + BLANK.size
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.builds(
    TimerUnit,
    previous=INT64,
    flags=st.integers(1, 15),
    write_time_ms=INT64,
    delay_ms=INT32,
    physical_offset=INT64,
    size=INT32,
    topic_hash=INT32,
)
FIRST = TimerUnit(-1, 1, 1795230324000, 2000, 1512481, 371, java_string_hash("Timed"))


def dump(name: str) -> bytes:
    """The bytes of a block of the format's page."""
    block = re.search(rf"```text {name}\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return bytes.fromhex(block[1])


def test_the_page_shows_what_the_codec_writes() -> None:
    assert TimerUnit.decode(dump("unit")) == FIRST
    assert FIRST.encode() == dump("unit")
    slot = TimerSlot(FIRST.due_ms // 1000, 0, TIMER_UNIT_BYTES, 2)
    assert TimerSlot.decode(dump("slot")) == slot
    assert slot.encode() == dump("slot")


@given(UNITS)
def test_a_unit_comes_back(unit: TimerUnit) -> None:
    assert TimerUnit.decode(b"x" + unit.encode(), 1) == unit


@given(st.builds(TimerCheckpoint, *[INT64] * 7), st.integers(0, 1 << 62))
def test_a_checkpoint_comes_back(checkpoint: TimerCheckpoint, done_offset: int) -> None:
    data = checkpoint.encode_file()
    assert decode_done_offset(data) is None
    noted = encode_done_offset(data, done_offset)
    assert (TimerCheckpoint.decode(noted), decode_done_offset(noted), len(noted)) == (checkpoint, done_offset, 4096)


def test_a_note_of_before_the_original_wrote_means_nothing() -> None:
    noted = encode_done_offset(TimerCheckpoint(1000, 52, 1, 1).encode_file(), 99)
    assert decode_done_offset(TimerCheckpoint(2000, 52, 1, 1).encode() + noted[56:]) is None


@pytest.mark.parametrize("size", range(TIMER_UNIT_BYTES))
def test_a_unit_that_is_cut_is_told(size: int) -> None:
    with pytest.raises(FormatError):
        TimerUnit.decode(FIRST.encode()[:size])


@given(st.binary(min_size=0, max_size=80))
def test_any_bytes_are_a_unit_or_an_error(data: bytes) -> None:
    try:
        unit = TimerUnit.decode(data)
    except FormatError:
        return
    assert unit.encode()[:44] == data[:44]


def appended(log: TimerLog, count: int) -> list[int]:
    positions = [log.append(TimerUnit(-1, 1, 1000, number, number, 100, 0)) for number in range(count)]
    log.write()
    return positions


def test_a_log_goes_on_in_files_and_is_found_again(tmp_path: Path) -> None:
    log = TimerLog(str(tmp_path / "timerlog"), FILE_BYTES, Disk())
    positions = appended(log, 10)
    assert positions == [number // 3 * FILE_BYTES + number % 3 * TIMER_UNIT_BYTES for number in range(10)]
    log.close()
    again = TimerLog(str(tmp_path / "timerlog"), FILE_BYTES, Disk())
    assert again.sound_end(0) == positions[-1] + TIMER_UNIT_BYTES
    assert list(again.positions(0, again.sound_end(0))) == positions
    assert [again.read(position).delay_ms for position in reversed(positions)] == list(range(9, -1, -1))  # type: ignore[union-attr]
    again.truncate(positions[4])
    assert again.sound_end(0) == positions[4]
    assert again.append(FIRST) == positions[4]
    again.close()
    assert sorted(path.stat().st_size for path in (tmp_path / "timerlog").iterdir()) == [FILE_BYTES] * 2


def test_files_whose_messages_are_gone_go(tmp_path: Path) -> None:
    log = TimerLog(str(tmp_path / "timerlog"), FILE_BYTES, Disk())
    positions = appended(log, 8)
    assert log.remove_before(3) == 1
    assert log.remove_before(100) == 1
    assert (log.begin, log.read(positions[0])) == (2 * FILE_BYTES, None)
    log.close()


def test_a_file_of_another_size_is_told(tmp_path: Path) -> None:
    log = TimerLog(str(tmp_path / "timerlog"), FILE_BYTES, Disk())
    appended(log, 1)
    log.close()
    with pytest.raises(StoreSizeError, match="mappedFileSizeTimerLog"):
        TimerLog(str(tmp_path / "timerlog"), 2 * FILE_BYTES, Disk())


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    log = TimerLog(str(tmp_path / "timerlog"), FILE_BYTES, disk)
    appended(log, 2)
    disk.is_full = True
    third = log.append(FIRST)
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            log.write()
        with pytest.raises(OSError, match="space"):
            log.append(FIRST)
    assert (log.is_written, log.read(third)) == (False, FIRST)
    disk.is_full = False
    fourth = log.append(FIRST)
    log.write()
    assert (third, fourth) == (2 * TIMER_UNIT_BYTES, FILE_BYTES)
    assert log.sound_end(0) == fourth + TIMER_UNIT_BYTES
    log.close()


def test_a_wheel_finds_what_is_due_whatever_the_distance() -> None:
    wheel = TimerWheel(1000)
    times = [5000, 9000, 400_000_000, WHEEL_SLOTS * 1000 - 1000, WHEEL_SLOTS * 1000 + 3000]
    for position, time_ms in enumerate(times):
        wheel.add(time_ms, position, 1)
    for end_ms in (WHEEL_SLOTS * 1000 + 4000, WHEEL_SLOTS * 3000):
        found, at = [], 0
        while (at := wheel.next_time_ms(at, end_ms) or 0) > 0:
            found.append(at)
            at += 1000
        assert found == times
    assert wheel.next_time_ms(6000, 9000) is None
    assert wheel.count_from(9000) == 4
    wheel.clear(9000, 7)
    assert wheel.count(9000) == 1
    wheel.clear(9000, 1)
    assert wheel.slot(9000) is None


@pytest.mark.parametrize("restarts", [False, True])
def test_units_that_a_failed_flush_left_in_memory_alone_are_written_again(tmp_path: Path, restarts: bool) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = LossyDisk(root)
    store = opened(config_of(root), disk=disk)
    message = put(store)
    assert store.flush()
    config = TimerConfig(root=str(root), file_bytes=FILE_BYTES)

    def run(write: Callable[[], None]) -> None:
        with suppress(OSError):
            write()

    timers = open_timers(config, store, NOW_MS)
    timers.add(NOW_MS + 5000, message.physical_offset, message.size, 1, NOW_MS, recalls=False)
    for disk.is_broken in (True, False):
        timers.queue_offset = 1
        timers.record_progress(store.max_physical_offset, 0)
        timers.save(NOW_MS, store.flushed_offset, run)
        if restarts and disk.is_broken:
            timers.close()
            timers = open_timers(config, store, NOW_MS)
    timers.close()
    disk.picture(tmp_path / "left", random.Random(1), lose=1.0)
    store.shutdown()
    disk.close_kept()
    left = TimerLog(str(tmp_path / "left" / "timerlog"), FILE_BYTES, Disk())
    unit = left.read(0)
    assert unit is not None
    assert (unit.physical_offset, unit.due_ms) == (message.physical_offset, NOW_MS + 5000)
    left.close()


@pytest.mark.parametrize("cut", range(TIMER_UNIT_BYTES))
def test_a_unit_that_was_written_in_part_is_not_taken_for_one(tmp_path: Path, cut: int) -> None:
    """A full disk may take the first bytes of a unit; what it lacks of offset and size would name other messages."""
    store = opened(config_of(tmp_path))
    put(store)
    first, second = put(store), put(store, body=bytes(400))
    config = TimerConfig(root=str(tmp_path), file_bytes=FILE_BYTES)
    timers = open_timers(config, store, NOW_MS)
    for message in (first, second):
        timers.add(NOW_MS + 5000, message.physical_offset, message.size, 0, NOW_MS, recalls=False)
    timers.log.write()
    timers.close()
    with Path(config.log_path, f"{0:020d}").open("r+b") as file:
        whole = file.read(2 * TIMER_UNIT_BYTES)
        file.seek(TIMER_UNIT_BYTES + cut)
        file.write(bytes(TIMER_UNIT_BYTES - cut))
        file.seek(0)
        is_cut = file.read(2 * TIMER_UNIT_BYTES) != whole
    again = open_timers(config, store, NOW_MS)
    assert again.log.end == TIMER_UNIT_BYTES * (1 if is_cut else 2)
    assert again.enqueued_offsets == {first.physical_offset} | (set() if is_cut else {second.physical_offset})
    assert again.wheel.count(NOW_MS + 5000) == (1 if is_cut else 2)
    again.close()
    assert store.shutdown()


def test_a_slot_that_names_the_place_of_another_s_unit_gives_nothing(tmp_path: Path) -> None:
    """A wheel that was forced, and the log that it names was lost: others stand there now, after a kill still."""
    store = opened(config_of(tmp_path))
    message = put(store)
    config = TimerConfig(root=str(tmp_path), file_bytes=FILE_BYTES)
    timers = open_timers(config, store, NOW_MS)
    timers.add(NOW_MS + 5000, message.physical_offset, message.size, 1, NOW_MS, recalls=False)
    timers.wheel.add(NOW_MS + 2000, 0, 1)
    assert list(timers.units(NOW_MS + 2000)) == []
    (unit,) = timers.units(NOW_MS + 5000)
    assert (unit.physical_offset, unit.due_ms) == (message.physical_offset, NOW_MS + 5000)
    timers.close()
    assert store.shutdown()
