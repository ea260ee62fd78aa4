"""Stores that a broker leaves as they are have no error, whatever their log says."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.consumequeue_ext import ExtUnit, encode_ext_address
from rmq_formats.codecs.layout import UNIT_BYTES
from tests.support.stores.store_files import with_sizes, write_commitlog
from tests.support.stores.store_lives import save_checkpoint
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    FIRST_MS,
    REBUILT,
    SIZES,
    codes,
    log_path,
    message,
    only,
    patch,
    rebuild,
    verify,
)


def faults(store: Path) -> dict[str, int]:
    return {code: count for code, count in codes(verify(store)).items() if code != "index.missing"}


def told(store: Path, code: str) -> int:
    return codes(verify(store), informing=True).get(code, 0)


def test_a_topic_that_was_made_again(tmp_path: Path) -> None:
    units = write_log(tmp_path, [*range(40), *range(25)])
    write_queue(tmp_path, dict(enumerate(units[40:])))
    write_config(tmp_path, "Orders")
    assert faults(tmp_path) == {}
    found = only(verify(tmp_path), "consumequeue.former")
    assert (found.topic, found.queue_id, found.count) == ("Orders", 0, 40)


def test_a_gap_that_was_closed(tmp_path: Path) -> None:
    units = write_log(tmp_path, [*range(50), *range(52, 100), *range(98, 110)])
    write_queue(tmp_path, dict(enumerate(units)))
    assert faults(tmp_path) == {"commitlog.queue_offset.gap": 2}
    found = only(verify(tmp_path), "commitlog.queue_offset.gap")
    end_before = units[49].physical_offset + units[49].size
    assert (found.queue_offset, found.count) == (50, 2)
    assert (found.physical_offset, found.size) == (end_before, units[50].physical_offset - end_before)


def test_records_that_the_queue_passed_over(tmp_path: Path) -> None:
    units = write_log(tmp_path, [*range(40), *range(35, 50)])
    write_queue(tmp_path, dict(enumerate([*units[:35], *units[40:]])))
    assert faults(tmp_path) == {"consumequeue.passed_over": 5}


def test_a_queue_whose_first_records_have_expired_behind_a_closed_gap(tmp_path: Path) -> None:
    units = write_log(tmp_path, [*range(30), *range(33, 90)])
    write_queue(tmp_path, dict(enumerate(units)))
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    assert set(faults(tmp_path)) <= {"commitlog.queue_offset.gap"}


@pytest.mark.parametrize("wrong", [7, 33, 38])
def test_a_wrong_unit_beside_a_closed_gap_is_still_one(tmp_path: Path, wrong: int) -> None:
    units = write_log(tmp_path, [*range(30), *range(33, 45)])
    write_queue(tmp_path, dict(enumerate(units)) | {wrong: replace(units[wrong], physical_offset=5)})
    assert faults(tmp_path) == {"commitlog.queue_offset.gap": 3, "consumequeue.unit.dangling": 1}


def test_a_queue_of_zeros_ends_where_its_file_begins(tmp_path: Path) -> None:
    units = write_log(tmp_path, range(9))
    write_queue(tmp_path, dict(enumerate(units)))
    write_queue(tmp_path, {100: Unit(0, 0, 0)}, "Idle")
    write_config(tmp_path, "Orders", "Idle", offsets={"Idle@g": {"0": 100}})
    assert faults(tmp_path) == {}
    shutil.rmtree(tmp_path / "config")
    write_config(tmp_path, "Orders", "Idle", offsets={"Idle@g": {"0": 101}})
    assert faults(tmp_path) == {"config.consumer_offset": 1}


def test_a_topic_without_files_was_deleted_unless_something_tells_of_its_queue(tmp_path: Path) -> None:
    *_, unit = write_log(tmp_path, range(9), "Other")
    write_queue(tmp_path, {0: unit}, "Other")
    write_config(tmp_path, "Orders", "Other")
    assert faults(tmp_path) == {"consumequeue.absent": 9}
    shutil.rmtree(tmp_path / "config")
    write_config(tmp_path, "Orders", "Other", offsets={"Orders@g": {"0": 4}})
    assert faults(tmp_path)["consumequeue.missing"] == 9
    shutil.rmtree(tmp_path / "config")
    write_config(tmp_path, "Other")
    assert faults(tmp_path) == {}
    assert told(tmp_path, "consumequeue.topic.deleted") == 9


def test_queues_that_name_no_record_are_missing_for_a_broker_dispatches_the_whole_log(tmp_path: Path) -> None:
    write_log(tmp_path, range(9))
    (tmp_path / "consumequeue" / "Other").mkdir(parents=True)
    write_config(tmp_path, "Orders", "Other")
    assert faults(tmp_path) == {"consumequeue.missing": 9}


def test_a_former_delay_is_told_and_no_error(tmp_path: Path) -> None:
    messages = [
        message(n, topic="SCHEDULE_TOPIC_XXXX", queue_id=1, properties_bytes=b"DELAY\x012\x02") for n in range(40)
    ]
    placed = write_commitlog(tmp_path, messages, FILE_BYTES, FIRST_MS)
    units = []
    for number, physical_offset in enumerate(placed):
        path, position = log_path(tmp_path, physical_offset)
        size = int.from_bytes(path.read_bytes()[position : position + 4], "big")
        units.append(Unit(physical_offset, size, FIRST_MS + number + (8000 if number < 15 else 5000)))
    write_queue(tmp_path, dict(enumerate(units)), "SCHEDULE_TOPIC_XXXX", 1)
    assert faults(tmp_path) == {}
    found = only(verify(tmp_path), "consumequeue.former_delay")
    assert (found.count, found.queue_offset) == (15, 0)
    assert "8 s" in found.detail
    path = tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1" / f"{0:020d}"
    for number, byte in ((3, 19), (18, 18)):  # of each delay one
        data = path.read_bytes()
        patch(path, number * UNIT_BYTES + byte, bytes([data[number * UNIT_BYTES + byte] ^ 0x55]))
    assert faults(tmp_path) == {"consumequeue.unit.tags_code": 2}
    assert SIZES.delay_levels_ms is not None


def with_other_hash(units: list[Unit], begin: int, end: int, other: Callable[[int], int]) -> list[Unit]:
    changed = [replace(unit, tags_code=other(unit.tags_code)) for unit in units[begin:end]]
    return [*units[:begin], *changed, *units[end:]]


@pytest.mark.parametrize(("begin", "end"), [(0, 20), (25, 50), (40, 60), (0, 60)])
@pytest.mark.parametrize("other", [lambda code: code * 7 + 1, lambda _: 0], ids=["hash", "zero"])
def test_tags_codes_of_a_former_hash(tmp_path: Path, begin: int, end: int, other: Callable[[int], int]) -> None:
    units = with_other_hash(write_log(tmp_path, range(60)), begin, end, other)
    write_queue(tmp_path, dict(enumerate(units)))
    write_config(tmp_path, "Orders")
    assert faults(tmp_path) == {}
    found = only(verify(tmp_path), "consumequeue.former_tags")
    assert (found.queue_offset, found.count) == (begin, end - begin)


@pytest.mark.parametrize("number", [3, 30, 45])
def test_a_flipped_bit_beside_a_former_hash_is_an_error(tmp_path: Path, number: int) -> None:
    units = with_other_hash(write_log(tmp_path, range(60)), 20, 40, lambda code: code * 7 + 1)
    units[number] = replace(units[number], tags_code=units[number].tags_code ^ 1 << 9)
    write_queue(tmp_path, dict(enumerate(units)))
    write_config(tmp_path, "Orders")
    assert faults(tmp_path) == {"consumequeue.unit.tags_code": 1}
    assert told(tmp_path, "consumequeue.former_tags") == (19 if number == 30 else 20)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda number, code: code ^ 4 if 20 <= number < 40 else code, id="one_bit_everywhere"),
        pytest.param(lambda number, code: 77 if 20 <= number < 40 else code, id="one_code_of_three_tags"),
        pytest.param(lambda number, code: code * 31 + number if 20 <= number < 40 else code, id="each_another"),
        pytest.param(lambda number, code: code * 7 + 1 if number % 10 == 0 else code, id="here_and_there"),
        pytest.param(lambda number, code: code * 7 + 1 if 20 <= number < 27 else code, id="too_few"),
    ],
)
def test_codes_that_no_other_hash_makes_are_errors(tmp_path: Path, wrong: Callable[[int, int], int]) -> None:
    units = write_log(tmp_path, range(60))
    stored = [replace(unit, tags_code=wrong(number, unit.tags_code)) for number, unit in enumerate(units)]
    write_queue(tmp_path, dict(enumerate(stored)))
    write_config(tmp_path, "Orders")
    assert faults(tmp_path) == {"consumequeue.unit.tags_code": sum(map(Unit.__ne__, units, stored))}


def test_no_hash_gives_a_code_to_messages_without_tags(tmp_path: Path) -> None:
    """A repair puts placeholders without tags in the place of lost messages, whose codes their units still have."""
    units = write_log(tmp_path, range(60), properties_bytes=b"")
    write_queue(tmp_path, dict(enumerate(units)))
    write_config(tmp_path, "Orders")
    assert faults(tmp_path) == {"consumequeue.unit.tags_code": 60}


@pytest.mark.parametrize(("begin", "end"), [(20, 60), (0, 40), (15, 50)], ids=["on", "off", "on_and_off"])
def test_ext_files_that_were_switched_on_and_off(tmp_path: Path, begin: int, end: int) -> None:
    units = write_log(tmp_path, range(60))
    ext_units = [ExtUnit(units[number].tags_code, FIRST_MS + number, b"") for number in range(begin, end)]
    for number in range(begin, end):
        address = encode_ext_address((number - begin) * ext_units[0].size)
        units[number] = replace(units[number], tags_code=address)
    write_queue(tmp_path, dict(enumerate(units)))
    directory = tmp_path / "consumequeue_ext" / "Orders" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(b"".join(unit.encode() for unit in ext_units).ljust(4096, b"\0"))
    write_config(tmp_path, "Orders")
    report = verify(tmp_path, replace(SIZES, consumequeue_ext_file_bytes=4096))
    assert set(codes(report, informing=True)) == {"index.missing", "checkpoint.missing"}


def test_expired_units_behind_newer_ones_are_right_and_a_single_wrong_one_is_not(
    tmp_path: Path,
) -> None:
    units = write_log(tmp_path, range(60))
    old = [Unit(1000 + 100 * number, 100, 7) for number in range(12)]
    # 8 and 9 were written after the cut, over those that stood there; 10 after another
    placed = [*old[:4], *old[8:10], *old[4:7], old[10], old[7]]
    live = [unit for unit in units if unit.physical_offset >= FILE_BYTES]
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    first = units.index(live[0])
    filler = [Unit(2300 + number, 1, 7) for number in range(first - len(placed))]
    write_queue(tmp_path, dict(enumerate([*placed, *filler, *live])))
    assert faults(tmp_path) == {}
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    patch(path, 2 * UNIT_BYTES, (9999 << 40).to_bytes(8, "big"))
    assert faults(tmp_path) == {"consumequeue.unit.dangling": 1}


@pytest.mark.parametrize("place", [35, 57], ids=["between", "at_the_end"])
def test_expired_units_that_a_cut_left_after_live_ones_are_right(tmp_path: Path, place: int) -> None:
    offsets = [number + 3 * (number >= place) for number in range(57)]
    units = write_log(tmp_path, offsets)
    assert units[place - 3].physical_offset > FILE_BYTES
    placed = dict(zip(offsets, units, strict=True))
    placed |= {place + number: Unit(1000 + 100 * number, 100, 7) for number in range(3)}
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    write_queue(tmp_path, placed)
    write_config(tmp_path, "Orders")
    assert set(faults(tmp_path)) <= {"commitlog.queue_offset.gap"}
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{(place - 2) // 20 * 400:020d}"
    patch(path, (place - 2) % 20 * UNIT_BYTES, (900).to_bytes(8, "big"))
    assert faults(tmp_path)["consumequeue.unit.dangling"] == 1


def test_expired_units_between_live_ones_are_right_though_they_are_as_many(tmp_path: Path) -> None:
    offsets = [number + 20 * (number >= 40) for number in range(50)]
    units = write_log(tmp_path, offsets)
    first = next(number for number, unit in enumerate(units) if unit.physical_offset >= FILE_BYTES)
    assert 40 - first < 20
    placed = {place: unit for place, unit in zip(offsets, units, strict=True) if place >= first}
    placed |= {place: Unit(50 * place, 50, 7) for place in [*range(1, first), *range(40, 60)]}
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    write_queue(tmp_path, placed)
    write_config(tmp_path, "Orders")
    assert set(faults(tmp_path)) <= {"commitlog.queue_offset.gap"}


def test_units_after_the_end_of_a_log_that_was_cut_are_left_from_a_recovery(tmp_path: Path) -> None:
    units = write_log(tmp_path, range(30))
    end = units[-1].physical_offset + units[-1].size
    leftover_units = [Unit(end + 40 + 90 * number, 90, 7) for number in range(3)]
    write_queue(tmp_path, dict(enumerate([*units, *leftover_units])))
    write_config(tmp_path, "Orders")
    for flushed_ms in (FIRST_MS, 0):  # a broker that ran for a moment flushed the log by no thread that notes it
        save_checkpoint(tmp_path, FIRST_MS, flushed_ms=flushed_ms)
        assert faults(tmp_path) == {}
        assert only(verify(tmp_path), "consumequeue.unit.cut").count == 3
    (tmp_path / "abort").write_text("1")  # a crash may have lost the log's last pages
    assert faults(tmp_path)["consumequeue.unit.beyond"] == 3
    (tmp_path / "abort").unlink()
    for flushed_ms in (FIRST_MS + 1_000_000, 0):  # the last record that was flushed or dispatched is not in the log
        save_checkpoint(tmp_path, FIRST_MS + 1_000_000, flushed_ms=flushed_ms)
        assert faults(tmp_path)["consumequeue.unit.beyond"] == 3


def test_an_ext_unit_is_that_of_the_live_unit_where_an_expired_one_names_it_too(tmp_path: Path) -> None:
    units = write_log(tmp_path, range(60))
    ext_units = [ExtUnit(unit.tags_code, FIRST_MS + number, b"") for number, unit in enumerate(units)]
    expired = [number for number, unit in enumerate(units) if unit.physical_offset < FILE_BYTES]
    for number in range(60):
        named = number + 30 if number in expired[:5] else number
        units[number] = replace(units[number], tags_code=encode_ext_address(named * ext_units[0].size))
    assert len(expired) < 30
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    write_queue(tmp_path, dict(enumerate(units)))
    directory = tmp_path / "consumequeue_ext" / "Orders" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(b"".join(unit.encode() for unit in ext_units).ljust(4096, b"\0"))
    write_config(tmp_path, "Orders")
    sizes = replace(SIZES, consumequeue_ext_file_bytes=4096)
    assert set(codes(verify(tmp_path, sizes))) == {"index.missing"}
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{800:020d}"
    patch(path, 12, encode_ext_address(41 * ext_units[0].size).to_bytes(8, "big", signed=True))
    assert codes(verify(tmp_path, sizes))["consumequeue_ext.address"] == 1


def test_ext_units_that_a_broker_gave_again_after_a_cut_are_a_warning(tmp_path: Path) -> None:
    """What a cut in memory left at 35 to 37 was the queue's end at the next start, which cut its ext files there."""
    offsets = [number + 3 * (number >= 35) for number in range(57)]
    units = write_log(tmp_path, offsets)
    first = next(number for number, unit in enumerate(units) if unit.physical_offset >= FILE_BYTES)
    assert 23 < first < 33
    owners = [*range(23), *range(35, 57)]
    ext_units = [ExtUnit(units[number].tags_code, FIRST_MS + number, b"") for number in owners]
    placed = dict(zip(offsets, units, strict=True))
    placed |= {35 + number: Unit(1000 + 100 * number, 100, 7) for number in range(3)}
    for place in placed:
        address = encode_ext_address((place if place < 35 else place - 15) * ext_units[0].size)
        placed[place] = replace(placed[place], tags_code=address)
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    write_queue(tmp_path, placed)
    directory = tmp_path / "consumequeue_ext" / "Orders" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(b"".join(unit.encode() for unit in ext_units).ljust(4096, b"\0"))
    write_config(tmp_path, "Orders")
    sizes = replace(SIZES, consumequeue_ext_file_bytes=4096)
    finding_codes = codes(verify(tmp_path, sizes))
    assert finding_codes.pop("consumequeue_ext.reused") == 35 - first
    assert set(finding_codes) <= {"index.missing", "commitlog.queue_offset.gap"}
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{800:020d}"
    patch(path, 12, encode_ext_address(26 * ext_units[0].size).to_bytes(8, "big", signed=True))
    assert codes(verify(tmp_path, sizes))["consumequeue_ext.address"] == 1
    rebuild(tmp_path, replace(with_sizes(REBUILT, consumequeue_ext_file_bytes=4096), index=False))
    assert set(codes(verify(tmp_path, sizes))) <= {"index.missing", "commitlog.queue_offset.gap"}
