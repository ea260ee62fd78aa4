from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.layout import MAX_FRAME_BYTES
from rmq_formats.codecs.record_frame import Damage, DamageCode
from tests.support.oracles.commitlog_walk import Blank, Frame, walk
from tests.support.stores.record_strategies import encode_segment, messages, plain_message

FILE_OFFSET = 5 << 30
BODIES = [b"first", b"second record", b"", b"the fourth", b"five"]
SEGMENT, PLACES = encode_segment(
    [plain_message(body=body) for body in BODIES], FILE_OFFSET, spare_bytes=100, blank=True
)
CRC_SEGMENT, CRC_PLACES = encode_segment(
    [plain_message(body=body) for body in BODIES], FILE_OFFSET, spare_bytes=100, blank=False, crc=True
)
USED = PLACES[-1][0] + PLACES[-1][1]


def summary(data: bytes, **options: object) -> list[tuple[str, int, int, int]]:
    """What a walk yields: kind, position, size and damage code."""
    found = []
    for item in walk(data, FILE_OFFSET, **options):  # type: ignore[arg-type]
        code = item.code if isinstance(item, Damage) else 0
        found.append((type(item).__name__, item.physical_offset - FILE_OFFSET, item.size, code))
    return found


def frames(places: list[tuple[int, int]]) -> list[tuple[str, int, int, int]]:
    return [("Frame", position, size, 0) for position, size in places]


def put(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


BLANK_ITEM = ("Blank", USED, len(SEGMENT) - USED, 0)


def test_a_walk_yields_each_frame_and_the_blank() -> None:
    items = list(walk(SEGMENT, FILE_OFFSET))
    assert summary(SEGMENT) == [*frames(PLACES), BLANK_ITEM]
    assert isinstance(items[-1], Blank)
    assert [item.decode().body for item in items if isinstance(item, Frame)] == BODIES
    assert all(item.physical_offset == FILE_OFFSET + item.position for item in items if isinstance(item, Frame))


def test_zeros_behind_the_last_frame_are_the_end_of_the_data() -> None:
    assert summary(CRC_SEGMENT) == frames(CRC_PLACES)
    assert summary(SEGMENT[:USED]) == frames(PLACES)
    for zeros in range(1, 20):
        assert summary(SEGMENT[:USED] + bytes(zeros)) == frames(PLACES)


@pytest.mark.parametrize("data", [b"", bytes(1), bytes(7), bytes(8), bytes(5000)])
def test_an_empty_segment_has_nothing(data: bytes) -> None:
    assert summary(data) == summary(data, start=3) == summary(data, limit=0) == []


def test_garbage_alone_is_one_damage_up_to_its_last_byte() -> None:
    assert summary(b"\x01garbage" + bytes(100)) == [("Damage", 0, 8, DamageCode.MAGIC)]
    assert summary(b"\x01bad") == [("Damage", 0, 4, DamageCode.TRUNCATED)]
    assert summary(b"\0\0\x01\0") == [("Damage", 0, 3, DamageCode.TRUNCATED)]


SECOND, SECOND_SIZE = PLACES[1]
BODY_AT, TOPIC_AT, PROPERTIES_AT = SECOND + 88, SECOND + 88 + 13, SECOND + 88 + 13 + 1 + 9


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (SECOND + 4, "00000000", DamageCode.MAGIC),
        (SECOND + 4, "cbd43194", DamageCode.SIZE),
        (SECOND, "00000000", DamageCode.SIZE),
        (SECOND, "80000000", DamageCode.SIZE),
        (SECOND, "0000005a", DamageCode.SIZE),
        (SECOND, "7fffffff", DamageCode.SIZE),
        (SECOND + 28, "ff", DamageCode.PHYSICAL_OFFSET),
        (SECOND + 36, "00000010", DamageCode.BODY_LENGTH),  # a host that is said to be longer
        (BODY_AT - 4, "ffffffff", DamageCode.BODY_LENGTH),
        (BODY_AT - 4, "00000100", DamageCode.BODY_LENGTH),
        (TOPIC_AT, "80", DamageCode.TOPIC_LENGTH),
        (TOPIC_AT, "7f", DamageCode.TOPIC_LENGTH),
        (PROPERTIES_AT, "8000", DamageCode.PROPERTIES_LENGTH),
        (PROPERTIES_AT, "0001", DamageCode.PROPERTIES_LENGTH),
        (BODY_AT - 4, "0000000c", DamageCode.TOPIC_LENGTH),
        (TOPIC_AT, "01", DamageCode.PROPERTIES_LENGTH),
        (SECOND, f"{SECOND_SIZE + 1:08x}", DamageCode.TOTAL),
        (SECOND + 8, "00000001", DamageCode.BODY_CRC),
        (BODY_AT, "00", DamageCode.BODY_CRC),
    ],
)
def test_damage_in_a_frame_is_reported_alone_with_what_failed(at: int, value: str, code: DamageCode) -> None:
    damaged = put(SEGMENT, at, bytes.fromhex(value))
    expected = [*frames(PLACES), BLANK_ITEM]
    expected[1] = ("Damage", SECOND, SECOND_SIZE, code)
    assert summary(damaged) == expected


