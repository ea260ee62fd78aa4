"""Reads: the statuses and offsets of the original, the limits, times and keys."""

import random

import pytest

from rmq_core.store.results import Boundary, GetStatus, KeyKind, split_records
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hashing import tags_code
from rmq_formats.codecs.record import decode_record
from tests.store.conftest import Opener
from tests.store.small_stores import NOW_MS, fill, put, read_all


@pytest.fixture
def store(open_store: Opener) -> MessageStore:
    """Thirty messages of one queue, a second apart, every third with tag B."""
    store = open_store()
    for number in range(30):
        tag = b"B" if number % 3 == 0 else b"A"
        put(store, body=b"%d" % number, now_ms=NOW_MS + number * 1000, properties=b"TAGS\x01" + tag + b"\x02")
    store.dispatch()
    return store


def bodies(slices: list[memoryview]) -> list[int]:
    return [int(decode_record(record).body) for record in split_records(slices)]


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "status", "following"),
    [
        ("None", 0, 7, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("T", 1, 7, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("T", 0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        ("T", 0, 30, GetStatus.OFFSET_OVERFLOW_ONE, 30),
        ("T", 0, 31, GetStatus.OFFSET_OVERFLOW_BADLY, 30),
        ("T", 0, 0, GetStatus.FOUND, 5),
    ],
)
def test_statuses_are_those_of_the_original(
    store: MessageStore, topic: str, queue_id: int, offset: int, status: GetStatus, following: int
) -> None:
    result = store.get(topic, queue_id, offset, 5)
    assert (result.status, result.next_offset) == (status, following)
    assert (result.message_count > 0) is (status is GetStatus.FOUND)


@pytest.mark.parametrize(("settings", "following"), [({}, 9), ({"offset_check_in_slave": True}, 2)])
def test_a_slave_corrects_offsets_only_if_it_is_told_to(
    open_store: Opener, settings: dict[str, bool], following: int
) -> None:
    store = open_store()
    for _ in range(2):
        put(store)
    store.shutdown()
    result = open_store(slave=True, **settings).get("T", 0, 9, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, following)


def test_a_read_has_limits_of_count_and_bytes_but_gives_one_message(store: MessageStore) -> None:
    assert bodies(store.get("T", 0, 3, 4).slices) == [3, 4, 5, 6]
    result = store.get("T", 0, 0, 32, max_bytes=250)
    assert (result.message_count, result.next_offset) == (2, 2)
    assert result.size == sum(map(len, result.slices)) <= 250
    assert store.get("T", 0, 0, 32, max_bytes=1).message_count == 1


def test_neighbours_share_a_slice(store: MessageStore) -> None:
    result = store.get("T", 0, 0, 20)
    assert len(result.slices) == 1
    assert bodies(result.slices) == list(range(20))


def test_tags_are_filtered_by_their_codes(store: MessageStore) -> None:
    result = store.get("T", 0, 1, 4, tags_codes={tags_code("B")})
    assert bodies(result.slices) == [3, 6, 9, 12]
    assert result.next_offset == 13
    nothing = store.get("T", 0, 0, 4, tags_codes={tags_code("C")})
    assert nothing.status is GetStatus.NO_MATCHED_MESSAGE
    assert nothing.next_offset > 0
    odd = store.get("T", 0, 0, 3, matches=lambda record: int(decode_record(record).body) % 2 == 1)
    assert bodies(odd.slices) == [1, 3, 5]


def test_every_message_is_read_once_and_in_order(open_store: Opener) -> None:
    store = open_store()
    for _ in fill(store, 300):
        pass
    records = [decode_record(record) for record in read_all(store)]
    places = [(message.topic, message.queue_id, message.queue_offset) for message in records]
    assert len(places) == len(set(places)) == store._queues.unit_total
    assert all(store.message(message.physical_offset) == message for message in records)


def test_offsets_by_time(store: MessageStore) -> None:
    for number in range(1, 29):
        time_ms = NOW_MS + number * 1000
        assert store.offset_by_time("T", 0, time_ms) == number
        assert store.offset_by_time("T", 0, time_ms - 999) == number
        assert store.offset_by_time("T", 0, time_ms, Boundary.UPPER) == number
        assert store.offset_by_time("T", 0, time_ms + 999, Boundary.UPPER) == number
        assert store.store_timestamp_ms("T", 0, number) == time_ms
    assert store.offset_by_time("T", 0, 0) == 0
    assert store.offset_by_time("T", 0, NOW_MS + 10**9) == 30
    assert store.offset_by_time("T", 0, NOW_MS + 10**9, Boundary.UPPER) == 29
    assert store.offset_by_time("None", 0, NOW_MS) == 0
    assert store.store_timestamp_ms("T", 0, 30) is None


def test_keys_are_found_newest_first_and_no_others_with_them(open_store: Opener) -> None:
    store = open_store()
    # "Aa" and "BB" have the same hash
    for number in range(30):
        properties = b"KEYS\x01%b order%d\x02UNIQ_KEY\x01u%d\x02" % (b"Aa" if number % 2 else b"BB", number, number)
        put(store, body=b"%d" % number, now_ms=NOW_MS + number * 1000, properties=properties)
    store.dispatch()
    found = [int(decode_record(record).body) for record in store.query("T", "Aa", 64).records]
    assert found == list(range(29, 0, -2))
    assert [int(decode_record(record).body) for record in store.query("T", "order7", 64).records] == [7]
    assert len(store.query("T", "Aa", 3).records) == 3
    assert store.query("Other", "Aa", 3).records == []
    assert store.query("T", "order7", 3, kind=KeyKind.UNIQUE).records == []
    assert len(store.query("T", "u7", 3, kind=KeyKind.UNIQUE).records) == 1
    between = store.query("T", "Aa", 64, NOW_MS + 10_000, NOW_MS + 15_000).records
    assert [int(decode_record(record).body) for record in between] == [15, 13, 11]


def test_places_that_no_record_begins_at_give_nothing(store: MessageStore) -> None:
    source = random.Random(2)
    starts = {message.physical_offset for message in map(decode_record, read_all(store))}
    for _ in range(300):
        offset = source.randrange(-10, store.max_physical_offset + 10)
        assert (store.message(offset) is not None) is (offset in starts)
        assert (store.record(offset) is not None) is (offset in starts)
