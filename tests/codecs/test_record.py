from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import MAGIC_V1, MAGIC_V2
from rmq_formats.codecs.message_id import decode_message_id, encode_message_id
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, decode_record, encode_record, record_bytes
from rmq_formats.codecs.record_frame import body_crc
from rmq_formats.errors import (
    ChecksumError,
    DecodeError,
    FormatError,
    LengthError,
    MagicError,
    RmqError,
    TruncatedError,
)
from tests.support.oracles.commitlog_walk import verify_crc_property
from tests.support.stores.record_strategies import int64, messages, plain_message

# Written by a real broker: appendix C of the facts.
GOLDEN = bytes.fromhex(
    "00000123daa320a769c865ed00000003000000000000000000000000000000000000000000000000000001a1fbf9b828"
    "7f00000100009760000001a1fbf9b86d7f000001000051af0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f7069635465737400b14d53475f524547494f4e0144656661756c74526567696f6e02554e49515f"
    "4b4559014644303030303030303030303030303030303030303030303030303030303032374144363330393436453039"
    "36373941443032383030303002434c55535445520144656661756c74436c75737465720254414753015461674102636f"
    "6c6f7201726564024b455953016b657931206b657932025741495401747275650254524143455f4f4e0174727565026e"
    "013502"
)


def encoded(message: MessageToStore, physical_offset: int = 0, **options: bool) -> bytes:
    return encode_record(
        message,
        queue_offset=7,
        physical_offset=physical_offset,
        store_timestamp_ms=1_700_000_000_001,
        **options,
    )


def test_a_record_of_a_real_broker_decodes() -> None:
    message = decode_record(GOLDEN, physical_offset=0)
    assert (message.size, message.magic, message.version, message.body_crc) == (291, MAGIC_V1, 1, 1774740973)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 3, 0)
    assert (message.physical_offset, message.recorded_physical_offset) == (0, 0)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    assert (message.born_timestamp_ms, message.born_host.text) == (1795228809256, "127.0.0.1:38752")
    assert (message.store_timestamp_ms, message.store_host.text) == (1795228809325, "127.0.0.1:20911")
    assert message.prepared_transaction_offset == 0
    assert message.body == b"Hello RocketMQ"
    assert len(message.properties_bytes) == 177
    assert (message.tags, message.keys) == ("TagA", ["key1", "key2"])
    assert message.uniq_key == "FD0000000000000000000000000000027AD630946E09679AD0280000"
    assert message.properties["color"] == "red"
    assert message.msg_id == "7F000001000051AF0000000000000000"


def test_a_record_of_a_real_broker_encodes_to_the_same_bytes() -> None:
    message = decode_record(GOLDEN)
    assert record_bytes(message.to_store()) == len(GOLDEN)
    record = encode_record(
        message.to_store(), queue_offset=0, physical_offset=0, store_timestamp_ms=message.store_timestamp_ms
    )
    assert record == GOLDEN


def test_body_crcs_are_those_of_java() -> None:
    assert body_crc(b"hello") == 907060870
    assert body_crc(b"Hello RocketMQ") == 1774740973
    assert body_crc(b"123456789") == 1274296614
    assert body_crc(b"") == 0


@settings(max_examples=150, deadline=None)
@given(messages, st.booleans(), int64, int64, int64, st.binary(max_size=9))
def test_a_stored_message_comes_back(
    message: MessageToStore,
    crc: bool,
    queue_offset: int,
    physical_offset: int,
    timestamp_ms: int,
    before: bytes,
) -> None:
    record = encode_record(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=timestamp_ms,
        append_crc_property=crc,
    )
    stored = decode_record(before + record + b"after", len(before), physical_offset=physical_offset)

    assert stored.size == len(record) == record_bytes(message, append_crc_property=crc)
    assert stored.magic == (MAGIC_V1 if len(message.topic.encode()) <= 127 else MAGIC_V2)
    assert (stored.queue_offset, stored.physical_offset) == (queue_offset, physical_offset)
    assert stored.recorded_physical_offset == physical_offset
    assert stored.store_timestamp_ms == timestamp_ms
    assert stored.body_crc == body_crc(message.body)
    v6_flags = 0x10 * message.born_host.is_v6 + 0x20 * message.store_host.is_v6
    assert stored.sys_flag == message.sys_flag & ~0x30 | v6_flags
    expected = replace(message, sys_flag=stored.sys_flag)
    if crc:
        assert stored.properties_bytes[:-20] == message.properties_bytes
        assert stored.properties_bytes[-20:-11] == b"__CRC32#\x01"
        expected = replace(expected, properties_bytes=stored.properties_bytes)
    assert stored.to_store() == expected
    assert verify_crc_property(record) is (True if crc else None)
    assert decode_message_id(stored.msg_id) == (message.store_host, physical_offset)


