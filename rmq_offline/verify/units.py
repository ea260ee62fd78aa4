"""Classifies the units of one ConsumeQueue file, one status each, vectorised."""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.kernels.units import PHYSICAL_OFFSET, QUEUE_OFFSET, ROW_COLUMNS, SIZE, TAGS_CODE, decode_units
from rmq_formats.scan.queue_merge import are_lost_units
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Kind
from rmq_offline.verify.log_facts import LogFacts, Longs, Mask

Statuses = NDArray[np.int8]


class Status(IntEnum):
    """Status of a unit."""

    FINE = 0
    MISSING = 1
    ZERO = 2
    BEFORE_QUEUE_BEGIN = 3
    DANGLING = 4
    DUPLICATE = 5
    DISPLACED = 6
    WRONG_SIZE = 7
    WRONG_TAGS_CODE = 8
    MESSAGE_LOST = 9
    BEYOND = 10
    AFTER_LAST_UNIT = 11
    PRE_BLANK = 12
    EXT_ADDRESS = 13
    WRONG_EXT_UNIT = 14
    LEFT_BY_RECOVERY = 15
    EXT_REUSED = 16


KINDS: dict[Status, Kind] = {
    Status.MISSING: finding_kinds.UNIT_MISSING,
    Status.ZERO: finding_kinds.UNIT_ZERO,
    Status.BEFORE_QUEUE_BEGIN: finding_kinds.QUEUE_MINIMUM,
    Status.DANGLING: finding_kinds.UNIT_DANGLING,
    Status.DUPLICATE: finding_kinds.UNIT_DUPLICATE,
    Status.DISPLACED: finding_kinds.UNIT_DISPLACED,
    Status.WRONG_SIZE: finding_kinds.UNIT_SIZE,
    Status.WRONG_TAGS_CODE: finding_kinds.UNIT_TAGS_CODE,
    Status.MESSAGE_LOST: finding_kinds.UNIT_LOST,
    Status.BEYOND: finding_kinds.UNIT_BEYOND,
    Status.AFTER_LAST_UNIT: finding_kinds.UNIT_BEHIND_END,
    Status.PRE_BLANK: finding_kinds.PRE_BLANK,
    Status.EXT_ADDRESS: finding_kinds.EXT_ADDRESS,
    Status.WRONG_EXT_UNIT: finding_kinds.EXT_UNIT,
    Status.LEFT_BY_RECOVERY: finding_kinds.UNIT_CUT,
    Status.EXT_REUSED: finding_kinds.EXT_REUSED,
}


@dataclass(frozen=True, slots=True)
class ExpectedUnits:
    """ExpectedUnits units of a queue, by its records and by its files.

    Attributes:
        rows: int64[n, ROW_COLUMNS], ascending by QUEUE_OFFSET, none twice.
        physical_offsets: of all records of the queue, with or without a unit; ascending.
        queue_offsets: of each record's unit; for a record without a unit, the queue offset that the record states.
        end: one past the last queue offset.
    """

    rows: Longs
    physical_offsets: Longs
    queue_offsets: Longs
    end: int

    @property
    def first(self) -> int:
        """Queue offset of the first message; in a queue without messages, one after all others."""
        return int(self.rows[0, QUEUE_OFFSET]) if len(self.rows) else 1 << 62

    @property
    def last(self) -> int:
        """Queue offset of the last message; -1 in a queue without messages."""
        return int(self.rows[-1, QUEUE_OFFSET]) if len(self.rows) else -1

    def queue_offsets_of(self, physical_offsets: Longs) -> Longs:
        """Return the queue offset of the record at each physical offset; -1 without a record of the queue."""
        at = np.searchsorted(self.physical_offsets, physical_offsets)
        at = np.minimum(at, max(len(self.physical_offsets) - 1, 0))
        if not len(self.physical_offsets):
            return np.full(len(physical_offsets), -1, dtype=np.int64)
        return np.where(self.physical_offsets[at] == physical_offsets, self.queue_offsets[at], -1)


