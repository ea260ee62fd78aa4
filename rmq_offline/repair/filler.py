"""Filler and placeholder records, which a repair writes over a damaged range so that the log can be walked again.

RocketMQ reads a log from record to record and takes the first place without a record for its end:
``CommitLog#recoverNormally`` and ``recoverAbnormally`` truncate there. A range in mid-log therefore becomes
records again, *fillers*, and one that reaches its file's end becomes the BLANK that sends a reader to the next
file. A filler has the transaction type ROLLBACK, which neither ConsumeQueue nor Index takes up
(``CommitLogDispatcherBuildConsumeQueue``, ``IndexService#buildIndex``): no consumer ever sees it, and its topic
is never created.

Where a queue has a unit for the lost message, a *placeholder* keeps its place in that queue: without it
RocketMQ's consumers would skip sound messages too (``DefaultMessageStore#getMessage`` goes on at the next
log file after a unit whose record it cannot read), and groups could be ahead of the queue's end. A placeholder is
an inner batch of no messages, compressed: clients unwrap it to nothing (``PullAPIWrapper#processPullResult``).
Of a batch queue it keeps the places of all messages of the lost record, and it keeps the places in light queues too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_ZLIB,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_TRANSACTION_ROLLBACK,
    MAGIC_BLANK,
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
)
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, encode_record, record_bytes
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, SIZE_AND_MAGIC

TOPIC: Final = "RMQ_SYS_QUARANTINE"
MIN_BODY_BYTES: Final = 1  # Java brokers store no empty body, and read one as null
MIN_BYTES: Final = RECORD_FIXED_BYTES_V1 + MIN_BODY_BYTES + 1  # a record without a topic would itself be a fault
WHOLE_BYTES: Final = RECORD_FIXED_BYTES_V1 + MIN_BODY_BYTES + len(TOPIC) + CRC_PROPERTY_BYTES
MAX_BYTES: Final = MAX_BODY_BYTES  # a broker's buffers for records are no smaller than maxMessageSize
_NOWHERE: Final = Host.parse("0.0.0.0:0")
_PLACEHOLDER_FLAGS: Final = FLAG_COMPRESSED | FLAG_COMPRESSION_ZLIB | FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
_NO_MESSAGES: Final = compress(b"", Compression.ZLIB)
# Without it the log of a broker with duplicationEnable would end there (CommitLog#checkMessageAndReturnSize).
_DUP_INFO: Final = {"DUP_INFO": "0_0"}
_DUP_INFO_BYTES: Final = encode_properties(_DUP_INFO)
# Where a timer message waited: without them RocketMQ's delivery of timer messages tries it again for ever, and no later
# one is delivered (TimerMessageStore#convertMessage). With them it stores a record that no queue has, as the filler.
_DELIVERY_BYTES: Final = _DUP_INFO_BYTES + encode_properties({PROPERTY_REAL_TOPIC: TOPIC, PROPERTY_REAL_QUEUE_ID: "0"})


class Fill(StrEnum):
    """Kind of bytes that replace a range."""

    FILLER = "filler"  # records, from its begin to its end
    END = "end"  # the BLANK of its file, and zeros
    BYTES = "bytes"  # those of ``LogRange.written``, and zeros
    ZEROS = "zeros"  # nothing was written there yet, as behind the log's last record
    NONE = "none"  # nothing: the file is cut off there


@dataclass(frozen=True, slots=True)
class LostMessage:
    """Lost message, as described by the unit of its queue.

    Attributes:
        batch_size: number of messages of a unit in a batch queue (BatchConsumeQueue); 0 in any other queue.
        light: names of light queues (LMQ) that have the message too, each with the queue offset there.
    """

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    batch_size: int = 0
    light: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogRange:
    """Range of a CommitLog file that is quarantined and overwritten.

    Attributes:
        path: relative to the store's root.
        file_offset: physical offset of the file's first byte.
        existing_bytes: number of the range's bytes that are in the file and are copied; the others read as zeros.
        store_timestamp_ms: of the fillers: that of a neighbouring record, so that time does not jump.
        places: lost messages that get a placeholder, in order; the space between them has room for fillers.
        written: with ``Fill.BYTES`` the new bytes, in hex digits.
    """

    path: str
    file_offset: int
    physical_offset: int
    size: int
    existing_bytes: int
    code: str
    detail: str
    fill: Fill
    store_timestamp_ms: int = 0
    places: tuple[LostMessage, ...] = ()
    written: str = ""

    @property
    def position(self) -> int:
        """Position of the range's first byte in the file."""
        return self.physical_offset - self.file_offset

    @property
    def copy(self) -> str:
        """Path of the range's copy, relative to the directory of the repair."""
        return f"{self.path}.{self.position}"

    def image(self) -> Iterator[bytes]:
        """Yield the replacing bytes in pieces; zeros at the end that the file already has are left out."""
        done = 0
        if self.fill is Fill.NONE:
            return
        if self.fill is Fill.FILLER:
            for lost_message in self.places:
                begin = lost_message.physical_offset - self.physical_offset
                yield from self._fillers(done, begin)
                yield placeholder(lost_message, self.store_timestamp_ms)
                done = begin + lost_message.size
            yield from self._fillers(done, self.size)
            return
        if self.fill is Fill.END:
            # Java reads a file's first record to tell whether recovery may begin with that file.
            if self.position == 0 and self.size >= WHOLE_BYTES + BLANK_BYTES:
                yield from self._fillers(0, WHOLE_BYTES)
                done = WHOLE_BYTES
            yield SIZE_AND_MAGIC.pack(self.size - done, MAGIC_BLANK)
            done += BLANK_BYTES
        if self.fill is Fill.BYTES:
            yield (written := bytes.fromhex(self.written))
            done = len(written)
        for begin in range(done, self.existing_bytes, MAX_BYTES):
            yield bytes(min(MAX_BYTES, self.existing_bytes - begin))

    def _fillers(self, begin: int, end: int) -> Iterator[bytes]:
        for part in filler_sizes(end - begin) if end > begin else ():
            yield filler(self.physical_offset + begin, part, self.store_timestamp_ms)
            begin += part


