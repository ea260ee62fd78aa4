"""Send requests."""

import pytest

from rmq_core.client import Message, MessageError, ProducerOptions
from rmq_core.client.producer.packet import Packer, Packet, split_batch
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.requests import SendMessageV2
from rmq_formats.codecs.compression import Compression, decompress
from rmq_formats.codecs.properties import decode_properties


def packer(**options: object) -> Packer:
    return Packer("group", ProducerOptions(**options))  # type: ignore[arg-type]


def fields_of(packet: Packet) -> SendMessageV2:
    return read_fields(packet.request(3), SendMessageV2)


def test_a_request_has_all_that_a_broker_reads() -> None:
    message = Message("T", b"body", tags="A", keys=["k1", "k2"], properties={"x": "y"}, flag=9, delay_level=3)
    packet = packer().single(message)
    fields = fields_of(packet)
    assert (packet.code, packet.body) == (310, b"body")
    assert (fields.producer_group, fields.topic, fields.queue_id, fields.flag) == ("group", "T", 3, 9)
    assert (fields.default_topic, fields.default_topic_queue_nums) == ("TBW102", 4)
    assert (fields.sys_flag, fields.reconsume_times, fields.batch, fields.unit_mode) == (0, 0, False, False)
    assert fields.born_timestamp > 1_700_000_000_000
    assert decode_properties((fields.properties or "").encode()) == {
        "x": "y", "KEYS": "k1 k2", "TAGS": "A", "DELAY": "3", "WAIT": "true", "UNIQ_KEY": packet.msg_id,
    }  # fmt: skip


def test_the_clock_that_is_handed_in_tells_when_a_message_was_made() -> None:
    packet = packer(clock_ms=lambda: 1_234_567_890_123).single(Message("T", b"body"))
    assert fields_of(packet).born_timestamp == 1_234_567_890_123


@pytest.mark.parametrize("codec", list(Compression))
def test_bodies_of_a_size_are_compressed(codec: Compression) -> None:
    make = packer(compression=codec, compress_above_bytes=100)
    small, large = make.single(Message("T", b"x" * 99)), make.single(Message("T", b"x" * 100))
    assert (small.body, fields_of(small).sys_flag) == (b"x" * 99, 0)
    assert fields_of(large).sys_flag == codec.sys_flag
    assert decompress(large.body, codec.sys_flag) == b"x" * 100


def test_a_unique_key_of_the_users_own_stays() -> None:
    assert packer().single(Message("T", b"x", properties={"UNIQ_KEY": "mine"})).msg_id == "mine"


def test_a_timed_message_says_when() -> None:
    fields = fields_of(packer().single(Message("T", b"x", deliver_at_ms=123)))
    assert "TIMER_DELIVER_MS\x01123\x02" in (fields.properties or "")


def test_a_copy_for_a_retry_topic_tells_its_count_in_a_field() -> None:
    properties = {"RECONSUME_TIME": "4", "MAX_RECONSUME_TIMES": "16"}
    fields = fields_of(packer().single(Message("%RETRY%g", b"x", properties=properties)))
    assert (fields.reconsume_times, fields.max_reconsume_times) == (4, 16)
    assert "RECONSUME_TIME" not in (fields.properties or "")


def test_a_batch_is_encoded_as_java_does() -> None:
    packet = packer().batch([Message("T", b"one", flag=7), Message("T", b"three", tags="A")])
    fields = fields_of(packet)
    assert (packet.code, fields.batch, fields.sys_flag) == (320, True, 0)
    first, second = packet.msg_id.split(",")
    properties = f"WAIT\x01true\x02UNIQ_KEY\x01{first}\x02".encode()
    head = b"".join(n.to_bytes(4, "big") for n in (22 + 3 + len(properties), 0, 0, 7, 3))
    expected = head + b"one" + len(properties).to_bytes(2, "big") + properties
    assert packet.body.startswith(expected)
    assert packet.body.endswith(f"TAGS\x01A\x02WAIT\x01true\x02UNIQ_KEY\x01{second}\x02".encode())
    own = decode_properties((fields.properties or "").encode())
    assert own.keys() == {"WAIT", "UNIQ_KEY"}
    assert own["UNIQ_KEY"] not in (first, second)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "without messages"),
        ([Message("T", b"x"), Message("U", b"x")], "topics T and U"),
        ([Message("T", b"x"), Message("T", b"x", wait_store=False)], "wait_store"),
        ([Message("T", b"x", delay_level=1)], "delayed"),
        ([Message("T", b"x", deliver_at_ms=1)], "delayed"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("T", b"x" * 60)] * 2, "a batch of"),
    ],
)
def test_messages_that_do_not_go_together_are_refused(messages: list[Message], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        packer(max_body_bytes=100).batch(messages)


def test_batches_are_cut_to_size() -> None:
    messages = [Message("T", b"x" * size) for size in (10, 10, 500, 10, 10, 10)]
    batches = list(split_batch(messages, 300))
    assert [len(batch) for batch in batches] == [2, 1, 3]
    assert [message for batch in batches for message in batch] == messages
    assert all(len(packer().batch(batch).body) <= 300 for batch in (batches[0], batches[2]))


def test_light_queues_are_a_property_and_no_batch_s() -> None:
    fields = fields_of(packer().single(Message("T", b"x", light_queues=["%LMQ%a", "%LMQ%b"])))
    assert "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02" in (fields.properties or "")
    for wrong in ("a", "%LMQ%a/b", "%LMQ%a,%LMQ%b", "%LMQ%\x02", "%LMQ%" + "n" * 251):
        with pytest.raises(MessageError, match="light queue"):
            packer().single(Message("T", b"x", light_queues=[wrong]))
    with pytest.raises(MessageError, match="light queues"):
        packer().batch([Message("T", b"x", light_queues=["%LMQ%a"])])
