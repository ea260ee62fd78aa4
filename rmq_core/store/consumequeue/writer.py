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
from rmq_formats.kernels import live_dispatch_tables as tables

Table = NDArray[np.int64]
_FIRST_ROWS: Final = 256
_MAX_MAPPED_FILES: Final = 8192
_MAX_UNITS_PER_PUT: Final = 64
_MAX_BATCH_UNITS_PER_PUT: Final = 8  # records of one queue are seldom neighbours, so that larger slices would cost more


class UnitWriter:
    """Writes ConsumeQueue units; its rows are those of a dispatcher's queue table.

    Attributes:
        targets: position of each row's next unit, int64[rows, TARGET_COLUMNS].
        displaced: number of units skipped because of an impossible queue offset.
        new_queue_count: number of queues whose first unit was written here; most needed a new directory and file.
        names: topic and queue id of each row; the owner adds to it.
        is_slave: True for a slave's store, where a newer record with an older queue offset belongs to a topic that the
            master has recreated.
        batches: inner batches of the records to write, by physical offset: queue offset of the first message, and
            number of messages. The owner sets it.
        lost_ranges: begins and ends of the damaged ranges of the log. The queue offsets of their lost messages stay
            unused.
    """

    def __init__(self, queues: ConsumeQueueTable, *, is_slave: bool) -> None:
        self.targets: Table = np.zeros((_FIRST_ROWS, tables.TARGET_COLUMNS), dtype=np.int64)
        self.displaced = 0
        self.new_queue_count = 0
        self.names: list[tuple[str, int]] = []
        self.batches: Mapping[int, tuple[int, int]] = {}
        self.lost_ranges: tuple[Table, Table] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self.queues = queues
        self._cells = self.targets.reshape(-1).data
        self._deleted_topics = queues.deleted_topics.ends
        self.is_slave = is_slave
        self._rows: list[Queue | None] = []
        self._files: list[ConsumeQueueFile | None] = []  # the file of each row's target
        self._mapped: deque[ConsumeQueueFile] = deque()
        self._rewritten_rows: set[int] | None = None

    def start_rewriting(self) -> None:
        """From now on, replace each queue's units from the first unit on that ``put`` receives for the queue."""
        self._rewritten_rows = set()

    def add_lost_ranges(self, damages: Iterable[Damage]) -> None:
        """Add damaged and quarantined ranges of the log."""
        ends_by_begin = dict(zip(*(bounds.tolist() for bounds in self.lost_ranges), strict=True))
        for damage in damages:
            begin = damage.physical_offset
            ends_by_begin[begin] = max(ends_by_begin.get(begin, 0), begin + damage.size)
        begins = np.array(sorted(ends_by_begin), dtype=np.int64)
        self.lost_ranges = begins, np.array([ends_by_begin[begin] for begin in begins.tolist()], dtype=np.int64)

    def is_in_lost_range(self, physical_offset: int) -> bool:
        """Return whether a physical offset is in a range of ``lost_ranges``."""
        begins, ends = self.lost_ranges
        at = int(np.searchsorted(begins, physical_offset, side="right"))
        return at > 0 and physical_offset < int(ends[:at].max())

    @property
    def max_units_per_put(self) -> int:
        """Maximal number of units of one ``put``."""
        if self.queues.writes_ext:
            return _MAX_UNITS_PER_PUT
        return _MAX_BATCH_UNITS_PER_PUT if self.queues.batch_topics else 1

    def put(self, units: list[list[int]]) -> int:
        """Write a unit that the kernel cannot write, and the units that directly follow it in its queue.

        Args:
            units: up to ``max_units_per_put`` rows of a unit table: row of the queue, queue offset, physical offset,
                size, tags code, store timestamp (ms) or LIGHT_UNIT.

        Returns:
            Number of units that need nothing more; 0 after queues were removed, and the caller passes the units again.
            The kernel may be able to write the later units.

        Raises:
            OSError: the disk is full, or broken. The caller may pass the units again.
        """
        row, queue_offset, physical_offset, *_ = units[0]
        if self._deleted_topics and physical_offset < self._deleted_topics.get(self.names[row][0], 0):
            return 1
        queue = self._queue(row)
        if queue is None:
            return 1
        if self.is_slave and queue_offset < queue.max_offset and 0 <= queue.last_end() <= physical_offset:
            self._remove_recreated_topic(queue)
            return 0
        if isinstance(queue, BatchQueue):
            return self._put_batches(row, queue, units)
        old_max_offset = queue.max_offset
        if self._rewritten_rows is not None and self.is_slave and row not in self._rewritten_rows:
            self._rewritten_rows.add(row)
            queue.restart(queue_offset)
        count = 1
        is_lmq_unit = units[0][-1] == tables.LIGHT_UNIT
        while count < len(units) and units[count][:2] == [row, queue_offset + count]:
            if (units[count][-1] == tables.LIGHT_UNIT) != is_lmq_unit:
                break
            count += 1
        self._append(queue, units[:count], has_ext=self.queues.writes_ext and not is_lmq_unit)
        self.queues.unit_total += queue.max_offset - old_max_offset
        self._point_at_next_unit(row, queue)
        return count

    def _put_batches(self, row: int, queue: BatchQueue, units: list[list[int]]) -> int:
        old_max_offset = queue.max_offset
        if self._rewritten_rows is not None and row not in self._rewritten_rows:
            self._rewritten_rows.add(row)
            queue.restart(units[0][2])
        count = 1
        while count < len(units) and units[count][0] == row and units[count][1] > units[count - 1][1]:
            count += 1  # an older queue offset shows a recreated topic, see ``put``
        self.displaced += queue.append(
            (physical_offset, size, code, timestamp_ms, *self.batches.get(physical_offset, (queue_offset, 1)))
            for _, queue_offset, physical_offset, size, code, timestamp_ms in units[:count]
        )
        self.queues.unit_total += queue.max_offset - old_max_offset
        return count

    def _remove_recreated_topic(self, queue: Queue) -> None:
        """Remove the queues of a topic that the master has deleted and created again.

        A newer record with an older queue offset shows it. That offset need not be 0: the topic's first messages may
        have been lost in a power failure of the master. The topic was deleted at some time after the queue's last
        record; messages that arrived during the deletion continue the queue offsets of the old topic.
        """
        ends = {queue.topic: queue.last_end()}
        self.queues.deleted_topics.record(ends, 0)
        self.clear_cache()
        self.queues.remove_topics(ends)

    def _append(self, queue: ConsumeQueue, units: list[list[int]], *, has_ext: bool) -> None:
        """Append units to a queue, at the queue offsets that the original assigns."""
        from rmq_formats.kernels.units import IMPOSSIBLE, NO_FILE, append_rows  # noqa: PLC0415 # numba

        rows = np.array(units, dtype=np.int64)[:, 1:].copy()
        queue_offsets = np.empty(len(rows), dtype=np.int64)
        end = queue.max_offset if queue.files.files else NO_FILE
        append_rows(rows, end, queue.last_end(), *self.lost_ranges, queue_offsets)
        self.displaced += int(np.count_nonzero(queue_offsets == IMPOSSIBLE))
        written_rows = np.flatnonzero(queue_offsets >= 0)
        for run in np.split(written_rows, np.flatnonzero(np.diff(queue_offsets[written_rows]) != 1) + 1):
            if len(run):
                run_units = [units[index] for index in run.tolist()]
                self._write(queue, int(queue_offsets[run[0]]), run_units, has_ext=has_ext)

    def _write(self, queue: ConsumeQueue, queue_offset: int, units: list[list[int]], *, has_ext: bool) -> None:
        tags_codes = [tags_code for _, _, _, _, tags_code, _ in units]
        if queue.ext is not None and has_ext:
            tags_codes = queue.ext.append(
                ExtUnit(tags_code, timestamp_ms) for _, _, _, _, tags_code, timestamp_ms in units
            )
        coded = zip(units, tags_codes, strict=True)
        packed_units = [UNIT.pack(physical_offset, size, code) for (_, _, physical_offset, size, _, _), code in coded]
        queue.append(queue_offset, b"".join(packed_units))

    def write(self, queue: ConsumeQueue, queue_offset: int, rows: Table) -> None:
        """Write units at consecutive offsets of a queue, at or after the queue's end.

        Args:
            rows: int64[n, ROW_COLUMNS], with these queue offsets.
        """
        from rmq_formats.kernels.units import encode_units  # noqa: PLC0415 # numba

        is_lmq_unit = rows[0, -1] == tables.LIGHT_UNIT
        if self.queues.writes_ext and not is_lmq_unit:
            self._write(queue, queue_offset, [[0, *row] for row in rows.tolist()], has_ext=True)
            return
        image = np.empty(len(rows) * UNIT_BYTES, dtype=np.uint8)
        encode_units(rows, queue_offset, image)
        queue.append(queue_offset, image.tobytes())

    def _queue(self, row: int) -> Queue | None:
        """Return the queue of a row; None if the topic is no valid directory name."""
        while row >= len(self._rows):
            self._rows += [None] * _FIRST_ROWS
            self._files += [None] * _FIRST_ROWS
        if row >= len(self.targets):
            self._grow_targets(row + 1)
        queue = self._rows[row]
        if queue is None:
            topic, queue_id = self.names[row]
            try:
                queue = self.queues.get_or_make(topic, queue_id)
            except FormatError:  # a crafted topic that is no valid directory name
                return None
            self._rows[row] = queue
            self.new_queue_count += 1
            if isinstance(queue, ConsumeQueue):  # all units of batch queues come to ``put``
                queue.bind(self._cells, row * tables.TARGET_COLUMNS + tables.TARGET_NEXT)
                bound = tables.BOUND_TO_A_SLAVES if self.is_slave else tables.BOUND_TO_ONE_TOPIC
                self.targets[row, tables.TARGET_BOUND] = bound
        return queue

    def _grow_targets(self, min_rows: int) -> None:
        """Grow the target table to at least ``min_rows`` rows; a start reads many queues without writing to them."""
        count = max(2 * len(self.targets), min_rows)
        targets = np.zeros((count, tables.TARGET_COLUMNS), dtype=np.int64)
        targets[: len(self.targets)] = self.targets
        self.targets = targets
        self._cells = targets.reshape(-1).data
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(self._cells, row * tables.TARGET_COLUMNS + tables.TARGET_NEXT)

    def _point_at_next_unit(self, row: int, queue: ConsumeQueue) -> None:
        """Set a row's target to the queue's next unit in a mapped file; without a file, ``put`` gets the next unit."""
        target = self.targets[row]
        offset = queue.max_offset * UNIT_BYTES
        file = queue.files.file_at(offset)
        previous_file = self._files[row]
        if previous_file is not None and previous_file is not file:
            if target[tables.TARGET_DIRTY]:
                self.queues.open_files.note_dirty(previous_file)
            if previous_file.mapped is not None:
                previous_file.mapped = None
                self._mapped.remove(previous_file)
        self._files[row] = file
        target[tables.TARGET_ROOM] = 0
        target[tables.TARGET_RECORD_END] = max(queue.last_end(), 0)
        if file is None or self.queues.writes_ext:
            return
        try:
            room = self._map_file(row, file, offset - file.start, queue.files.file_bytes)
        except OSError:  # no blocks or no descriptor: the next write will raise it
            return
        if file.mapped is not None:
            target[tables.TARGET_ADDRESS] = file.mapped.address + offset - file.start
            target[tables.TARGET_ROOM] = room // UNIT_BYTES

    def _map_file(self, row: int, file: ConsumeQueueFile, position: int, file_bytes: int) -> int:
        open_files = self.queues.open_files
        descriptor = open_files.open(file)
        if file.mapped is None:
            while len(self._mapped) >= min(_MAX_MAPPED_FILES, open_files.limit):
                self._unmap(self._mapped.popleft())
            file.mapped = QueueMap(descriptor, file_bytes, row)
            self._mapped.append(file)
        return file.mapped.reserve(descriptor, position, open_files.disk)

    def _unmap(self, file: ConsumeQueueFile) -> None:
        if file.mapped is not None:
            row, file.mapped = file.mapped.row, None
            if self._files[row] is file:
                self.targets[row, tables.TARGET_ROOM] = 0

    def clear_cache(self) -> None:
        """Clear all cached queues and targets, as queues were removed or cut."""
        for row, queue in enumerate(self._rows):
            if queue is not None:
                queue.bind(None)
                self._rows[row] = None
        for file in self.collect_dirty_files():
            self.queues.open_files.note_dirty(file)
        self._files = [None] * len(self._files)
        self.targets[:] = 0
        for mapped in self._mapped:
            mapped.mapped = None
        self._mapped.clear()

    def collect_dirty_files(self) -> list[ConsumeQueueFile]:
        """Collect the files that the kernel has written since the last call, for the flush thread."""
        targets = self.targets
        rows = np.flatnonzero(targets[:, tables.TARGET_DIRTY])
        # A row may change to its next file at any moment. Before its TARGET_DIRTY is reset, that change queues the
        # previous file for fsync; afterwards, the previous file is in ``files`` already.
        files = [self._files[row] for row in rows.tolist()]
        targets[rows, tables.TARGET_DIRTY] = 0  # later units are flushed, too, or set it again
        files += [self._files[row] for row in rows.tolist()]
        return [file for file in dict.fromkeys(files) if file is not None]

    @property
    def dirty_count(self) -> int:
        """Number of files that the kernel has written since ``collect_dirty_files``."""
        return int(np.count_nonzero(self.targets[:, tables.TARGET_DIRTY]))
