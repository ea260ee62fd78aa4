"""Opens the timer files ``timerlog``, ``timerwheel`` and ``timercheck``, and repairs them after a crash.

Source: ``TimerMessageStore#recover``, ``#recoverAndRevise``, ``#reviseQueueOffset``, ``#checkAndReviseMetrics``;
for snapshots ``TimerWheel#backup``, ``#getMaxSnapshotFlag``, ``TimerMessageStore.TimerFlushService#flush`` of 5.4.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.files.disk import Disk
from rmq_core.store.files.mapped_file import MappedFile
from rmq_core.store.results import GetStatus
from rmq_core.store.store import MessageStore
from rmq_core.store.timer.log import TimerLog
from rmq_core.store.timer.store import TimerConfig, TimerProgress, TimerStore
from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs import timer
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.codecs.record_layout import RECORD_HEAD_BYTES, head_struct
from rmq_formats.codecs.timer import TimerCheckpoint
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import FormatError, StoreSizeError

_LOGGER = logging.getLogger(__name__)
_PHYSICAL_OFFSET: Final = head_struct("physical_offset")


def open_timers(config: TimerConfig, store: MessageStore, now_ms: int) -> TimerStore:
    """Open the timer files of a store; raise StoreSizeError for a wrong size.

    Missing files are created for the first timer message.
    """
    disk = store.disk
    checkpoint, done_offset = _read_checkpoint(config, disk)
    checkpoint = _restore_newest_snapshot(config, disk, checkpoint, done_offset)
    wheel, has_wheel_file = _read_wheel(config, disk)
    log = TimerLog(config.log_path, config.file_bytes, disk)
    read_time_ms = checkpoint.last_read_time_ms - checkpoint.last_read_time_ms % config.precision_ms
    now_ms -= now_ms % config.precision_ms
    wheel.clear_before(read_time_ms)
    flushed_end, enqueued_again_before, log_end = checkpoint.last_timer_log_flush_position, 0, store.max_physical_offset
    if flushed_end > log.end:
        flushed_end, enqueued_again_before = 0, checkpoint.last_timer_queue_offset
        done_offset = _discard_all(wheel, log, store)
    if done_offset is None and checkpoint == TimerCheckpoint():
        done_offset = _find_first_offset(store)
    # A checkpoint with our own field was written after the wheel's flush: messages that are not in the wheel were
    # delivered.
    has_flushed_units = has_wheel_file and (
        done_offset is not None or _has_units_up_to(wheel, log, flushed_end, read_time_ms)
    )
    wheel_end = flushed_end if has_flushed_units else 0
    new_from = MAX_LONG if done_offset is None else flushed_end
    last_position, first_ms = _reconcile(wheel, log, wheel_end, store, read_time_ms, new_from)
    if log.end > flushed_end:  # units after the checkpoint were never flushed, or their flush failed
        log.rewrite(flushed_end)
    queue_offset = 0 if enqueued_again_before else checkpoint.last_timer_queue_offset
    enqueued_offsets: set[int] = set()
    units_end = log.end
    if done_offset is None:  # the original's checkpoint: its flush position and queue offset are of different moments
        done_offset, queue_offset = log_end, max(queue_offset, _next_queue_offset(store, log, last_position))
    else:
        # A message that arrived when due has no unit, and may be lost although later units are not.
        units = map(log.read, log.positions(flushed_end, log.end))
        enqueued_offsets = {unit.physical_offset for unit in units if unit is not None}
        units_end = min(flushed_end, log.end)
    first_due_ms = min(read_time_ms, first_ms)
    if not first_due_ms:  # no checkpoint
        first_due_ms = (wheel.next_time_ms(0, now_ms) if log.end else None) or now_ms
    progress = TimerProgress(
        log_end,
        min(first_due_ms, now_ms),
        max(min(queue_offset, store.max_offset(TIMER_TOPIC, 0)), store.min_offset(TIMER_TOPIC, 0)),
        min(done_offset, log_end),
        units_end,
    )
    return TimerStore(
        config,
        disk,
        wheel,
        log,
        checkpoint,
        progress,
        enqueued_again_before,
        enqueued_offsets,
        store.max_offset(TIMER_TOPIC, 0),
    )


def _restore_newest_snapshot(
    config: TimerConfig, disk: Disk, checkpoint: TimerCheckpoint, done_offset: int | None
) -> TimerCheckpoint:
    """Replace the wheel with its newest snapshot, if any, and remove all snapshots; return the new checkpoint.

    Brokers from 5.4 on write snapshots with ``timerWheelSnapshotFlush=true``. Such a broker does not change
    ``timerwheel``, but writes the whole wheel to ``timerwheel.N``, where N is the end of ``timerlog`` at that time.

    Opening the wheel adds the units after N. The checkpoint is written before the wheel: after a loss of power in
    between, the next start uses the snapshot.

    Raises:
        StoreSizeError: a snapshot has another size than a wheel; nothing has changed.
    """
    snapshot_paths = _snapshot_paths(config)
    if not snapshot_paths:
        return checkpoint
    end = max(snapshot_paths)
    image = disk.read_file(snapshot_paths[end])
    _check_wheel_size(snapshot_paths[end], len(image))
    flushed_end = min(end, checkpoint.last_timer_log_flush_position)
    checkpoint = replace(checkpoint, last_timer_log_flush_position=flushed_end)
    data = checkpoint.encode_file()
    disk.make_directory(str(Path(config.checkpoint_path).parent))
    disk.replace(config.checkpoint_path, data if done_offset is None else timer.encode_done_offset(data, done_offset))
    disk.replace(config.wheel_path, image)
    for path in snapshot_paths.values():
        disk.remove(path)
    _LOGGER.info("%(path)s is the timer wheel now", {"path": snapshot_paths[end]})
    return checkpoint


def _check_wheel_size(path: str, size: int) -> None:
    if size != timer.WHEEL_FILE_BYTES:
        raise StoreSizeError(f"{path}: has {size} bytes, but a timer wheel has {timer.WHEEL_FILE_BYTES}")


def _snapshot_paths(config: TimerConfig) -> dict[int, str]:
    wheel = Path(config.wheel_path)
    paths = wheel.parent.glob(f"{wheel.name}.*") if wheel.parent.is_dir() else []
    return {int(text): str(path) for path in paths if (text := path.suffix[1:]).isascii() and text.isdecimal()}


def _has_units_up_to(wheel: TimerWheel, log: TimerLog, end: int, read_time_ms: int) -> bool:
    """Return whether a wheel has the units of a ``timerlog`` file up to a position.

    A wheel that was never written lacks the units: a broker that writes snapshots was killed before the first.

    Args:
        end: position before which units are checked.
        read_time_ms: units that were due before this time are delivered.
    """
    begin = max(end - 1, 0) // log.file_bytes * log.file_bytes
    return all(
        (is_linked | (due_ms < read_time_ms)).all() for _, due_ms, is_linked in _find_linked(wheel, log, begin, end)
    )


def _find_linked(
    wheel: TimerWheel, log: TimerLog, begin: int = 0, end: int | None = None
) -> Iterator[tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield blocks of units, each with the due times (ms) and a mask of the units in their slot's chain."""
    for position, block in log.blocks(begin, end):
        units = np.frombuffer(block, dtype=timer.UNIT_DTYPE)
        due_ms = units["write_time_ms"].astype(np.int64) + units["delay_ms"]
        positions = position + timer.TIMER_UNIT_BYTES * np.arange(len(units), dtype=np.int64)
        yield units, due_ms, wheel.are_linked(due_ms, positions)