def test_a_topic_of_128_characters_makes_a_record_of_version_2() -> None:
    short, long = (decode_record(encoded(plain_message("t" * size))) for size in (127, 128))
    assert (short.version, short.topic, short.size) == (1, "t" * 127, 91 + 127 + 14)
    assert (long.version, long.topic, long.size) == (2, "t" * 128, 92 + 128 + 14)


def test_a_topic_whose_length_a_signed_byte_cannot_hold_makes_version_2_too() -> None:
    assert decode_record(encoded(plain_message("é" * 64))).version == 2


def test_an_empty_message_decodes() -> None:
    stored = decode_record(encoded(plain_message("", b"")))
    assert (stored.size, stored.topic, stored.body, stored.properties, stored.body_crc) == (
        91,
        "",
        b"",
        {},
        0,
    )
    assert (stored.tags, stored.keys, stored.uniq_key) == (None, [], None)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"", b""),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b", b"a\x01b\x02"),  # the separator that old clients leave out
        (b"a\x01b\x02__CRC32#\x011234567890\x02", b"a\x01b\x02"),  # the one of an earlier life
        (b"__CRC32#\x011234567890\x02a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x011234567890", b"a\x01b\x02"),
        (b"__CRC32#\x011234567890\x02", b""),
    ],
)
def test_the_crc_property_ends_the_properties_and_is_there_once(properties: bytes, expected: bytes) -> None:
    message = plain_message(properties_bytes=properties)
    record = encoded(message, append_crc_property=True)
    assert decode_record(record).properties_bytes[:-20] == expected
    assert len(record) == record_bytes(message, append_crc_property=True)
    assert verify_crc_property(record) is True


def test_the_digits_of_a_crc_property_stand_least_significant_first() -> None:
    record = encoded(plain_message(), append_crc_property=True)
    digits = record[-11:-1].decode()
    assert int(digits[::-1]) == body_crc(record[:-20])


def test_a_record_whose_own_crc_is_wrong_is_refused_unless_that_is_not_asked() -> None:
    record = bytearray(encoded(plain_message(), append_crc_property=True))
    record[15] ^= 1  # the queue id: no other checksum sees it
    assert verify_crc_property(record) is False
    with pytest.raises(ChecksumError, match="record CRC"):
        decode_record(record)
    assert decode_record(record, verify_crc=False).queue_id == 0


@pytest.mark.parametrize("digits", [b"123456789x", b"          ", b"9999999999", b"\xff" * 10])
def test_a_crc_property_of_other_digits_does_not_match(digits: bytes) -> None:
    record = bytearray(encoded(plain_message(), append_crc_property=True))
    record[-11:-1] = digits
    assert verify_crc_property(record) is False


def test_a_body_whose_crc_is_wrong_is_refused_unless_that_is_not_asked() -> None:
    record = GOLDEN.replace(b"Hello", b"Jello")
    with pytest.raises(ChecksumError, match="body CRC"):
        decode_record(record)
    assert decode_record(record, verify_crc=False).body == b"Jello RocketMQ"


def test_a_record_that_names_another_place_is_refused() -> None:
    with pytest.raises(FormatError, match="expected 100, found 0") as caught:
        decode_record(GOLDEN, physical_offset=100)
    assert caught.value.physical_offset == 100


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (4, "00000000", MagicError),
        (4, "cbd43194", MagicError),
        (0, "00000000", LengthError),
        (0, "ffffffff", LengthError),
        (0, "0000005a", LengthError),
        (0, "10000001", LengthError),
        (0, "00000124", TruncatedError),
        (0, "00000122", LengthError),
        (36, "00000030", LengthError),
        (84, "ffffffff", LengthError),
        (84, "0000ffff", LengthError),
        (102, "ff", LengthError),
        (102, "7f", LengthError),
        (112, "ffff", LengthError),
        (112, "7fff", LengthError),
        (112, "00b0", LengthError),
    ],
)
def test_each_bad_field_has_its_error(at: int, value: str, error: type[FormatError]) -> None:
    record = bytearray(GOLDEN)
    field = bytes.fromhex(value)
    record[at : at + len(field)] = field
    with pytest.raises(error) as caught:
        decode_record(record)
    assert type(caught.value) is error


