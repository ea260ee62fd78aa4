"""Compares one queue's units in a database with the records of the log, both ways."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.rocksdb_queue import QueueBound
from rmq_formats.kernels.units import PHYSICAL_OFFSET, QUEUE_OFFSET, SIZE, STORE_TIMESTAMP, TAGS_CODE
from rmq_formats.scan.derived_images import Placement, place_last
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.consumequeue import MAX_REPORTED, QueueName, find_former_codes
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import LogFacts, Longs, Mask
from rmq_offline.verify.queue_state import sort_in_log_order

_FINE: Final = 0
_KINDS: Final = (
    None, finding_kinds.UNIT_DANGLING, finding_kinds.UNIT_DISPLACED, finding_kinds.UNIT_DUPLICATE,
    finding_kinds.UNIT_BEYOND, finding_kinds.UNIT_LOST, finding_kinds.UNIT_SIZE, finding_kinds.UNIT_TAGS_CODE,
    finding_kinds.UNIT_TIME,
)  # fmt: skip
_DANGLING, _DISPLACED, _DUPLICATE, _BEYOND, _LOST = range(1, 6)
_FIELDS: Final = (
    (finding_kinds.UNIT_TIME, "store_timestamp", STORE_TIMESTAMP),
    (finding_kinds.UNIT_TAGS_CODE, "tags_code", TAGS_CODE),
    (finding_kinds.UNIT_SIZE, "size", SIZE),
)  # the last one that differs is reported
_UNDISPATCHED, _MISSING = 1, 2


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue in the database.

    Attributes:
        offsets: queue offsets, int64[n], ascending.
        units: UNIT_VALUE_DTYPE[n].
        last: the key max; None without one.
        dispatched: physical offset up to which the database has all records, by the database's checkpoint.
    """

    path: str
    offsets: Longs
    units: NDArray[np.void]
    last: QueueBound | None
    dispatched: int