def _discard_all(wheel: TimerWheel, log: TimerLog, store: MessageStore) -> int:
    """Discard wheel and ``timerlog``, as flushed units are missing, so that all messages are enqueued again.

    Returns the physical offset after which messages may have been delivered already.
    """
    _LOGGER.warning(
        "%(directory)s: ends before its checkpoint: all timer messages are enqueued again", {"directory": log.directory}
    )
    wheel.clear_beyond(0)
    log.truncate(log.begin)
    return _find_first_offset(store)


def _find_first_offset(store: MessageStore) -> int:
    """Return the physical offset of the first timer message; without one, the log's end."""
    first = store.get(TIMER_TOPIC, 0, store.min_offset(TIMER_TOPIC, 0), 1)
    if first.status is not GetStatus.FOUND:
        return store.max_physical_offset
    return int(_PHYSICAL_OFFSET.unpack_from(first.slices[0])[0])


def _read_checkpoint(config: TimerConfig, disk: Disk) -> tuple[TimerCheckpoint, int | None]:
    try:
        data = disk.read_file(config.checkpoint_path)
        return TimerCheckpoint.decode(data), timer.decode_done_offset(data)
    except (FileNotFoundError, FormatError):
        return TimerCheckpoint(), None


def _read_wheel(config: TimerConfig, disk: Disk) -> tuple[TimerWheel, bool]:
    wheel = TimerWheel(config.precision_ms)
    path = Path(config.wheel_path)
    size = path.stat().st_size if path.exists() else 0
    if size:
        _check_wheel_size(str(path), size)
        file = MappedFile(str(path), size, disk)
        wheel.load(file.array)
        file.release()
    return wheel, size > 0


