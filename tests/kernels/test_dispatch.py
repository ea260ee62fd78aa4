"""What records give to ConsumeQueues and Index: the kernel against the codecs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.hashing import index_key_hash, java_string_hash
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS
from rmq_formats.codecs.layout import FLAG_TRANSACTION_ROLLBACK, SCHEDULE_TOPIC
from rmq_formats.codecs.paths import parse_segment_name
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.scan import dispatch
from rmq_formats.scan.dispatch import Dispatcher
from tests.kernels.scanned_segments import FILE_OFFSET, batches
from tests.kernels.test_text import blocks
from tests.support.oracles.commitlog_walk import Frame, walk
from tests.support.oracles.consumequeue import dispatch_tags_code, goes_to_consumequeue
from tests.support.oracles.index import index_keys
from tests.support.oracles.light_queues import light_places
from tests.support.stores.light_records import message as light_message
from tests.support.stores.light_records import odd_records
from tests.support.stores.record_strategies import encode_segment, messages, plain_message

LEVELS = (1000, 5000, 10_000)
Rows = list[tuple[Any, ...]]


def dispatched(
    data: bytes,
    file_offset: int = FILE_OFFSET,
    levels: tuple[int, ...] = LEVELS,
    tags_from: int = NO_TAGS,
    *,
    to_light_queues: bool = True,
    **scan: Any,
) -> tuple[Rows, Rows]:
    """Units and keys with their queues' names, as the kernel gives them."""
    dispatcher = Dispatcher(levels, tags_from=tags_from, to_light_queues=to_light_queues)
    for batch in batches(data, file_offset, **scan):
        dispatcher.dispatch(batch)
    units, keys = (table.tolist() for table in dispatcher.drain())
    names = dispatcher.queue_names()
    return [(*names[row[0]], *row[1:]) for row in units], [(*row[:3], *names[row[3]]) for row in keys]


def stored_messages(data: bytes, file_offset: int = FILE_OFFSET) -> Iterator[StoredMessage]:
    return (item.decode() for item in walk(data, file_offset) if isinstance(item, Frame))


def expected(
    found: Iterator[StoredMessage], levels: tuple[int, ...] = LEVELS, tags_from: int = NO_TAGS
) -> tuple[Rows, Rows]:
    """The same by the codecs."""
    units: Rows = []
    keys: Rows = []
    for message in found:
        queue, at, time = (message.topic, message.queue_id), message.physical_offset, message.store_timestamp_ms
        if goes_to_consumequeue(message.sys_flag):
            code = dispatch_tags_code(message, levels)
            units.append((*queue, message.queue_offset, at, message.size, code, time))
            units += [(*place, at, message.size, code, LIGHT_UNIT) for place in light_places(message)]
        keys += [(index_key_hash(message.topic, key), at, time, *queue) for key in index_keys(message, tags_from)]
    return units, keys


def check(stored: list[MessageToStore], **options: Any) -> tuple[Rows, Rows]:
    data, _ = encode_segment(stored, FILE_OFFSET, 100, blank=True)
    found = dispatched(data, **options)
    assert found == expected(stored_messages(data))
    middle = FILE_OFFSET + len(data) // 2
    for tags_from in (ALL_TAGS, middle):
        with_tags = dispatched(data, tags_from=tags_from, **options)
        assert with_tags == expected(stored_messages(data), tags_from=tags_from)
    return found


def test_golden_records_are_dispatched_as_by_the_codecs(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, Any]
) -> None:
    levels = delay_levels_ms(golden_settings[golden_name].delay_levels)
    tags_from = golden_settings[golden_name].tags_from
    for path in (golden(golden_name) / "store" / "commitlog").iterdir():
        data, start = path.read_bytes(), parse_segment_name(path.name) or 0
        found = dispatched(data, start, levels, tags_from, window_bytes=8192)
        assert found == expected(stored_messages(data, start), levels, tags_from)


odd_messages = st.builds(
    lambda message, topic, block, sys_flag: replace(
        message, topic=topic or message.topic, properties_bytes=block, sys_flag=sys_flag
    ),
    messages,
    st.sampled_from(["", "", SCHEDULE_TOPIC, "a", "%RETRY%" + "g" * 140]),
    blocks,
    st.sampled_from([0, 0, 0x2, 0x4, 0x8, 0xC, 0x30C, 0x301]),
)


