"""Puts units into their queues: tells the kernel their places, and writes those that have none yet."""

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.dispatch_tables import (
    TARGET_ADDRESS,
    TARGET_BOUND,
    TARGET_COLUMNS,
    TARGET_DIRTY,
    TARGET_NEXT,
    TARGET_ROOM,
)
from rmq_core.store.queue import ROOM_BEHIND_NEXT, ConsumeQueue
from rmq_core.store.queue_files import QueueFile
from rmq_core.store.queue_map import QueueMap
from rmq_core.store.queue_units import UNIT
from rmq_core.store.queues import QueueTable
from rmq_formats.consumequeue_ext import ExtUnit
from rmq_formats.errors import FormatError
from rmq_formats.layout import UNIT_BYTES

Table = NDArray[np.int64]
_FIRST_ROWS: Final = 256
_MOST_MAPPED: Final = 8192
_MOST_AT_ONCE: Final = 64


class UnitWriter:
    """Rows are those of a dispatcher's queue table.

    Attributes:
        targets: where each row's next unit goes, int64[rows, TARGET_COLUMNS].
        displaced: units left out because of an impossible queue offset.
        names: topic and queue id of each row; the owner adds to it.
        bit_map_of: gives the bit map of a message, by its topic and physical offset; None where none has one.
    """

    def __init__(self, queues: QueueTable, dropped_topics: dict[str, int]) -> None:
        """Begin with no row known.

        Args:
            queues: where the units go.
            dropped_topics: topics that were deleted, and the physical offset of the log's end then: what is
                before that does not come back.
        """
        self.targets: Table = np.zeros((_FIRST_ROWS, TARGET_COLUMNS), dtype=np.int64)
        self.displaced = 0
        self.names: list[tuple[str, int]] = []
        self.bit_map_of: Callable[[str, int], bytes] | None = None
        self._cells = self.targets.reshape(-1).data
        self._queues = queues
        self._dropped_topics = dropped_topics
        self._rows: list[ConsumeQueue | None] = []
        self._files: list[QueueFile | None] = []  # that a row's target is in
        self._mapped: deque[QueueFile] = deque()
        self._restarted: set[int] | None = None

    def restart(self) -> None:
        """From now on, begin each queue anew at the first unit that comes for it."""
        self._restarted = set()

    def note_written(self, count: int) -> None:
        """The kernel has written so many units."""
        self._queues.unit_total += count

    @property
    def most_at_once(self) -> int:
        """How many units ``put`` may take at once."""
        return _MOST_AT_ONCE if self._queues.is_ext else 1

    def put(self, units: list[list[int]]) -> int:
        """Write what the kernel cannot: the first of some units, and with ConsumeQueueExt those after it of its queue.

        Args:
            units: one or more rows of a unit table, at most ``most_at_once``: row of the queue, queue offset,
                physical offset, size, tags code, store timestamp (ms).

        Returns:
            How many are done with. The kernel may be able to write those after them.

        Raises:
            OSError: the disk is full, or broken. They may be given again.
        """
        row, queue_offset, physical_offset, *_ = units[0]
        if self._dropped_topics and physical_offset < self._dropped_topics.get(self.names[row][0], 0):
            return 1
        queue = self._queue(row)
        if queue is None:
            return 1
        before = queue.max_offset
        if self._restarted is not None and row not in self._restarted:
            self._restarted.add(row)
            queue.restart(queue_offset)
        count = 1
        while count < len(units) and units[count][:2] == [row, queue_offset + count]:
            count += 1
        self._write(queue, units[:count])
        self._queues.unit_total += queue.max_offset - before
        self._aim(row, queue)
        return count

    def _write(self, queue: ConsumeQueue, units: list[list[int]]) -> None:
        """Write units that follow each other."""
        queue_offset = units[0][1]
        tags_codes = [tags_code for _, _, _, _, tags_code, _ in units]
        if queue.ext is not None and self._queues.is_ext and queue_offset >= queue.max_offset:
            tags_codes = queue.ext.append(
                ExtUnit(tags_code, timestamp_ms, self._bit_map(queue.topic, physical_offset))
                for _, _, physical_offset, _, tags_code, timestamp_ms in units
            )
        places = zip(units, tags_codes, strict=True)
        packed = [UNIT.pack(physical_offset, size, code) for (_, _, physical_offset, size, _, _), code in places]
        self.displaced += queue.append(queue_offset, b"".join(packed))

    def _bit_map(self, topic: str, physical_offset: int) -> bytes:
        return b"" if self.bit_map_of is None else self.bit_map_of(topic, physical_offset)

    def _queue(self, row: int) -> ConsumeQueue | None:
        """The queue of a row; None for one that gets no unit."""
        while row >= len(self._rows):
            self._rows += [None] * _FIRST_ROWS
            self._files += [None] * _FIRST_ROWS
        if row >= len(self.targets):
            self._grow()
        queue = self._rows[row]
        if queue is None:
            topic, queue_id = self.names[row]
            if self._queues.is_foreign(topic):
                return None
            try:
                queue = self._queues.get_or_make(topic, queue_id)
            except FormatError:  # a crafted topic that is no directory's name
                return None
            self._rows[row] = queue
            queue.bind(self._cells, row * TARGET_COLUMNS + TARGET_NEXT)
            self.targets[row, TARGET_BOUND] = 1
        return queue

    def _grow(self) -> None:
        targets = np.zeros((2 * len(self.targets), TARGET_COLUMNS), dtype=np.int64)
        targets[: len(self.targets)] = self.targets
        self.targets = targets
        self._cells = targets.reshape(-1).data
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(self._cells, row * TARGET_COLUMNS + TARGET_NEXT)

    def _aim(self, row: int, queue: ConsumeQueue) -> None:
        """Give a row its next place, if that can be had; else the next unit comes this way too."""
        target = self.targets[row]
        offset = queue.max_offset * UNIT_BYTES
        file = queue.files.file_at(offset)
        before = self._files[row]
        if before is not None and before is not file:
            if target[TARGET_DIRTY]:
                self._queues.open_files.note_dirty(before)
            if before.mapped is not None:
                before.mapped = None
                self._mapped.remove(before)
        self._files[row] = file
        target[TARGET_ROOM] = 0
        if file is None or self._queues.is_ext:
            return
        try:
            room = self._room(row, file, offset - file.start, queue.files.file_bytes)
        except OSError:  # no blocks, no descriptor: writing will say so
            return
        if file.mapped is not None:
            target[TARGET_ADDRESS] = file.mapped.address + offset - file.start
            target[TARGET_ROOM] = room // UNIT_BYTES

    def _room(self, row: int, file: QueueFile, position: int, file_bytes: int) -> int:
        open_files = self._queues.open_files
        descriptor = open_files.open(file)
        if file.mapped is None:
            while len(self._mapped) >= min(_MOST_MAPPED, open_files.limit):
                self._unmap(self._mapped.popleft())
            file.mapped = QueueMap(descriptor, file_bytes, row)
            self._mapped.append(file)
        return file.mapped.reserve(descriptor, position, open_files.disk)

    def _unmap(self, file: QueueFile) -> None:
        if file.mapped is not None:
            row, file.mapped = file.mapped.row, None
            if self._files[row] is file:
                self.targets[row, TARGET_ROOM] = 0

    def forget(self) -> None:
        """Look all queues up anew: some were removed, or cut."""
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(None)
                self._rows[row] = None
        for file in self.take_dirty():
            self._queues.open_files.note_dirty(file)
        self._files = [None] * len(self._files)
        self.targets[:] = 0
        for mapped in self._mapped:
            mapped.mapped = None
        self._mapped.clear()

    def take_dirty(self) -> list[QueueFile]:
        """Files that the kernel has written since the last call; for the thread that forces them."""
        targets = self.targets
        rows = np.flatnonzero(targets[:, TARGET_DIRTY])
        targets[rows, TARGET_DIRTY] = 0  # what is written meanwhile is forced now too, or has its mark still
        files = [self._files[row] for row in rows.tolist()]
        return [file for file in files if file is not None]

    @property
    def dirty_count(self) -> int:
        """How many files that is."""
        return int(np.count_nonzero(self.targets[:, TARGET_DIRTY]))


assert ROOM_BEHIND_NEXT == TARGET_ROOM - TARGET_NEXT
