"""Delayed messages: delivery of due messages of each delay level's queue to their real topics.

Source: ``ScheduleMessageService``.
"""

import logging
from typing import Final

from msgspec import field

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.broker.tables.table_file import TableFile
from rmq_core.broker.tables.timer_admission import DelayLevels
from rmq_core.broker.timer.records import stored_messages
from rmq_core.remoting.bodies.codec import BodyStruct, Int, Long
from rmq_core.remoting.bodies.configs import DataVersion
from rmq_core.store.results import GetStatus, PutStatus
from rmq_formats.codecs.layout import FLAG_TRANSACTION_MASK, PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record import StoredMessage

log = logging.getLogger("rmq.broker.schedule")
INTERVAL_S: Final = 0.1  # interval of checks of the levels; Java's
_FILE: Final = "delayOffset.json"
_AT_ONCE: Final = 32
_MOVED: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_LOST: Final = (GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE)


class DelayOffsets(BodyStruct, frozen=True, kw_only=True):
    """Queue offset of the next message of each delay level (``delayOffset.json``)."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[Int, Long] = field(default_factory=dict)


class Schedule:
    """Delivery of messages of delay levels to their real topics; ``offsets`` has the next queue offset by level."""

    def __init__(self, state: BrokerState, levels: DelayLevels) -> None:
        self._state = state
        self.delays_ms = levels.delays_ms
        saved = state.files.load(_FILE, DelayOffsets)
        self._version = saved.data_version
        self.offsets: dict[int, int] = saved.offset_table
        self._file = TableFile(state.files, _FILE, self.body, progress_store=state.store)
        self._saved_offsets = dict(saved.offset_table)
        self._set_back()
        self._due_ms: dict[int, int] = {}  # of the next message, by the steady clock, if known

    def _set_back(self) -> None:
        """Reset offsets after their queue's end to the end: a power loss may have truncated the queue."""
        for level, offset in self.offsets.items():
            end = self._state.store.next_offset(SCHEDULE_TOPIC, level - 1)
            if offset > end:
                self.offsets[level] = end
                log.warning(
                    "delay level %(level)d had come to %(offset)d in its queue, which ends at %(end)d",
                    {"level": level, "offset": offset, "end": end},
                )

    def deliver(self) -> None:
        """Deliver the due messages; to be called every ``INTERVAL_S``."""
        now_ms, steady_ms, delivered = self._state.clock_ms(), self._state.steady_ms(), False
        for level in range(1, len(self.delays_ms) + 1):
            if steady_ms >= self._due_ms.get(level, steady_ms):
                while self._deliver(level, now_ms):
                    delivered = True
        if delivered:
            self._state.dispatch()

    def _deliver(self, level: int, now_ms: int) -> bool:
        """Deliver the due messages among the next ones of a level; return whether there may be more."""
        store = self._state.store
        offset = self.offsets.get(level, 0)
        queue_id = level - 1
        if offset == store.max_offset(SCHEDULE_TOPIC, queue_id):
            return False
        result = store.get(SCHEDULE_TOPIC, queue_id, offset, _AT_ONCE)
        if result.status is not GetStatus.FOUND:
            if result.status in _MOVED or result.status in _LOST:
                log.warning(
                    "delay level %(level)d skips from queue offset %(offset)d to %(next)d: %(why)s",
                    {"level": level, "next": result.next_offset, "offset": offset, "why": result.status.value},
                )
                self.offsets[level] = result.next_offset
                return result.next_offset != offset
            return False
        for message in stored_messages(result.slices):
            delay_ms = self.delays_ms[level - 1]
            age_ms = self._state.clock_ms.age_ms(message.store_timestamp_ms, message.physical_offset)
            if 0 <= age_ms < delay_ms:  # below 0 if the clock was set back before the start
                self._due_ms[level] = self._state.steady_ms() + delay_ms - age_ms
                return False
            if not self._store_again(message, now_ms):
                self._due_ms.pop(level, None)
                return False
            self.offsets[level] = message.queue_offset + 1
        self._due_ms.pop(level, None)
        self.offsets[level] = result.next_offset
        return True

    def _store_again(self, message: StoredMessage, now_ms: int) -> bool:
        """Store a message in its real topic, with its properties, as ``messageTimeUp``; False if that is refused."""
        properties = message.properties
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        queue_id = parse_decimal(properties.get(PROPERTY_REAL_QUEUE_ID), None)
        if not topic or queue_id is None:
            log.error(
                "the delayed message at %(physical_offset)d is skipped, as it names no real topic and queue",
                {"physical_offset": message.physical_offset},
            )
            return True
        sys_flag = message.sys_flag & ~FLAG_TRANSACTION_MASK
        result = self._state.put_copy(message, (topic, queue_id), message.properties_bytes, now_ms, sys_flag=sys_flag)
        if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            log.error(
                "a delayed message at %(physical_offset)d cannot be stored: %(why)s",
                {"physical_offset": message.physical_offset, "why": result.status.value},
            )
            return True
        return result.status is PutStatus.PUT_OK

    def adopt(self, offsets: DelayOffsets) -> None:
        """Replace a slave's delay offsets by its master's."""
        self.offsets = dict(offsets.offset_table)
        self._due_ms.clear()

    def body(self) -> DelayOffsets:
        return DelayOffsets(data_version=self._version, offset_table=self.offsets)

    def save(self) -> None:
        if self.offsets != self._saved_offsets:
            self._saved_offsets = dict(self.offsets)
            self._version = self._version.next(self._state.clock_ms())
            self._file.changes += 1
        self._file.save()
