"""Merges ConsumeQueues with the records that a recovery read, where the first missing unit is unknown.

After a crash of the original, or if a queue is lost, the units after some record must be compared with the log.
Discarding the units and dispatching the records again would be wrong: the log still has the records of deleted topics,
whose messages would come back, and would replace those of recreated topics. So a queue's units are merged with the
records as ``rmq rebuild`` does it (``rmq_formats.scan.queue_merge``).
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_core.store.consumequeue.writer import UnitWriter
from rmq_formats.codecs.consumequeue import MAX_QUEUE_OFFSET
from rmq_formats.codecs.layout import PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.dispatch import UNIT_QUEUE
from rmq_formats.scan.queue_merge import LogBounds, are_lost_units, merge_queue

Rows = NDArray[np.int64]
_PHYSICAL: Final = unit_kernel.PHYSICAL_OFFSET
_RECORD: Final = [unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE]
_NONE = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)


@dataclass(slots=True)
class _Comparison:
    """Progress of comparing a queue's units with the log's records.

    Attributes:
        queue_offset: queue offset of the next unit to compare.
        last: record of the unit before that, int64[1, ROW_COLUMNS]; empty before the first unit.
        rows: the records from the first difference on; None while there is no difference.
        only_appends: no unit is left to compare, so that records are appended.
    """

    queue: ConsumeQueue
    queue_offset: int
    last: Rows = field(default_factory=lambda: _NONE)
    rows: list[Rows] | None = None
    only_appends: bool = False


class QueueMerge:
    """Merge of a recovery's records with the units of their queues.

    No record is retained while a queue's units equal its records one by one. From the first difference on, a queue's
    records are retained, and merged with its units after the last record.
    """

    def __init__(self, queues: ConsumeQueueTable, writer: UnitWriter, begin: int) -> None:
        """Start a merge of the records from physical offset ``begin`` on; the units of earlier records are right."""
        self._queues = queues
        self._writer = writer
        self._begin = begin
        self._comparisons: dict[int, _Comparison | None] = {}  # by the queue's row; None for a queue without units

    def compare(self, units: Rows) -> Rows:
        """Compare a batch's units, a unit table; return the units to append now."""
        if not len(units):
            return units
        order = np.argsort(units[:, UNIT_QUEUE], kind="stable")
        queue_rows, firsts = np.unique(units[order, UNIT_QUEUE], return_index=True)
        to_append = np.zeros(len(units), dtype=np.bool_)
        for queue_row, indices in zip(queue_rows.tolist(), np.split(order, firsts[1:]), strict=True):
            compared_count = self._compare(queue_row, np.ascontiguousarray(units[indices, UNIT_QUEUE + 1 :]))
            to_append[indices[compared_count:]] = True
        return units[to_append]

    def _compare(self, row: int, rows: Rows) -> int:
        """Compare a queue's next records with its units; return the number of records that are not to be appended."""
        if row not in self._comparisons:
            self._comparisons[row] = self._begin_comparison(row)
        comparison = self._comparisons[row]
        if comparison is None or comparison.only_appends:
            return 0
        queue = comparison.queue
        dead_count = int(np.searchsorted(rows[:, _PHYSICAL], self._queues.deleted_topics.ends.get(queue.topic, 0)))
        count = len(rows)
        rows = rows[dead_count:]
        if comparison.rows is None:
            same_count = self._count_same(comparison, rows)
            if same_count:
                comparison.queue_offset += same_count
                comparison.last = rows[same_count - 1 : same_count].copy()
            rows = rows[same_count:]
            if len(rows) and comparison.queue_offset == queue.max_offset:
                comparison.only_appends = True
                return count - len(rows)
        if len(rows):
            comparison.rows = [*(comparison.rows or []), rows.copy()]
        return count

    def _begin_comparison(self, row: int) -> _Comparison | None:
        queue = self._queues.get(*self._writer.names[row])
        if not isinstance(queue, ConsumeQueue):
            return None
        queue_offset = queue.find_physical(self._begin, queue.first_stored)
        return _Comparison(queue, queue_offset, only_appends=queue_offset == queue.max_offset)

    def _count_same(self, comparison: _Comparison, rows: Rows) -> int:
        """Count the first records that equal the next units, one by one."""
        stored_rows = _rows(comparison.queue, comparison.queue_offset, comparison.queue_offset + len(rows))
        rows = rows[: len(stored_rows)]
        differs = np.flatnonzero((stored_rows[:, _RECORD] != rows[:, _RECORD]).any(axis=1))
        same_count = int(differs[0]) if len(differs) else len(rows)
        is_last = same_count > 0 and comparison.queue_offset + same_count == comparison.queue.max_offset
        if is_last and _is_torn(stored_rows[same_count - 1], rows[same_count - 1]):
            same_count -= 1
        return same_count

    def finish(self, log_end: int) -> None:
        """Merge the queues whose units differ from the records."""
        comparisons = [comparison for comparison in self._comparisons.values() if comparison is not None]
        names = {self._writer.names[row] for row in self._comparisons}
        for queue in self._queues:
            if isinstance(queue, ConsumeQueue) and (queue.topic, queue.queue_id) not in names:
                comparisons.append(_Comparison(queue, queue.find_physical(self._begin, queue.first_stored)))
        bounds = LogBounds(self._begin, log_end, self._writer.lost_ranges)
        for comparison in comparisons:
            is_different = comparison.rows or comparison.queue_offset < comparison.queue.max_offset
            if is_different and not comparison.only_appends:
                rows = np.concatenate([comparison.last, *(comparison.rows or [])])
                self._merge(comparison.queue, comparison.queue_offset - 1, rows, bounds)

    def _merge(self, queue: ConsumeQueue, begin: int, rows: Rows, log: LogBounds) -> None:
        begin = max(begin, queue.first_stored)
        stored_rows = _rows(queue, begin, queue.max_offset)
        blank_count = _count_first_pre_blanks(queue, stored_rows, rows)
        if blank_count:  # earlier records are of a deleted topic of the same name, or are never dispatched
            begin, stored_rows = begin + blank_count, stored_rows[blank_count:]
            rows = rows[np.searchsorted(rows[:, _PHYSICAL], stored_rows[0, _PHYSICAL]) :]
        merged = merge_queue(begin, stored_rows, rows, log)
        offsets = rows[merged.places < 0, unit_kernel.QUEUE_OFFSET]
        self._writer.displaced += int(np.count_nonzero((offsets < 0) | (offsets > MAX_QUEUE_OFFSET)))
        lost_units = stored_rows[are_lost_units(stored_rows, log.end)]
        is_merged = np.isin(lost_units[:, unit_kernel.QUEUE_OFFSET], merged.rows[:, unit_kernel.QUEUE_OFFSET])
        expected = np.concatenate([merged.rows, lost_units[~is_merged]])
        expected = np.ascontiguousarray(expected[np.argsort(expected[:, unit_kernel.QUEUE_OFFSET])])
        units = _with_tags_codes(stored_rows, expected, begin)
        first_difference = _first_difference(stored_rows, units, begin, merged.end)
        if first_difference is not None:
            if first_difference < queue.max_offset:
                queue.trim(first_difference)
            rows = merged.rows if self._queues.writes_ext else units
            rows = np.ascontiguousarray(rows[rows[:, unit_kernel.QUEUE_OFFSET] >= first_difference])
            cuts = np.flatnonzero(np.diff(rows[:, unit_kernel.QUEUE_OFFSET]) != 1) + 1
            for run in np.split(rows, cuts):
                if len(run):
                    self._writer.write(queue, int(run[0, unit_kernel.QUEUE_OFFSET]), run)
        queue.least_next = max(queue.least_next, merged.end)