@pytest.mark.parametrize("position", [-1, 1000, -(1 << 40)])
def test_a_position_outside_of_the_buffer_is_truncated(position: int) -> None:
    with pytest.raises(TruncatedError):
        decode_record(GOLDEN, position)


RECORDS = [
    GOLDEN,
    encoded(plain_message("t" * 200, properties_bytes=encode_properties({"TAGS": "a"})), append_crc_property=True),
    encoded(plain_message(born_host=Host(bytes(16), 1), store_host=Host(bytes(16), 2))),
]


@pytest.mark.parametrize("record", RECORDS, ids=["real", "v2 with CRC", "IPv6"])
def test_a_record_cut_at_any_byte_is_truncated(record: bytes) -> None:
    for size in range(len(record)):
        with pytest.raises(TruncatedError):
            decode_record(record[:size])


@pytest.mark.parametrize("record", RECORDS, ids=["real", "v2 with CRC", "IPv6"])
@pytest.mark.parametrize("verify_crc", [True, False])
def test_a_flipped_byte_is_a_typed_error_or_another_message(record: bytes, verify_crc: bool) -> None:
    for at in range(len(record)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(record)
            damaged[at] ^= flip
            try:
                message = decode_record(damaged, physical_offset=0, verify_crc=verify_crc)
            except FormatError:
                continue
            assert message.size == len(record)
            assert bytes(damaged) != record
            _ = (message.properties, message.tags, message.keys, message.msg_id, message.born_host.text)


@given(st.binary(max_size=200), st.integers(-300, 300))
def test_garbage_is_a_typed_error(data: bytes, position: int) -> None:
    with pytest.raises(FormatError):
        decode_record(data, position)


@pytest.mark.parametrize(
    "message",
    [
        plain_message("t" * 32768),
        plain_message(properties_bytes=b"x" * 32768),
        plain_message(body=bytes((4 << 20) + 1)),
        plain_message("t" * 32767, bytes(4 << 20), properties_bytes=b"x" * 32767),
        plain_message(queue_id=1 << 31),
        plain_message(born_timestamp_ms=1 << 63),
    ],
    ids=["topic", "properties", "body", "record", "queue id", "timestamp"],
)
def test_what_does_not_fit_is_refused(message: MessageToStore) -> None:
    with pytest.raises(LengthError):
        encoded(message)


def test_the_crc_property_counts_into_the_limit_of_properties() -> None:
    message = plain_message(properties_bytes=b"a\x01" + b"x" * 32765)
    assert len(decode_record(encoded(message)).properties_bytes) == 32767
    with pytest.raises(LengthError):
        encoded(message, append_crc_property=True)


def test_a_larger_limit_of_bodies_can_be_given() -> None:
    body = bytes((4 << 20) + 1)
    record = encode_record(
        plain_message(body=body),
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        max_body_bytes=5 << 20,
    )
    assert decode_record(record).body == body


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1:10911", "7F00000100002A9F0000011F71FB04CB"),
        ("[::1]:10911", "0000000000000000000000000000000100002A9F0000011F71FB04CB"),
    ],
)
def test_message_ids_are_those_of_java(host: str, text: str) -> None:
    assert encode_message_id(Host.parse(host), 1234567890123) == text
    assert decode_message_id(text) == decode_message_id(text.lower()) == (Host.parse(host), 1234567890123)


@pytest.mark.parametrize("text", ["", "7F", "x" * 32, "0" * 31, "0" * 33, "0" * 40, "00 " * 16, " " * 32, "é" * 32])
def test_other_texts_are_not_message_ids(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_message_id(text)


def test_an_offset_beyond_a_long_has_no_message_id() -> None:
    with pytest.raises(RmqError):
        encode_message_id(Host(bytes(4), 1), 1 << 63)
