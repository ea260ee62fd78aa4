"""Merges ConsumeQueues with the records that a recovery read, where the first missing unit is unknown.

After a crash of the original, or where a queue is lost, the units after some record are to be compared. To throw them
away and to dispatch the records again would bring back the messages of deleted topics, whose records are in the log
still, and take away those of the topics that were made in their place: what a queue says of its records is kept, as
``rmq rebuild`` keeps it (``rmq_formats.scan.queue_merge``).
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
    """How far a queue's units are those of the records that have come.

    Attributes:
        place: of the next unit to compare.
        last: the record of the unit before it, int64[1, ROW_COLUMNS]; empty before the first one.
        rows: the records from the first one on that is not the next unit's; None as long as there is none.
        appends: nothing is left to compare: records are appended.
    """

    queue: ConsumeQueue
    place: int
    last: Rows = field(default_factory=lambda: _NONE)
    rows: list[Rows] | None = None
    appends: bool = False


class QueueMerge:
    """The records that a recovery reads, compared with the units of their queues.

    Where a queue's units are those of its records, one after the other, nothing is kept. From the first other one on a
    queue's records are kept, and merged with its units once all have come.
    """

    def __init__(self, queues: ConsumeQueueTable, writer: UnitWriter, begin: int) -> None:
        """Start a merge; records are read from physical offset ``begin`` on, and units of earlier ones are right."""
        self._queues = queues
        self._writer = writer
        self._begin = begin
        self._comparisons: dict[int, _Comparison | None] = {}  # by the queue's row; None for one without units

    def compare(self, units: Rows) -> Rows:
        """Compare a batch's units, a unit table; return those that are to be appended now."""
        if not len(units):
            return units
        order = np.argsort(units[:, UNIT_QUEUE], kind="stable")
        numbers, firsts = np.unique(units[order, UNIT_QUEUE], return_index=True)
        is_appended = np.zeros(len(units), dtype=np.bool_)
        for row, at in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            is_appended[at[self._compare(row, np.ascontiguousarray(units[at, UNIT_QUEUE + 1 :])) :]] = True
        return units[is_appended]

    def _compare(self, row: int, rows: Rows) -> int:
        """Compare a queue's next records with its units; return how many of them are not to be appended."""
        if row not in self._comparisons:
            self._comparisons[row] = self._begin_comparison(row)
        comparison = self._comparisons[row]
        if comparison is None or comparison.appends:
            return 0
        queue = comparison.queue
        dead = int(np.searchsorted(rows[:, _PHYSICAL], self._queues.deleted_topics.ends.get(queue.topic, 0)))
        count = len(rows)
        rows = rows[dead:]
        if comparison.rows is None:
            same = self._count_same(comparison, rows)
            if same:
                comparison.place, comparison.last = comparison.place + same, rows[same - 1 : same].copy()
            rows = rows[same:]
            if len(rows) and comparison.place == queue.max_offset:
                comparison.appends = True
                return count - len(rows)
        if len(rows):
            comparison.rows = [*(comparison.rows or []), rows.copy()]
        return count

    def _begin_comparison(self, row: int) -> _Comparison | None:
        queue = self._queues.get(*self._writer.names[row])
        if not isinstance(queue, ConsumeQueue):
            return None
        place = queue.find_physical(self._begin, queue.first_stored)
        return _Comparison(queue, place, appends=place == queue.max_offset)

    def _count_same(self, comparison: _Comparison, rows: Rows) -> int:
        """Count the records that are those of the next units, one after the other."""
        standing = _rows(comparison.queue, comparison.place, comparison.place + len(rows))
        rows = rows[: len(standing)]
        differs = np.flatnonzero((standing[:, _RECORD] != rows[:, _RECORD]).any(axis=1))
        same = int(differs[0]) if len(differs) else len(rows)
        is_last = same > 0 and comparison.place + same == comparison.queue.max_offset
        if is_last and _is_torn(standing[same - 1], rows[same - 1]):
            same -= 1
        return same

    def finish(self, log_end: int) -> None:
        """Merge the queues whose units are not those of the records, one after the other."""
        comparisons = [comparison for comparison in self._comparisons.values() if comparison is not None]
        names = {self._writer.names[row] for row in self._comparisons}
        for queue in self._queues:
            if isinstance(queue, ConsumeQueue) and (queue.topic, queue.queue_id) not in names:
                comparisons.append(_Comparison(queue, queue.find_physical(self._begin, queue.first_stored)))
        for comparison in comparisons:
            if not comparison.appends and (comparison.rows or comparison.place < comparison.queue.max_offset):
                rows = np.concatenate([comparison.last, *(comparison.rows or [])])
                bounds = LogBounds(self._begin, log_end, self._writer.lost)
                self._merge(comparison.queue, comparison.place - 1, rows, bounds)

    def _merge(self, queue: ConsumeQueue, begin: int, rows: Rows, log: LogBounds) -> None:
        begin = max(begin, queue.first_stored)
        standing = _rows(queue, begin, queue.max_offset)
        blanks = _count_first_pre_blanks(queue, standing, rows)
        if blanks:  # the records before its first unit are of a former life, or no broker would dispatch them
            begin, standing = begin + blanks, standing[blanks:]
            rows = rows[np.searchsorted(rows[:, _PHYSICAL], standing[0, _PHYSICAL]) :]
        merged = merge_queue(begin, standing, rows, log)
        offsets = rows[merged.places < 0, unit_kernel.QUEUE_OFFSET]
        self._writer.displaced += int(np.count_nonzero((offsets < 0) | (offsets > MAX_QUEUE_OFFSET)))
        lost = standing[are_lost_units(standing, log.end)]
        lost = lost[~np.isin(lost[:, unit_kernel.QUEUE_OFFSET], merged.rows[:, unit_kernel.QUEUE_OFFSET])]
        expected = np.concatenate([merged.rows, lost])
        expected = np.ascontiguousarray(expected[np.argsort(expected[:, unit_kernel.QUEUE_OFFSET])])
        units = _with_tags_codes(standing, expected, begin)
        first = _first_difference(standing, units, begin, merged.end)
        if first is not None:
            if first < queue.max_offset:
                queue.trim(first)
            rows_to_write = merged.rows if self._queues.is_ext else units
            self._write(queue, np.ascontiguousarray(rows_to_write[rows_to_write[:, unit_kernel.QUEUE_OFFSET] >= first]))
        queue.least_next = max(queue.least_next, merged.end)

    def _write(self, queue: ConsumeQueue, rows: Rows) -> None:
        cuts = np.flatnonzero(np.diff(rows[:, unit_kernel.QUEUE_OFFSET]) != 1) + 1
        for run in np.split(rows, cuts):
            if len(run):
                self._writer.write(queue, int(run[0, unit_kernel.QUEUE_OFFSET]), run)