def _reconcile(
    wheel: TimerWheel, log: TimerLog, wheel_end: int, store: MessageStore, read_time_ms: int, new_from: int
) -> tuple[int, int]:
    """Make wheel and ``timerlog`` agree with each other and with the CommitLog.

    Units after the checkpoint are added to the wheel. ``timerlog`` is cut at the first unit that is damaged, or whose
    message the CommitLog has lost.

    Args:
        wheel_end: position up to which the wheel has the units.
        read_time_ms: units before ``new_from`` that were due before this time are delivered.
        new_from: position of the first unit enqueued after ``read_time_ms`` was recorded; such a unit may be due
            earlier, as the clock was set back.

    Returns:
        Position of the last unit, -1 without one; and the earliest due time of the units added to the wheel.
    """
    begin = min(max(wheel_end, log.begin), log.end)
    if begin > log.begin and log.read(begin - timer.TIMER_UNIT_BYTES) is None:
        begin -= begin % log.file_bytes  # after a BLANK or a damaged unit, the whole file is read
    last_position, units_end, log_end = timer.NO_POSITION, begin, store.max_physical_offset
    for position in log.positions(begin, log.sound_end(begin)):
        if _is_lost(log, position, log_end):
            break
        last_position, units_end = position, position + timer.TIMER_UNIT_BYTES
    if last_position != timer.NO_POSITION and _is_torn(log, last_position, store):
        last_position, units_end = timer.NO_POSITION, last_position
    while last_position == timer.NO_POSITION and units_end > log.begin:
        if _is_lost(log, units_end - timer.TIMER_UNIT_BYTES, log_end):
            units_end -= timer.TIMER_UNIT_BYTES
        else:
            last_position = units_end - timer.TIMER_UNIT_BYTES
    _relink(wheel, log, units_end)
    first_ms = MAX_LONG
    for position in log.positions(begin, units_end):
        unit = log.read(position)
        if unit is None or (unit.due_ms < read_time_ms and position < new_from):
            continue
        if position > wheel.last_position(unit.due_ms):
            wheel.add(unit.due_ms, position, -1 if unit.flags & timer.FLAG_DELETE else 1)
            first_ms = min(first_ms, unit.due_ms)
    if log.end:
        log.truncate(units_end)
    return last_position, first_ms


def _is_lost(log: TimerLog, position: int, log_end: int) -> bool:
    """Return whether a unit cannot be read, or its message is not in the CommitLog."""
    unit = log.read(position)
    return unit is None or unit.size < RECORD_HEAD_BYTES or unit.physical_offset + unit.size > log_end


def _is_torn(log: TimerLog, position: int, store: MessageStore) -> bool:
    """Return whether the log's last unit was written in part, so that its size differs from its record's."""
    unit = log.read(position)
    if unit is None or unit.physical_offset < store.min_physical_offset:
        return unit is None
    record = store.record(unit.physical_offset)
    return record is None or len(record) != unit.size


def _relink(wheel: TimerWheel, log: TimerLog, end: int) -> None:
    """Link chains with a head after the log's end to their last unit before the end; remove empty chains."""
    for due_ms, position in wheel.clear_beyond(end):
        chain = []
        while position >= 0 and (unit := log.read(position)) is not None and unit.previous < position:
            if position < end:
                chain.append((position, -1 if unit.flags & timer.FLAG_DELETE else 1))
            position = unit.previous  # noqa: PLW2901 # the chain's place
        for unit_position, change in reversed(chain):
            wheel.add(due_ms, unit_position, change)


def _next_queue_offset(store: MessageStore, log: TimerLog, last: int) -> int:
    """Return the queue offset after the last unit's message; 0 if that offset is unknown."""
    unit = log.read(last) if last != timer.NO_POSITION else None
    message = None if unit is None else store.message(unit.physical_offset)
    return message.queue_offset + 1 if message is not None and message.topic == TIMER_TOPIC else 0


def count_waiting_by_topic_hash(wheel: TimerWheel, log: TimerLog) -> Counter[int]:
    """Count the waiting messages by Java's hash of their real topic, less recalls; reads all of ``timerlog``."""
    counts: Counter[int] = Counter()
    for units, _, is_waiting in _find_linked(wheel, log):
        changes = np.where(units["flags"][is_waiting] & timer.FLAG_DELETE, -1, 1)
        hashes, hash_indices = np.unique(units["topic_hash"][is_waiting], return_inverse=True)
        sums = np.bincount(hash_indices, weights=changes, minlength=len(hashes))
        for topic_hash, change in zip(hashes.tolist(), sums.tolist(), strict=True):
            counts[topic_hash] += int(change)
    return counts