def _rows(queue: ConsumeQueue, begin: int, end: int) -> Rows:
    """Return the units between two queue offsets as rows with these queue offsets."""
    data = b"".join(queue.pieces(begin, min(end, queue.max_offset)))
    rows = np.zeros((len(data) // UNIT_BYTES, unit_kernel.ROW_COLUMNS), dtype=np.int64)
    unit_kernel.decode_units(np.frombuffer(bytearray(data), dtype=np.uint8), rows)
    rows[:, unit_kernel.QUEUE_OFFSET] = np.arange(begin, begin + len(rows))
    return rows


def _count_first_pre_blanks(queue: ConsumeQueue, stored_rows: Rows, rows: Rows) -> int:
    """Count the pre-blanks before a queue's first unit; 0 unless that unit is of a record of the queue."""
    is_blank = (stored_rows[:, _RECORD] == [0, PRE_BLANK_SIZE]).all(axis=1)
    if is_blank.all():
        return 0
    count = int(is_blank.argmin())
    is_named = (rows[:, _RECORD] == stored_rows[count, _RECORD]).all(axis=1).any()
    return count if is_named and stored_rows[count, _PHYSICAL] == queue.first_physical() else 0


def _with_tags_codes(stored_rows: Rows, expected: Rows, begin: int) -> Rows:
    """Copy the expected units, with the tags codes of the units in the file.

    The codes may be addresses in ConsumeQueueExt, or delivery times by an earlier ``messageDelayLevel``. The last unit
    may have lost a sector, so that its code ends in zeros.
    """
    units = expected.copy()
    indices = expected[:, unit_kernel.QUEUE_OFFSET] - begin
    has_unit = np.flatnonzero((indices >= 0) & (indices < len(stored_rows)))
    has_unit = has_unit[(stored_rows[indices[has_unit]][:, _RECORD] == expected[has_unit][:, _RECORD]).all(axis=1)]
    has_last_unit = len(has_unit) > 0 and indices[has_unit[-1]] == len(stored_rows) - 1
    if has_last_unit and _is_torn(stored_rows[-1], expected[has_unit[-1]]):
        has_unit = has_unit[:-1]
    units[has_unit, unit_kernel.TAGS_CODE] = stored_rows[indices[has_unit], unit_kernel.TAGS_CODE]
    return units


def _is_torn(stored_rows: Rows, expected: Rows) -> bool:
    """Return whether a unit's tags code has the first bytes of the expected code, and zeros after them."""
    unit, whole = (int(row[unit_kernel.TAGS_CODE]).to_bytes(8, "big", signed=True) for row in (stored_rows, expected))
    return unit != whole and whole.startswith(unit.rstrip(b"\0"))


def _first_difference(stored_rows: Rows, expected: Rows, begin: int, end: int) -> int | None:
    """Return the first queue offset from which a queue must be rewritten; None if all units are as expected.

    Args:
        expected: the units that the queue must have, by ascending queue offset, with pre-blanks in the gaps.
        end: queue offset after the last unit that the queue must have; pre-blanks at the end are not written.
    """
    indices = expected[:, unit_kernel.QUEUE_OFFSET] - begin
    if len(indices) and indices[0] < 0:
        return int(indices[0]) + begin
    columns = [*_RECORD, unit_kernel.TAGS_CODE]
    image = np.tile(np.array([0, PRE_BLANK_SIZE, 0], dtype=np.int64), (end - begin, 1))
    image[indices] = expected[:, columns]
    count = min(len(stored_rows), len(image))
    differs = np.flatnonzero((stored_rows[:count, columns] != image[:count]).any(axis=1))
    if len(differs):
        return int(differs[0]) + begin
    if len(stored_rows) > count or (len(indices) and indices[-1] >= count):
        return count + begin
    return None
