"""Compares one queue's ConsumeQueue files with the records of the log, both ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.errors import StoreError
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.scan import used_bytes
from rmq_formats.scan.derived_images import Placement, Rows
from rmq_formats.verify import finding_kinds
from rmq_formats.verify.ext import ExtTable, judge_ext
from rmq_formats.verify.facts import LogFacts
from rmq_formats.verify.findings import Finding, FindingList, Kind
from rmq_formats.verify.units import KINDS, Expected, FileView, Status, UnitJudge, rows_between, runs, view_file

MAX_TOLD: Final = 1000  # records of one queue and fault that are reported one by one


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One ConsumeQueue file to check.

    Attributes:
        path: for the findings.
        start_offset: in bytes from the queue's start.
        size_bytes: its size.
        read: returns its bytes, perhaps without the zeros at its end; raises StoreError.
    """

    path: str
    start_offset: int
    size_bytes: int
    read: Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class QueueName:
    """Topic and queue id of the queue that is checked."""

    topic: str
    queue_id: int

    def finding(self, kind: Kind, detail: str, **more: object) -> Finding:
        """Make a finding about this queue."""
        return Finding(kind, detail, topic=self.topic, queue_id=self.queue_id, **more)  # type: ignore[arg-type]


def expected_of(placement: Placement) -> Expected:
    """Build the expected units of a queue from what ``derived_images.place_units`` made of its records."""
    rows = placement.rows
    if len(placement.repeated) or len(placement.displaced):
        rows = np.concatenate([rows, placement.repeated, placement.displaced])
    physical = rows[:, unit_kernel.PHYSICAL_OFFSET]
    if len(physical) > 1 and (np.diff(physical) < 0).any():
        rows = rows[np.argsort(physical, kind="stable")]
    return Expected(placement.rows, rows[:, unit_kernel.PHYSICAL_OFFSET], rows[:, unit_kernel.QUEUE_OFFSET])


