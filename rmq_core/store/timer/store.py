"""Store of timer messages: a wheel and ``timerlog``, with a crash-safe checkpoint.

A delivery counts as done only after the CommitLog's flush, and the checkpoint is written after ``timerlog`` and the
wheel. So each waiting message is found again after a crash or a loss of power. Source: ``TimerMessageStore``.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmq_core.store.files.disk import Disk
from rmq_core.store.timer.log import TimerLog
from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs import timer
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.codecs.paths import config_dir
from rmq_formats.codecs.timer import TimerCheckpoint, TimerUnit

_LOGGER = logging.getLogger(__name__)
_MAX_ROLL_SLOTS: Final = timer.WHEEL_SLOTS // 2 - timer.BLANK_SLOTS
_CHECKPOINT_LOG_BYTES: Final = 16 << 20  # growth of the CommitLog after which a checkpoint is written in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Settings of the timer wheel and its files.

    Attributes:
        file_bytes: of a file of ``timerlog`` (``mappedFileSizeTimerLog``).
        precision_ms: length of an interval (``timerPrecisionMs``).
        roll_window_slots: a message that is due so many slots ahead rolls: it is enqueued in a nearer slot and stored
            again then (``timerRollWindowSlot``).
    """

    root: str
    file_bytes: int = timer.TIMER_LOG_FILE_BYTES
    precision_ms: int = 1000
    roll_window_slots: int = 2 * 86_400

    @property
    def roll_slots(self) -> int:
        """Effective roll window, slots: the configured window, limited by the wheel's size."""
        return self.roll_window_slots if 2 <= self.roll_window_slots <= _MAX_ROLL_SLOTS else _MAX_ROLL_SLOTS

    @property
    def wheel_path(self) -> str:
        """``<root>/timerwheel``."""
        return f"{self.root}/timerwheel"

    @property
    def log_path(self) -> str:
        """``<root>/timerlog``."""
        return f"{self.root}/timerlog"

    @property
    def checkpoint_path(self) -> str:
        """``<root>/config/timercheck``."""
        return f"{config_dir(self.root)}/timercheck"


class TimerProgress(NamedTuple):
    """Progress of enqueuing and delivering timer messages.

    Attributes:
        log_offset: end of the CommitLog at that time, after all deliveries.
        read_time_ms: all messages that are due before this time are delivered.
        queue_offset: all messages of the timer topic before this queue offset are enqueued.
        scan_offset: physical offset before the deliveries that ``read_time_ms`` and ``queue_offset`` do not cover.
        units_end: position in ``timerlog`` after the units of the enqueued messages.
    """

    log_offset: int
    read_time_ms: int
    queue_offset: int
    scan_offset: int
    units_end: int