def test_a_frame_larger_than_any_record_is_damage_even_where_it_fits() -> None:
    # No buffer of 256 MiB for this: the rule reads the field only, and the end of the file comes first.
    assert summary(put(SEGMENT, 0, (MAX_FRAME_BYTES + 1).to_bytes(4, "big")))[0][3] == DamageCode.SIZE


def test_an_empty_body_has_a_crc_of_zero() -> None:
    position, size = PLACES[2]
    damaged = put(SEGMENT, position + 8, b"\0\0\0\1")
    assert ("Damage", position, size, DamageCode.BODY_CRC) in summary(damaged)


def test_a_record_crc_that_does_not_match_is_damage_of_that_frame() -> None:
    position, size = CRC_PLACES[3]
    damaged = put(CRC_SEGMENT, position + 12, b"\x7f")  # the queue id, which the body's CRC does not cover
    expected = frames(CRC_PLACES)
    expected[3] = ("Damage", position, size, DamageCode.PROPERTIES_CRC)
    assert summary(damaged) == expected
    assert summary(damaged, verify_crc=False) == frames(CRC_PLACES)


def test_checksums_are_not_looked_at_if_not_asked() -> None:
    damaged = put(SEGMENT, BODY_AT, b"\0")
    items = list(walk(damaged, FILE_OFFSET, verify_crc=False))
    assert len(items) == len(BODIES) + 1
    assert isinstance(items[1], Frame)
    assert items[1].decode().body == b"\0econd record"


def test_damage_behind_the_last_frame_ends_with_its_last_byte() -> None:
    data = SEGMENT[:USED] + b"torn\0write\0" + bytes(200)
    assert summary(data) == [*frames(PLACES), ("Damage", USED, 10, DamageCode.MAGIC)]


@pytest.mark.parametrize(
    ("kept", "reported", "code"),
    [
        (4, 4, DamageCode.MAGIC),
        (28, 28, DamageCode.PHYSICAL_OFFSET),
        (40, 36, DamageCode.TOTAL),  # the sys_flag at its end is zero
        (88, 88, DamageCode.TOTAL),
    ],
)
def test_a_torn_last_frame_is_damage_up_to_its_last_byte(kept: int, reported: int, code: DamageCode) -> None:
    position, _ = PLACES[-1]
    data = SEGMENT[: position + kept].ljust(len(SEGMENT), b"\0")
    assert summary(data) == [*frames(PLACES[:-1]), ("Damage", position, reported, code)]


def test_a_blank_whose_size_is_not_what_is_left_is_damage() -> None:
    data = put(SEGMENT, USED, (len(SEGMENT) - USED - 1).to_bytes(4, "big"))
    assert summary(data) == [*frames(PLACES), ("Damage", USED, 8, DamageCode.SIZE)]


def test_damage_before_the_blank_ends_at_it() -> None:
    position, size = PLACES[-1]
    data = put(SEGMENT, position, bytes(size))
    assert summary(data) == [*frames(PLACES[:-1]), ("Damage", position, size, DamageCode.MAGIC), BLANK_ITEM]


def test_damage_at_the_beginning_is_reported_from_the_start_only() -> None:
    data = put(SEGMENT, 4, b"\0\0\0\0")
    assert summary(data)[0] == ("Damage", 0, PLACES[0][1], DamageCode.MAGIC)
    assert summary(data, start=1) == [*frames(PLACES[1:]), BLANK_ITEM]


def test_a_walk_from_the_middle_begins_at_the_next_frame() -> None:
    for start in range(1, len(SEGMENT) + 10):
        expected = [item for item in [*frames(PLACES), BLANK_ITEM] if item[1] >= start]
        assert summary(SEGMENT, start=start) == expected


def test_a_walk_owns_what_begins_before_its_limit() -> None:
    for limit in range(len(SEGMENT) + 10):
        expected = [item for item in [*frames(PLACES), BLANK_ITEM] if item[1] < limit]
        assert summary(SEGMENT, limit=limit) == expected


