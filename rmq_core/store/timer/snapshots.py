"""Snapshots of the timer wheel, which brokers from 5.4 on write with ``timerWheelSnapshotFlush=true``.

Such a broker leaves ``timerwheel`` as it found it, and writes the wheel whole into ``timerwheel.N``: N is where
``timerlog`` ended then. It is forced and gets its name when it is whole; the two newest are kept.

Source: ``TimerWheel#backup``, ``#getMaxSnapshotFlag``, ``TimerMessageStore.TimerFlushService#flush`` of 5.4.
"""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from rmq_core.store.files.disk import Disk
from rmq_core.store.timer.log import TimerLog
from rmq_core.store.timer.store import TimerConfig
from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs.timer import (
    TIMER_UNIT_BYTES,
    UNIT_DTYPE,
    WHEEL_FILE_BYTES,
    TimerCheckpoint,
    encode_done_offset,
)
from rmq_formats.errors import StoreSizeError

_LOGGER = logging.getLogger(__name__)


def restore_newest_snapshot(
    config: TimerConfig, disk: Disk, checkpoint: TimerCheckpoint, done_offset: int | None
) -> TimerCheckpoint:
    """Make the newest snapshot the wheel, if there is one, and remove the others.

    Whatever wrote the wheel since, the units after N are put into it when it is opened. The checkpoint is written
    first: with it alone, as after a loss of power, the snapshot is taken at the next start.

    Returns:
        The checkpoint that goes with the wheel.

    Raises:
        StoreSizeError: a snapshot of another size than a wheel has; nothing has changed.
        OSError: a file cannot be read or written.
    """
    snapshot_paths = _snapshots(config)
    if not snapshot_paths:
        return checkpoint
    end = max(snapshot_paths)
    image = disk.read_file(snapshot_paths[end])
    if len(image) != WHEEL_FILE_BYTES:
        raise StoreSizeError(f"{snapshot_paths[end]}: has {len(image)} bytes, but a timer wheel has {WHEEL_FILE_BYTES}")
    flushed = min(end, checkpoint.last_timer_log_flush_position)
    checkpoint = replace(checkpoint, last_timer_log_flush_position=flushed)
    data = checkpoint.encode_file()
    disk.make_directory(str(Path(config.checkpoint_path).parent))
    disk.replace(config.checkpoint_path, data if done_offset is None else encode_done_offset(data, done_offset))
    disk.replace(config.wheel_path, image)
    for path in snapshot_paths.values():
        disk.remove(path)
    _LOGGER.info("%(path)s is the timer wheel now", {"path": snapshot_paths[end]})
    return checkpoint


def _snapshots(config: TimerConfig) -> dict[int, str]:
    """Paths by N."""
    wheel = Path(config.wheel_path)
    paths = wheel.parent.glob(f"{wheel.name}.*") if wheel.parent.is_dir() else []
    return {int(text): str(path) for path in paths if (text := path.suffix[1:]).isascii() and text.isdecimal()}


def has_units_up_to(wheel: TimerWheel, log: TimerLog, end: int, read_time_ms: int) -> bool:
    """Return whether a wheel has the units of a ``timerlog`` file up to a position.

    A wheel that was never written lacks the units: a broker that writes snapshots was killed before the first.

    Args:
        wheel: the wheel.
        log: of all units.
        end: position before which units are looked at.
        read_time_ms: units that were due before it are delivered.

    Raises:
        OSError: the file cannot be read.
    """
    begin = max(end - 1, 0) // log.file_bytes * log.file_bytes
    for position, block in log.blocks(begin, end):
        units = np.frombuffer(block, dtype=UNIT_DTYPE)
        due_ms = units["write_time_ms"].astype(np.int64) + units["delay_ms"]
        positions = position + TIMER_UNIT_BYTES * np.arange(len(units), dtype=np.int64)
        if not (wheel.are_linked(due_ms, positions) | (due_ms < read_time_ms)).all():
            return False
    return True