@settings(deadline=None, max_examples=80)
@given(st.lists(odd_messages, min_size=1, max_size=8))
@pytest.mark.long
def test_any_record_is_dispatched_as_by_the_codecs(stored: list[MessageToStore]) -> None:
    check(stored, window_bytes=4096)


@pytest.mark.parametrize("delay", ["1", "3", "4", "99", "0", "-1", "+2", "x", "2147483647", "2147483648", "3000000000"])
@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, SCHEDULE_TOPIC[:-1], SCHEDULE_TOPIC + "X"])
def test_a_delayed_record_has_its_delivery_time_for_a_tags_code(delay: str, topic: str) -> None:
    properties = encode_properties({"DELAY": delay, "TAGS": "TagA"})
    check([plain_message(topic, properties_bytes=properties)])


def test_invalid_utf_8_in_topic_and_keys_is_dispatched_as_by_the_codecs() -> None:
    stored = [plain_message("TOPICTOPIC", properties_bytes=b"KEYS\1a\xe4 \xff b\2TAGS\1\xf0\x9f\2") for _ in range(3)]
    data, _ = encode_segment(stored, FILE_OFFSET, 0, blank=False)
    data = data.replace(b"TOPICTOPIC", b"TO\xf0\x9fC\xed\xa0\x80IC")
    assert dispatched(data) == expected(stored_messages(data))


@pytest.mark.parametrize(("hashed", "expected"), [(0, 0), (5, 5), (-5, 5), (-(1 << 31), 0), ((1 << 31) - 1,) * 2])
def test_a_key_s_hash_is_the_absolute_value_and_0_for_the_smallest_int(hashed: int, expected: int) -> None:
    assert kernel.index_hash(np.uint32(hashed & 0xFFFFFFFF)) == expected


def test_a_key_with_the_smallest_hash_is_indexed_under_0() -> None:
    assert java_string_hash("cbdjsgq#k") == -(1 << 31)
    _, keys = check([plain_message("cbdjsgq", properties_bytes=b"KEYS\1k\2")])
    assert keys[0][0] == 0


def test_many_queues_make_the_queue_table_grow() -> None:
    names = [("Topic" + "x" * (number % 120) + str(number), number % 7 - 3) for number in range(3000)]
    stored = [plain_message(topic, b"", queue_id=queue_id) for topic, queue_id in names + names[::-1]]
    units, _ = check(stored, window_bytes=65536)
    assert [unit[:2] for unit in units] == names + names[::-1]


def test_thousands_of_keys_in_a_record_are_all_taken() -> None:
    most = b"KEYS\1" + b"a " * 16379 + b"b\2"
    stored = [plain_message(properties_bytes=most) for _ in range(5)]
    stored.append(plain_message(properties_bytes=b"UNIQ_KEY\1u\2KEYS\1" + b"k" * 32000))
    _, keys = check(stored)
    assert len(keys) == 5 * 16380 + 2, "more than one table of keys holds at first"