class DatabaseQueueCheck:
    """Check of one queue; ``end_offset`` is one past the last place in use, by the log or by the database."""

    def __init__(
        self, name: QueueName, rows: Longs, facts: LogFacts, findings: FindingList, race_findings: FindingList
    ) -> None:
        """Create the check of a queue with these records, int64[n, ROW_COLUMNS], in log order."""
        self.name, self.facts = name, facts
        self.findings, self.race_findings = findings, race_findings
        self._records = sort_in_log_order(rows)
        self._set_placement(place_last(self._records))

    def _set_placement(self, placement: Placement) -> None:
        self.placement = placement
        self._rows = placement.rows
        self.end_offset = int(self._rows[-1, QUEUE_OFFSET]) + 1 if len(self._rows) else 0

    def place(self, stored: StoredQueue) -> Placement:
        """Place the records by the units in the database, without records of a former life."""
        self._merge(stored, stored.units["physical_offset"].astype(np.int64))
        return self.placement

    def check(self, stored: StoredQueue) -> None:
        """Compare a queue in the database with its records."""
        physical = stored.units["physical_offset"].astype(np.int64)
        former = self._merge(stored, physical)
        offsets = self._rows[:, QUEUE_OFFSET]
        places = np.minimum(np.searchsorted(offsets, stored.offsets), max(0, len(offsets) - 1))
        is_expected = offsets[places] == stored.offsets if len(offsets) else np.zeros(len(physical), dtype=bool)
        self._add_units(stored, self._classify(stored, physical, places, is_expected), places, is_expected)
        has_unit = np.zeros(len(offsets), dtype=bool)
        has_unit[places[is_expected]] = True
        self._add_missing(stored, has_unit)
        self._check_last(stored, physical)
        self._add_placement_findings(stored.path)
        if former:
            detail = "the log has them, and units of later records stand before their places"
            self.name.report(self.findings, finding_kinds.QUEUE_FORMER, detail, path=stored.path, count=former)

    def _merge(self, stored: StoredQueue, physical: Longs) -> int:
        """Place the records by their units, without records of a former life; return the number of these.

        A record of a former life has no unit, and the unit of a later record stands at its queue offset or before.
        """
        records = self._records
        if not len(records) or not len(physical):
            return 0
        records = self._with_existing_offsets(stored, physical)
        at = np.minimum(np.searchsorted(records[:, PHYSICAL_OFFSET], physical), len(records) - 1)
        is_own = (records[at, PHYSICAL_OFFSET] == physical) & (records[at, QUEUE_OFFSET] == stored.offsets)
        is_named = np.zeros(len(records), dtype=bool)
        is_named[at[is_own]] = True
        offsets, latest = stored.offsets[is_own], np.maximum.accumulate(physical[is_own])
        before = np.searchsorted(offsets, records[:, QUEUE_OFFSET], side="right") - 1
        is_former = ~is_named & (before >= 0)
        if len(latest):
            is_former &= latest[np.maximum(before, 0)] > records[:, PHYSICAL_OFFSET]
        if is_former.any() or len(self.placement.repeated):
            self._set_placement(place_last(np.ascontiguousarray(records[~is_former]), is_named[~is_former]))
        self._retain_former_codes(stored, physical)
        return int(is_former.sum())

    def _with_existing_offsets(self, stored: StoredQueue, physical: Longs) -> Longs:
        """Return the records with the queue offsets of their units, where the queue comes from files with closed gaps.

        All units then stand one after the other, in the order of the log, and none after its record's queue offset.
        """
        records = self._records
        at = np.minimum(np.searchsorted(records[:, PHYSICAL_OFFSET], physical), len(records) - 1)
        is_named = records[at, PHYSICAL_OFFSET] == physical
        is_old = self.facts.is_old(physical, stored.units["size"].astype(np.int64))
        leads = records[at, QUEUE_OFFSET][is_named] - stored.offsets[is_named]
        is_closed = (is_named | is_old).all() and (np.diff(stored.offsets) == 1).all() and (np.diff(physical) > 0).all()
        if not is_closed or not leads.any() or (leads < 0).any():
            return records
        records = records.copy()
        records[at[is_named], QUEUE_OFFSET] = stored.offsets[is_named]
        self._records = records
        self._set_placement(place_last(records))
        return records

    def _retain_former_codes(self, stored: StoredQueue, physical: Longs) -> None:
        """Retain the delivery times and tags codes of the broker's setting at the time of dispatch."""
        rows = self._rows.copy()
        at = np.minimum(np.searchsorted(stored.offsets, rows[:, QUEUE_OFFSET]), len(stored.offsets) - 1)
        same = (stored.offsets[at] == rows[:, QUEUE_OFFSET]) & (physical[at] == rows[:, PHYSICAL_OFFSET])
        numbers = np.flatnonzero(same & (stored.units["size"][at] == rows[:, SIZE]))
        same_rows = rows[numbers]
        tags_codes = stored.units["tags_code"][at[numbers]].astype(np.int64)
        for run, finding in find_former_codes(self.name, same_rows, tags_codes):
            rows[numbers[run], TAGS_CODE] = tags_codes[run]
            self.findings.add(replace(finding, path=stored.path))
        self._set_placement(replace(self.placement, rows=rows))

    def _classify(self, stored: StoredQueue, physical: Longs, places: Longs, is_expected: Mask) -> Longs:
        """Return the fault of each unit, a position in ``_KINDS``."""
        kinds = np.full(len(physical), _FINE, dtype=np.int64)
        is_same = np.zeros(len(physical), dtype=bool)
        if len(self._rows):
            rows = self._rows[places]
            is_same = is_expected & (rows[:, PHYSICAL_OFFSET] == physical)
            for kind, field, column in _FIELDS:
                kinds[is_same & (stored.units[field] != rows[:, column])] = _KINDS.index(kind)
        # A broker drops old units when the database is compacted, so that they may point before the log's begin.
        is_old = self.facts.is_old(physical, stored.units["size"].astype(np.int64)) & ~is_expected
        unmatched = ~is_same & ~is_old & ~self._is_displaced(stored, physical)
        kinds[unmatched] = _DANGLING
        kinds[unmatched & np.isin(physical, self._rows[:, PHYSICAL_OFFSET])] = _DISPLACED
        kinds[unmatched & np.isin(physical, physical[is_same])] = _DUPLICATE
        kinds[unmatched & self.facts.is_lost(physical)] = _LOST
        # A broker that cuts its log sets the queue's end back, and leaves the units behind it until they are replaced.
        end = np.iinfo(np.int64).max if stored.last is None else stored.last.queue_offset
        is_beyond = unmatched & (physical >= self.facts.end)
        kinds[is_beyond] = np.where(stored.offsets[is_beyond] > end, _FINE, _BEYOND)
        return kinds

    def _is_displaced(self, stored: StoredQueue, physical: Longs) -> Mask:
        """Return which units stand at the damaged queue offset of their record."""
        rows = self.placement.displaced
        is_record = np.isin(physical, rows[:, PHYSICAL_OFFSET])
        return is_record & np.isin(stored.offsets, rows[:, QUEUE_OFFSET])

    def _add_units(self, stored: StoredQueue, kinds: Longs, places: Longs, is_expected: Mask) -> None:
        for begin, end in _runs(stored.offsets, kinds):
            kind = _KINDS[int(kinds[begin])]
            assert kind is not None, "runs are those of faults"
            unit, first = stored.units[begin], int(stored.offsets[begin])
            self.name.report(
                self.race_findings if kind is finding_kinds.UNIT_BEYOND else self.findings,
                finding_kinds.with_rocksdb_remedy(kind),
                _span(first, int(stored.offsets[end - 1])),
                path=stored.path,
                queue_offset=first,
                physical_offset=int(unit["physical_offset"]),
                count=end - begin,
                expected=_row_text(self._rows[places[begin]]) if is_expected[begin] else "none",
                actual=_text(unit["physical_offset"], unit["size"], unit["tags_code"], unit["store_timestamp"]),
            )

    def _add_missing(self, stored: StoredQueue, has_unit: Mask) -> None:
        """Report records without a unit: those that were not flushed yet a broker dispatches when it starts."""
        is_waiting = self._rows[:, PHYSICAL_OFFSET] >= stored.dispatched
        faults = np.where(has_unit, _FINE, np.where(is_waiting, _UNDISPATCHED, _MISSING)).astype(np.int64)
        missing = finding_kinds.UNIT_MISSING if len(stored.offsets) else finding_kinds.QUEUE_MISSING
        missing = finding_kinds.with_rocksdb_remedy(missing)
        for begin, end in _runs(self._rows[:, QUEUE_OFFSET], faults):
            row = self._rows[begin]
            first, last = int(row[QUEUE_OFFSET]), int(self._rows[end - 1, QUEUE_OFFSET])
            self.name.report(
                self.findings,
                missing if faults[begin] == _MISSING else finding_kinds.UNIT_UNDISPATCHED,
                _span(first, last),
                path=stored.path,
                row=row,
                expected=_row_text(row),
                actual="none",
                count=end - begin,
            )

    def _check_last(self, stored: StoredQueue, physical: Longs) -> None:
        """Compare the key max of the queue, its end, with the queue's last unit within the log."""
        in_log = np.flatnonzero(physical < self.facts.end)
        if not len(in_log):
            return
        last = QueueBound(int(physical[in_log[-1]]), int(stored.offsets[in_log[-1]]))
        self.end_offset = max(self.end_offset, last.queue_offset + 1)
        if stored.last != last:
            self.name.report(
                self.findings,
                finding_kinds.QUEUE_END,
                "the key max is not that of the last unit",
                path=stored.path,
                queue_offset=last.queue_offset,
                physical_offset=last.physical_offset,
                expected=_bound_text(last),
                actual="none" if stored.last is None else _bound_text(stored.last),
            )

    def _add_placement_findings(self, path: str) -> None:
        for kind, rows, detail in (
            (finding_kinds.QUEUE_OFFSET_REPEATED, self.placement.repeated, "a later record has it: RocksDB's rule"),
            (finding_kinds.QUEUE_OFFSET_DISPLACED, self.placement.displaced, "far from the other records of its queue"),
        ):
            for row in rows[:MAX_REPORTED]:
                self.name.report(self.findings, kind, detail, path=path, row=row)
            self.findings.add_uncounted(kind, max(0, len(rows) - MAX_REPORTED))
        gaps = self.placement.gap_units
        if gaps:
            detail = f"{gaps} places between the first and the last message have no record"
            self.name.report(self.findings, finding_kinds.QUEUE_OFFSET_GAP, detail, path=path, count=gaps)


def _runs(offsets: Longs, faults: Longs) -> list[tuple[int, int]]:
    """Return begin and end of each run of neighbours in the queue with the same fault."""
    bad = np.flatnonzero(faults)
    if not len(bad):
        return []
    cuts = (np.diff(bad) > 1) | (np.diff(faults[bad]) != 0) | (np.diff(offsets[bad]) != 1)
    begins = np.concatenate([[0], np.flatnonzero(cuts) + 1])
    ends = np.concatenate([begins[1:], [len(bad)]])
    return [(int(bad[begin]), int(bad[end - 1]) + 1) for begin, end in zip(begins, ends, strict=True)]


def _span(first: int, last: int) -> str:
    return f"queue offsets {first} to {last}" if last > first else "one unit"


def _row_text(row: Longs) -> str:
    return _text(row[PHYSICAL_OFFSET], row[SIZE], row[TAGS_CODE], row[STORE_TIMESTAMP])


def _text(physical_offset: int, size: int, tags_code: int, store_timestamp: int) -> str:
    return f"offset {physical_offset}, size {size}, tags code {tags_code}, stored {store_timestamp}"


def _bound_text(bound: QueueBound) -> str:
    return f"queue offset {bound.queue_offset}, offset {bound.physical_offset}"
