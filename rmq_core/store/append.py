"""Appends messages to the log: encodes each straight into the mapped file.

A record's first eight bytes, its size and magic, are written last: a process that dies in between leaves
no record, whatever half of it is there. ``rmq_formats.message.encode_record`` is the oracle of the bytes.

Source: ``CommitLog#asyncPutMessage``, ``#asyncPutMessages``, ``MessageExtEncoder``.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final

from isal import isal_zlib

from rmq_core.store.config import StoreConfig
from rmq_core.store.log import SIZE_AND_MAGIC, CommitLog
from rmq_core.store.queues import QueueTable
from rmq_core.store.values import PutResult, PutStatus
from rmq_formats.frame import CRC_MASK, CRC_PROPERTY_START, crc_property
from rmq_formats.layout import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    PROPERTY_SEPARATOR,
)
from rmq_formats.message import MAX_TOPIC_BYTES_V1, RECORD_OVERHEAD_BYTES
from rmq_formats.paths import is_safe_topic

# What follows size and magic, up to the body, by whether born host and store host are IPv6:
# body CRC, queue id, flag, queue offset, physical offset, sys_flag, born timestamp, born host,
# store timestamp, store host, reconsume times, prepared transaction offset, body length
_HEADS: Final = tuple(
    Struct(f">iiiqqiq{born}sq{store}siqi")
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
)
_HEAD_BYTES: Final = tuple(BLANK_BYTES + head.size for head in _HEADS)
_LENGTH = Struct(">h")
_INNER_HEAD = Struct(">iiiii")  # size, magic, body CRC, flag, body length of a message in a batch
_HOST_FLAGS: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
_SEPARATOR: Final = bytes([PROPERTY_SEPARATOR])
MAX_BATCH_COUNT: Final = 32767  # the original counts them in a short
MAX_QUEUE_ID: Final = (1 << 31) - 1

_new = tuple.__new__
_OK = PutStatus.PUT_OK
_ILLEGAL: Final = PutResult(PutStatus.MESSAGE_ILLEGAL)
_PROPERTIES_EXCEEDED: Final = PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
_NO_FILE: Final = PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)


class _Queue:
    """What all records of one queue have in common, and the number of the next."""

    __slots__ = ("magic", "next_offset", "queue_id", "topic_bytes")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        text = topic.encode()
        short = len(text) <= MAX_TOPIC_BYTES_V1
        self.magic = MAGIC_V1 if short else MAGIC_V2
        self.topic_bytes = len(text).to_bytes(1 if short else 2, "big") + text
        self.queue_id = queue_id
        self.next_offset = next_offset


class Appender:
    """Takes messages in; one thread at a time.

    Attributes:
        refusal: what every append is answered with while the store takes none; None while it does.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        store_host: bytes,
        roll: Callable[[], bool],
    ) -> None:
        """Begin where the log ends.

        Args:
            config: the store's settings.
            log: where records go.
            queues: knows the first number of a queue.
            store_host: the broker's address and port, 8 or 20 bytes.
            roll: makes the log go on in a new file; False if it cannot.
        """
        self.refusal: PutResult | None = None
        self.store_host = store_host
        self._log = log
        self._table = queues
        self._roll = roll
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._max_body_bytes = config.max_message_bytes
        self._max_record_bytes = config.max_message_bytes + RECORD_OVERHEAD_BYTES
        self._append_crc = config.append_crc_property
        self._file_bytes = config.commitlog_file_bytes

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue gets."""
        queue = self._queues.get((topic, queue_id))
        return self._table.next_offset(topic, queue_id) if queue is None else queue.next_offset

    def forget(self, topic: str) -> None:
        """Count the queues of a topic anew, from what the table knows of them."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]

    def forget_all(self) -> None:
        """Count all queues anew."""
        self._queues.clear()

    def _open_queue(self, topic: str, queue_id: int) -> _Queue | None:
        if not is_safe_topic(topic) or not 0 <= queue_id <= MAX_QUEUE_ID or self._table.is_foreign(topic):
            return None
        queue = _Queue(topic, queue_id, self._table.next_offset(topic, queue_id))
        self._queues[topic, queue_id] = queue
        return queue

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        now_ms: int,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        store_host: bytes | None = None,
    ) -> PutResult:
        """Append one message; see ``MessageStore.put``."""
        if self.refusal is not None:
            return self.refusal
        queue = self._queues.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        body_bytes = len(body)
        if queue is None or not 0 < body_bytes <= self._max_body_bytes:
            return _ILLEGAL
        if self._append_crc:
            properties = _before_crc(properties)
        properties_bytes = len(properties) + CRC_PROPERTY_BYTES * self._append_crc
        if properties_bytes > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_EXCEEDED
        if store_host is None:
            store_host = self.store_host
        hosts = 0
        if len(born_host) != HOST_V4_BYTES or len(store_host) != HOST_V4_BYTES or sys_flag & _HOST_FLAGS:
            hosts, sys_flag = _host_kinds(born_host, store_host, sys_flag)
        topic_bytes = queue.topic_bytes
        size = _HEAD_BYTES[hosts] + body_bytes + len(topic_bytes) + 2 + properties_bytes
        log = self._log
        if log.position + size + BLANK_BYTES > self._file_bytes or size > self._max_record_bytes:
            refused = self._make_room(size)
            if refused is not None:
                return refused
        position = log.position
        physical_offset = log.max_offset
        transaction = sys_flag & FLAG_TRANSACTION_MASK
        counts = transaction in (0, FLAG_TRANSACTION_COMMIT)
        queue_offset = queue.next_offset if counts else 0
        try:
            head = _HEADS[hosts].pack(
                isal_zlib.crc32(body) & CRC_MASK, queue_id, flag, queue_offset, physical_offset, sys_flag,
                born_timestamp_ms, born_host, now_ms, store_host, reconsume_times, prepared_transaction_offset,
                body_bytes,
            )  # fmt: skip
        except struct_error:  # a number that its field cannot hold
            return _ILLEGAL
        record = b"".join((head, body, topic_bytes, _LENGTH.pack(properties_bytes), properties))
        if self._append_crc:
            record += crc_property(SIZE_AND_MAGIC.pack(size, queue.magic) + record)
        memory = log.memory
        end = position + size
        memory[position + BLANK_BYTES : end] = record
        SIZE_AND_MAGIC.pack_into(memory, position, size, queue.magic)
        log.position = end
        log.max_offset = physical_offset + size
        if counts:
            queue.next_offset = queue_offset + 1
        return _new(PutResult, (_OK, physical_offset, size, queue_offset, 1, (), store_host))

    def _make_room(self, size: int) -> PutResult | None:
        """See that a record, or a batch, of that size fits into the file; else what to answer."""
        if size > min(self._max_record_bytes, self._file_bytes - BLANK_BYTES):
            return _ILLEGAL
        if self._log.position + size + BLANK_BYTES > self._file_bytes and not self._roll():
            return _NO_FILE
        return None

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        now_ms: int,
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        store_host: bytes | None = None,
    ) -> PutResult:
        """Append the messages of a client's batch, all or none; see ``MessageStore.put_batch``."""
        if self.refusal is not None:
            return self.refusal
        queue = self._queues.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        if queue is None or not 0 < len(batch) <= self._max_body_bytes or sys_flag & FLAG_TRANSACTION_MASK:
            return _ILLEGAL
        if store_host is None:
            store_host = self.store_host
        hosts, sys_flag = _host_kinds(born_host, store_host, sys_flag)
        encoder = _BatchEncoder(queue, sys_flag, _HEADS[hosts], _HEAD_BYTES[hosts], self._append_crc)
        messages = encoder.split(batch, properties)
        if messages is None:
            return _ILLEGAL
        size = sum(message[0] for message in messages)
        log = self._log
        if log.position + size + BLANK_BYTES > self._file_bytes:
            if size > self._file_bytes - BLANK_BYTES:
                return _ILLEGAL
            if not self._roll():
                return _NO_FILE
        position = log.position
        physical_offset = log.max_offset
        varying = (born_timestamp_ms, born_host, now_ms, store_host, reconsume_times)
        try:
            parts, offsets = encoder.encode(messages, physical_offset, varying)
        except struct_error:
            return _ILLEGAL
        memory = log.memory
        # All but the first eight bytes, then these: the whole batch is there at once, or nothing.
        records = b"".join(parts)
        memory[position + BLANK_BYTES : position + size] = memoryview(records)[BLANK_BYTES:]
        memory[position : position + BLANK_BYTES] = records[:BLANK_BYTES]
        log.position = position + size
        log.max_offset = physical_offset + size
        queue_offset = queue.next_offset
        queue.next_offset = queue_offset + len(messages)
        return _new(PutResult, (_OK, physical_offset, size, queue_offset, len(messages), offsets, store_host))

    def put_encoded(self, physical_offset: int, data: bytes | memoryview) -> bool:
        """Append bytes of a master's log; see ``MessageStore.put_encoded``."""
        log = self._log
        if self.refusal is not None:
            return False
        if not log.files and physical_offset > 0:
            if physical_offset % self._file_bytes:
                return False
            log.begin_at(physical_offset)
        if physical_offset != log.max_offset:
            return False
        done = 0
        while done < len(data):
            if log.position == self._file_bytes and not self._roll():
                return False
            step = min(len(data) - done, self._file_bytes - log.position)
            log.memory[log.position : log.position + step] = data[done : done + step]
            log.position += step
            log.max_offset += step
            done += step
        return True


