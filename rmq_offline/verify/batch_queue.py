"""Compares one batch queue's files (BatchConsumeQueue) with the records of the log, both ways."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.batch_consumequeue import split_file
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES
from rmq_formats.errors import StoreError
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.consumequeue import QueueFile, QueueName
from rmq_offline.verify.findings import FindingList, Kind
from rmq_offline.verify.log_facts import LogFacts, Mask, split_runs

_FIELD_KINDS: Final = (("size", finding_kinds.UNIT_SIZE), ("tags_code", finding_kinds.UNIT_TAGS_CODE))


class BatchQueueCheck:
    """Check of the files of one batch queue.

    Args:
        expected: units by the log, BATCH_UNIT_DTYPE[n], in log order.
        is_known: whether the broker knows the topic. A deleted topic's queue comes back when a broker that was killed
            dispatches the end of the log.

    Attributes:
        end_offset: one past the last message, by the log or by the files.
    """

    def __init__(
        self,
        name: QueueName,
        expected: NDArray[np.void],
        facts: LogFacts,
        findings: FindingList,
        race_findings: FindingList,
        *,
        is_known: bool = True,
    ) -> None:
        self.name, self.expected, self.facts = name, expected, facts
        self.findings, self.race_findings = findings, race_findings
        self.end_offset = _end(expected)
        self._seen = np.zeros(len(expected), dtype=bool)
        self._last_seen = -1
        self._late_kind = finding_kinds.QUEUE_BEGINS_LATE if is_known else finding_kinds.TOPIC_DELETED
        self._begin = -1  # physical offset of the record of the queue's first unit; -1 where it may have lost files

    def check(self, files: Sequence[QueueFile], file_bytes: int) -> None:
        """Check all files of the queue, in ascending order of start."""
        if not files and len(self.expected):
            detail = f"{len(self.expected)} records of a queue without a file"
            self.name.report(self.findings, finding_kinds.QUEUE_MISSING, detail, count=len(self.expected))
            return
        after: int | None = None
        for file in files:
            if not self._is_usable(file, file_bytes):
                continue
            if after is not None and file.start_offset != after:
                detail = f"no file holds the bytes from {after} to {file.start_offset}"
                self._add(finding_kinds.QUEUE_FILE_MISSING, detail, file)
            after = file.start_offset + file_bytes
            self._check_file(file, file_bytes, is_last=file is files[-1])
        self._add_missing()

    def _is_usable(self, file: QueueFile, file_bytes: int) -> bool:
        if file.start_offset % file_bytes:
            detail = f"begins at byte {file.start_offset}, which is no multiple of {file_bytes}"
            self._add(finding_kinds.QUEUE_FILE_NAME, detail, file)
            return False
        if file.size_bytes != file_bytes:
            detail = f"{file.size_bytes} bytes, not {file_bytes}"
            self._add(finding_kinds.QUEUE_FILE_SIZE, detail, file)
        return True

    def _add(self, kind: Kind, detail: str, file: QueueFile, **more: object) -> None:
        self.name.report(self.findings, kind, detail, path=file.path, **more)

    def _check_file(self, file: QueueFile, file_bytes: int, *, is_last: bool) -> None:
        try:
            units, trailing = split_file(file.read())
        except StoreError as error:
            self._add(finding_kinds.QUEUE_UNREADABLE, str(error), file)
            return
        end = len(units) * BATCH_UNIT_BYTES
        if trailing.any():
            detail = f"no unit at byte {end}, and bytes behind it"
            kind = finding_kinds.UNIT_BEHIND_END if is_last else finding_kinds.UNIT_ZERO
            self._add(kind, detail, file)
        elif not is_last and len(units) < file_bytes // BATCH_UNIT_BYTES:
            self._add(finding_kinds.UNIT_ZERO, f"no unit at byte {end}", file)
        self.end_offset = max(self.end_offset, _end(units))
        if file.start_offset == 0 and len(units):
            self._begin = int(units[0]["physical_offset"])
        self._compare(units, file)

    def _compare(self, units: NDArray[np.void], file: QueueFile) -> None:
        offsets = units["physical_offset"].astype(np.int64)
        places = np.searchsorted(self.expected["physical_offset"].astype(np.int64), offsets)
        if self._are_next(units, places):
            self._seen[places] = True
            self._last_seen = int(places[-1]) if len(places) else self._last_seen
            return
        for row, place in enumerate(places.tolist()):
            is_known = place < len(self.expected) and self.expected[place]["physical_offset"] == offsets[row]
            kind = self._classify(units[row], place if is_known else None)
            if kind is not None:
                self.name.report(
                    self.race_findings if kind is finding_kinds.UNIT_BEYOND else self.findings,
                    kind,
                    f"unit at byte {row * BATCH_UNIT_BYTES}",
                    path=file.path,
                    physical_offset=int(offsets[row]),
                    queue_offset=int(units[row]["base_offset"]),
                    expected=_format_unit(self.expected[place]) if is_known else None,
                    actual=_format_unit(units[row]),
                )

    def _are_next(self, units: NDArray[np.void], places: NDArray[np.intp]) -> bool:
        """Return whether units are the expected ones of their records, in order: no unit then needs its own check."""
        steps = np.diff(places, prepend=self._last_seen)
        is_in_order = bool((steps > 0).all()) and (not len(places) or int(places[-1]) < len(self.expected))
        return is_in_order and bool((units == self.expected[places]).all())

    def _classify(self, unit: np.void, place: int | None) -> Kind | None:
        """Return the fault of a unit; ``place`` is the number of its record's expected unit."""
        if place is None:
            return self._without_record(int(unit["physical_offset"]))
        if self._seen[place]:
            return finding_kinds.UNIT_DUPLICATE
        self._seen[place] = True
        is_before_last_seen = place < self._last_seen
        self._last_seen = max(self._last_seen, place)
        if is_before_last_seen:
            return finding_kinds.UNIT_DISPLACED
        expected = self.expected[place]
        if unit == expected:
            return None
        kinds = (kind for field, kind in _FIELD_KINDS if unit[field] != expected[field])
        return next(kinds, finding_kinds.BATCH_UNIT)

    def _without_record(self, physical_offset: int) -> Kind | None:
        if physical_offset >= self.facts.end:
            return finding_kinds.UNIT_CUT if self.facts.is_cut else finding_kinds.UNIT_BEYOND
        if physical_offset < self.facts.start:
            return None  # deleted from the log; the queue's file goes when all its messages have
        if self.facts.is_lost(np.array([physical_offset], dtype=np.int64))[0]:
            return finding_kinds.UNIT_LOST
        return finding_kinds.UNIT_DANGLING

    def _add_missing(self) -> None:
        is_former = self._find_former()
        if is_former.any():
            detail = "the log has them, and the queue begins behind them"
            self.name.report(self.findings, finding_kinds.QUEUE_FORMER, detail, count=int(is_former.sum()))
        missing = np.flatnonzero(~self._seen & ~is_former)
        for run in split_runs(missing):
            first = self.expected[run[0]]
            following = self.expected[run[-1] + 1 : run[-1] + 2]["physical_offset"]
            is_late = run[0] == 0 and self._begin in following
            self.name.report(
                self.race_findings if run[-1] == len(self.expected) - 1 else self.findings,
                self._late_kind if is_late else finding_kinds.UNIT_MISSING,
                f"{len(run)} records without a unit",
                physical_offset=int(first["physical_offset"]),
                queue_offset=int(first["base_offset"]),
                expected=_format_unit(first),
                count=len(run),
            )

    def _find_former(self) -> Mask:
        """Return which records are of a former life: before the queue's first unit, and not below its offset."""
        is_former = np.zeros(len(self.expected), dtype=bool)
        if self._seen.any():
            first = int(np.argmax(self._seen))
            bases = self.expected["base_offset"].astype(np.int64)
            is_former[:first] = bases[:first] >= bases[first]
        return is_former


def _end(units: NDArray[np.void]) -> int:
    return int(units[-1]["base_offset"]) + int(units[-1]["batch_size"]) if len(units) else 0


def _format_unit(unit: np.void) -> str:
    return (
        f"offset {unit['physical_offset']}, size {unit['size']}, tags code {unit['tags_code']}, stored "
        f"{unit['store_timestamp']}, {unit['batch_size']} from {unit['base_offset']} on"
    )
