"""Expected units of a ConsumeQueue, and the findings about its records: by the log, or merged with its files."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rmq_formats.codecs.consumequeue import MAX_GAP_UNITS, MAX_QUEUE_OFFSET
from rmq_formats.kernels.units import PHYSICAL_OFFSET, QUEUE_OFFSET, ROW_COLUMNS, SIZE, are_plain
from rmq_formats.scan.derived_images import Rows, closed_gaps, place_units
from rmq_formats.scan.queue_merge import NOT_PLACED
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.log_facts import LogFacts, Mask
from rmq_offline.verify.units import ExpectedUnits


@dataclass(frozen=True, slots=True)
class QueueState:
    """Expected units of a queue, and the places of its records.

    Attributes:
        rows: int64[n, ROW_COLUMNS], ascending by place in QUEUE_OFFSET.
        end: one past the last place.
        records: int64[k, ROW_COLUMNS], ascending by physical offset, with their own queue offsets.
        places: int64[k], of the records' units, or NOT_PLACED.
        is_former: bool[k], which records are of a former life of the topic.
        is_plain: whether each record has its unit at its queue offset, as in nearly all queues.
        lost: int64[l, ROW_COLUMNS], units of lost messages, at places without a row.
    """

    rows: Rows
    end: int
    records: Rows
    places: Rows
    is_former: Mask
    is_plain: bool = False
    lost: Rows = field(default_factory=lambda: np.empty((0, ROW_COLUMNS), dtype=np.int64))

    def expected(self) -> ExpectedUnits:
        """Return the expected units, with the queue offset as the place of a record without a unit."""
        places = self.records[:, QUEUE_OFFSET]
        if not self.is_plain:
            places = np.where(self.places >= 0, self.places, places)
        return ExpectedUnits(self.rows, self.records[:, PHYSICAL_OFFSET], places, self.end)


def build_state_from_log(rows: Rows, facts: LogFacts) -> QueueState:
    """Return the queue that a broker makes from records in log order, without files."""
    if are_plain(rows):
        queue_offsets = rows[:, QUEUE_OFFSET]
        end = int(queue_offsets[-1]) + 1 if len(queue_offsets) else 0
        return QueueState(rows, end, rows, queue_offsets, np.zeros(len(rows), dtype=bool), is_plain=True)
    records = sort_in_log_order(rows)
    placement = place_units(records, facts.lost_ranges)
    rows = placement.rows
    places = np.full(len(records), NOT_PLACED, dtype=np.int64)
    at = np.searchsorted(records[:, PHYSICAL_OFFSET], rows[:, PHYSICAL_OFFSET])
    places[at] = rows[:, QUEUE_OFFSET]
    end = int(rows[-1, QUEUE_OFFSET]) + 1 if len(rows) else 0
    return QueueState(rows, end, records, places, np.zeros(len(records), dtype=bool))


def sort_in_log_order(rows: Rows) -> Rows:
    """Return a queue's records ascending by physical offset, none twice, as overlapping files may have them."""
    physical = rows[:, PHYSICAL_OFFSET]
    if len(rows) < 2 or bool((np.diff(physical) > 0).all()):
        return rows
    rows = rows[np.argsort(physical, kind="stable")]
    is_first = np.concatenate([[True], np.diff(rows[:, PHYSICAL_OFFSET]) != 0])
    return np.ascontiguousarray(rows[is_first])


# Kinds of findings about records, with their details, by the number that ``classify_records`` returns, less 1.
RECORD_FAULTS: Final = (
    (finding_kinds.QUEUE_OFFSET_REPEATED, "record without a unit: the queue was already longer than this queue offset"),
    (finding_kinds.QUEUE_OFFSET_DISPLACED, "queue offset does not fit the neighbouring records"),
    (finding_kinds.QUEUE_FORMER, "records without units: the queue begins after them"),
    (finding_kinds.QUEUE_PASSED_OVER, "record without a unit: the queue has the records before and after it"),
)
_REPEATED, _DISPLACED, _FORMER, _PASSED_OVER = 1, 2, 3, 4


def classify_records(state: QueueState) -> Rows:
    """Return the fault of each record, int64[k]: a number of ``RECORD_FAULTS``, or 0."""
    offsets, places = state.records[:, QUEUE_OFFSET], state.places
    faults = np.zeros(len(offsets), dtype=np.int64)
    is_placed = places >= 0
    ends = np.maximum.accumulate(np.concatenate([[0], places + 1]))[:-1]  # of the queue, before each record
    faults[~is_placed] = np.where((offsets != 0) & (offsets < ends), _REPEATED, _PASSED_OVER)[~is_placed]
    faults[state.is_former] = _FORMER
    is_impossible = (offsets < 0) | (offsets > MAX_QUEUE_OFFSET)
    is_far = np.isin(offsets, _closed_gaps(state, is_wide=True)[:, 1])
    is_before = (offsets != 0) & (offsets < places)
    faults[is_impossible | (is_placed & ((is_far & (offsets != places)) | is_before))] = _DISPLACED
    return faults


def find_record_gaps(state: QueueState) -> Rows:
    """Find the queue offsets that no record has, and the range of the log in which such records would be.

    Returns:
        int64[m, 4]: the first queue offset of each gap, one past the last, and in the log the end of the record before
        the gap and the begin of the record after the gap.
    """
    return _closed_gaps(state, is_wide=False)


def _closed_gaps(state: QueueState, *, is_wide: bool) -> Rows:
    if state.is_plain:
        return _NO_GAPS
    placed = np.flatnonzero(state.places >= 0)
    records = state.records[placed]
    gaps = closed_gaps(records[:, QUEUE_OFFSET], state.places[placed])
    gaps = gaps[(gaps[:, 1] - gaps[:, 0] > MAX_GAP_UNITS) == is_wide]
    before, after = records[gaps[:, 2] - 1], records[gaps[:, 2]]
    ends = before[:, PHYSICAL_OFFSET] + before[:, SIZE]
    return np.stack([gaps[:, 0], gaps[:, 1], ends, after[:, PHYSICAL_OFFSET]], axis=1)


_NO_GAPS: Final = np.empty((0, 4), dtype=np.int64)
