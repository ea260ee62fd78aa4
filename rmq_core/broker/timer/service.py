"""Timer message service: enqueues stored timer messages into the wheel, and delivers those that are due.

All of it runs on the event loop, in slices of some milliseconds, so that requests are served in between.

Source: ``TimerMessageStore``: its five services are one here.
"""

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.timer.metrics import TimerMetrics
from rmq_core.broker.timer.records import NEVER_TAKEN_IN, Waiting, read_waiting
from rmq_core.broker.timer.redelivery import Delivered
from rmq_core.store.results import GetStatus, PutResult, PutStatus
from rmq_core.store.timer.counts import waiting_by_topic_hash
from rmq_core.store.timer.recovery import open_timers
from rmq_core.store.timer.store import TimerConfig
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.codecs.timer import FLAG_DELETE, FLAG_ROLL
from rmq_formats.codecs.topics import TIMER_TOPIC

log = logging.getLogger("rmq.broker.timers")
_hash_of: Final = lru_cache(maxsize=4096)(java_string_hash)  # of topics: those that wait are few
_SLICE_S: Final = 0.005
_AT_ONCE: Final = 32
_LAG_MS: Final = 7 * 86_400_000  # the wheel holds twice as much: what is due goes out before more comes in
_PLACE = head_struct("queue_offset", "physical_offset")
_SIZE = Struct(">i")


def timer_config(root: str, config: BrokerConfig) -> TimerConfig:
    """Settings of a store's timer files."""
    return TimerConfig(
        root=root, file_bytes=config.timer_log_file_bytes, precision_ms=config.timer_precision,
        roll_window_slots=config.timer_roll_window_slots,
    )  # fmt: skip


