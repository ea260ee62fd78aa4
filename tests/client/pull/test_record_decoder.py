"""Pulled records: the same as the record codec reads, whatever they hold."""

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client import MessageQueue, ReceivedMessage
from rmq_core.client.pull.record_decoder import decode_records
from rmq_formats.codecs.compression import Compression, compress, decompress
from rmq_formats.codecs.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage, decode_record, encode_record
from rmq_formats.errors import FormatError
from rmq_formats.store import Store
from tests.support.stores.record_strategies import encode_segment, messages, plain_message

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
NOT_AS_STORED = Compression.ZSTD.sys_flag | Compression.LZ4.sys_flag | FLAG_INNER_BATCH | FLAG_NEED_UNWRAP


def told(message: ReceivedMessage | StoredMessage) -> tuple[object, ...]:
    """What both kinds of message say."""
    hosts = (message.born_host, message.store_host)
    return (
        message.queue_offset, message.physical_offset, message.size, message.flag, message.sys_flag,
        message.born_timestamp_ms, message.store_timestamp_ms, message.reconsume_times,
        message.prepared_transaction_offset, message.properties, *(str(host) for host in hosts),
    )  # fmt: skip


@given(st.lists(messages, max_size=5))
def test_records_are_read_as_the_codec_reads_them(made: list[MessageToStore]) -> None:
    image, places = encode_segment(made, 0, 0, blank=False)
    stored = [decode_record(image, at) for at, _ in places]
    plain = [one for one in stored if not one.sys_flag & NOT_AS_STORED]
    pieces = [image[at : at + size] for (at, size), one in zip(places, stored, strict=True) if one in plain]
    got = decode_records(memoryview(b"".join(pieces)), QUEUE)
    assert [told(message) for message in got] == [told(one) for one in plain]
    assert [message.body for message in got] == [one.body for one in plain]
    assert [message.topic for message in got] == [
        one.properties.get("RETRY_TOPIC", one.topic) if one.topic.startswith("%RETRY%") else one.topic for one in plain
    ]


def test_records_that_java_wrote_are_read(golden: Callable[[str], Path], golden_name: str) -> None:
    store = golden(golden_name) / "store"
    files = sorted((store / "commitlog").iterdir())
    log, begin = b"".join(file.read_bytes() for file in files), int(files[0].name)
    count = 0
    for one in Store(store).messages():
        at = one.physical_offset - begin
        (got,) = decode_records(log[at : at + one.size], QUEUE)
        assert told(got) == told(one)
        assert got.body == decompress(one.body, one.sys_flag)
        assert got.offset_msg_id == one.msg_id
        count += 1
    assert count > 50


def test_a_message_of_a_retry_topic_shows_the_one_that_it_was_sent_to() -> None:
    made = plain_message("%RETRY%g", properties_bytes=encode_properties({"RETRY_TOPIC": "Orders"}))
    image, _ = encode_segment([made], 0, 0, blank=False)
    (got,) = decode_records(image, QUEUE)
    assert got.topic == "Orders"


@pytest.mark.parametrize("codec", list(Compression))
def test_bodies_are_inflated(codec: Compression) -> None:
    made = plain_message(body=compress(b"body" * 500, codec), sys_flag=codec.sys_flag)
    (got,) = decode_records(encode_segment([made], 0, 0, blank=False)[0], QUEUE)
    assert got.body == b"body" * 500


@pytest.mark.parametrize("sys_flag", [1, Compression.ZLIB.sys_flag, Compression.LZ4.sys_flag, 1 | 7 << 8])
def test_a_body_that_does_not_decompress_comes_as_it_is_stored(sys_flag: int) -> None:
    """The next pull would bring the same bytes: an error would stop the queue."""
    made = [plain_message(body=b"before"), plain_message(body=b"plain", sys_flag=sys_flag), plain_message(body=b"next")]
    got = decode_records(encode_segment(made, 0, 0, blank=False)[0], QUEUE)
    assert [message.body for message in got] == [b"before", b"plain", b"next"]


@pytest.mark.parametrize("body", [b"no batch", b"\x00\x00\x00\xff" + bytes(20), b"\x00\x00\x00\x16"])
def test_a_batch_that_is_none_comes_as_one_message(body: bytes) -> None:
    made = [plain_message(body=body, sys_flag=FLAG_INNER_BATCH | FLAG_NEED_UNWRAP), plain_message(body=b"next")]
    got = decode_records(encode_segment(made, 0, 0, blank=False)[0], QUEUE)
    assert [message.body for message in got] == [body, b"next"]


def inner(body: bytes, properties: bytes) -> bytes:
    return (
        pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 5, len(body))
        + body
        + pack(">h", len(properties))
        + properties
    )


def test_a_batch_in_one_record_is_unwrapped() -> None:
    body = inner(b"one", b"a\x011\x02") + inner(b"two", b"")
    made = plain_message(body=body, sys_flag=FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    image = encode_record(made, queue_offset=40, physical_offset=0, store_timestamp_ms=1)
    got = decode_records(image, QUEUE)
    assert [(message.queue_offset, message.body, message.flag) for message in got] == [(40, b"one", 5), (41, b"two", 5)]
    assert got[0].properties == {"a": "1"}


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x7f", b"\xff"])
def test_damage_at_each_byte_is_an_error_or_a_message(damage: bytes) -> None:
    """Nothing but typed errors: cut there, or with another byte there."""
    body = inner(b"one", b"a\x011\x02")
    made = plain_message(body=body, sys_flag=FLAG_INNER_BATCH, properties_bytes=b"a\x01b\x02")
    image = encode_record(made, queue_offset=1, physical_offset=0, store_timestamp_ms=1)
    for at in range(1, len(image)):
        bent = image[:at] + damage + image[at + 1 :] if damage else image[:at]
        try:
            count = len(decode_records(bent, QUEUE))
        except FormatError:
            continue
        assert damage, "a record that is cut must not pass"
        assert count <= 1