def test_a_walk_reports_damage_past_its_limit_whole() -> None:
    data = put(put(SEGMENT, PLACES[2][0] + 4, b"\0"), PLACES[3][0] + 4, b"\0")
    damage = ("Damage", PLACES[2][0], PLACES[2][1] + PLACES[3][1], DamageCode.MAGIC)
    for limit in range(PLACES[1][0] + 1, PLACES[4][0]):
        assert summary(data, limit=limit) == [*frames(PLACES[:2]), damage]
        assert summary(data, start=limit)[:1] == frames(PLACES[1:2] if limit <= PLACES[1][0] else PLACES[4:])


def test_a_record_inside_a_body_is_not_a_frame_of_the_walk() -> None:
    inner, _ = encode_segment([plain_message(body=b"inner")], FILE_OFFSET + 88, 0, blank=False)
    data, places = encode_segment([plain_message(body=inner), plain_message()], FILE_OFFSET, 50, blank=False)
    assert summary(data) == frames(places)


@pytest.mark.parametrize("segment", [SEGMENT, CRC_SEGMENT], ids=["plain", "with CRC"])
def test_a_flipped_byte_anywhere_costs_at_most_one_frame(segment: bytes) -> None:
    places = PLACES if segment is SEGMENT else CRC_PLACES
    for at in range(places[-1][0] + places[-1][1]):
        for flip in (0x01, 0x80, 0xFF):
            data = put(segment, at, bytes([segment[at] ^ flip]))
            kept = [frame for frame in frames(places) if not frame[1] <= at < frame[1] + frame[2]]
            found = summary(data)
            assert [frame for frame in found if frame in kept] == kept
            assert_ordered(found, len(data))


def test_a_segment_cut_at_any_byte_keeps_the_frames_before() -> None:
    for size in range(len(SEGMENT)):
        kept = [frame for frame in frames(PLACES) if frame[1] + frame[2] <= size]
        found = summary(SEGMENT[:size])
        assert found[: len(kept)] == kept
        assert_ordered(found, size)


def assert_ordered(found: list[tuple[str, int, int, int]], file_bytes: int) -> None:
    """Stretches ascend, do not overlap, and stay in the file."""
    assert all(size > 0 and position + size <= file_bytes for _, position, size, _ in found)
    assert all(before[1] + before[2] <= after[1] for before, after in pairwise(found))
    assert all(
        not 0 < before[3] < DamageCode.BODY_CRC or not 0 < after[3] < DamageCode.BODY_CRC
        for before, after in pairwise(found)
    ), "two stretches that should be one"


Damaging = tuple[str, int, bytes]
damagings = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "garbage", "insert", "delete"]),
        st.integers(0, 1500),
        st.binary(min_size=1, max_size=60),
    ),
    min_size=1,
    max_size=4,
)


def damage(data: bytes, damagings: list[Damaging]) -> tuple[bytes, list[tuple[int, int]]]:
    """The damaged file, of the same size, and the ranges that are not what they were."""
    touched = []
    for kind, anywhere, values in damagings:
        at = anywhere % len(data)
        end = min(at + len(values), len(data))
        if kind == "flip":
            data, end = put(data, at, bytes([data[at] ^ values[0]])), at + 1
        elif kind == "zero":
            data = put(data, at, bytes(end - at))
        elif kind == "garbage":
            data = put(data, at, values[: end - at])
        else:  # all that follows has moved away from where it says that it is
            moved = data[:at] + values + data[at:] if kind == "insert" else data[:at] + data[end:] + values
            data, end = moved[: len(data)], len(data)
        touched.append((at, end))
    return data, touched


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, min_size=1, max_size=6), damagings, st.booleans(), st.booleans(), st.data())
@pytest.mark.long
def test_any_damage_leaves_the_frames_outside_of_it(
    stored: list, damagings: list[Damaging], blank: bool, crc: bool, data: st.DataObject
) -> None:
    segment, places = encode_segment(stored, FILE_OFFSET, 64, blank=blank, crc=crc)
    damaged, touched = damage(segment, damagings)
    found = summary(damaged)
    assert_ordered(found, len(damaged))
    for position, size in places:
        if all(end <= position or position + size <= at for at, end in touched):
            assert ("Frame", position, size, 0) in found

    cuts = sorted(data.draw(st.lists(st.integers(0, len(damaged) + 5), max_size=3)))
    bounds = [0, *cuts, None]
    parts = [summary(damaged, start=start, limit=limit) for start, limit in pairwise(bounds) if start != limit]
    assert [item for part in parts for item in part] == found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 500), st.integers(0, 500))
def test_a_walk_over_garbage_ends(data: bytes, start: int, limit: int) -> None:
    assert_ordered(summary(data, start=start, limit=limit), len(data))
