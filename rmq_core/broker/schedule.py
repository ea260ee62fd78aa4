"""Delayed messages: each level's queue is read in order, and what is due goes where it belongs.

Source: ``ScheduleMessageService``.
"""

import logging
from typing import Final

from msgspec import field

from rmq_core.broker.appending import REAL_QUEUE_ID, REAL_TOPIC, DelayLevels
from rmq_core.broker.names import SCHEDULE_TOPIC
from rmq_core.broker.state import BrokerState
from rmq_core.broker.stored import stored_messages
from rmq_core.broker.tables import Run, load_table, run_now, save_table
from rmq_core.remoting.bodies import DataVersion
from rmq_core.remoting.bodies.codec import BodyStruct
from rmq_core.store.values import GetStatus, PutStatus
from rmq_formats.layout import FLAG_TRANSACTION_MASK
from rmq_formats.message import StoredMessage

log = logging.getLogger("rmq.broker.schedule")
INTERVAL_S: Final = 0.1  # how often levels are looked at; Java's
_FILE: Final = "delayOffset.json"
_AT_ONCE: Final = 32
_MOVED: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_LOST: Final = (GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE)


class DelayOffsets(BodyStruct, frozen=True, kw_only=True):
    """The next message of each level (``delayOffset.json``)."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = field(default_factory=dict)


class Schedule:
    """Delivers delayed messages.

    Attributes:
        offsets: queue offset of the next message, by level.
    """

    def __init__(self, state: BrokerState, levels: DelayLevels) -> None:
        """Go on where the file says."""
        self._state = state
        self._delays_ms = levels.delays_ms
        saved = load_table(state.store.config.root, _FILE, DelayOffsets)
        self._version = saved.data_version
        self._saved: dict[int, int] = saved.offset_table
        self.offsets: dict[int, int] = dict(saved.offset_table)
        self._due_ms: dict[int, int] = {}  # of the next message, where it is known

    def deliver(self) -> None:
        """Store again what is due; call it every ``INTERVAL_S``."""
        now_ms = self._state.clock_ms()
        delivered = False
        for level in range(1, len(self._delays_ms) + 1):
            if self._due_ms.get(level, 0) <= now_ms:
                while self._deliver(level, now_ms):
                    delivered = True
        if delivered:
            self._state.store.dispatch()

    def _deliver(self, level: int, now_ms: int) -> bool:
        """Store again what is due of a level's next messages; whether there may be more."""
        store = self._state.store
        offset = self.offsets.get(level, 0)
        queue_id = level - 1
        if offset == store.max_offset(SCHEDULE_TOPIC, queue_id):
            return False
        found = store.get(SCHEDULE_TOPIC, queue_id, offset, _AT_ONCE)
        if found.status is not GetStatus.FOUND:
            if found.status in _MOVED or found.status in _LOST:
                log.warning(
                    "level %(level)d goes on at %(next)d, not %(offset)d: %(why)s",
                    {"level": level, "next": found.next_offset, "offset": offset, "why": found.status.value},
                )
                self.offsets[level] = found.next_offset
                return found.next_offset != offset
            return False
        for message in stored_messages(found.slices):
            delay_ms = self._delays_ms[level - 1]
            due_ms = message.store_timestamp_ms + delay_ms
            if now_ms < due_ms <= now_ms + delay_ms:  # later than that only if the clock was set back
                self._due_ms[level] = due_ms
                return False
            if not self._store_again(message, now_ms):
                self._due_ms[level] = 0
                return False
            self.offsets[level] = message.queue_offset + 1
        self._due_ms[level] = 0
        self.offsets[level] = found.next_offset
        return True

    def _store_again(self, message: StoredMessage, now_ms: int) -> bool:
        """Put a message where it belongs; False if the store takes none now, so that it is tried again.

        Its properties stay as they are, with the delay: the original leaves them, too (``messageTimeUp``).
        """
        properties = message.properties
        topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        if not topic or not queue_id.isdecimal():
            log.error(
                "a delayed message at %(physical_offset)d does not say where it belongs",
                {"physical_offset": message.physical_offset},
            )
            return True
        result = self._state.store.put(
            topic, int(queue_id), message.body, message.properties_bytes, message.born_timestamp_ms,
            message.born_host.to_bytes(), now_ms, flag=message.flag,
            sys_flag=message.sys_flag & ~FLAG_TRANSACTION_MASK, reconsume_times=message.reconsume_times,
        )  # fmt: skip
        if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            log.error(
                "a delayed message at %(physical_offset)d cannot be stored: %(why)s",
                {"physical_offset": message.physical_offset, "why": result.status.value},
            )
            return True
        return result.status is PutStatus.PUT_OK

    def adopt(self, offsets: DelayOffsets) -> None:
        """Be as far as a master, as a slave is."""
        self.offsets = dict(offsets.offset_table)
        self._due_ms.clear()

    def body(self) -> DelayOffsets:
        """The table as slaves are told it."""
        return DelayOffsets(data_version=self._version, offset_table=self.offsets)

    def save(self, run: Run = run_now) -> None:
        """Write the file, if anything has changed; see ``save_table``."""
        if self.offsets != self._saved:
            self._version = self._version.next(self._state.clock_ms())
            self._saved = dict(self.offsets)
            save_table(self._state.store.config.root, _FILE, self.body(), run)
