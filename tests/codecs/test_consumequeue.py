import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit, delay_levels_ms
from rmq_formats.codecs.layout import DEFAULT_DELAY_LEVELS, SCHEDULE_TOPIC
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import decode_record, encode_record
from rmq_formats.errors import LengthError, OptionError, TruncatedError
from tests.support.oracles.consumequeue import (
    build_consumequeue,
    dispatch_tags_code,
    goes_to_consumequeue,
    tags_code_of,
)
from tests.support.stores.record_strategies import int32, int64, plain_message

LEVELS = delay_levels_ms(DEFAULT_DELAY_LEVELS)


def test_a_unit_is_the_bytes_of_java() -> None:
    unit = Unit(0, 0x123, 2598919)
    assert unit.encode().hex() == "0000000000000000" + "00000123" + "000000000027a807"
    assert Unit(0, 1, -1826110392).encode().hex().endswith("ffffffff9327c448")


def test_the_filler_is_a_unit_that_stands_for_no_message() -> None:
    assert PRE_BLANK.hex() == "0000000000000000" + "7fffffff" + "0000000000000000"
    assert Unit.decode(PRE_BLANK).names_no_record
    assert Unit.decode(PRE_BLANK).is_written
    assert not Unit(0, 100, 0).names_no_record


def test_the_first_unit_that_is_not_written_ends_a_queue() -> None:
    assert Unit(0, 1, 0).is_written
    assert not Unit(0, 0, 0).is_written
    assert not Unit(-1, 1, 0).is_written


@given(int64, int32, int64, st.binary(max_size=30))
def test_a_unit_comes_back(physical_offset: int, size: int, tags_code: int, before: bytes) -> None:
    unit = Unit(physical_offset, size, tags_code)
    assert Unit.decode(before + unit.encode() + b"!", len(before)) == unit


@pytest.mark.parametrize("position", [-1, 1, 20, 1 << 40])
def test_a_cut_unit_is_truncated(position: int) -> None:
    with pytest.raises(TruncatedError):
        Unit.decode(PRE_BLANK, position)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LengthError):
        Unit(1 << 63, 1, 0).encode()


def test_delay_levels_are_read_as_in_java() -> None:
    assert LEVELS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert LEVELS[-1] == 7_200_000
    assert len(LEVELS) == 18
    assert delay_levels_ms("2d 0s ") == (172_800_000, 0)


@pytest.mark.parametrize(
    "text", ["", " ", "1", "s", "1x", "1S", "1s  2s", " 1s", "1s,2s", "-1s", "1.5s", "9" * 18 + "d", "١s"]
)
def test_bad_delay_levels_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        delay_levels_ms(text)


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        ("T", {}, 0),
        ("T", {"TAGS": "TagA"}, 2598919),
        ("T", {"TAGS": "TAG_😀"}, -1826110392),
        ("T", {"TAGS": "TagA", "DELAY": "3"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "3"}, 1_000_000 + 10_000),
        (SCHEDULE_TOPIC, {"DELAY": "+3"}, 1_000_000 + 10_000),
        (SCHEDULE_TOPIC, {"DELAY": "18"}, 1_000_000 + 7_200_000),
        (SCHEDULE_TOPIC, {"DELAY": "99"}, 1_000_000 + 7_200_000),
        (SCHEDULE_TOPIC, {"DELAY": "2147483647"}, 1_000_000 + 7_200_000),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "0"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "-1"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "soon"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "2147483648"}, 2598919),
    ],
)
def test_a_tags_code_is_the_hash_or_the_time_of_delivery(topic: str, properties: dict, expected: int) -> None:
    assert tags_code_of(topic, properties, 1_000_000, delay_levels_ms=LEVELS) == expected
    message = plain_message(topic, properties_bytes=encode_properties(properties))
    record = encode_record(message, queue_offset=0, physical_offset=0, store_timestamp_ms=1_000_000)
    assert dispatch_tags_code(decode_record(record), LEVELS) == expected


def test_a_time_of_delivery_wraps_as_a_long() -> None:
    code = tags_code_of(SCHEDULE_TOPIC, {"DELAY": "1"}, (1 << 63) - 1, delay_levels_ms=(1,))
    assert code == -(1 << 63)


def test_without_levels_there_is_no_delay() -> None:
    assert tags_code_of(SCHEDULE_TOPIC, {"DELAY": "1"}, 5, delay_levels_ms=()) == 0


def test_half_messages_and_rollbacks_have_no_unit() -> None:
    assert [goes_to_consumequeue(bits) for bits in (0x0, 0x4, 0x8, 0xC)] == [True, False, True, False]
    assert goes_to_consumequeue(0x7F3)
    assert not goes_to_consumequeue(0x7F7)


def units(*queue_offsets: int) -> list[tuple[int, Unit]]:
    return [(queue_offset, Unit(1000 * number + 1000, 10, number)) for number, queue_offset in enumerate(queue_offsets)]


def test_a_queue_without_units_has_no_files() -> None:
    assert build_consumequeue([], 100) == {}


def test_units_stand_at_their_queue_offsets() -> None:
    files = build_consumequeue(units(*range(7)), 100)
    assert list(files) == [0, 100]
    assert files[0] == b"".join(unit.encode() for _, unit in units(*range(7))[:5])
    assert files[100] == b"".join(unit.encode() for _, unit in units(*range(7))[5:]) + bytes(60)


def test_a_queue_that_begins_late_is_filled_up_within_its_first_file() -> None:
    files = build_consumequeue(units(12, 13), 100)
    assert list(files) == [200]
    assert files[200] == PRE_BLANK * 2 + b"".join(unit.encode() for _, unit in units(12, 13)) + bytes(20)


def test_a_gap_is_closed_unless_damage_explains_it() -> None:
    (_, first), (_, second) = units(0, 3)
    assert build_consumequeue(units(0, 3), 100) == {0: first.encode() + second.encode() + bytes(60)}
    filled = first.encode() + PRE_BLANK * 2 + second.encode() + bytes(20)
    assert build_consumequeue(units(0, 3), 100, [(1010, 1192)]) == {0: filled}
    assert build_consumequeue(units(0, 3), 100, [(1010, 1191)]) == {0: first.encode() + second.encode() + bytes(60)}


def test_a_repeated_queue_offset_is_skipped_and_zero_is_appended() -> None:
    appended = [unit.encode() for _, unit in units(1, 0, 1, 3) if unit.tags_code != 2]
    assert build_consumequeue(units(1, 0, 1, 3), 100) == {0: PRE_BLANK + b"".join(appended) + bytes(20)}


@pytest.mark.parametrize("file_bytes", [0, -20, 19, 30])
def test_a_file_holds_whole_units(file_bytes: int) -> None:
    with pytest.raises(OptionError):
        build_consumequeue(units(0), file_bytes)


def test_a_wild_first_queue_offset_is_refused_or_makes_one_file() -> None:
    with pytest.raises(LengthError):
        build_consumequeue(units(-1), 100)
    assert list(build_consumequeue(units(1 << 50), 100)) == [(1 << 50) * 20 // 100 * 100]
    assert list(build_consumequeue(units(0, 1 << 50), 100)) == [0]
