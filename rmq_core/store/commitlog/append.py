"""Appends single messages to the CommitLog: encodes each record straight into the mapped file.

A record's first eight bytes, its size and magic, are written last: a process that dies before that leaves no record,
however many of the other bytes are in the file. ``rmq_formats.codecs.record.encode_record`` is the oracle of the bytes.

Source: ``CommitLog#asyncPutMessage``, ``#asyncPutMessages``, ``MessageExtEncoder``.
"""

import logging
import threading
from collections.abc import Callable, Collection, Set
from struct import error as struct_error
from typing import Final

from isal import isal_zlib

from rmq_core.store.commitlog.lmq_offsets import INNER_MULTI_DISPATCH, LmqOffsets
from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.commitlog.record_encoder import QueueParts, before_crc, host_kinds
from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.layout import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    MAX_PROPERTIES_BYTES,
)
from rmq_formats.codecs.paths import is_safe_topic
from rmq_formats.codecs.record import RECORD_OVERHEAD_BYTES
from rmq_formats.codecs.record_frame import CRC_MASK, crc_property
from rmq_formats.codecs.record_layout import (
    HEAD_BYTES,
    HEADS_BEHIND_MAGIC,
    HOST_FLAGS,
    HOST_V4_BYTES,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
)
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX

MAX_QUEUE_ID: Final = (1 << 31) - 1
SHUTDOWN: Final = "shutdown"  # the one cause of refusals that is not logged

_LOGGER = logging.getLogger(__name__)
_new = tuple.__new__
_OK = PutStatus.PUT_OK
_ILLEGAL: Final = PutResult(PutStatus.MESSAGE_ILLEGAL)
_PROPERTIES_EXCEEDED: Final = PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
_NO_FILE: Final = PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
_REFUSED: Final = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)