@pytest.mark.parametrize("size", range(6))
def test_each_part_of_keys_counts_up_to_the_last_free_row(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FIRST_ROWS", 20)
    for keys in (" ".join("k" * size), f" {' '.join('k' * size)} ", "long" * size):
        properties = encode_properties({"UNIQ_KEY": "u", "KEYS": keys})
        check([plain_message(properties_bytes=properties)] * 60)


def test_more_units_than_a_table_holds_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FIRST_ROWS", 500)
    units, keys = check([plain_message("t", b"")] * 3000, window_bytes=65536)
    assert len(units) == 3000
    assert keys == []


def test_rollbacks_give_nothing_and_half_messages_only_keys() -> None:
    properties = encode_properties({"UNIQ_KEY": "u"})
    stored = [plain_message(sys_flag=flag, properties_bytes=properties) for flag in (0, 4, 8, 12)]
    units, keys = check(stored)
    assert [unit[2] for unit in units] == [0, 2]
    assert len(keys) == 3
    assert check([plain_message(sys_flag=FLAG_TRANSACTION_ROLLBACK)]) == ([], [])


def test_frames_that_fail_a_checksum_give_nothing() -> None:
    data, places = encode_segment([plain_message() for _ in range(3)], FILE_OFFSET, 0, blank=False)
    at = places[1][0] + 90
    data = data[:at] + b"?" + data[at + 1 :]
    units, _ = dispatched(data)
    assert [unit[3] - FILE_OFFSET for unit in units] == [places[0][0], places[2][0]]
    assert len(dispatched(data, verify_crc=False)[0]) == 3


def test_take_gives_each_row_once_and_counts_go_on() -> None:
    data, places = encode_segment([plain_message(queue_id=n % 2) for n in range(6)], FILE_OFFSET, 0, blank=False)
    dispatcher = Dispatcher(LEVELS)
    taken = []
    for start in (places[0][0], places[3][0]):
        for batch in batches(data, start=start, limit=start + 1, search=False):
            dispatcher.dispatch(batch)
        taken += dispatcher.drain()[0].tolist()
    assert [row[1] for row in taken] == [0, 3]
    assert len(dispatcher.drain()[0]) == 0
    assert (dispatcher.message_count, dispatcher.record_bytes) == (2, 2 * places[0][1])
    assert [name[1] for name in dispatcher.queue_names()] == [0, 1]


def test_hash_collisions_of_queues_are_told_apart() -> None:
    names = ["AaAa", "BBBB", "AaBB", "BBAa"]  # one Java hash
    units, _ = check([plain_message(name, queue_id=number) for number in (0, 1 << 24, -1) for name in names])
    assert len({unit[:2] for unit in units}) == 12
    assert np.unique([unit[2] for unit in units]).size == 12


def test_odd_lists_of_light_queues_give_the_units_of_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FIRST_ROWS", 20)
    stored = odd_records()
    units, _ = check(stored, window_bytes=8192)
    assert sum(unit[0].startswith("%LMQ%") for unit in units) > 1600
    data, _ = encode_segment(stored, FILE_OFFSET, 0, blank=False)
    own = [unit for unit in units if unit[-1] != LIGHT_UNIT]
    assert dispatched(data, to_light_queues=False)[0] == own


lists = st.lists(
    st.sampled_from(
        [
            "%LMQ%a",
            "%LMQ%b",
            "%LMQ%",
            "%LMQ",
            "a",
            "TopicTest",
            "x/y",
            " ",
            "\t",
            ",",
            ",",
            "",
            "0",
            "1",
            "-1",
            "+7",
            "+",
            "-",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "-9223372036854775809",
            "1" * 40,
            "0" * 40,
            "007",
            "1 ",
            "中",
            "😀",
        ]
    ),
    max_size=12,
)
separators = st.sampled_from([",", ",", ",", "", ",,"])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(lists, lists, separators, st.booleans()), min_size=1, max_size=6))
def test_any_lists_of_light_queues_give_the_units_of_the_oracle(
    given_lists: list[tuple[list[str], list[str], str, bool]],
) -> None:
    stored = []
    for names, places, separator, is_paired in given_lists:
        numbers = (
            [part if part.strip("+-0123456789") == "" and part else "3" for part in names] if is_paired else places
        )
        stored.append(light_message("TopicTest", separator.join(names), separator.join(numbers)))
    check(stored)


def test_a_record_may_name_as_many_light_queues_as_its_properties_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FIRST_ROWS", 4)
    names = [chr(0x21 + n % 11) + chr(0x30 + n // 11 % 70) + chr(0x30 + n // 770) for n in range(5000)]
    stored = [light_message("t", ",".join(names), ",".join("9" * len(names)))] * 3
    units, _ = check(stored)
    assert len({unit[0] for unit in units}) > 4000


def test_names_of_queues_are_given_from_any_row_on() -> None:
    """A broker asks for those that it does not know yet."""
    messages = [plain_message(topic=f"T{number // 2}", queue_id=number) for number in range(300)]
    data, _ = encode_segment(messages, FILE_OFFSET, 0, blank=False)
    dispatcher = Dispatcher(LEVELS)
    for batch in batches(data):
        dispatcher.dispatch(batch)
    names = dispatcher.queue_names()
    assert names == [(f"T{number // 2}", number) for number in range(300)]
    for first in (0, 1, 2, 255, 256, 299, 300):
        assert dispatcher.queue_names(first) == names[first:]
