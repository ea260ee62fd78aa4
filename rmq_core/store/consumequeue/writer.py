"""Writes units to ConsumeQueues: maps files for the dispatch kernel, and writes units the kernel cannot write."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.files import ConsumeQueueFile, QueueMap
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.consumequeue.table import ConsumeQueueTable, Queue
from rmq_formats.codecs.consumequeue import UNIT
from rmq_formats.codecs.consumequeue_ext import ExtUnit
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.errors import FormatError
from rmq_formats.kernels.live_dispatch_tables import (
    BOUND_TO_A_SLAVES,
    BOUND_TO_ONE_TOPIC,
    LIGHT_UNIT,
    TARGET_ADDRESS,
    TARGET_BOUND,
    TARGET_COLUMNS,
    TARGET_DIRTY,
    TARGET_NEXT,
    TARGET_RECORD_END,
    TARGET_ROOM,
)

Table = NDArray[np.int64]
_FIRST_ROWS: Final = 256
_MOST_MAPPED: Final = 8192
_MOST_AT_ONCE: Final = 64
_BATCHES_AT_ONCE: Final = 8  # records of a queue seldom stand together: more cost more where it has one


class UnitWriter:
    """Writes ConsumeQueue units; its rows are those of a dispatcher's queue table.

    Attributes:
        targets: where each row's next unit goes, int64[rows, TARGET_COLUMNS].
        displaced: units left out because of an impossible queue offset.
        met: queues that had their first unit here, for most of which a directory and a file were made.
        names: topic and queue id of each row; the owner adds to it.
        is_slave: this is a slave's store: a newer record with an older queue offset is of a topic that the master has
            made anew.
        batches: of inner batches, by physical offset, the queue offset of their first message and how many they have;
            of the records at hand. The owner sets it.
        lost: damaged ranges of the log, begins and ends: a gap that their messages explain stays open.
    """

    def __init__(self, queues: ConsumeQueueTable, *, is_slave: bool) -> None:
        self.targets: Table = np.zeros((_FIRST_ROWS, TARGET_COLUMNS), dtype=np.int64)
        self.displaced = 0
        self.met = 0
        self.names: list[tuple[str, int]] = []
        self.batches: Mapping[int, tuple[int, int]] = {}
        self.lost: tuple[Table, Table] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self._cells = self.targets.reshape(-1).data
        self._queues = queues
        self._deleted_topics = queues.deleted_topics.ends
        self.is_slave = is_slave
        self._rows: list[Queue | None] = []
        self._files: list[ConsumeQueueFile | None] = []  # that a row's target is in
        self._mapped: deque[ConsumeQueueFile] = deque()
        self._restarted: set[int] | None = None

    def restart(self) -> None:
        """From now on, rewrite each queue from the first unit on that comes for it."""
        self._restarted = set()

    def note_lost(self, damages: Iterable[Damage]) -> None:
        """Add damaged and quarantined ranges of the log."""
        ends = dict(zip(*(bounds.tolist() for bounds in self.lost), strict=True))
        for damage in damages:
            begin = damage.physical_offset
            ends[begin] = max(ends.get(begin, 0), begin + damage.size)
        begins = np.array(sorted(ends), dtype=np.int64)
        self.lost = begins, np.array([ends[begin] for begin in begins.tolist()], dtype=np.int64)

    def is_lost(self, physical_offset: int) -> bool:
        """Return whether a range that was noted has a physical offset."""
        begins, ends = self.lost
        at = int(np.searchsorted(begins, physical_offset, side="right"))
        return at > 0 and physical_offset < int(ends[:at].max())

    def note_written(self, count: int) -> None:
        """Count units that the kernel has written."""
        self._queues.unit_total += count

    @property
    def most_at_once(self) -> int:
        """Maximal number of units of one ``put``."""
        if self._queues.is_ext:
            return _MOST_AT_ONCE
        return _BATCHES_AT_ONCE if self._queues.batch_topics else 1

    def put(self, units: list[list[int]]) -> int:
        """Write units that the kernel cannot: the first one, and those that follow in its queue.

        Args:
            units: one or more rows of a unit table, at most ``most_at_once``: row of the queue, queue offset,
                physical offset, size, tags code, store timestamp (ms) or LIGHT_UNIT.

        Returns:
            How many are done with; 0 where queues were removed, and they are to be given again. The kernel may be able
            to write those after them.

        Raises:
            OSError: the disk is full, or broken. They may be given again.
        """
        row, queue_offset, physical_offset, *_ = units[0]
        if self._deleted_topics and physical_offset < self._deleted_topics.get(self.names[row][0], 0):
            return 1
        queue = self._queue(row)
        if queue is None:
            return 1
        if self.is_slave and queue_offset < queue.max_offset and 0 <= queue.last_end() <= physical_offset:
            self._drop(queue)
            return 0
        if isinstance(queue, BatchQueue):
            return self._put_batches(row, queue, units)
        before = queue.max_offset
        if self._restarted is not None and self.is_slave and row not in self._restarted:
            self._restarted.add(row)
            queue.restart(queue_offset)
        count = 1
        is_light = units[0][-1] == LIGHT_UNIT
        while count < len(units) and units[count][:2] == [row, queue_offset + count]:
            if (units[count][-1] == LIGHT_UNIT) != is_light:
                break
            count += 1
        self._append(queue, units[:count], has_ext=self._queues.is_ext and not is_light)
        self._queues.unit_total += queue.max_offset - before
        self._aim(row, queue)
        return count

    def _put_batches(self, row: int, queue: BatchQueue, units: list[list[int]]) -> int:
        before = queue.max_offset
        if self._restarted is not None and row not in self._restarted:
            self._restarted.add(row)
            queue.restart(units[0][2])
        count = 1
        while count < len(units) and units[count][0] == row and units[count][1] > units[count - 1][1]:
            count += 1  # an older queue offset is that of a topic made anew, see ``put``
        self.displaced += queue.append(
            (physical_offset, size, code, timestamp_ms, *self.batches.get(physical_offset, (queue_offset, 1)))
            for _, queue_offset, physical_offset, size, code, timestamp_ms in units[:count]
        )
        self._queues.unit_total += queue.max_offset - before
        return count

    def _drop(self, queue: Queue) -> None:
        """Drop a topic that the master has deleted and made anew, as a newer record with an older queue offset shows.

        It need not be 0: the first ones may have been lost with the master's power.

        The topic was deleted after the queue's last record; how long after is the master's to tell. Messages that came
        during the deletion go on with the numbers of the old topic.
        """
        ends = {queue.topic: queue.last_end()}
        self._queues.deleted_topics.note(ends, 0)
        self.clear_cache()
        self._queues.remove_topics(ends)

    def _append(self, queue: ConsumeQueue, units: list[list[int]], *, has_ext: bool) -> None:
        """Append units to a queue, at the places where the original appends them."""
        from rmq_formats.kernels.units import IMPOSSIBLE, NO_FILE, append_rows  # noqa: PLC0415 # numba

        rows = np.array(units, dtype=np.int64)[:, 1:].copy()
        places = np.empty(len(rows), dtype=np.int64)
        append_rows(rows, queue.max_offset if queue.files.files else NO_FILE, queue.last_end(), *self.lost, places)
        self.displaced += int(np.count_nonzero(places == IMPOSSIBLE))
        placed = np.flatnonzero(places >= 0)
        for run in np.split(placed, np.flatnonzero(np.diff(places[placed]) != 1) + 1):
            if len(run):
                self._write(queue, int(places[run[0]]), [units[index] for index in run.tolist()], has_ext=has_ext)

    def _write(self, queue: ConsumeQueue, place: int, units: list[list[int]], *, has_ext: bool) -> None:
        tags_codes = [tags_code for _, _, _, _, tags_code, _ in units]
        if queue.ext is not None and has_ext:
            tags_codes = queue.ext.append(
                ExtUnit(tags_code, timestamp_ms) for _, _, _, _, tags_code, timestamp_ms in units
            )
        coded = zip(units, tags_codes, strict=True)
        packed = [UNIT.pack(physical_offset, size, code) for (_, _, physical_offset, size, _, _), code in coded]
        queue.append(place, b"".join(packed))

    def write(self, queue: ConsumeQueue, place: int, rows: Table) -> None:
        """Write units at consecutive offsets of a queue, at or after the queue's end.

        Args:
            rows: int64[n, ROW_COLUMNS], with these places.
        """
        from rmq_formats.kernels.units import encode_units  # noqa: PLC0415 # numba

        is_light = rows[0, -1] == LIGHT_UNIT
        if self._queues.is_ext and not is_light:
            self._write(queue, place, [[0, *row] for row in rows.tolist()], has_ext=True)
            return
        image = np.empty(len(rows) * UNIT_BYTES, dtype=np.uint8)
        encode_units(rows, place, image)
        queue.append(place, image.tobytes())

    def _queue(self, row: int) -> Queue | None:
        """Return the queue of a row; None if it gets no units, as this store cannot have it."""
        while row >= len(self._rows):
            self._rows += [None] * _FIRST_ROWS
            self._files += [None] * _FIRST_ROWS
        if row >= len(self.targets):
            self._grow(row + 1)
        queue = self._rows[row]
        if queue is None:
            topic, queue_id = self.names[row]
            try:
                queue = self._queues.get_or_make(topic, queue_id)
            except FormatError:  # a crafted topic that is no directory's name
                return None
            self._rows[row] = queue
            self.met += 1
            if isinstance(queue, ConsumeQueue):  # units of others all come to ``put``
                queue.bind(self._cells, row * TARGET_COLUMNS + TARGET_NEXT)
                self.targets[row, TARGET_BOUND] = BOUND_TO_A_SLAVES if self.is_slave else BOUND_TO_ONE_TOPIC
        return queue

    def _grow(self, least: int) -> None:
        """Grow the target table to at least so many rows. Starting walks many queues without writing to them."""
        count = max(2 * len(self.targets), least)
        targets = np.zeros((count, TARGET_COLUMNS), dtype=np.int64)
        targets[: len(self.targets)] = self.targets
        self.targets = targets
        self._cells = targets.reshape(-1).data
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(self._cells, row * TARGET_COLUMNS + TARGET_NEXT)

    def _aim(self, row: int, queue: ConsumeQueue) -> None:
        """Point a row at its queue's next mapped place; without one, the next unit comes to ``put`` as well."""
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
        target[TARGET_RECORD_END] = max(queue.last_end(), 0)
        if file is None or self._queues.is_ext:
            return
        try:
            room = self._room(row, file, offset - file.start, queue.files.file_bytes)
        except OSError:  # no blocks or no descriptor: the next write will raise it
            return
        if file.mapped is not None:
            target[TARGET_ADDRESS] = file.mapped.address + offset - file.start
            target[TARGET_ROOM] = room // UNIT_BYTES

    def _room(self, row: int, file: ConsumeQueueFile, position: int, file_bytes: int) -> int:
        open_files = self._queues.open_files
        descriptor = open_files.open(file)
        if file.mapped is None:
            while len(self._mapped) >= min(_MOST_MAPPED, open_files.limit):
                self._unmap(self._mapped.popleft())
            file.mapped = QueueMap(descriptor, file_bytes, row)
            self._mapped.append(file)
        return file.mapped.reserve(descriptor, position, open_files.disk)

    def _unmap(self, file: ConsumeQueueFile) -> None:
        if file.mapped is not None:
            row, file.mapped = file.mapped.row, None
            if self._files[row] is file:
                self.targets[row, TARGET_ROOM] = 0

    def clear_cache(self) -> None:
        """Clear all cached queues and targets, as queues were removed or cut."""
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(None)
                self._rows[row] = None
        for file in self.collect_dirty_files():
            self._queues.open_files.note_dirty(file)
        self._files = [None] * len(self._files)
        self.targets[:] = 0
        for mapped in self._mapped:
            mapped.mapped = None
        self._mapped.clear()

    def collect_dirty_files(self) -> list[ConsumeQueueFile]:
        """Collect the files that the kernel has written since the last call, for the flush thread."""
        targets = self.targets
        rows = np.flatnonzero(targets[:, TARGET_DIRTY])
        # A row may go on to its next file at any moment: until its mark is taken away, the file before is noted
        # elsewhere then; after that, it is the one found here first.
        files = [self._files[row] for row in rows.tolist()]
        targets[rows, TARGET_DIRTY] = 0  # units that are written meanwhile are flushed now, too, or have set it again
        files += [self._files[row] for row in rows.tolist()]
        return [file for file in dict.fromkeys(files) if file is not None]

    @property
    def dirty_count(self) -> int:
        """Number of files that the kernel has written since ``collect_dirty_files``."""
        return int(np.count_nonzero(self.targets[:, TARGET_DIRTY]))
