"""Timer messages: enqueue into the timer wheel, and delivery when due.

The work runs in slices of some milliseconds. Source: ``TimerMessageStore``, whose five services are one here.
"""

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.timer.metrics import TimerMetrics
from rmq_core.broker.timer.records import NEVER_ENQUEUED, TimerRecord, decode_timer_record
from rmq_core.broker.timer.redelivery import PastDeliveries
from rmq_core.store.results import GetStatus, PutResult, PutStatus, split_records
from rmq_core.store.timer.recovery import count_waiting_by_topic_hash, open_timers
from rmq_core.store.timer.store import TimerConfig
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.codecs.timer import FLAG_DELETE, FLAG_ROLL
from rmq_formats.codecs.topics import TIMER_TOPIC

log = logging.getLogger("rmq.broker.timers")
_hash_of: Final = lru_cache(maxsize=4096)(java_string_hash)  # of topics, of which few have waiting messages
_SLICE_S: Final = 0.005
_AT_ONCE: Final = 32
_LAG_MS: Final = 7 * 86_400_000  # half the wheel: due messages are delivered before more are enqueued
_OFFSETS = head_struct("queue_offset", "physical_offset")


class Timers:
    """Enqueue of timer messages, and delivery of each to its real topic when due."""

    def __init__(self, state: BrokerState) -> None:
        """Open the timer files, and continue at their checkpoint.

        Raises:
            StoreSizeError: files of other sizes than in the settings.
            OSError: a file cannot be read.
        """
        self._state = state
        self._store = state.store
        config = state.config
        timer_config = TimerConfig(
            root=state.store.config.root,
            file_bytes=config.timer_log_file_bytes,
            precision_ms=config.timer_precision,
            roll_window_slots=config.timer_roll_window_slots,
        )
        self.files = open_timers(timer_config, state.store, state.clock_ms())
        self.metrics = TimerMetrics(state.files, state.clock_ms)
        self.metrics.revise(state.topics.table, count_waiting_by_topic_hash(self.files.wheel, self.files.log))
        self._find_past_deliveries(self.files.done.scan_offset)
        self._work = self._rounds()
        self._more: asyncio.Handle | None = None
        self._is_closed = False
        self._has_logged_error = False  # an I/O error was logged

    # --- slices -------------------------------------------------------------------------
    def run(self) -> None:
        """Work for one slice; to be called periodically. With more to do, the method schedules itself again."""
        self._pause()
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        if self._step_until(loop.time() + _SLICE_S):
            self._more = loop.call_soon(self.run)

    def _pause(self) -> None:
        if self._more is not None:
            self._more.cancel()
            self._more = None

    def _step_until(self, deadline_s: float) -> bool:
        """Work until a deadline of the loop's clock; return whether there is more to do."""
        end, now_s = self._store.max_physical_offset, asyncio.get_running_loop().time
        try:
            while next(self._work):
                if now_s() >= deadline_s:
                    return True
            return False
        except BaseException:
            self._work = self._rounds()  # repeats work since the last recorded progress
            if self._deliveries_begin is not None:
                self._find_past_deliveries(self._deliveries_begin)
            raise
        finally:
            if self._store.max_physical_offset != end:
                self._state.dispatch()

    def _find_past_deliveries(self, begin: int) -> None:
        """Find deliveries after a physical offset that are not in the checkpoint."""
        self._past_deliveries = PastDeliveries(self._store, begin)
        # Physical offset before the first such delivery; None without one.
        self._deliveries_begin: int | None = None if self._past_deliveries.is_empty else begin
        self._queue_end = self._store.max_offset(TIMER_TOPIC, 0)

    def _record_progress(self) -> None:
        end = self._store.max_physical_offset
        self.files.record_progress(end, end if self._deliveries_begin is None else self._deliveries_begin)

    def _rounds(self) -> Iterator[bool]:
        """Yield True between steps of work, and False while the work has to wait; endless."""
        while True:
            yield from self._enqueue_all()
            yield from self._deliver_due()
            if not self.files.is_progress_recent(self._store.max_physical_offset):
                self._record_progress()
            yield False

    # --- enqueue ------------------------------------------------------------------------
    def _enqueue_all(self) -> Iterator[bool]:
        files, store = self.files, self._store
        while files.queue_offset < store.max_offset(TIMER_TOPIC, 0):
            now_ms = self._state.clock_ms()
            if self._state.config.timer_stop_enqueue or now_ms - files.read_time_ms > _LAG_MS:
                return
            result = store.get(TIMER_TOPIC, 0, files.queue_offset, _AT_ONCE)
            if result.status is GetStatus.FOUND:
                for record in split_records(result.slices):
                    if not self._enqueue(record, now_ms):
                        return
                try:
                    files.log.write()
                except OSError as error:
                    self._log_failed_enqueue(error)
                    return
            elif result.next_offset == files.queue_offset:
                return
            else:
                log.warning(
                    "timer messages skip from queue offset %(offset)d to %(next)d: %(why)s",
                    {"next": result.next_offset, "offset": files.queue_offset, "why": result.status.value},
                )
            files.queue_offset = result.next_offset
            self._record_progress()
            yield True

    def _enqueue(self, record: memoryview, now_ms: int) -> bool:
        """Enqueue a message, or deliver a due one; return False if the message has to wait."""
        files = self.files
        queue_offset, physical_offset = _OFFSETS.unpack_from(record)
        if physical_offset in files.enqueued_offsets:
            files.queue_offset = queue_offset + 1
            return True
        timer_record = decode_timer_record(record)
        if isinstance(timer_record, str):
            log.error(
                "the timer message at %(physical_offset)d is skipped: %(why)s",
                {"physical_offset": physical_offset, "why": timer_record},
            )
        elif queue_offset < self._queue_end and self._was_handled(timer_record, queue_offset):
            pass
        elif timer_record.due_ms >= files.interval(now_ms):
            if files.has_to_wait(timer_record.due_ms, now_ms, self._store.flushed_offset):
                return False
            try:
                files.add(
                    timer_record.due_ms,
                    physical_offset,
                    len(record),
                    _hash_of(timer_record.topic),
                    now_ms,
                    recalls=timer_record.recalls is not None,
                )
            except OSError as error:
                self._log_failed_enqueue(error)
                return False
            self.metrics.add(timer_record.topic, 1 if timer_record.recalls is None else -1)
            self._state.stats.count(stats.TIMER_ENQUEUE_NUMS, "", 1)
        elif timer_record.recalls is None and not self._put(timer_record, NEVER_ENQUEUED, rolls=False):
            return False
        files.queue_offset = queue_offset + 1
        return True

    def _was_handled(self, record: TimerRecord, queue_offset: int) -> bool:
        """Return whether a message, maybe enqueued before a crash, was delivered or rolled before the crash."""
        files = self.files
        if queue_offset < files.enqueued_again_before and record.due_ms < files.delivered_before_ms:
            return True
        return not self._past_deliveries.is_empty and self._past_deliveries.remove(
            TIMER_TOPIC, record.properties, rolls=True
        )

    def _log_failed_enqueue(self, error: OSError) -> None:
        if not self._has_logged_error:
            log.error("timer messages cannot be enqueued: %(error)s", {"error": error})
        self._has_logged_error = True

    # --- delivery ------------------------------------------------------------------------
    def _deliver_due(self) -> Iterator[bool]:
        files = self.files
        while not self._state.config.timer_stop_dequeue:
            now_ms = self._state.clock_ms()
            due_ms = files.next_due_ms(now_ms)
            if due_ms is None:
                if self._deliveries_begin is not None and files.queue_offset >= self._queue_end:
                    self._past_deliveries.remove_until(now_ms)
                    if self._past_deliveries.is_empty:
                        self._deliveries_begin = None
                return
            recalled: Counter[str] = Counter()  # number of recalls of each key, less its messages
            units = array("q")  # flags, enqueue time, physical offset of each message
            for count, unit in enumerate(files.units(due_ms)):
                if unit.flags & FLAG_DELETE and not unit.flags & FLAG_ROLL:
                    self._count_recall(unit.physical_offset, recalled)
                else:
                    units.extend((unit.physical_offset, unit.write_time_ms, unit.flags))
                if count % _AT_ONCE == 0:
                    yield True
            units.reverse()
            if self._deliveries_begin is None:
                self._deliveries_begin = self._store.max_physical_offset
            for index in range(0, len(units), 3):
                flags, write_time_ms, physical_offset = units[index : index + 3]
                while not self._deliver(physical_offset, write_time_ms, bool(flags & FLAG_ROLL), recalled):
                    yield False
                yield True
            for key, count_left in recalled.items():
                if count_left:
                    self.metrics.add(key.partition("+")[0], count_left)
            files.mark_delivered(due_ms, self._store.max_physical_offset)
            if self._past_deliveries.is_empty:
                self._deliveries_begin = None
            self._record_progress()

    def _read_record(self, physical_offset: int) -> TimerRecord | None:
        record = self._store.record(physical_offset)
        timer_record = "the log does not have the message any more" if record is None else decode_timer_record(record)
        if isinstance(timer_record, TimerRecord):
            return timer_record
        log.error(
            "the timer message at %(physical_offset)d is not delivered: %(why)s",
            {"physical_offset": physical_offset, "why": timer_record},
        )
        return None

    def _count_recall(self, physical_offset: int, recalled: Counter[str]) -> None:
        record = self._read_record(physical_offset)
        if record is not None and record.recalls is not None:
            recalled[record.recalls] += 1

    def _deliver(self, physical_offset: int, write_time_ms: int, rolls: bool, recalled: Counter[str]) -> bool:
        """Deliver or roll a due message, unless recalled; return False if the store refuses writes."""
        record = self._read_record(physical_offset)
        if record is None:
            return True
        if recalled and not rolls and record.uniq_key and record.delete_key in recalled:
            recalled[record.delete_key] -= 1
            return True
        if not self._put(record, write_time_ms, rolls=rolls):
            return False
        self.metrics.add(record.topic, -1 if record.recalls is None else 1)
        self._state.stats.count(stats.TIMER_DEQUEUE_NUMS, "", 1)
        return True

    def _put(self, record: TimerRecord, write_time_ms: int, *, rolls: bool) -> bool:
        """Store a message in its real topic, or a rolling one in the timer topic; False if the store refuses writes."""
        topic, queue_id = (TIMER_TOPIC, 0) if rolls else (record.topic, record.queue_id)
        if not self._past_deliveries.is_empty and self._past_deliveries.remove(topic, record.properties, rolls=rolls):
            return True
        now_ms = self._state.clock_ms()

        def put(properties: bytes) -> PutResult:
            return self._store.appender.put(
                topic,
                queue_id,
                record.body,
                properties,
                record.born_timestamp_ms,
                record.born_host,
                now_ms,
                flag=record.flag,
                sys_flag=record.sys_flag,
                reconsume_times=record.reconsume_times,
            )

        result = put(record.delivered_properties(write_time_ms, now_ms, rolls=rolls))
        if result.status.is_permanent:
            result = put(record.properties_bytes)  # without the added properties, which may not fit
        if result.status is PutStatus.PUT_OK:
            self._state.stats.count_messages(stats.PUT, topic, 1, result.size)
            return True
        if result.status.is_permanent:
            log.error(
                "a timer message for %(topic)s cannot be stored: %(why)s", {"topic": topic, "why": result.status.value}
            )
            return True
        return False

    # --- progress -----------------------------------------------------------------------
    @property
    def has_due_messages(self) -> bool:
        """True while timer messages wait in the timer topic, or are due and undelivered."""
        files = self.files
        if files.queue_offset < self._store.max_offset(TIMER_TOPIC, 0):
            return True
        return files.next_due_ms(self._state.clock_ms()) is not None

    def save(self) -> None:
        """Write a checkpoint if the progress has changed. An I/O error is logged, and the next call retries."""
        store, files = self._store, self.files
        files.log.remove_before(store.min_physical_offset)
        try:
            files.save(self._state.clock_ms(), store.flushed_offset, self._run)
            self._has_logged_error = False
        except OSError as error:
            self._log_failed_enqueue(error)
        self.metrics.save()

    def _run(self, write: Callable[[], None]) -> None:
        """Write a checkpoint, on a thread; after a failure the next save retries."""

        def try_to_write() -> str:
            try:
                write()
            except OSError as error:
                return str(error)
            return ""

        def log_failure(fault: str) -> None:
            if fault:
                log.error("the checkpoint of timer messages cannot be written: %(error)s", {"error": fault})

        self._state.files.run(try_to_write, log_failure)

    def close(self) -> None:
        """Write a last checkpoint and close the files, after a flush of the open store."""
        self._is_closed = True
        self._pause()
        self._record_progress()
        self._store.flush()
        self.save()
        self.files.close()
