"""Finds where a ConsumeQueue ends, when its store is opened."""

from typing import Final

import numpy as np

from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs.consumequeue import UNIT_DTYPE, is_unwritten
from rmq_formats.codecs.layout import UNIT_BYTES

_FILES_SCANNED: Final = 3  # from the end on; ConsumeQueue#recover


def load_queue(queue: ConsumeQueue | BatchQueue, known_until: int | None) -> None:
    """Open a queue's files and find its last unit.

    Args:
        queue: the queue; ``is_whole`` says afterwards whether no file of it was missing.
        known_until: physical offset below which units are known to be sound on the disk, so that a search by
            halves finds the last of them; those above are thrown away. None trusts nothing, and reads the
            last files unit by unit.

    Raises:
        StoreSizeError: a file of another size than this store's.
    """
    if isinstance(queue, BatchQueue):
        queue.load(known_until)
        return
    queue.is_whole = queue.files.load()
    files = queue.files
    if files.files and known_until is None:
        _scan(queue, max(files.start, files.files[-1].start - (_FILES_SCANNED - 1) * files.file_bytes))
    elif files.files and known_until is not None:
        _search(queue, known_until)
    if queue.ext is not None:
        queue.ext.load(queue.last_address())


def scan_all(queue: ConsumeQueue | BatchQueue) -> None:
    """Find the end of a queue's sound units from the first file on."""
    if isinstance(queue, BatchQueue):
        queue.scan_all()
    elif queue.files.files:
        _scan(queue, queue.files.start)


def _search(queue: ConsumeQueue, known_until: int) -> None:
    queue.max_offset = (queue.files.files[-1].start + queue.files.file_bytes) // UNIT_BYTES

    def is_past_end(unit: StoredUnit) -> bool:
        return unit.size <= 0 or unit.physical_offset >= known_until

    end = queue.find(is_past_end, queue.first_stored)
    queue.max_offset = end
    if queue.files.has_data(end * UNIT_BYTES):
        queue.trim(end)


def _scan(queue: ConsumeQueue, offset: int) -> None:
    """Find the first unit from a byte offset on that was never written, and cut the queue there."""
    files = queue.files
    end = files.files[-1].start + files.file_bytes
    while offset < end:
        units = np.frombuffer(files.read(offset, files.file_bytes), dtype=UNIT_DTYPE)
        unwritten = np.flatnonzero(is_unwritten(units))
        if len(unwritten):
            offset += int(unwritten[0]) * UNIT_BYTES
            break
        offset += len(units) * UNIT_BYTES
    queue.max_offset = offset // UNIT_BYTES
    queue.trim(queue.max_offset)
