import random
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.index import ALL_TAGS, IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage, decode_record, encode_record
from rmq_formats.errors import LengthError, OptionError, TruncatedError
from tests.support.oracles.index import build_index, find_key, index_keys
from tests.support.stores.record_strategies import int32, int64, plain_message

START_MS = 1_700_000_000_000


@given(int64, int64, int64, int64, int32, st.integers(1, (1 << 31) - 1))
def test_a_header_comes_back(
    begin_ms: int, end_ms: int, begin_offset: int, end_offset: int, slots: int, count: int
) -> None:
    header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, slots, count)
    assert len(header.encode()) == 40
    assert IndexHeader.decode(header.encode() + b"more") == header


@pytest.mark.parametrize("count", [0, -1, -(1 << 31)])
def test_an_index_count_below_one_is_read_as_one(count: int) -> None:
    assert IndexHeader.decode(IndexHeader(index_count=count).encode()).index_count == 1


@given(int32, int64, int32, int32, st.binary(max_size=9))
def test_an_entry_comes_back(key_hash: int, offset: int, seconds: int, previous: int, before: bytes) -> None:
    entry = IndexEntry(key_hash, offset, seconds, previous)
    assert IndexEntry.decode(before + entry.encode() + b"!", len(before)) == entry


def test_cut_headers_and_entries_are_truncated() -> None:
    for size in range(40):
        with pytest.raises(TruncatedError):
            IndexHeader.decode(bytes(size))
    for size in range(20):
        with pytest.raises(TruncatedError):
            IndexEntry.decode(bytes(size))
    with pytest.raises(TruncatedError):
        IndexEntry.decode(bytes(40), -1)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LengthError):
        IndexHeader(begin_timestamp_ms=1 << 63).encode()
    with pytest.raises(LengthError):
        IndexEntry(1 << 31, 0, 0, 0).encode()


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "expected"),
    [(0, 99, False), (0, 100, True), (150, 160, True), (200, 300, True), (201, 300, False), (0, 300, True)],
)
def test_a_file_is_asked_if_its_times_overlap(begin_ms: int, end_ms: int, expected: bool) -> None:
    assert IndexHeader(100, 200).overlaps(begin_ms, end_ms) is expected


def test_a_file_written_while_the_clock_went_back_is_asked_as_in_java() -> None:
    assert IndexHeader(100, 90).overlaps(95, 96)
    assert not IndexHeader(100, 90).overlaps(80, 85)


def stored(sys_flag: int = 0, **properties: str) -> StoredMessage:
    message = plain_message(sys_flag=sys_flag, properties_bytes=encode_properties(properties))
    return decode_record(encode_record(message, queue_offset=0, physical_offset=0, store_timestamp_ms=0))


def test_the_uniq_key_comes_before_the_keys() -> None:
    assert index_keys(stored(KEYS="b a  b", UNIQ_KEY="u")) == ["u", "b", "a", "b"]
    assert index_keys(stored(KEYS="k")) == index_keys(stored(KEYS="k", TAGS="T")) == ["k"]
    assert index_keys(stored(KEYS="k", TAGS="a || b"), ALL_TAGS) == ["k", "T#a || b"]
    assert index_keys(stored(KEYS="k", TAGS=""), ALL_TAGS) == ["k"]
    assert index_keys(stored(UNIQ_KEY="u")) == ["u"]
    assert index_keys(stored()) == index_keys(stored(KEYS="  ")) == []


def test_only_rollbacks_are_not_indexed() -> None:
    assert [index_keys(stored(bits, KEYS="k")) for bits in (0x0, 0x4, 0x8, 0xC, 0xF)] == [
        ["k"],
        ["k"],
        ["k"],
        [],
        [],
    ]


def entry(image: bytes, number: int, slots: int = 5) -> IndexEntry:
    return IndexEntry.decode(image, entry_position(number, slots))


def test_entries_begin_at_number_one_and_chain_to_the_older_one() -> None:
    (image,) = build_index([(7, 100, START_MS), (12, 200, START_MS + 1999), (8, 200, START_MS + 2000)], 5, 10)
    assert len(image) == index_file_bytes(5, 10) == 40 + 20 + 200
    assert IndexHeader.decode(image) == IndexHeader(START_MS, START_MS + 2000, 100, 200, 2, 4)
    assert entry(image, 0) == IndexEntry(0, 0, 0, 0)
    assert entry(image, 1) == IndexEntry(7, 100, 0, 0)
    assert entry(image, 2) == IndexEntry(12, 200, 1, 1)
    assert entry(image, 3) == IndexEntry(8, 200, 2, 0)
    assert [int.from_bytes(image[40 + 4 * slot : 44 + 4 * slot], "big") for slot in range(5)] == [
        0,
        0,
        2,
        3,
        0,
    ]


