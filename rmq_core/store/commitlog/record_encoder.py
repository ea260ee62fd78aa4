"""Encodes parts of records: the parts shared by a queue, the messages of a batch, and host flags.

``rmq_formats.codecs.record.encode_record`` is the oracle of the bytes. Source: ``MessageExtEncoder``.
"""

from struct import Struct
from typing import Final

from isal import isal_zlib

from rmq_formats.codecs.layout import (
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    MAX_BATCH_COUNT,
    MAX_PROPERTIES_BYTES,
    PROPERTY_SEPARATOR,
)
from rmq_formats.codecs.record_frame import CRC_MASK, CRC_PROPERTY_START, crc_property
from rmq_formats.codecs.record_layout import (
    BATCH_HEAD,
    HOST_FLAGS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAX_TOPIC_BYTES_V1,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
    TOPIC_LENGTH,
    host_kind,
)

_SEPARATOR: Final = bytes([PROPERTY_SEPARATOR])


class QueueParts:
    """Encoded parts that all records of one queue share, and the queue's next offset."""

    __slots__ = ("magic", "next_offset", "queue_id", "topic_bytes")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        encoded_topic = topic.encode()
        is_short = len(encoded_topic) <= MAX_TOPIC_BYTES_V1
        self.magic = MAGIC_V1 if is_short else MAGIC_V2
        self.topic_bytes = TOPIC_LENGTH[self.magic].pack(len(encoded_topic)) + encoded_topic
        self.queue_id = queue_id
        self.next_offset = next_offset


BatchMessage = tuple[int, int, int, bytes, bytes]  # size of the record, body CRC, flag, body, properties


class BatchEncoder:
    """Splits a client's batch into messages, and encodes a record for each."""

    def __init__(self, queue: QueueParts, sys_flag: int, head: Struct, head_bytes: int, append_crc: bool) -> None:
        self._queue = queue
        self._sys_flag = sys_flag
        self._head = head
        self._head_bytes = head_bytes
        self._append_crc = append_crc

    def split(self, batch: bytes, properties: bytes) -> list[BatchMessage] | None:
        """Split a batch into messages; None if a length in the batch is wrong, or a limit is exceeded."""
        crc32, unpack = isal_zlib.crc32, BATCH_HEAD.unpack_from
        crc_bytes = CRC_PROPERTY_BYTES * self._append_crc
        overhead = self._head_bytes + len(self._queue.topic_bytes) + 2 + crc_bytes
        messages: list[BatchMessage] = []
        at, end = 0, len(batch)
        while at < end:
            body_at = at + BATCH_HEAD.size
            if body_at > end:
                return None
            size, _, _, flag, body_bytes = unpack(batch, at)
            body_end = body_at + body_bytes
            if body_bytes < 0 or body_end + 2 > end:
                return None
            properties_bytes = PROPERTIES_LENGTH.unpack_from(batch, body_end)[0]
            at = body_end + 2 + properties_bytes
            if properties_bytes < 0 or at > end or size != at - body_at + BATCH_HEAD.size:
                return None
            message_properties = batch[body_end + 2 : at]
            if message_properties and properties and not message_properties.endswith(_SEPARATOR):
                message_properties += _SEPARATOR
            message_properties += properties
            if self._append_crc:
                message_properties = before_crc(message_properties)
            if len(message_properties) + crc_bytes > MAX_PROPERTIES_BYTES or len(messages) == MAX_BATCH_COUNT:
                return None
            body = batch[body_at:body_end]
            record_bytes = overhead + body_bytes + len(message_properties)
            messages.append((record_bytes, crc32(body) & CRC_MASK, flag, body, message_properties))
        return messages

    def encode(
        self, messages: list[BatchMessage], physical_offset: int, hosts_and_times: tuple[int, bytes, int, bytes, int]
    ) -> tuple[list[bytes], tuple[int, ...]]:
        """Encode the records of messages; return the parts in order, and the physical offset of each record."""
        queue, sys_flag, pack, magic = self._queue, self._sys_flag, self._head.pack, self._queue.magic
        crc_bytes = CRC_PROPERTY_BYTES * self._append_crc
        parts: list[bytes] = []
        offsets: list[int] = []
        queue_offset = queue.next_offset
        born_timestamp_ms, born_host, now_ms, store_host, reconsume_times = hosts_and_times
        for size, body_crc, flag, body, properties in messages:
            record = [
                SIZE_AND_MAGIC.pack(size, magic),
                pack(
                    body_crc, queue.queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms,
                    born_host, now_ms, store_host, reconsume_times, 0, len(body),
                ),
                body,
                queue.topic_bytes,
                PROPERTIES_LENGTH.pack(len(properties) + crc_bytes),
                properties,
            ]  # fmt: skip
            if crc_bytes:
                record.append(crc_property(b"".join(record)))
            parts += record
            offsets.append(physical_offset)
            physical_offset += size
            queue_offset += 1
        return parts, tuple(offsets)


def host_kinds(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[int, int]:
    """Return the index in ``HEADS`` for two hosts, and ``sys_flag`` with their IPv6 bits.

    Raises:
        ValueError: a host of another length than 8 or 20 bytes; the broker makes them, not a client.
    """
    kinds = 0
    for host, bit in ((born_host, FLAG_BORN_HOST_V6), (store_host, FLAG_STORE_HOST_V6)):
        if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise ValueError(f"host: has {len(host)} bytes, not 8 or 20")
        if len(host) == HOST_V6_BYTES:
            kinds |= bit
    return host_kind(kinds), sys_flag & ~HOST_FLAGS | kinds


def before_crc(properties: bytes) -> bytes:
    """Remove an older CRC property and terminate the properties, so that a CRC property can follow."""
    if CRC_PROPERTY_START in properties:
        entries = properties.split(_SEPARATOR)
        properties = _SEPARATOR.join(entry for entry in entries if not entry.startswith(CRC_PROPERTY_START))
    return properties + _SEPARATOR if properties and not properties.endswith(_SEPARATOR) else properties