@dataclass(frozen=True, slots=True)
class FileView:
    """Units of one file side by side with the expected ones; arrays of one length.

    Attributes:
        offsets: queue offsets.
        actual: int64[n, ROW_COLUMNS], as in the file; ConsumeQueueExt addresses resolved to tags codes.
        expected: int64[n, ROW_COLUMNS]; zeros where no record has the queue offset.
        has_record: whether the log has a record of each queue offset.
    """

    offsets: Longs
    actual: Longs
    expected: Longs
    has_record: Mask
    is_last_file: bool


def read_units(first_offset: int, unit_count: int, data: NDArray[np.uint8]) -> Longs:
    """Decode a file's units, int64[unit_count, ROW_COLUMNS]; QUEUE_OFFSET counts from ``first_offset`` on.

    ``unit_count`` is that of a whole file; missing bytes count as zeros.
    """
    padded = np.zeros(unit_count * UNIT_BYTES, dtype=np.uint8)
    padded[: min(len(data), len(padded))] = data[: len(padded)]
    actual = np.zeros((unit_count, ROW_COLUMNS), dtype=np.int64)
    decode_units(padded, actual)
    actual[:, QUEUE_OFFSET] = np.arange(first_offset, first_offset + unit_count)
    return actual


def view_file(expected: ExpectedUnits, actual: Longs, *, last: bool) -> FileView:
    """Align a file's units with the expected ones."""
    offsets = actual[:, QUEUE_OFFSET]
    rows = select_rows(expected.rows, int(offsets[0]), int(offsets[-1]) + 1)
    expected_units = np.zeros_like(actual)
    has_record = np.zeros(len(actual), dtype=bool)
    at = rows[:, QUEUE_OFFSET] - offsets[0]
    expected_units[at], has_record[at] = rows, True
    return FileView(offsets, actual, expected_units, has_record, last)


def select_rows(rows: Longs, begin: int, end: int) -> Longs:
    """Return the placed rows with queue offsets in ``[begin, end)``."""
    low, high = np.searchsorted(rows[:, QUEUE_OFFSET], [begin, end]).tolist()
    return rows[low:high]