class Appender:
    """Appends single messages to the CommitLog; one thread at a time.

    Attributes:
        refusal: the result of every append while the store refuses messages; None while the store accepts messages.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueueTable,
        store_host: bytes,
        roll: Callable[[], bool],
    ) -> None:
        """Append at the end of the log.

        Args:
            store_host: the broker's address and port, 8 or 20 bytes.
            roll: rolls the log over to a new file; False if that fails.
        """
        self.refusal: PutResult | None = None
        self.store_host = store_host
        self._log = log
        self._table = queues
        self.roll = roll
        self._queues: dict[tuple[str, int], QueueParts] = {}
        self._max_body_bytes = config.max_message_bytes
        self._max_record_bytes = config.max_message_bytes + RECORD_OVERHEAD_BYTES
        self._append_crc = config.append_crc_property
        self._file_bytes = config.commitlog_file_bytes
        self._lmq_offsets = LmqOffsets(self.queue, queues, config.max_lmq_queues) if config.lmq_enabled else None

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""
        queue = self._queues.get((topic, queue_id))
        return self._table.next_offset(topic, queue_id) if queue is None else queue.next_offset

    def queue(self, topic: str, queue_id: int) -> QueueParts | None:
        """Return the cached parts of a queue's records, with its next queue offset; None for an impossible queue."""
        return self._queues.get((topic, queue_id)) or self.open_queue(topic, queue_id)

    def evict_all_queues(self) -> None:
        """Drop the cached next queue offsets of all queues; they are read from the ConsumeQueues again."""
        self._queues.clear()

    def evict_queues(self, topics: Collection[str]) -> None:
        """Drop the cached next queue offsets of topics; they are read from their ConsumeQueues again."""
        for key in [key for key in self._queues if key[0] in topics]:
            del self._queues[key]
        if self._lmq_offsets is not None:
            self._lmq_offsets.names.difference_update(topics)

    @property
    def lmq_names(self) -> Set[str]:
        """Names of all LMQs with messages."""
        return frozenset() if self._lmq_offsets is None else self._lmq_offsets.names

    def reserve_lmqs(self, names: Collection[str]) -> bool:
        """Reserve room for a message's LMQs; False if the store would have too many. See ``LmqOffsets.reserve``."""
        return self._lmq_offsets is None or self._lmq_offsets.reserve(names)

    def open_queue(self, topic: str, queue_id: int) -> QueueParts | None:
        """Cache the parts of a queue's records and its next queue offset; None if there can be no such queue."""
        if not is_safe_topic(topic) or not 0 <= queue_id <= MAX_QUEUE_ID:
            return None
        queue = QueueParts(topic, queue_id, self._table.next_offset(topic, queue_id))
        self._queues[topic, queue_id] = queue
        if self._lmq_offsets is not None and topic.startswith(LIGHT_QUEUE_PREFIX):
            self._lmq_offsets.names.add(topic)
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
        """Append one message. It is readable after the next ``dispatch``.

        Args:
            body: not empty.
            born_host: the producer: 4 or 16 address bytes, and the port in 4.
            now_ms: becomes the store timestamp.
            sys_flag: bits of ``rmq_formats.codecs.layout``; those of the hosts are set here.
            prepared_transaction_offset: for a commit, the physical offset of the half message.
            store_host: the host to record instead of the store's own.

        Returns:
            PUT_OK with the offsets of the record; or MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED,
            CREATE_MAPPED_FILE_FAILED (no room for a new file; try again), SERVICE_NOT_AVAILABLE (see
            ``MessageStore.refusals``). With SYNC_FLUSH the message is durable when ``flushed_offset`` reaches the
            result's ``end_offset``.

        Source: ``CommitLog#asyncPutMessage``.
        """
        if self.refusal is not None:
            return self.refusal
        queue = self._queues.get((topic, queue_id)) or self.open_queue(topic, queue_id)
        body_bytes = len(body)
        if queue is None or not 0 < body_bytes <= self._max_body_bytes:
            return _ILLEGAL
        gets_queue_offset = sys_flag & FLAG_TRANSACTION_MASK in (0, FLAG_TRANSACTION_COMMIT)
        lmqs: Collection[QueueParts] = ()
        if self._lmq_offsets is not None and gets_queue_offset and INNER_MULTI_DISPATCH in properties:
            properties, lmqs = self._lmq_offsets.assign_offsets(topic, properties)
        append_crc = self._append_crc
        if append_crc:
            properties = before_crc(properties)
        properties_bytes = len(properties) + CRC_PROPERTY_BYTES if append_crc else len(properties)
        if properties_bytes > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_EXCEEDED
        if store_host is None:
            store_host = self.store_host
        hosts = 0
        if len(born_host) != HOST_V4_BYTES or len(store_host) != HOST_V4_BYTES or sys_flag & HOST_FLAGS:
            hosts, sys_flag = host_kinds(born_host, store_host, sys_flag)
        topic_bytes = queue.topic_bytes
        size = HEAD_BYTES[hosts] + body_bytes + len(topic_bytes) + 2 + properties_bytes
        if size > self._max_record_bytes:
            return _ILLEGAL
        log = self._log
        if log.position + size + BLANK_BYTES > self._file_bytes:
            refused = self.make_room(size)
            if refused is not None:
                return refused
        position = log.position
        physical_offset = log.max_offset
        queue_offset = queue.next_offset if gets_queue_offset else 0
        try:
            head = HEADS_BEHIND_MAGIC[hosts].pack(
                isal_zlib.crc32(body) & CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp_ms,
                born_host,
                now_ms,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_bytes,
            )
        except struct_error:  # a number that is too large for its field
            return _ILLEGAL
        record = b"".join((head, body, topic_bytes, PROPERTIES_LENGTH.pack(properties_bytes), properties))
        if append_crc:
            record += crc_property(SIZE_AND_MAGIC.pack(size, queue.magic) + record)
        memory = log.memory
        end = position + size
        memory[position + BLANK_BYTES : end] = record
        SIZE_AND_MAGIC.pack_into(memory, position, size, queue.magic)
        log.position = end
        log.max_offset = physical_offset + size
        if gets_queue_offset:
            for lmq in lmqs:  # the message's own queue may be one of them, so that queue is set afterwards
                lmq.next_offset += 1
            queue.next_offset = queue_offset + 1
        return _new(PutResult, (_OK, physical_offset, size, queue_offset, 1, (), store_host))

    def make_room(self, size: int) -> PutResult | None:
        """Roll the log for a record or batch that does not fit into the last file; return the result of a failure."""
        if size > self._file_bytes - BLANK_BYTES:
            return _ILLEGAL
        return None if self.roll() else _NO_FILE


class Refusals:
    """The causes for which appends are refused; any thread may add a cause. Begin and end of each cause are logged."""

    def __init__(self, config: StoreConfig, appender: Appender) -> None:
        self._root = config.root
        self._appender = appender
        # Only the master's log is appended to a slave's; Java: "broker role is slave, so putMessage is forbidden".
        self._without_cause = _REFUSED if config.slave else None
        appender.refusal = self._without_cause
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def by_cause(self) -> dict[str, str]:
        """Text of each cause, by cause."""
        return dict(self._texts)

    def add(self, cause: str, text: str) -> None:
        """Refuse appends because of a cause."""
        with self._lock:
            previous_text = self._texts.get(cause)
            self._texts[cause] = text
            self._appender.refusal = _REFUSED
        if previous_text is None and cause != SHUTDOWN:
            _LOGGER.error("%(store)s: appends are refused: %(why)s", {"store": self._root, "why": text})

    def remove(self, cause: str) -> None:
        """Remove a cause; the store accepts appends again after the last one."""
        if cause not in self._texts:
            return
        with self._lock:
            text = self._texts.pop(cause)
            if not self._texts:
                self._appender.refusal = self._without_cause
        _LOGGER.warning("%(store)s: no longer a reason to refuse appends: %(why)s", {"store": self._root, "why": text})
