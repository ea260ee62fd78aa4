"""Appends many records at once: a client's batch, or replicated bytes of a master's CommitLog.

Source: ``CommitLog#asyncPutMessages``, ``DefaultMessageStore#appendToCommitLog``.
"""

import logging
from struct import error as struct_error
from typing import Final

from rmq_core.store.commitlog.append import Appender
from rmq_core.store.commitlog.lmq_offsets import INNER_MULTI_QUEUE_OFFSET
from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.commitlog.record_encoder import BatchEncoder, host_kinds
from rmq_core.store.config import StoreConfig
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.batch_consumequeue import count_messages
from rmq_formats.codecs.layout import (
    BLANK_BYTES,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_TRANSACTION_MASK,
    MAX_BATCH_COUNT,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
)
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record_layout import HEAD_BYTES, HEADS_BEHIND_MAGIC

_LOGGER = logging.getLogger(__name__)
_new = tuple.__new__
_OK = PutStatus.PUT_OK
_ILLEGAL: Final = PutResult(PutStatus.MESSAGE_ILLEGAL)


class BulkAppender:
    """Appends batches and replicated bytes; shares queue offsets with the ``Appender`` of single messages."""

    def __init__(self, appender: Appender, config: StoreConfig, log: CommitLog) -> None:
        self._appender = appender
        self._log = log
        self._config = config
        self._is_faulty = False  # the last write of replicated bytes failed; the failure is logged once

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
        """Append the messages of a client's batch, all or none; other arguments are as in ``Appender.put``.

        Args:
            batch: the body of the request.
            properties: of the batch, encoded; appended to the properties of each message.
            sys_flag: transactions cannot come in batches.

        Source: ``CommitLog#asyncPutMessages``, ``MessageExtEncoder#encode(MessageExtBatch)``.
        """
        appender = self._appender
        if appender.refusal is not None:
            return appender.refusal
        queue = appender.queue(topic, queue_id)
        if queue is None or not 0 < len(batch) <= self._config.max_message_bytes or sys_flag & FLAG_TRANSACTION_MASK:
            return _ILLEGAL
        if self._config.lmq_enabled and (INNER_MULTI_QUEUE_OFFSET in batch or INNER_MULTI_QUEUE_OFFSET in properties):
            return _ILLEGAL  # messages of batches get no LMQ offsets, and must not have any from the client
        if store_host is None:
            store_host = appender.store_host
        hosts, sys_flag = host_kinds(born_host, store_host, sys_flag)
        encoder = BatchEncoder(
            queue, sys_flag, HEADS_BEHIND_MAGIC[hosts], HEAD_BYTES[hosts], self._config.append_crc_property
        )
        messages = encoder.split(batch, properties)
        if messages is None:
            return _ILLEGAL
        size = sum(message[0] for message in messages)
        log = self._log
        if log.position + size + BLANK_BYTES > log.file_bytes:
            refused = appender.make_room(size)
            if refused is not None:
                return refused
        position = log.position
        physical_offset = log.max_offset
        hosts_and_times = (born_timestamp_ms, born_host, now_ms, store_host, reconsume_times)
        try:
            parts, offsets = encoder.encode(messages, physical_offset, hosts_and_times)
        except struct_error:
            return _ILLEGAL
        memory = log.memory
        # The first eight bytes come last: before that no reader sees a record, after that all of the batch is there.
        records = b"".join(parts)
        memory[position + BLANK_BYTES : position + size] = memoryview(records)[BLANK_BYTES:]
        memory[position : position + BLANK_BYTES] = records[:BLANK_BYTES]
        log.position = position + size
        log.max_offset = physical_offset + size
        queue_offset = queue.next_offset
        queue.next_offset = queue_offset + len(messages)
        return _new(PutResult, (_OK, physical_offset, size, queue_offset, len(messages), offsets, store_host))

    def put_inner_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        now_ms: int,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> PutResult:
        """Append the messages of a client's batch as one record, for a topic with BatchConsumeQueues.

        Args:
            batch: the body of the request, stored unchanged.
            properties: of the record, encoded and ended by a separator, without the properties that describe the batch.
            sys_flag: as in ``Appender.put``; those of an inner batch are set here.

        Source: ``SendMessageProcessor#sendBatchMessage``, ``BatchConsumeQueue#assignQueueOffset``.
        """
        appender = self._appender
        if appender.refusal is not None:
            return appender.refusal
        queue = appender.queue(topic, queue_id)
        count = count_messages(batch, MAX_BATCH_COUNT)
        if queue is None or not 0 < count <= MAX_BATCH_COUNT or sys_flag & FLAG_TRANSACTION_MASK:
            return _ILLEGAL
        inner_properties = encode_properties(
            {PROPERTY_INNER_NUM: str(count), PROPERTY_INNER_BASE: str(queue.next_offset)}
        )
        result = appender.put(
            topic,
            queue_id,
            batch,
            properties + inner_properties,
            born_timestamp_ms,
            born_host,
            now_ms,
            flag=flag,
            sys_flag=sys_flag | FLAG_INNER_BATCH | FLAG_NEED_UNWRAP,
            reconsume_times=reconsume_times,
        )
        if result.status is not _OK:
            return result
        queue.next_offset += count - 1  # ``put`` has counted one
        return result._replace(message_count=count)

    def append_to_commit_log(self, physical_offset: int, data: bytes | memoryview) -> bool:
        """Append replicated bytes of a master's CommitLog, which may begin and end within records.

        False if the bytes do not begin at the end of this log, or the write fails.
        """
        log = self._log
        self._appender.evict_all_queues()  # the records bring their queue offsets
        if not log.max_offset and physical_offset > 0:
            if physical_offset % log.file_bytes:
                return False
            try:
                log.begin_at(physical_offset)
            except OSError as error:
                return self._refuse_replicated(error)
        if physical_offset != log.max_offset:
            return False
        done = 0
        while done < len(data):
            if log.position == log.file_bytes and not self._appender.roll():
                return False
            step = min(len(data) - done, log.file_bytes - log.position)
            try:
                log.write(data[done : done + step])
            except OSError as error:
                return self._refuse_replicated(error)
            done += step
        self._is_faulty = False
        return True

    def _refuse_replicated(self, error: OSError) -> bool:
        if not self._is_faulty:  # the master sends them again and again: the failure is logged once
            _LOGGER.error(
                "%(directory)s: replicated bytes of the master's log cannot be written: %(error)s",
                {"directory": self._log.directory, "error": error},
            )
        self._is_faulty = True
        return False