def filler_sizes(size: int) -> Iterator[int]:
    """Split a range, of at least MIN_BYTES, into the sizes of its fillers; all but the last two have the largest."""
    while size > MAX_BYTES:
        part = MAX_BYTES if size - MAX_BYTES >= WHOLE_BYTES else size - WHOLE_BYTES
        yield part
        size -= part
    yield size


def filler(physical_offset: int, size: int, store_timestamp_ms: int) -> bytes:
    """Encode a filler record of exactly ``size`` bytes, MIN_BYTES to MAX_BYTES.

    A large filler has the record's CRC, for brokers with ``forceVerifyPropCRC``, DUP_INFO, REAL_TOPIC and REAL_QID; in
    the smallest ones the topic is cut.
    """
    room = size - RECORD_FIXED_BYTES_V1
    with_crc = size >= WHOLE_BYTES
    topic = TOPIC[: room - MIN_BODY_BYTES]
    properties = (_DELIVERY_BYTES, _DUP_INFO_BYTES, b"")
    properties_bytes = next(encoded for encoded in properties if size >= WHOLE_BYTES + len(encoded) or not encoded)
    body_bytes = room - len(topic) - with_crc * CRC_PROPERTY_BYTES - len(properties_bytes)
    return encode_record(
        _message(topic, 0, bytes(body_bytes), FLAG_TRANSACTION_ROLLBACK, store_timestamp_ms, properties_bytes),
        queue_offset=0,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        append_crc_property=with_crc,
    )


def placeholder_bytes(lost_message: LostMessage) -> int:
    """Compute the size of the smallest placeholder for a lost message."""
    return _least_bytes(lost_message.topic, _properties(lost_message))


@lru_cache(maxsize=1024)
def _least_bytes(topic: str, properties_bytes: bytes, *, with_crc: bool = False) -> int:
    message = _message(topic, 0, _NO_MESSAGES, _PLACEHOLDER_FLAGS, 0, properties_bytes)
    return record_bytes(message, append_crc_property=with_crc)


def placeholder(lost_message: LostMessage, store_timestamp_ms: int) -> bytes:
    """Encode a placeholder for a lost message's queue offset; at least ``placeholder_bytes`` long."""
    properties_bytes = _properties(lost_message, _DUP_INFO)
    if lost_message.size < _least_bytes(lost_message.topic, properties_bytes):
        properties_bytes = _properties(lost_message)
    with_crc = lost_message.size >= _least_bytes(lost_message.topic, properties_bytes, with_crc=True)
    spare = lost_message.size - _least_bytes(lost_message.topic, properties_bytes, with_crc=with_crc)
    topic, queue_id, body = lost_message.topic, lost_message.queue_id, _NO_MESSAGES + bytes(spare)
    return encode_record(
        _message(topic, queue_id, body, _PLACEHOLDER_FLAGS, store_timestamp_ms, properties_bytes),
        queue_offset=lost_message.queue_offset,
        physical_offset=lost_message.physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        append_crc_property=with_crc,
        max_body_bytes=MAX_FRAME_BYTES,
    )


def _properties(lost_message: LostMessage, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Build the properties from which a rebuild makes a unit of a batch queue, or units of light queues."""
    properties = dict(more)
    if lost_message.batch_size:
        properties |= {"INNER_BASE": str(lost_message.queue_offset), "INNER_NUM": str(lost_message.batch_size)}
    if lost_message.light:
        names, offsets = zip(*lost_message.light, strict=True)
        properties |= {"INNER_MULTI_DISPATCH": ",".join(names), "INNER_MULTI_QUEUE_OFFSET": ",".join(map(str, offsets))}
    return encode_properties(properties)


def _message(
    topic: str, queue_id: int, body: bytes, sys_flag: int, store_timestamp_ms: int, properties_bytes: bytes
) -> MessageToStore:
    return MessageToStore(
        topic=topic,
        queue_id=queue_id,
        body=body,
        sys_flag=sys_flag,
        born_timestamp_ms=store_timestamp_ms,
        born_host=_NOWHERE,
        store_host=_NOWHERE,
        properties_bytes=properties_bytes,
    )