def test_a_full_file_rolls_and_the_next_counts_seconds_from_its_end() -> None:
    first, second = build_index(
        [(1, 10, START_MS), (2, 20, START_MS + 5000), (3, 30, START_MS + 9000), (4, 40, START_MS + 9000)],
        5,
        3,
    )
    assert IndexHeader.decode(first) == IndexHeader(START_MS, START_MS + 5000, 10, 20, 2, 3)
    assert IndexHeader.decode(second) == IndexHeader(START_MS + 9000, START_MS + 9000, 30, 40, 2, 3)
    assert (entry(second, 1).seconds, entry(second, 2).seconds) == (4, 0)


def test_a_full_file_is_followed_by_another_only_if_a_message_comes() -> None:
    keys = [(1, 10, START_MS), (2, 20, START_MS)]
    assert len(build_index(keys, 5, 3)) == 1
    assert build_index([], 5, 3) == []
    *_, last = build_index([*keys, (None, 30, START_MS + 1)], 5, 3)
    assert IndexHeader.decode(last) == IndexHeader(START_MS, START_MS, 20, 20, 0, 1)
    assert last[40:] == bytes(len(last) - 40)
    assert len(build_index([*keys, (None, 30, START_MS), (3, 40, START_MS)], 5, 3)) == 2


def test_messages_without_keys_make_an_empty_file_as_in_java() -> None:
    assert build_index([(None, 0, START_MS)], 5, 3) == [IndexHeader().encode() + bytes(5 * 4 + 3 * 20)]


def test_seconds_are_clamped() -> None:
    (image,) = build_index([(1, 0, 5000), (2, 1, 1000), (3, 2, 1 << 62), (4, 3, 5999)], 5, 10)
    assert [entry(image, number).seconds for number in range(1, 5)] == [0, 0, (1 << 31) - 1, 0]
    (image,) = build_index([(1, 0, 0), (2, 1, 1 << 50)], 5, 10)
    assert entry(image, 2).seconds == 0  # a begin of 0 counts as none


@pytest.mark.parametrize(("slots", "entries"), [(0, 10), (5, 1), (5, 0), (-1, -1)])
def test_a_file_without_room_is_refused(slots: int, entries: int) -> None:
    with pytest.raises(OptionError):
        build_index([], slots, entries)


keys = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3000)), max_size=40)


@settings(deadline=None)
@given(keys, st.integers(1, 7), st.integers(2, 12))
def test_each_key_is_found_newest_first(values: list[tuple[int, int]], slots: int, entries: int) -> None:
    put, now_ms = [], START_MS
    for number, (key_hash, later_ms) in enumerate(values):
        now_ms += later_ms
        put.append((key_hash, number, now_ms))
    images = build_index(put, slots, entries)
    assert len(images) == -(-len(put) // (entries - 1))
    for key_hash in range(13):
        found = [offset for image in reversed(images) for offset in find_key(image, slots, entries, key_hash)]
        assert found == [offset for one, offset, _ in reversed(put) if one == key_hash]


def test_a_search_ends_at_its_count_and_at_its_times() -> None:
    (image,) = build_index([(1, number, START_MS + 10_000 * number) for number in range(9)], 5, 10)
    assert find_key(image, 5, 10, 1, max_count=3) == [8, 7, 6]
    assert find_key(image, 5, 10, 1, max_count=0) == []
    assert find_key(image, 5, 10, 1, begin_ms=START_MS + 20_000, end_ms=START_MS + 40_000) == [4, 3, 2]
    assert find_key(image, 5, 10, 6) == []


@pytest.mark.parametrize(("slots", "entries"), [(5, 11), (4, 10), (0, 13), (5, 0), (10, 10)])
def test_a_search_in_a_file_of_another_size_is_refused(slots: int, entries: int) -> None:
    (image,) = build_index([(1, 1, START_MS)], 5, 10)
    with pytest.raises(LengthError):
        find_key(image, slots, entries, 1)


def test_a_search_ends_whatever_the_links_are() -> None:
    slots, entries = 3, 12
    (sound,) = build_index([(1, number, START_MS) for number in range(11)], slots, entries)
    links = random.Random(1)
    wild = [0, 1, -1, 5, 11, 12, 13, (1 << 31) - 1, -(1 << 31)]
    for _ in range(300):
        image = bytearray(sound)
        for number in range(entries):
            pack_into(">i", image, entry_position(number, slots) + 16, links.choice(wild))
        pack_into(">i", image, slot_position(1, slots), links.choice(wild))
        pack_into(">i", image, 36, links.choice(wild))
        found = find_key(image, slots, entries, 1)
        assert len(found) == len(set(found)) <= 11


def test_a_circle_of_links_ends_the_search() -> None:
    (sound,) = build_index([(1, number, START_MS) for number in range(3)], 5, 10)
    image = bytearray(sound)
    pack_into(">i", image, entry_position(2, 5) + 16, 3)
    assert find_key(image, 5, 10, 1) == [2, 1]
