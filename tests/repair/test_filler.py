"""Fillers: records for everyone who walks the log, and for nobody else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import BLANK_BYTES, FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from rmq_offline.repair.filler import (
    MAX_BYTES,
    MIN_BYTES,
    TOPIC,
    WHOLE_BYTES,
    Fill,
    LogRange,
    LostMessage,
    filler,
    filler_sizes,
    placeholder,
    placeholder_bytes,
)
from tests.support.oracles.commitlog_walk import Blank, Frame, verify_crc_property, walk
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.oracles.index import index_keys


def build_range(size: int, fill: Fill, *, position: int = 0, existing_bytes: int | None = None) -> LogRange:
    return LogRange(
        "commitlog/00000000000000010000",
        10_000,
        10_000 + position,
        size,
        size if existing_bytes is None else existing_bytes,
        "code",
        "detail",
        fill,
        1_700_000_000_000,
    )


@pytest.mark.parametrize("size", [MIN_BYTES, MIN_BYTES + 7, WHOLE_BYTES - 1, WHOLE_BYTES, WHOLE_BYTES + 1, 70_000])
def test_a_filler_is_a_sound_record_without_units_and_index_entries(size: int) -> None:
    (frame,) = walk(filler(123_456, size, 1_700_000_000_000), 123_456)
    assert isinstance(frame, Frame)
    assert frame.size == size
    record = frame.decode()
    assert TOPIC.startswith(record.topic)
    assert record.topic
    assert record.store_timestamp_ms == 1_700_000_000_000
    assert not goes_to_consumequeue(record.sys_flag)
    assert list(index_keys(record)) == []


def test_where_there_is_room_a_filler_has_its_own_crc() -> None:
    assert verify_crc_property(filler(0, WHOLE_BYTES, 1)) is True
    assert verify_crc_property(filler(0, WHOLE_BYTES - 1, 1)) is None


def test_where_there_is_room_a_filler_names_the_topic_to_which_java_s_timer_delivers_it() -> None:
    (frame,) = walk(filler(0, WHOLE_BYTES + 60, 1), 0)
    assert isinstance(frame, Frame)
    properties = frame.decode().properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (TOPIC, "0")


@given(st.one_of(st.integers(MIN_BYTES, 3 * MAX_BYTES), st.integers(-200, 200).map(lambda near: 2 * MAX_BYTES + near)))
def test_any_range_is_split_into_sizes_that_a_filler_can_have(size: int) -> None:
    sizes = list(filler_sizes(size))
    assert sum(sizes) == size
    assert all(MIN_BYTES <= part <= MAX_BYTES for part in sizes)


def test_a_range_of_many_mib_becomes_fillers_one_after_the_other() -> None:
    wide = build_range(2 * MAX_BYTES + 50, Fill.FILLER)
    frames = list(walk(b"".join(wide.image()), 10_000))
    assert [type(frame) for frame in frames] == [Frame, Frame, Frame]
    assert sum(frame.size for frame in frames if isinstance(frame, Frame)) == wide.size


@pytest.mark.parametrize("position", [0, 500])
@pytest.mark.parametrize("room", [BLANK_BYTES, 100, WHOLE_BYTES + BLANK_BYTES, 3000])
def test_an_end_sends_a_reader_to_the_next_file(position: int, room: int) -> None:
    end = build_range(room, Fill.END, position=position, existing_bytes=room // 2)
    image = b"".join(end.image())
    assert len(image) >= end.existing_bytes
    read = list(walk(image.ljust(room, b"\0"), end.physical_offset))
    assert isinstance(read[-1], Blank)
    # A file's first record says when the file was written; a BLANK does not.
    assert len(read) == (2 if position == 0 and room >= WHOLE_BYTES + BLANK_BYTES else 1)


@pytest.mark.parametrize("topic", ["T", "Orders", "x" * 127, "x" * 128, "%RETRY%组"])
@pytest.mark.parametrize("spare", [0, 1, 19, 20, 21, 5000])
def test_a_placeholder_has_a_queue_offset_and_is_a_batch_of_no_messages(topic: str, spare: int) -> None:
    message = LostMessage(123_456, placeholder_bytes(LostMessage(0, 0, topic, 3, 4711)) + spare, topic, 3, 4711)
    (frame,) = walk(placeholder(message, 1_700_000_000_000), 123_456)
    assert isinstance(frame, Frame)
    assert frame.size == message.size
    record = frame.decode()
    assert (record.topic, record.queue_id, record.queue_offset) == (topic, 3, 4711)
    assert goes_to_consumequeue(record.sys_flag)
    assert list(index_keys(record)) == []
    assert decompress(record.body, record.sys_flag) == b""
    assert record.sys_flag & FLAG_INNER_BATCH
    assert record.sys_flag & FLAG_NEED_UNWRAP


@pytest.mark.parametrize("spare", [0, 1, 19, 20, 21, 5000])
def test_a_placeholder_has_the_offsets_of_a_batch_and_of_light_queues(spare: int) -> None:
    light = (("%LMQ%a", 7), ("%LMQ%b", 0))
    batch, lit = LostMessage(0, 0, "Orders", 3, 4711, 12), LostMessage(0, 0, "Orders", 3, 4711, light=light)
    for message, properties in (
        (batch, {"INNER_BASE": "4711", "INNER_NUM": "12"}),
        (lit, {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "7,0"}),
    ):
        whole = replace(message, physical_offset=123_456, size=placeholder_bytes(message) + spare)
        (frame,) = walk(placeholder(whole, 1_700_000_000_000), 123_456)
        assert isinstance(frame, Frame)
        assert frame.size == whole.size
        assert properties.items() <= frame.decode().properties.items()


def test_between_placeholders_there_are_fillers() -> None:
    places = (
        LostMessage(10_100, 150, "T", 0, 5),
        LostMessage(10_250, 150, "T", 0, 6),
        LostMessage(10_600, 400, "U", 1, 7),
    )
    frames = list(walk(b"".join(replace(build_range(1200, Fill.FILLER), places=places).image()), 10_000))
    told = [(frame.physical_offset, frame.size, frame.decode().topic) for frame in frames if isinstance(frame, Frame)]
    assert told == [
        (10_000, 100, TOPIC[:8]), (10_100, 150, "T"), (10_250, 150, "T"), (10_400, 200, TOPIC), (10_600, 400, "U"),
        (11_000, 200, TOPIC),
    ]  # fmt: skip