_Message = tuple[int, int, int, bytes, bytes]  # size of the record, body CRC, flag, body, properties


class _BatchEncoder:
    """Cuts a client's batch into messages, and makes a record of each."""

    def __init__(self, queue: _Queue, sys_flag: int, head: Struct, head_bytes: int, append_crc: bool) -> None:
        self._queue = queue
        self._sys_flag = sys_flag
        self._head = head
        self._head_bytes = head_bytes
        self._append_crc = append_crc

    def split(self, batch: bytes, properties: bytes) -> list[_Message] | None:
        """The messages; None where a length in the batch lies, or a limit is passed."""
        crc32, unpack = isal_zlib.crc32, _INNER_HEAD.unpack_from
        crc_bytes = CRC_PROPERTY_BYTES * self._append_crc
        overhead = self._head_bytes + len(self._queue.topic_bytes) + 2 + crc_bytes
        messages: list[_Message] = []
        at, end = 0, len(batch)
        while at < end:
            body_at = at + _INNER_HEAD.size
            if body_at > end:
                return None
            size, _, _, flag, body_bytes = unpack(batch, at)
            body_end = body_at + body_bytes
            if body_bytes < 0 or body_end + 2 > end:
                return None
            own_bytes = _LENGTH.unpack_from(batch, body_end)[0]
            at = body_end + 2 + own_bytes
            if own_bytes < 0 or at > end or size != at - body_at + _INNER_HEAD.size:
                return None
            own = batch[body_end + 2 : at]
            if own and properties and not own.endswith(_SEPARATOR):
                own += _SEPARATOR
            own += properties
            if self._append_crc:
                own = _before_crc(own)
            if len(own) + crc_bytes > MAX_PROPERTIES_BYTES or len(messages) == MAX_BATCH_COUNT:
                return None
            body = batch[body_at:body_end]
            messages.append((overhead + body_bytes + len(own), crc32(body) & CRC_MASK, flag, body, own))
        return messages

    def encode(
        self, messages: list[_Message], physical_offset: int, varying: tuple[int, bytes, int, bytes, int]
    ) -> tuple[list[bytes], tuple[int, ...]]:
        """The records' parts in order, and where each record stands."""
        queue, sys_flag, pack, magic = self._queue, self._sys_flag, self._head.pack, self._queue.magic
        crc_bytes = CRC_PROPERTY_BYTES * self._append_crc
        parts: list[bytes] = []
        offsets: list[int] = []
        queue_offset = queue.next_offset
        born_timestamp_ms, born_host, now_ms, store_host, reconsume_times = varying
        for size, body_crc, flag, body, properties in messages:
            record = [
                SIZE_AND_MAGIC.pack(size, magic),
                pack(
                    body_crc, queue.queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms,
                    born_host, now_ms, store_host, reconsume_times, 0, len(body),
                ),
                body,
                queue.topic_bytes,
                _LENGTH.pack(len(properties) + crc_bytes),
                properties,
            ]  # fmt: skip
            if crc_bytes:
                record.append(crc_property(b"".join(record)))
            parts += record
            offsets.append(physical_offset)
            physical_offset += size
            queue_offset += 1
        return parts, tuple(offsets)


def _host_kinds(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[int, int]:
    """Which head fits the hosts, and the flags that say so.

    Raises:
        ValueError: a host of another length than 8 or 20 bytes; the broker makes them, not a client.
    """
    kinds = 0
    for host, bit in ((born_host, FLAG_BORN_HOST_V6), (store_host, FLAG_STORE_HOST_V6)):
        if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise ValueError(f"a host of {len(host)} bytes")
        if len(host) == HOST_V6_BYTES:
            kinds |= bit
    return kinds // FLAG_BORN_HOST_V6, sys_flag & ~_HOST_FLAGS | kinds


def _before_crc(properties: bytes) -> bytes:
    """Properties as a CRC property can follow them: without an older one, and ended."""
    if CRC_PROPERTY_START in properties:
        entries = properties.split(_SEPARATOR)
        properties = _SEPARATOR.join(entry for entry in entries if not entry.startswith(CRC_PROPERTY_START))
    return properties + _SEPARATOR if properties and not properties.endswith(_SEPARATOR) else properties
