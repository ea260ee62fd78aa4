"""Fuzz targets: what comes over the wire, from clients, brokers, masters and slaves."""

import random

from rmq_core.broker.timer.records import decode_timer_record
from rmq_core.broker.transaction.check import half_offsets
from rmq_core.broker.transaction.half import decode_half_record
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.ha.frames import Pushes, Reports, encode_push, encode_report
from rmq_core.remoting.bodies.codec import parse_queue_key
from rmq_core.remoting.bodies.routes import decode_registration, encode_registration
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.commitlog.record_encoder import BatchEncoder, QueueParts
from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.codecs.record_layout import HEAD_BYTES, HEADS_BEHIND_MAGIC
from rmq_formats.errors import RmqError
from tests.lab.decoders.samples import records
from tests.lab.decoders.target import Target
from tests.lab.rounds import ViolationError
from tests.remoting import test_bodies as bodies
from tests.remoting.mutated_protocol import BODIES, FRAMES, PROPERTIES, read_body, read_frames
from tests.store.small_stores import HOST, NOW_MS, batch_of

_TYPED = (RmqError, ResponseError)


def targets() -> list[Target]:
    """All of them."""
    packed = [encode_registration(bodies.REGISTRATION, kind) for kind in (True, False)]
    stored = [record for _, record in records("exotic", "exotic_crc", "mixed")]
    pushes = [encode_push(4096, 11) + b"eleven byte", encode_push(4107, 0), encode_push(0, 4) + b"four"]
    return [
        Target("frame of a command", FRAMES, read_frames, _TYPED, share=3),
        Target("body", BODIES, read_body, _TYPED, share=2),
        Target("registration", packed, lambda data, dice: decode_registration(data, dice.random() < 0.5, 479), _TYPED),
        Target("Java properties", [PROPERTIES], lambda data, _dice: (
            parse_properties(data.decode("latin-1"))), _TYPED),
        Target("queue key", [b'{"brokerName":"b","queueId":0,"topic":"T"}'], lambda data, _dice: (
            parse_queue_key(data.decode("utf-8", "replace"))), _TYPED),
        Target("pulled records", [b"".join(stored[:3]), *stored], lambda data, _dice: decode_records(data), _TYPED,
               share=2),
        Target("batch", [batch_of([(b"one", b"KEYS\x01k"), (b"two", b"")]), batch_of([(b"x" * 50, b"")])], _split),
        Target("pushes of a master", pushes, _read_pushes),
        Target("reports of a slave", [encode_report(4096), encode_report(-1)], _read_reports),
        Target("half message", stored, lambda data, _dice: (
            decode_half_record(memoryview(data)) if len(data) > 120 else None)),
        Target("timer message", stored, lambda data, _dice: decode_timer_record(memoryview(data))),
        Target("op message", [b"1,2,33,", b"9" * 30], lambda data, _dice: half_offsets(data)),
    ]  # fmt: skip


def _split(data: bytes, dice: random.Random) -> None:
    encoder = BatchEncoder(QueueParts("T", 0, 0), 0, HEADS_BEHIND_MAGIC[0], HEAD_BYTES[0], dice.random() < 0.5)
    messages = encoder.split(data, b"")
    if messages is None:
        return
    parts, offsets = encoder.encode(messages, 4096, (NOW_MS, HOST, NOW_MS, HOST, 0))
    found = decode_records(b"".join(parts))
    if [message.physical_offset for message in found] != list(offsets):
        raise ViolationError("records of a batch stand elsewhere than the encoder says")


def _pieces(data: bytes, dice: random.Random) -> list[bytes]:
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(4)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _read_pushes(data: bytes, dice: random.Random) -> None:
    parser = Pushes()
    taken = sum(len(push.data) for piece in _pieces(data, dice) for push in parser.feed(piece))
    if taken > len(data):
        raise ViolationError(f"{taken} bytes pushed in {len(data)}")


def _read_reports(data: bytes, dice: random.Random) -> None:
    parser = Reports()
    found = [offset for piece in _pieces(data, dice) for offset in parser.feed(piece)]
    if len(found) != len(data) // 8:
        raise ViolationError(f"{len(found)} reports in {len(data)} bytes")
