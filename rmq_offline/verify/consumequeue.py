"""Compares one queue's ConsumeQueue files with the records of the log, both ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import PRE_BLANK_SIZE, SCHEDULE_TOPIC, UNIT_BYTES
from rmq_formats.errors import StoreError
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.scan import used_bytes
from rmq_formats.kernels.units import PHYSICAL_OFFSET, QUEUE_OFFSET, SIZE, STORE_TIMESTAMP, TAGS_CODE, contiguous_count
from rmq_formats.scan.derived_images import Rows
from rmq_formats.scan.queue_merge import MergedQueue, merge_queue
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.consumequeue_ext import ExtAddresses, ExtTable, classify_ext_units, precede_older_units
from rmq_offline.verify.findings import Finding, FindingList, Kind
from rmq_offline.verify.former_settings import find_former_delays, find_former_tags, set_former_delays
from rmq_offline.verify.log_facts import LogFacts, Longs, split_runs
from rmq_offline.verify.queue_state import (
    RECORD_FAULTS,
    QueueState,
    build_state_from_log,
    classify_records,
    find_record_gaps,
)
from rmq_offline.verify.units import (
    KINDS,
    FileView,
    Status,
    UnitClassifier,
    find_runs,
    read_units,
    select_rows,
    view_file,
)

MAX_REPORTED: Final = 1000  # records of one queue and fault that are reported one by one


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One ConsumeQueue file to check.

    Attributes:
        start_offset: in bytes from the queue's start.
        read: returns the bytes, perhaps without the zeros at the end; raises StoreError.
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

    def finding(self, kind: Kind, detail: str, *, row: Longs | None = None, **fields: Any) -> Finding:
        """Make a finding about this queue, or about one of its rows, int64[ROW_COLUMNS]."""
        if row is not None:
            fields |= {"queue_offset": int(row[QUEUE_OFFSET]), "physical_offset": int(row[PHYSICAL_OFFSET])}
        return Finding(kind, detail, topic=self.topic, queue_id=self.queue_id, **fields)

    def report(self, findings: FindingList, kind: Kind, detail: str, **fields: Any) -> None:
        """Add a finding with the fields of ``finding``."""
        findings.add(self.finding(kind, detail, **fields))


@dataclass(slots=True)
class _FileUnits:
    """Units of one file, and their addresses in ConsumeQueueExt."""

    source: QueueFile
    first_offset: int
    data: NDArray[np.uint8]
    is_expected: bool
    units: Rows | None = None
    addresses: ExtAddresses | None = None


class QueueCheck:
    """Check of the files of one queue.

    Attributes:
        state: expected units; by the log alone until the files are checked.
        end_offset: one past the last place in use, by the log or by the files.
    """

    def __init__(
        self,
        name: QueueName,
        rows: Rows,
        facts: LogFacts,
        findings: FindingList,
        race_findings: FindingList,
        ext: ExtTable | None = None,
        *,
        is_known: bool = True,
        log_file_bytes: int = 0,
    ) -> None:
        """Create the check of one queue.

        Args:
            rows: the queue's records, int64[n, ROW_COLUMNS], in log order.
            is_known: whether the broker knows the topic. A deleted topic's queue comes back when a broker that was
                killed dispatches the end of the log, with pre-blanks up to there (``ConsumeQueue#fillPreBlank``).
            log_file_bytes: size of the log's files; 0 if unknown.
        """
        self.name, self.facts, self.ext = name, facts, ext
        self.findings, self.race_findings = findings, race_findings
        self._set_state(build_state_from_log(rows, facts))
        self.end_offset = self.expected.last + 1
        self._late_kind = finding_kinds.QUEUE_MINIMUM if is_known else finding_kinds.TOPIC_DELETED
        self._log_file_bytes = log_file_bytes
        self._lost: list[tuple[int, int]] = []
        self._is_merged = False  # whether the state is that of the log and the files

    def _set_state(self, state: QueueState) -> None:
        self.state, self.expected = state, state.expected()
        self._classifier = UnitClassifier(self.expected, self.facts)

    def check(self, files: Sequence[QueueFile], file_bytes: int) -> None:
        """Check all files of the queue, in ascending order of start."""
        usable = [file for file in files if self._is_usable(file, file_bytes)]
        unit_count = file_bytes // UNIT_BYTES
        read_files = [units for file in usable if (units := self._read(file, unit_count)) is not None]
        covered = sum(
            len(select_rows(self.state.rows, file.first_offset, file.first_offset + unit_count)) for file in read_files
        )
        if files and not (covered == len(self.state.rows) and all(file.is_expected for file in read_files)):
            self._merge(read_files, unit_count)
        self._check_missing_files([file.start_offset for file in usable], file_bytes, any_file=bool(files))
        for file in read_files:
            self._check_file(file, unit_count, last=file.source is usable[-1])
        self._add_record_findings()
        if self.ext is not None:
            self.ext.report_surplus()

    def _read(self, file: QueueFile, unit_count: int) -> _FileUnits | None:
        try:
            data = file.read()
        except StoreError as error:
            self.name.report(self.findings, finding_kinds.QUEUE_UNREADABLE, str(error), path=file.path)
            return None
        first = file.start_offset // UNIT_BYTES
        return _FileUnits(file, first, data, self.ext is None and self._is_as_expected(first, unit_count, data))

    def _merge(self, files: Sequence[_FileUnits], unit_count: int) -> None:
        """Merge units and records of the files that differ from those of the log alone, mostly the first ones."""
        by_log, self._is_merged = self.state, True
        stop = self._count_files_to_merge(files, unit_count)
        for file in files[:stop]:
            file.units = read_units(file.first_offset, unit_count, file.data)
        if self.ext is not None:
            self._resolve_addresses(self.ext, files)
        rest = by_log.rows[:0]
        count = len(by_log.records)
        if stop < len(files):
            at = int(np.searchsorted(by_log.rows[:, QUEUE_OFFSET], files[stop].first_offset))
            rest = by_log.rows[at:]
            physical = by_log.records[:, PHYSICAL_OFFSET]
            count = int(np.searchsorted(physical, rest[0, PHYSICAL_OFFSET])) + 1
        units = np.concatenate([rest[:0], *(file.units for file in files if file.units is not None), rest[:1]])
        used = np.flatnonzero(units[:, [PHYSICAL_OFFSET, SIZE]].any(axis=1))
        units = units[: int(used[-1]) + 1 if len(used) else 0]
        records = by_log.records[:count]
        merged = merge_queue(files[0].first_offset if files else 0, units, records, self.facts.bounds)
        if self._late_kind is finding_kinds.QUEUE_MINIMUM and self._begins_with_log_file(merged, units, unit_count):
            self._late_kind = finding_kinds.QUEUE_BEGINS_LATE
        rows, end = self._with_former_codes(merged.rows, units), merged.end
        places, is_former = merged.places, merged.is_former
        if len(rest):
            rows, end = np.concatenate([rows, rest[1:]]), by_log.end
            places = np.concatenate([places, by_log.places[count:]])
            is_former = np.concatenate([is_former, by_log.is_former[count:]])
        is_plain = by_log.is_plain and np.array_equal(merged.places, records[:, QUEUE_OFFSET])
        self._set_state(QueueState(rows, end, by_log.records, places, is_former, is_plain=is_plain, lost=merged.lost))
        self.end_offset = max(self.end_offset if not files else 0, end)

    def _resolve_addresses(self, ext: ExtTable, files: Sequence[_FileUnits]) -> None:
        units = [file.units for file in files if file.units is not None]
        is_reusable = precede_older_units(np.concatenate(units)) if units else np.zeros(0, dtype=bool)
        at = 0
        for file in files:
            if file.units is not None:
                physical, size = file.units[:, PHYSICAL_OFFSET], file.units[:, SIZE]
                begin, at = at, at + len(file.units)
                is_old = self.facts.is_old(physical, size)
                file.addresses = ext.resolve(file.units, is_old, is_reusable[begin:at])

    def _begins_with_log_file(self, merged: MergedQueue, units: Rows, unit_count: int) -> bool:
        """Return whether the queue's first unit names its first record in a file of the log.

        A broker that was killed dispatches whole files (``CommitLog#recoverAbnormally``), up to the log's end: also to
        queues that were deleted with their topic. Where the unit is the first of its own file, too, files of the queue
        are rather lost: a queue that comes back begins at any place of a file.
        """
        right = np.flatnonzero(merged.is_right)
        if not len(right) or not self._log_file_bytes:
            return False
        place = int(units[right[0], QUEUE_OFFSET])
        at = int(np.searchsorted(merged.rows[:, QUEUE_OFFSET], place))
        physical = merged.rows[max(0, at - 1) : at + 1, PHYSICAL_OFFSET] - self.facts.start
        is_first_of_log_file = at > 0 and np.diff(physical // self._log_file_bytes)[0] > 0
        return bool(is_first_of_log_file and place % unit_count)

    def _count_files_to_merge(self, files: Sequence[_FileUnits], unit_count: int) -> int:
        """Count the files to merge: the files after them are as the log alone makes them, up to its end."""
        differing = [number for number, file in enumerate(files) if not file.is_expected]
        stop = differing[-1] + 1 if differing else len(files)
        rest = files[stop:]
        is_whole = all(after.first_offset - file.first_offset == unit_count for file, after in pairwise(rest))
        is_at_end = bool(rest) and rest[-1].first_offset < self.state.end <= rest[-1].first_offset + unit_count
        if self.ext is not None or self.name.topic == SCHEDULE_TOPIC or not is_whole or not is_at_end:
            return len(files)
        return stop

    def _with_former_codes(self, rows: Rows, units: Rows) -> Rows:
        """Retain the delivery times and tags codes of the broker's setting at the time of dispatch."""
        at = np.searchsorted(units[:, QUEUE_OFFSET], rows[:, QUEUE_OFFSET])
        at = np.minimum(at, max(0, len(units) - 1))
        columns = [QUEUE_OFFSET, PHYSICAL_OFFSET, SIZE]
        same = np.flatnonzero((units[at][:, columns] == rows[:, columns]).all(axis=1)) if len(units) else at[:0]
        same = same[rows[same, STORE_TIMESTAMP] > 0]
        tags_codes, same_rows = units[at[same], TAGS_CODE], rows[same]
        restored, is_known = rows.copy(), np.zeros(len(rows), dtype=bool)
        is_known[same] = same_rows[:, TAGS_CODE] == tags_codes
        for numbers, finding in find_former_codes(self.name, same_rows, tags_codes):
            restored[same[numbers], TAGS_CODE] = tags_codes[numbers]
            is_known[same[numbers]] = True
            self.findings.add(finding)
        if self.name.topic == SCHEDULE_TOPIC:
            set_former_delays(restored, rows[:, TAGS_CODE], is_known)
        return restored

    def _is_usable(self, file: QueueFile, file_bytes: int) -> bool:
        if file.start_offset % file_bytes:
            detail = f"begins at byte {file.start_offset}, which is no multiple of {file_bytes}"
            self.name.report(self.findings, finding_kinds.QUEUE_FILE_NAME, detail, path=file.path)
            return False
        if file.size_bytes != file_bytes:
            kind, detail = finding_kinds.QUEUE_FILE_SIZE, "file of another size than the broker's"
            expected, actual = str(file_bytes), str(file.size_bytes)
            self.name.report(self.findings, kind, detail, path=file.path, expected=expected, actual=actual)
        return True

    def _check_missing_files(self, starts: Sequence[int], file_bytes: int, *, any_file: bool) -> None:
        rows, units = self.expected.rows, file_bytes // UNIT_BYTES
        if not len(rows):
            return
        if not any_file:
            detail = f"no files for {len(rows)} messages of the log"
            self.name.report(self.findings, finding_kinds.QUEUE_MISSING, detail, row=rows[0], count=len(rows))
            return
        present = {start // file_bytes for start in starts}
        needed = range(self.expected.first // units, self.expected.last // units + 1)
        absent = [number for number in needed if number not in present]
        for run in split_runs(np.array(absent, dtype=np.int64)):
            numbers = run.tolist()
            missing_rows = select_rows(rows, numbers[0] * units, (numbers[-1] + 1) * units)
            if not len(missing_rows):
                continue
            detail = f"{len(numbers)} files from byte {numbers[0] * file_bytes} on are not there"
            is_at_begin = bool(present) and numbers[0] < min(present)
            kind = self._late_kind if is_at_begin else finding_kinds.QUEUE_FILE_MISSING
            is_at_end = bool(present) and numbers[0] > max(present)
            if is_at_end:
                kind = self._kind_at_end(kind, missing_rows[-1])
            findings = self.race_findings if is_at_end else self.findings
            self.name.report(findings, kind, detail, row=missing_rows[0], count=len(missing_rows))

    def _kind_at_end(self, kind: Kind, last_row: Longs) -> Kind:
        """Return the kind of finding about messages after the queue's last unit, up to its last message."""
        if self._late_kind is finding_kinds.TOPIC_DELETED:
            return self._late_kind  # its queue came back with some of its messages
        is_passed = last_row[PHYSICAL_OFFSET] < self.facts.dispatched_end
        return finding_kinds.UNIT_NOT_ADDED if is_passed else kind

    def _check_file(self, file: _FileUnits, unit_count: int, *, last: bool) -> None:
        if file.is_expected and (not self._is_merged or self._is_as_expected(file.first_offset, unit_count, file.data)):
            return
        actual = file.units if file.units is not None else read_units(file.first_offset, unit_count, file.data)
        view = view_file(self.expected, actual, last=last)
        status = self._classifier.classify(view)
        if file.addresses is not None:
            classify_ext_units(view, status, file.addresses)
        used = np.flatnonzero(view.actual[:, [PHYSICAL_OFFSET, SIZE]].any(axis=1))
        if len(used):
            self.end_offset = max(self.end_offset, file.first_offset + int(used[-1]) + 1)
            physical, size = view.actual[used, PHYSICAL_OFFSET], view.actual[used, SIZE]
            if not last and bool(self.facts.is_old(physical, size).all()):
                detail = "every unit names a record that is older than the log's first file"
                self.name.report(self.findings, finding_kinds.QUEUE_EXPIRED, detail, path=file.source.path)
        for begin, end, run_status in find_runs(status):
            self._add_run(file.source.path, view, begin, end, run_status)

    def _is_as_expected(self, first_offset: int, unit_count: int, data: NDArray[np.uint8]) -> bool:
        """Return whether a file has the expected units from its first place on, then zeros, as nearly all have."""
        rows = select_rows(self.expected.rows, first_offset, first_offset + unit_count)
        if not len(rows) or rows[0, QUEUE_OFFSET] != first_offset or len(data) < len(rows) * UNIT_BYTES:
            return False
        if contiguous_count(rows) != len(rows) or kernel.equal_units(rows, data) != len(rows):
            return False
        self._classifier.pass_front()
        return int(used_bytes(data, len(data))) <= len(rows) * UNIT_BYTES

    def _add_run(self, path: str, view: FileView, begin: int, end: int, status: Status) -> None:
        kind = self._late_kind if status is Status.BEFORE_QUEUE_BEGIN else KINDS[status]
        has_record = bool(view.has_record[begin])
        queue_offset = int(view.offsets[begin])
        expected_row, actual_row = view.expected[begin], view.actual[begin]
        no_record = "pre-blank" if status is Status.PRE_BLANK else "none"
        finding = self.name.finding(
            kind,
            f"queue offsets {queue_offset} to {int(view.offsets[end - 1])}" if end - begin > 1 else "one unit",
            path=path,
            physical_offset=int((expected_row if has_record else actual_row)[PHYSICAL_OFFSET]),
            size=int(expected_row[SIZE]) if has_record else None,
            queue_offset=queue_offset,
            expected=_unit_text(expected_row) if has_record else no_record,
            actual=_unit_text(actual_row),
            count=end - begin,
        )
        if status is Status.MESSAGE_LOST:
            self._lost.append((queue_offset, queue_offset + end - begin))
        is_last = int(view.offsets[end - 1]) >= self.expected.last or (view.is_last_file and end == len(view.offsets))
        is_at_end = status is Status.MISSING and is_last
        if is_at_end and (not actual_row[SIZE] or self._late_kind is finding_kinds.TOPIC_DELETED):
            finding = replace(finding, kind=self._kind_at_end(kind, view.expected[end - 1]))
        may_be_race = status is Status.BEYOND or (is_at_end and not view.actual[begin:end, 1:].any())
        (self.race_findings if may_be_race else self.findings).add(finding)

    def _add_record_findings(self) -> None:
        """Report records without a unit, and queue offsets that no record has."""
        if self.state.is_plain:
            return
        state, faults = self.state, classify_records(self.state)
        for number, (kind, detail) in enumerate(RECORD_FAULTS, 1):
            rows = state.records[faults == number]
            if kind is finding_kinds.QUEUE_FORMER and len(rows):
                self.name.report(self.findings, kind, detail, row=rows[0], count=len(rows))
                continue
            for row in rows[:MAX_REPORTED]:
                self.name.report(self.findings, kind, detail, row=row)
            self.findings.add_uncounted(kind, max(0, len(rows) - MAX_REPORTED))
        for begin, end, log_begin, log_end in find_record_gaps(state).tolist():
            # Messages in a damaged range of the log are reported with the units that name them.
            lost_count = sum(max(0, min(end, high) - max(begin, low)) for low, high in self._lost)
            if end - begin > lost_count:
                self.name.report(
                    self.findings,
                    finding_kinds.QUEUE_OFFSET_GAP,
                    f"no record has the queue offsets {begin} to {end - 1}",
                    queue_offset=begin,
                    count=end - begin - lost_count,
                    physical_offset=log_begin,
                    size=log_end - log_begin,
                )


def find_former_codes(name: QueueName, rows: Rows, tags_codes: Longs) -> Iterator[tuple[Rows, Finding]]:
    """Find the units of a queue whose tags codes are of a former setting.

    Args:
        rows: int64[n, ROW_COLUMNS], the records of units, by queue offset, with the tags codes of now.
        tags_codes: of the units.

    Yields:
        Numbers of the units of each run, and the finding.
    """
    expected = rows[:, TAGS_CODE]
    runs: Iterator[tuple[Rows, Kind, str]]
    if name.topic == SCHEDULE_TOPIC:
        delays = find_former_delays(tags_codes, expected, rows[:, STORE_TIMESTAMP])
        runs = (
            (np.arange(begin, end), finding_kinds.FORMER_DELAY, f"have a delay of {delay_ms // 1000} s")
            for begin, end, delay_ms in delays
        )
    else:
        text = "have the tags codes of another hash"
        runs = ((numbers, finding_kinds.FORMER_TAGS, text) for numbers in find_former_tags(tags_codes, expected))
    for numbers, kind, text in runs:
        first, last = rows[numbers[[0, -1]], QUEUE_OFFSET].tolist()
        detail = f"queue offsets {first} to {last} {text}"
        yield numbers, name.finding(kind, detail, queue_offset=first, count=len(numbers))


def _unit_text(row: Longs) -> str:
    physical_offset, size, tags_code = row[PHYSICAL_OFFSET : TAGS_CODE + 1].tolist()
    if physical_offset == 0 and size == PRE_BLANK_SIZE and tags_code == 0:
        return "pre-blank"
    if physical_offset == size == tags_code == 0:
        return "zeros"
    return f"offset {physical_offset}, size {size}, tags code {tags_code}"
