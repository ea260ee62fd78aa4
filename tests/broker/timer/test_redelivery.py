"""What was delivered since the last checkpoint, as the CommitLog tells it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.broker.timer.log_search import records_with
from rmq_core.broker.timer.redelivery import Key, PastDeliveries
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.topics import TIMER_TOPIC
from tests.store.small_stores import config_of, opened, put

ORDINARY = 40_000
MARK = b"TIMER_DEQUEUE_MS"
FILE_BYTES = 2 << 20


def delivered(number: int, topic: str = "T", **more: str) -> dict[str, str]:
    """Properties of a message that the broker has delivered."""
    properties = {"UNIQ_KEY": f"U{number}", "TIMER_OUT_MS": f"{number}000", "TIMER_DEQUEUE_MS": "7"}
    return properties | ({"TIMER_ROLL_TIMES": "2"} if topic == TIMER_TOPIC else {}) | more


def fill(store: MessageStore) -> None:
    """Ordinary messages, between them some that were delivered, some that wait on, and some that only look so."""
    for number in range(ORDINARY):
        put(store, "Plain", body=b"x" * (number % 300), properties=b"UNIQ_KEY\x01P%d\x02TAGS\x01A\x02" % number)
        if number % 1000 == 999:
            for topic in ("T", TIMER_TOPIC):
                put(store, topic, properties=encode_properties(delivered(number, topic)))
            put(store, body=MARK, properties=b"NO_TIMER_DEQUEUE_MS\x017\x02")
    put(store, body=MARK * 70_000)  # larger than what is read at once
    put(store, properties=encode_properties(delivered(7)))
    put(store, properties=encode_properties(delivered(7)))


def by_record(store: MessageStore, begin: int) -> dict[Key, list[int]]:
    """The same, record by record."""
    found: dict[Key, list[int]] = {}
    while begin < store.max_physical_offset:
        record = store.record(begin)
        if record is None:
            begin += FILE_BYTES - begin % FILE_BYTES
            continue
        message = decode_record(record)
        if "TIMER_DEQUEUE_MS" in message.properties:
            rolls = message.properties.get("TIMER_ROLL_TIMES", "")
            key = message.topic, message.properties["UNIQ_KEY"], message.properties["TIMER_OUT_MS"], rolls
            found.setdefault(key, []).append(int(message.properties["TIMER_DEQUEUE_MS"]))
        begin += len(record)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    root = tmp_path_factory.mktemp("delivered")
    found = opened(config_of(root, commitlog_file_bytes=FILE_BYTES, consumequeue_file_bytes=1 << 20))
    fill(found)
    yield found
    assert found.shutdown()


def test_all_are_found_among_many_others(store: MessageStore) -> None:
    expected = by_record(store, 0)
    assert expected["T", "U7", "7000", ""] == [7, 7]
    assert sum(map(len, expected.values())) == 2 * ORDINARY // 1000 + 2
    assert PastDeliveries(store, 0)._deliveries == expected


def test_what_is_before_the_place_is_not_looked_at(store: MessageStore) -> None:
    places = [int.from_bytes(record[28:36], "big") for record in records_with(store, MARK, 0)]
    for begin in (places[5], places[-2], places[-1]):
        assert PastDeliveries(store, begin)._deliveries == by_record(store, begin)
    assert PastDeliveries(store, store.max_physical_offset).is_empty


def test_damage_hides_nothing_that_is_behind_it(tmp_path: Path) -> None:
    damaged = opened(config_of(tmp_path, commitlog_file_bytes=FILE_BYTES))
    for number in range(3):
        put(damaged, properties=encode_properties(delivered(number)))
    (_, place, last) = (int.from_bytes(record[28:36], "big") for record in records_with(damaged, MARK, 0))
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place + 4)
        file.write(b"\0\0\0\0")
    assert [key[1] for key in PastDeliveries(damaged, 0)._deliveries] == ["U0", "U2"]
    assert PastDeliveries(damaged, last).remove("T", delivered(2), rolls=False)
    damaged.shutdown()