class UnitClassifier:
    """Classifier of the units of one queue's files, in ascending order."""

    def __init__(self, expected: ExpectedUnits, facts: LogFacts) -> None:
        self._expected = expected
        self._facts = facts
        self._past_front = False  # whether a unit of a message, old or not, has occurred

    def pass_front(self) -> None:
        """Skip a file whose units are all right: pre-blanks are wrong in later files."""
        self._past_front = True

    def classify(self, view: FileView) -> Statuses:
        """Return one ``Status`` for each unit."""
        physical = view.actual[:, PHYSICAL_OFFSET]
        size, tags = view.actual[:, SIZE], view.actual[:, TAGS_CODE]
        is_zero = (physical == 0) & (size == 0) & (tags == 0)
        is_pre_blank = (physical == 0) & (size == PRE_BLANK_SIZE) & (tags == 0)
        same_offset = view.has_record & (physical == view.expected[:, PHYSICAL_OFFSET])
        same_size = size == view.expected[:, SIZE]
        same_tags = tags == view.expected[:, TAGS_CODE]
        status = np.full(len(physical), Status.DANGLING, dtype=np.int8)
        placed = np.where(same_size, np.where(same_tags, Status.FINE, Status.WRONG_TAGS_CODE), Status.WRONG_SIZE)
        status[same_offset] = placed[same_offset]
        used = int(np.flatnonzero(~is_zero)[-1]) + 1 if not is_zero.all() else 0
        zero_status = np.full(len(physical), Status.ZERO, dtype=np.int8)
        if view.is_last_file:
            zero_status[used:] = np.where(view.has_record, Status.MISSING, Status.FINE)[used:]
        front = ~view.has_record & (view.offsets < self._expected.first)
        is_after = ~view.has_record & (view.offsets > self._expected.last) & ~front
        zero_status[is_after] = Status.FINE
        if len(self._expected.rows):
            zero_status[front] = Status.PRE_BLANK
        status[is_zero] = zero_status[is_zero]
        self._classify_front(view, status, front, is_zero, is_pre_blank)
        # Pre-blanks have the queue offsets of lost messages.
        is_lost_offset = ~view.has_record & ~front & (view.offsets < self._expected.end)
        status[is_lost_offset & is_pre_blank] = Status.FINE
        status[~view.has_record & are_lost_units(view.actual, self._facts.end)] = Status.FINE
        messages = np.flatnonzero(view.has_record & (status == Status.FINE))
        first_message = 0 if self._past_front else int(messages[0]) if len(messages) else len(status)
        status[view.has_record & is_pre_blank] = Status.MISSING
        status[:first_message][(view.has_record & is_pre_blank)[:first_message]] = Status.BEFORE_QUEUE_BEGIN
        rest = np.flatnonzero((status == Status.DANGLING) & ~is_zero)
        if len(rest):
            self._classify_rest(view, status, rest, front, is_after)
        self._past_front = self._past_front or bool((view.has_record & (status == Status.FINE)).any())
        return status

    def _classify_front(self, view: FileView, status: Statuses, front: Mask, is_zero: Mask, is_pre_blank: Mask) -> None:
        """Classify units before the first message of the log: pre_blanks, then messages whose records were deleted."""
        physical, size = view.actual[:, PHYSICAL_OFFSET], view.actual[:, SIZE]
        old = front & ~is_zero & ~is_pre_blank & self._facts.is_old(physical, size)
        at = np.flatnonzero(old)
        if len(at):
            status[at] = Status.FINE  # in any order: what a cut in memory left counts again after newer units
        pre_blanks = np.flatnonzero(front & is_pre_blank)
        first_old = int(at[0]) if len(at) else len(status)
        in_place = (pre_blanks < first_old) & (not self._past_front)
        status[pre_blanks] = np.where(in_place, Status.FINE, Status.PRE_BLANK)
        self._past_front = self._past_front or bool(len(at))

    def _classify_rest(self, view: FileView, status: Statuses, rest: Longs, front: Mask, is_after: Mask) -> None:
        """Classify units that are neither expected nor empty, by the records that they point to."""
        rows = view.actual[rest]
        physical = rows[:, PHYSICAL_OFFSET]
        free = ~view.has_record[rest]
        statuses = np.where(is_after[rest], Status.AFTER_LAST_UNIT, Status.DANGLING)
        is_beyond = (is_after | (front & (len(self._expected.rows) == 0)))[rest] & (physical >= self._facts.end)
        statuses[is_beyond] = Status.BEYOND
        if self._facts.is_cut:
            statuses[is_beyond & (rest < self._end_of_units(view))] = Status.LEFT_BY_RECOVERY
        is_pre_blank_size = rows[:, SIZE] == PRE_BLANK_SIZE
        alike = (physical == 0) * 1 + is_pre_blank_size + (rows[:, TAGS_CODE] == 0)
        statuses[front[rest] & (alike >= 2)] = Status.PRE_BLANK
        statuses[free & self._facts.is_lost(physical) & ~is_pre_blank_size] = Status.MESSAGE_LOST
        queue_offsets_of = self._expected.queue_offsets_of(physical)
        has_record = queue_offsets_of >= 0
        statuses[has_record] = Status.DISPLACED
        inside = has_record & (queue_offsets_of >= view.offsets[0]) & (queue_offsets_of <= view.offsets[-1])
        file_rows = np.where(inside, queue_offsets_of - view.offsets[0], 0)
        statuses[inside & (status[file_rows] == Status.FINE) & view.has_record[file_rows]] = Status.DUPLICATE
        status[rest] = statuses

    @staticmethod
    def _end_of_units(view: FileView) -> int:
        """Return the number of a file's first unit that a broker treats as unwritten (``ConsumeQueue#recover``)."""
        is_none = (view.actual[:, PHYSICAL_OFFSET] < 0) | (view.actual[:, SIZE] <= 0)
        return int(is_none.argmax()) if is_none.any() else len(is_none)


def find_runs(status: Statuses) -> list[tuple[int, int, Status]]:
    """Return the runs of equal status that are not fine: begin, end, status."""
    if not status.any():
        return []
    bounds = [0, *(np.flatnonzero(np.diff(status)) + 1).tolist(), len(status)]
    return [(begin, end, Status(int(status[begin]))) for begin, end in pairwise(bounds) if status[begin] != Status.FINE]