class Timers:
    """Takes in timer messages, and delivers each to its own topic at its time.

    Attributes:
        files: the waiting messages.
        metrics: their number, by topic.
    """

    def __init__(self, state: BrokerState) -> None:
        """Open the timer files, and continue where their checkpoint says.

        Raises:
            StoreSizeError: files of other sizes than the settings say.
            OSError: a file cannot be read.
        """
        self._state = state
        self._store = state.store
        config = timer_config(state.store.config.root, state.config)
        self.files = open_timers(config, state.store, state.clock_ms())
        self.metrics = TimerMetrics(state.files, state.clock_ms)
        self.metrics.revise(state.topics.table, waiting_by_topic_hash(self.files.wheel, self.files.log))
        self._scan(self.files.done.scan_offset)
        self._work = self._rounds()
        self._more: asyncio.Handle | None = None
        self._is_closed = False
        self._is_behind = False  # an I/O error is logged once

    # --- slices -------------------------------------------------------------------------
    def run(self) -> None:
        """Work for one slice; to be called periodically. It schedules itself again while there is more to do."""
        self._pause()
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        if self._step_until(loop.time() + _SLICE_S):
            self._more = loop.call_soon(self.run)

    def _pause(self) -> None:
        """Cancel the slice that is scheduled next."""
        if self._more is not None:
            self._more.cancel()
            self._more = None

    def _step_until(self, deadline_s: float) -> bool:
        """Work until a deadline of the loop's clock; returns whether there is more to do."""
        end, now_s = self._store.max_physical_offset, asyncio.get_running_loop().time
        try:
            while next(self._work):
                if now_s() >= deadline_s:
                    return True
            return False
        except BaseException:
            self._work = self._rounds()  # what was not noted as done is done again
            if self._begin is not None:
                self._scan(self._begin)
            raise
        finally:
            if self._store.max_physical_offset != end:
                self._state.dispatch()

    def _scan(self, begin: int) -> None:
        """Find what was delivered behind a physical offset and is not in the checkpoint."""
        self._before = Delivered(self._store, begin)
        # Physical offset behind which there are such deliveries; None if there are none.
        self._begin: int | None = None if self._before.is_empty else begin
        self._queue_end = self._store.max_offset(TIMER_TOPIC, 0)

    def _note(self) -> None:
        end = self._store.max_physical_offset
        self.files.note(end, end if self._begin is None else self._begin)

    def _rounds(self) -> Iterator[bool]:
        """Endless rounds of work: yields True where it can pause, False where it has to wait."""
        while True:
            yield from self._take_in()
            yield from self._deliver_due()
            if not self.files.is_noted(self._store.max_physical_offset):
                self._note()
            yield False

    # --- taking in ----------------------------------------------------------------------
    def _take_in(self) -> Iterator[bool]:
        files, store = self.files, self._store
        while files.queue_offset < store.max_offset(TIMER_TOPIC, 0):
            now_ms = self._state.clock_ms()
            if self._state.config.timer_stop_enqueue or now_ms - files.read_time_ms > _LAG_MS:
                return
            found = store.get(TIMER_TOPIC, 0, files.queue_offset, _AT_ONCE)
            if found.status is GetStatus.FOUND:
                for record in _records(found.slices):
                    if not self._take(record, now_ms):
                        return
                try:
                    files.log.write()
                except OSError as error:
                    self._tell(error)
                    return
            elif found.next_offset == files.queue_offset:
                return
            else:
                log.warning(
                    "timer messages skip from queue offset %(offset)d to %(next)d: %(why)s",
                    {"next": found.next_offset, "offset": files.queue_offset, "why": found.status.value},
                )
            files.queue_offset = found.next_offset
            self._note()
            yield True

    def _take(self, record: memoryview, now_ms: int) -> bool:
        """Enqueue a message, or deliver it if it is due; False if that cannot be done now."""
        files = self.files
        queue_offset, physical_offset = _PLACE.unpack_from(record)
        if physical_offset in files.taken:
            files.queue_offset = queue_offset + 1
            return True
        waiting = read_waiting(record)
        if isinstance(waiting, str):
            log.error(
                "the timer message at %(physical_offset)d is skipped: %(why)s",
                {"physical_offset": physical_offset, "why": waiting},
            )
        elif queue_offset < self._queue_end and self._was_done(waiting, queue_offset):
            pass
        elif waiting.due_ms >= files.interval(now_ms):
            if files.has_to_wait(waiting.due_ms, now_ms, self._store.flushed_offset):
                return False
            try:
                files.add(
                    waiting.due_ms, physical_offset, len(record), _hash_of(waiting.topic), now_ms,
                    recalls=waiting.recalls is not None,
                )  # fmt: skip
            except OSError as error:
                self._tell(error)
                return False
            self.metrics.add(waiting.topic, 1 if waiting.recalls is None else -1)
            self._state.stats.count(stats.TIMER_ENQUEUE_NUMS, "", 1)
        elif waiting.recalls is None and not self._put(waiting, NEVER_TAKEN_IN, rolls=False):
            return False
        files.queue_offset = queue_offset + 1
        return True

    def _was_done(self, waiting: Waiting, queue_offset: int) -> bool:
        """Whether a message that may have been enqueued before a crash was delivered, or rolled, before it."""
        files = self.files
        if queue_offset < files.again_before and waiting.due_ms < files.again_since_ms:
            return True
        return not self._before.is_empty and self._before.take(TIMER_TOPIC, waiting.properties, rolls=True)

    def _tell(self, error: OSError) -> None:
        if not self._is_behind:
            log.error("timer messages cannot be enqueued: %(error)s", {"error": error})
        self._is_behind = True

    # --- what is due --------------------------------------------------------------------
    def _deliver_due(self) -> Iterator[bool]:
        files = self.files
        while not self._state.config.timer_stop_dequeue:
            now_ms = self._state.clock_ms()
            due_ms = files.next_due_ms(now_ms)
            if due_ms is None:
                if self._begin is not None and files.queue_offset >= self._queue_end:
                    self._before.forget(now_ms)
                    if self._before.is_empty:
                        self._begin = None
                return
            recalled: Counter[str] = Counter()  # how many recalls there are of each key, less its messages
            units = array("q")  # flags, when it was taken in, physical offset of each message
            for count, unit in enumerate(files.units(due_ms)):
                if unit.flags & FLAG_DELETE and not unit.flags & FLAG_ROLL:
                    self._note_recall(unit.physical_offset, recalled)
                else:
                    units.extend((unit.physical_offset, unit.write_time_ms, unit.flags))
                if count % _AT_ONCE == 0:
                    yield True
            units.reverse()
            if self._begin is None:
                self._begin = self._store.max_physical_offset
            for at in range(0, len(units), 3):
                flags, write_time_ms, physical_offset = units[at : at + 3]
                while not self._deliver(physical_offset, write_time_ms, bool(flags & FLAG_ROLL), recalled):
                    yield False
                yield True
            for key, left in recalled.items():
                if left:
                    self.metrics.add(key.partition("+")[0], left)
            files.delivered(due_ms, self._store.max_physical_offset)
            if self._before.is_empty:
                self._begin = None
            self._note()

    def _waiting(self, physical_offset: int) -> Waiting | None:
        record = self._store.record(physical_offset)
        waiting = "it is not there any more" if record is None else read_waiting(record)
        if isinstance(waiting, Waiting):
            return waiting
        log.error(
            "the timer message at %(physical_offset)d is not delivered: %(why)s",
            {"physical_offset": physical_offset, "why": waiting},
        )
        return None

    def _note_recall(self, physical_offset: int, recalled: Counter[str]) -> None:
        waiting = self._waiting(physical_offset)
        if waiting is not None and waiting.recalls is not None:
            recalled[waiting.recalls] += 1

    def _deliver(self, physical_offset: int, write_time_ms: int, rolls: bool, recalled: Counter[str]) -> bool:
        """Deliver or roll a message that is due, unless it was recalled; False if the store takes none now."""
        waiting = self._waiting(physical_offset)
        if waiting is None:
            return True
        if recalled and not rolls and waiting.uniq_key and waiting.delete_key in recalled:
            recalled[waiting.delete_key] -= 1
            return True
        if not self._put(waiting, write_time_ms, rolls=rolls):
            return False
        self.metrics.add(waiting.topic, -1 if waiting.recalls is None else 1)
        self._state.stats.count(stats.TIMER_DEQUEUE_NUMS, "", 1)
        return True

    def _put(self, waiting: Waiting, write_time_ms: int, *, rolls: bool) -> bool:
        """Store a message in its real topic or, if it rolls, in the timer topic again; False if none is taken."""
        topic, queue_id = (TIMER_TOPIC, 0) if rolls else (waiting.topic, waiting.queue_id)
        if not self._before.is_empty and self._before.take(topic, waiting.properties, rolls=rolls):
            return True
        now_ms = self._state.clock_ms()

        def put(properties: bytes) -> PutResult:
            return self._store.appender.put(
                topic, queue_id, waiting.body, properties, waiting.born_timestamp_ms, waiting.born_host, now_ms,
                flag=waiting.flag, sys_flag=waiting.sys_flag, reconsume_times=waiting.reconsume_times,
            )  # fmt: skip

        result = put(waiting.delivered_properties(write_time_ms, now_ms, rolls=rolls))
        if result.status.is_hopeless:
            result = put(waiting.properties_bytes)  # the added properties may not fit
        if result.status is PutStatus.PUT_OK:
            self._state.stats.count_messages(stats.PUT, topic, 1, result.size)
            return True
        if result.status.is_hopeless:
            log.error(
                "a timer message for %(topic)s cannot be stored: %(why)s",
                {"topic": topic, "why": result.status.value},
            )
            return True
        return False

    # --- how far it is ------------------------------------------------------------------
    @property
    def has_due_messages(self) -> bool:
        """True while timer messages wait in the timer topic, or are due and undelivered."""
        files = self.files
        if files.queue_offset < self._store.max_offset(TIMER_TOPIC, 0):
            return True
        return files.next_due_ms(self._state.clock_ms()) is not None

    def count(self, due_ms: int) -> int:
        """Number of messages that wait for an interval."""
        return self.files.wheel.count(due_ms)

    def save(self) -> None:
        """Write a checkpoint if the progress has changed. An I/O error is logged, and the write is tried again."""
        store, files = self._store, self.files
        files.log.remove_before(store.min_physical_offset)
        try:
            files.save(self._state.clock_ms(), store.flushed_offset, self._run)
            self._is_behind = False
        except OSError as error:
            self._tell(error)
        self.metrics.save()

    def _run(self, write: Callable[[], None]) -> None:
        self._state.files.run(lambda: _try(write), _tell_failed)

    def close(self) -> None:
        """Write a last checkpoint and close the files; the store is still open, and is flushed before."""
        self._is_closed = True
        self._pause()
        self._note()
        self._store.flush()
        self.save()
        self.files.close()


def _try(write: Callable[[], None]) -> str:
    """Write a checkpoint; why it cannot be written, or nothing."""
    try:
        write()
    except OSError as error:
        return str(error)
    return ""


def _tell_failed(fault: str) -> None:
    if fault:  # it is written again later
        log.error("the checkpoint of timer messages cannot be written: %(error)s", {"error": fault})


def _records(slices: list[memoryview]) -> Iterator[memoryview]:
    """Split slices of the log into records."""
    for data in slices:
        at = 0
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            yield data[at : at + size]
            at += size