class TimerStore:
    """The waiting timer messages, in ``timerwheel`` and ``timerlog``.

    Attributes:
        read_time_ms: begin of the next interval to be delivered.
        queue_offset: queue offset of the next message of the timer topic to be enqueued.
        done: the newest progress whose deliveries are flushed.
        enqueued_again_before: messages of the timer topic before this queue offset are enqueued for the second time;
            0 if none are.
        delivered_before_ms: messages enqueued for the second time that were due before this time are delivered.
        enqueued_offsets: after a crash, physical offsets of messages at or after ``queue_offset`` that have units.
    """

    def __init__(
        self,
        config: TimerConfig,
        disk: Disk,
        wheel: TimerWheel,
        log: TimerLog,
        checkpoint: TimerCheckpoint,
        progress: TimerProgress,
        enqueued_again_before: int,
        enqueued_offsets: Set[int],
        enqueued_before: int,
    ) -> None:
        """Use ``recovery.open_timers``."""
        self.enqueued_again_before = enqueued_again_before
        self.enqueued_offsets = enqueued_offsets
        self._enqueued_before = enqueued_before if enqueued_offsets else 0
        self.delivered_before_ms = progress.read_time_ms
        self.config = config
        self.wheel = wheel
        self.log = log
        self.close = log.close
        self.read_time_ms = progress.read_time_ms
        self.queue_offset = progress.queue_offset
        self.done = progress
        self._disk = disk
        self._saved = checkpoint
        self._saved_offset = progress.scan_offset
        self._recorded_offset = progress.log_offset
        self._pending_progress: deque[TimerProgress] = deque()
        # Delivered slots that are not cleared yet: by slot time, head of the chain, and CommitLog end at the delivery.
        self._delivered: dict[int, tuple[int, int]] = {}
        self._is_writing = False
        self._fsynced_end = min(checkpoint.last_timer_log_flush_position, log.end)
        self._has_failed = False
        self._changes: list[tuple[int, bytes]] = []

    # --- enqueuing ----------------------------------------------------------------------
    def add(
        self, due_ms: int, physical_offset: int, size: int, topic_hash: int, now_ms: int, *, recalls: bool
    ) -> TimerUnit:
        """Enqueue a message of the CommitLog: append a unit, and link the unit into the chain of its slot.

        After an OSError nothing has changed.

        Args:
            due_ms: not before the interval of ``now_ms``.
            topic_hash: Java's hash of the message's real topic.
            recalls: the message recalls another one.

        Source: ``TimerMessageStore#doEnqueue``.
        """
        write_time_ms = self.interval(now_ms)
        self.read_time_ms = min(self.read_time_ms, write_time_ms)  # before the progress is recorded: ``next_due_ms``
        slot_ms, flags = self._choose_slot(due_ms, write_time_ms)
        if recalls:
            flags |= timer.FLAG_DELETE
        delivered = self._delivered.pop(slot_ms, None)
        if delivered is not None:
            self.wheel.clear(slot_ms, delivered[0])
        unit = TimerUnit(
            self.wheel.last_position(slot_ms),
            flags,
            write_time_ms,
            slot_ms - write_time_ms,
            physical_offset,
            size,
            topic_hash,
        )
        self.wheel.add(slot_ms, self.log.append(unit), -1 if recalls else 1)
        return unit

    def has_to_wait(self, due_ms: int, now_ms: int, flushed_offset: int) -> bool:
        """Return whether a message cannot be enqueued yet, as deliveries of its slot are not flushed.

        The wheel has the delivered units until that flush, and a new unit would replace them, also in the file. This
        happens only after the clock was set back, so that a slot is used a second time.
        """
        delivered = self._delivered.get(self._choose_slot(due_ms, self.interval(now_ms))[0])
        return delivered is not None and delivered[1] > flushed_offset

    def _choose_slot(self, due_ms: int, write_time_ms: int) -> tuple[int, int]:
        """Return slot time and unit flags of a message; a message beyond the roll window gets a nearer slot."""
        slots, precision_ms = self.config.roll_slots, self.config.precision_ms
        beyond_ms = due_ms - write_time_ms - slots * precision_ms
        if beyond_ms < 0:
            return due_ms, timer.FLAG_NORMAL
        if beyond_ms < slots // 3 * precision_ms:
            slots //= 2  # so that the last roll is not too close to the due time
        return write_time_ms + slots * precision_ms, timer.FLAG_NORMAL | timer.FLAG_ROLL

    def interval(self, time_ms: int) -> int:
        """Return the begin of the interval that contains a time."""
        return time_ms - time_ms % self.config.precision_ms

    # --- due messages --------------------------------------------------------------------
    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the begin of the next past interval with due messages; None without one.

        If the clock was set back, ``read_time_ms`` is set back, too: else new messages would be due at once.
        """
        now_ms = self.interval(now_ms)
        self.read_time_ms = min(self.read_time_ms, now_ms)
        while True:
            due_ms = self.wheel.next_time_ms(self.read_time_ms, now_ms)
            if due_ms is None:
                self.read_time_ms = now_ms
                return None
            if self._delivered.get(due_ms, (None,))[0] != self.wheel.last_position(due_ms):
                return due_ms
            self.read_time_ms = due_ms + self.config.precision_ms

    def units(self, due_ms: int) -> Iterator[TimerUnit]:
        """Yield the units of a slot, from the newest to the oldest.

        Iteration ends at a unit that is due at another time: a flushed slot may have a position in ``timerlog`` whose
        unit was lost and replaced by another one.
        """
        position = self.wheel.last_position(due_ms)
        while position != timer.NO_POSITION:
            unit = self.log.read(position)
            if unit is None:
                if position >= self.log.begin:  # earlier units are of messages that the CommitLog has no more
                    self._log_broken_chain(due_ms, position)
                return
            if self.interval(unit.due_ms) != due_ms:
                return
            yield unit
            if unit.previous >= position:
                self._log_broken_chain(due_ms, position)
                return
            position = unit.previous

    def _log_broken_chain(self, due_ms: int, position: int) -> None:
        _LOGGER.error(
            "%(directory)s: no sound unit at %(position)d or before it; messages that are due at %(due_ms)d are lost",
            {"directory": self.log.directory, "position": position, "due_ms": due_ms},
        )

    def mark_delivered(self, due_ms: int, log_offset: int) -> None:
        """Mark an interval as delivered; ``log_offset`` is the CommitLog's end after the deliveries."""
        self._delivered[due_ms] = self.wheel.last_position(due_ms), log_offset
        self.read_time_ms = due_ms + self.config.precision_ms

    # --- progress and checkpoint ------------------------------------------------------------
    def record_progress(self, log_offset: int, scan_offset: int) -> None:
        """Record the current progress, which counts as done once the CommitLog is flushed up to ``log_offset``.

        Args:
            scan_offset: physical offset before the deliveries of an unfinished interval; else ``log_offset``.
        """
        if self.queue_offset < self._enqueued_before:
            return  # units are ahead of the queue offset, so that the earlier checkpoint stays valid
        self.enqueued_offsets = frozenset()
        progress = TimerProgress(log_offset, self.read_time_ms, self.queue_offset, scan_offset, self.log.end)
        self._pending_progress.append(progress)
        self._recorded_offset = log_offset

    def is_progress_recent(self, log_offset: int) -> bool:
        """Return whether a start from the saved progress would read little of the CommitLog."""
        return log_offset - self._recorded_offset < _CHECKPOINT_LOG_BYTES

    def advance_done(self, flushed_offset: int) -> None:
        """Advance ``done`` to the newest progress whose deliveries are flushed."""
        pending = self._pending_progress
        while pending and pending[0].log_offset <= flushed_offset:
            self.done = pending.popleft()
        # By log offset, not by time, as a clock that was set back reaches these slots a second time.
        for due_ms, (last, log_offset) in list(self._delivered.items()):
            if log_offset <= self.done.log_offset:
                self.wheel.clear(due_ms, last)
                del self._delivered[due_ms]

    def checkpoint(self, now_ms: int, state_version: int = 0) -> TimerCheckpoint:
        """Return the next checkpoint to be written."""
        saved, done = self._saved, self.done
        has_changed = (saved.last_read_time_ms, saved.last_timer_queue_offset) != (done.read_time_ms, done.queue_offset)
        return TimerCheckpoint(
            done.read_time_ms,
            done.units_end,
            done.queue_offset,
            done.queue_offset,
            state_version,
            now_ms if has_changed else saved.timestamp_ms,
            saved.counter + has_changed,
        )

    def save(self, now_ms: int, flushed_offset: int, run: Callable[[Callable[[], None]], object]) -> None:
        """Write a checkpoint if the progress has changed, unless one is being written.

        Args:
            run: runs the write function, possibly on another thread; after an exception the next call tries again.
        """
        self.log.write()
        self.advance_done(flushed_offset)
        if self._is_writing:
            return
        if self._has_failed:
            self.log.rewrite(self._fsynced_end)
            self.wheel.touch([position for position, _ in self._changes])
        checkpoint = self.checkpoint(now_ms)
        if not self._is_due(checkpoint):
            return
        self._changes = self.wheel.collect_changes()
        files, has_new_names = self.log.collect_unsynced()
        self._saved, self._saved_offset = checkpoint, self.done.scan_offset
        data = timer.encode_done_offset(checkpoint.encode_file(), self.done.scan_offset)
        self._is_writing, self._has_failed = True, False

        def write() -> None:
            try:
                self._write(files, has_new_names, data)
                self._fsynced_end = checkpoint.last_timer_log_flush_position
            except OSError:
                self._has_failed = True
                raise
            finally:
                self._is_writing = False

        run(write)

    def _is_due(self, checkpoint: TimerCheckpoint) -> bool:
        if self.log.end == 0 and self.done.queue_offset == 0 and self._saved == TimerCheckpoint():
            return False  # without any timer message so far, no file is created
        return (
            self._has_failed
            or checkpoint.counter != self._saved.counter
            or checkpoint.last_timer_log_flush_position != self._saved.last_timer_log_flush_position
            or self.done.scan_offset - self._saved_offset >= _CHECKPOINT_LOG_BYTES
        )

    def _write(self, files: list[str], has_new_names: bool, checkpoint: bytes) -> None:
        """Flush units, then the wheel, then the checkpoint."""
        for path in files:
            self._write_and_fsync(path, [])
        if has_new_names:
            self._disk.sync_directory(self.log.directory)
        if self._changes:
            self._ensure_file(self.config.wheel_path, timer.WHEEL_FILE_BYTES)
            self._write_and_fsync(self.config.wheel_path, self._changes)
        self._disk.make_directory(config_dir(self.config.root))
        self._ensure_file(self.config.checkpoint_path, CHECKPOINT_FILE_BYTES)
        self._write_and_fsync(self.config.checkpoint_path, [(0, checkpoint)])

    def _ensure_file(self, path: str, size: int) -> None:
        disk = self._disk
        if not os.path.exists(path):  # noqa: PTH110 # paths are strings here, as errors name them
            disk.close(disk.create(path, size, allocate=False))
            disk.sync_directory(os.path.dirname(path))  # noqa: PTH120
        elif os.path.getsize(path) < size:  # noqa: PTH202 # as ``Disk.create`` may leave it
            self._write_and_fsync(path, [(size - 1, b"\0")])

    def _write_and_fsync(self, path: str, changes: list[tuple[int, bytes]]) -> None:
        descriptor = self._disk.open(path)
        try:
            for position, data in changes:
                self._disk.write(descriptor, data, position)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