def _rows(queue: ConsumeQueue, begin: int, end: int) -> Rows:
    """Return the units between two places as rows, with their places."""
    data = b"".join(queue.pieces(begin, min(end, queue.max_offset)))
    rows = np.zeros((len(data) // UNIT_BYTES, unit_kernel.ROW_COLUMNS), dtype=np.int64)
    unit_kernel.decode_units(np.frombuffer(bytearray(data), dtype=np.uint8), rows)
    rows[:, unit_kernel.QUEUE_OFFSET] = np.arange(begin, begin + len(rows))
    return rows


def _count_first_pre_blanks(queue: ConsumeQueue, standing: Rows, rows: Rows) -> int:
    """Count the pre-blanks before a queue's first unit; 0 unless that names a record of the queue."""
    is_blank = (standing[:, _RECORD] == [0, PRE_BLANK_SIZE]).all(axis=1)
    if is_blank.all():
        return 0
    count = int(is_blank.argmin())
    is_named = (rows[:, _RECORD] == standing[count, _RECORD]).all(axis=1).any()
    return count if is_named and standing[count, _PHYSICAL] == queue.first_physical() else 0


def _with_tags_codes(standing: Rows, expected: Rows, begin: int) -> Rows:
    """Copy the expected units, with the tags codes of the units in the file.

    They may be addresses in ConsumeQueueExt, or times by a former ``messageDelayLevel``. Of the last one a sector may
    be lost, so that its code ends in zeros.
    """
    units = expected.copy()
    at = expected[:, unit_kernel.QUEUE_OFFSET] - begin
    there = np.flatnonzero((at >= 0) & (at < len(standing)))
    there = there[(standing[at[there]][:, _RECORD] == expected[there][:, _RECORD]).all(axis=1)]
    if len(there) and at[there[-1]] == len(standing) - 1 and _is_torn(standing[-1], expected[there[-1]]):
        there = there[:-1]
    units[there, unit_kernel.TAGS_CODE] = standing[at[there], unit_kernel.TAGS_CODE]
    return units


def _is_torn(standing: Rows, expected: Rows) -> bool:
    """Return whether a unit's tags code is a beginning of the expected one, followed by zeros."""
    unit, whole = (int(row[unit_kernel.TAGS_CODE]).to_bytes(8, "big", signed=True) for row in (standing, expected))
    return unit != whole and whole.startswith(unit.rstrip(b"\0"))


def _first_difference(standing: Rows, expected: Rows, begin: int, end: int) -> int | None:
    """Find the first place at which a queue is to be written anew, up to its end; None if all units are as expected.

    Args:
        expected: what it is to have, ascending by place; pre-blanks are between.
        end: one past the last place that the queue is to have; pre-blanks at the end are not written.
    """
    at = expected[:, unit_kernel.QUEUE_OFFSET] - begin
    if len(at) and at[0] < 0:
        return int(at[0]) + begin
    columns = [*_RECORD, unit_kernel.TAGS_CODE]
    image = np.tile(np.array([0, PRE_BLANK_SIZE, 0], dtype=np.int64), (end - begin, 1))
    image[at] = expected[:, columns]
    count = min(len(standing), len(image))
    differs = np.flatnonzero((standing[:count, columns] != image[:count]).any(axis=1))
    if len(differs):
        return int(differs[0]) + begin
    if len(standing) > count or (len(at) and at[-1] >= count):
        return count + begin
    return None