class QueueCheck:
    """Check of the files of one queue.

    Attributes:
        end_offset: one past the last place in use, by the log or by the files.
    """

    def __init__(
        self,
        name: QueueName,
        placement: Placement,
        facts: LogFacts,
        findings: FindingList,
        excused: FindingList,
        ext: ExtTable | None = None,
        *,
        is_known: bool = True,
    ) -> None:
        """Create the check of one queue.

        Args:
            name: of the queue.
            placement: its records.
            facts: of the log.
            findings: added to.
            excused: takes findings that are none if a broker wrote on meanwhile.
            ext: its ConsumeQueueExt units.
            is_known: whether the broker knows the topic. The queue of one that was deleted comes back when a broker
                that was killed dispatches the end of the log, with fillers up to there (``ConsumeQueue#fillPreBlank``).
        """
        self.name = name
        self.placement = placement
        self.expected = expected_of(placement)
        self.facts = facts
        self.findings = findings
        self.excused = excused
        self.ext = ext
        self._late_kind = finding_kinds.QUEUE_MINIMUM if is_known else finding_kinds.TOPIC_DELETED
        self.end_offset = self.expected.last + 1
        self._judge = UnitJudge(self.expected, facts)
        self._lost: list[tuple[int, int]] = []

    def check(self, files: Sequence[QueueFile], file_bytes: int) -> None:
        """Check all files of the queue, in ascending order of start."""
        usable = [file for file in files if self._is_usable(file, file_bytes)]
        self._check_missing_files([file.start_offset for file in usable], file_bytes, any_file=bool(files))
        for file in usable:
            try:
                data = file.read()
            except StoreError as error:
                self.findings.add(self.name.finding(finding_kinds.QUEUE_UNREADABLE, str(error), path=file.path))
                continue
            self._check_file(file, data, file_bytes // UNIT_BYTES, last=file is usable[-1])
        self._add_placement_findings()
        if self.ext is not None:
            self.ext.check_surplus()

    def _is_usable(self, file: QueueFile, file_bytes: int) -> bool:
        if file.start_offset % file_bytes:
            detail = f"begins at byte {file.start_offset}, which is no multiple of {file_bytes}"
            self.findings.add(self.name.finding(finding_kinds.QUEUE_FILE_NAME, detail, path=file.path))
            return False
        if file.size_bytes != file_bytes:
            self.findings.add(
                self.name.finding(
                    finding_kinds.QUEUE_FILE_SIZE, "file of another size than the broker's", path=file.path,
                    expected=str(file_bytes), actual=str(file.size_bytes),
                )
            )  # fmt: skip
        return True

    def _check_missing_files(self, starts: Sequence[int], file_bytes: int, *, any_file: bool) -> None:
        rows, units = self.expected.rows, file_bytes // UNIT_BYTES
        if not len(rows):
            return
        if not any_file:
            detail = f"no files for {len(rows)} messages of the log"
            self.findings.add(self._range_finding(finding_kinds.QUEUE_MISSING, detail, rows))
            return
        present = {start // file_bytes for start in starts}
        absent = [
            number
            for number in range(self.expected.first // units, self.expected.last // units + 1)
            if number not in present
        ]
        for _, group in groupby(enumerate(absent), key=lambda item: item[1] - item[0]):
            numbers = [number for _, number in group]
            own = rows_between(rows, numbers[0] * units, (numbers[-1] + 1) * units)
            if not len(own):
                continue
            detail = f"{len(numbers)} files from byte {numbers[0] * file_bytes} on are not there"
            kind = finding_kinds.QUEUE_FILE_MISSING
            if present and numbers[0] < min(present):
                kind = self._late_kind
            is_at_end = bool(present) and numbers[0] > max(present)
            (self.excused if is_at_end else self.findings).add(self._range_finding(kind, detail, own))

    def _range_finding(self, kind: Kind, detail: str, rows: Rows) -> Finding:
        return self.name.finding(
            kind, detail, queue_offset=int(rows[0, unit_kernel.QUEUE_OFFSET]),
            physical_offset=int(rows[0, unit_kernel.PHYSICAL_OFFSET]), count=len(rows),
        )  # fmt: skip

    def _check_file(self, file: QueueFile, data: NDArray[np.uint8], unit_count: int, *, last: bool) -> None:
        first_offset = file.start_offset // UNIT_BYTES
        if self.ext is None and self._is_as_expected(first_offset, unit_count, data):
            return
        view = view_file(self.expected, first_offset, unit_count, data, last=last)
        if self.ext is not None:
            is_address, is_bad = self.ext.resolve(view)
        status = self._judge.judge(view)
        if self.ext is not None:
            judge_ext(view, status, is_address, is_bad)
        used = np.flatnonzero(view.actual[:, [unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE]].any(axis=1))
        if len(used):
            self.end_offset = max(self.end_offset, first_offset + int(used[-1]) + 1)
            self._check_expired(file, view, used, last=last)
        for begin, end, kind in runs(status):
            self._add_run(file.path, view, begin, end, kind)

    def _is_as_expected(self, first_offset: int, unit_count: int, data: NDArray[np.uint8]) -> bool:
        """Return whether a file is as nearly all are: the expected units from its first place on, zeros behind them."""
        own = rows_between(self.expected.rows, first_offset, first_offset + unit_count)
        if not len(own) or own[0, unit_kernel.QUEUE_OFFSET] != first_offset or len(data) < len(own) * UNIT_BYTES:
            return False
        if unit_kernel.contiguous_count(own) != len(own) or kernel.equal_units(own, data) != len(own):
            return False
        self._judge.pass_front()
        return int(used_bytes(data, len(data))) <= len(own) * UNIT_BYTES

    def _check_expired(self, file: QueueFile, view: FileView, used: NDArray[np.int64], *, last: bool) -> None:
        physical, size = (view.actual[used, column] for column in (unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE))
        if not last and not view.claims.any() and bool(self.facts.is_old(physical, size).all()):
            detail = "every unit names a record that is older than the log's first file"
            self.findings.add(self.name.finding(finding_kinds.QUEUE_EXPIRED, detail, path=file.path, count=1))

    def _add_run(self, path: str, view: FileView, begin: int, end: int, status: Status) -> None:
        kind = self._late_kind if status is Status.MINIMUM else KINDS[status]
        claimed = bool(view.claims[begin])
        queue_offset = int(view.offsets[begin])
        wanted, actual = view.wanted[begin], view.actual[begin]
        expected = _unit_text(wanted) if claimed else ("pre-blank" if status is Status.PRE_BLANK else "none")
        physical = wanted if claimed else actual
        finding = self.name.finding(
            kind, f"queue offsets {queue_offset} to {int(view.offsets[end - 1])}" if end - begin > 1 else "one unit",
            path=path, physical_offset=int(physical[unit_kernel.PHYSICAL_OFFSET]),
            size=int(wanted[unit_kernel.SIZE]) if claimed else None, queue_offset=queue_offset,
            expected=expected, actual=_unit_text(actual), count=end - begin,
        )  # fmt: skip
        if status is Status.LOST:
            self._lost.append((queue_offset, queue_offset + end - begin))
        is_at_end = status is Status.MISSING and int(view.offsets[end - 1]) >= self.expected.last
        excusable = status is Status.BEYOND or (is_at_end and not view.actual[begin:end, 1:].any())
        (self.excused if excusable else self.findings).add(finding)

    def _add_placement_findings(self) -> None:
        """Report repeated, displaced and missing queue offsets of the records, which show without any file."""
        for kind, rows, detail in (
            (finding_kinds.QUEUE_OFFSET_REPEATED, self.placement.repeated, "an earlier record has this queue offset"),
            (finding_kinds.QUEUE_OFFSET_DISPLACED, self.placement.displaced, "far from the other records of its queue"),
        ):
            for row in rows[:MAX_TOLD]:
                self.findings.add(self._range_finding(kind, detail, row[None]))
            self.findings.add_uncounted(kind, max(0, len(rows) - MAX_TOLD))
        if self.placement.gap_units:
            self._add_gaps()

    def _add_gaps(self) -> None:
        for begin, end in self.placement.gaps.tolist():
            # Messages in a damaged stretch of the log are reported with the units that name them.
            told = sum(max(0, min(end, high) - max(begin, low)) for low, high in self._lost)
            if end - begin > told:
                detail = f"no record has the queue offsets {begin} to {end - 1}"
                self.findings.add(
                    self.name.finding(
                        finding_kinds.QUEUE_OFFSET_GAP, detail, queue_offset=begin, count=end - begin - told
                    )
                )


def _unit_text(row: NDArray[np.int64]) -> str:
    physical_offset, size, tags_code = row[unit_kernel.PHYSICAL_OFFSET : unit_kernel.TAGS_CODE + 1].tolist()
    if physical_offset == 0 and size == PRE_BLANK_SIZE and tags_code == 0:
        return "pre-blank"
    if physical_offset == size == tags_code == 0:
        return "zeros"
    return f"offset {physical_offset}, size {size}, tags code {tags_code}"
