"""Checks the log of one queue, in tiered storage or of a compacted topic: its records, its units, and the CommitLog.

A record there is the CommitLog's record with another offset. Each record must be sound, of its queue, and have a unit.
Where the CommitLog still has the message, both records must agree, except for bodies, which have checksums.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.batch_consumequeue import batch_units, is_end, split_file
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, EXT_MAX_ADDRESS, UNIT_BYTES
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels.units import QUEUE_OFFSET, SIZE, STORE_TIMESTAMP, TAGS_CODE
from rmq_formats.scan.dispatch import Dispatcher
from rmq_formats.scan.segment import scan_segment, without_record_sums
from rmq_formats.storage.queue_logs import QueueLog
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.consumequeue import QueueName
from rmq_offline.verify.findings import Finding, FindingList, Kind
from rmq_offline.verify.log_facts import Longs, Mask, are_in_ranges, split_runs


@dataclass(frozen=True, slots=True)
class LogRecords:
    """The sound records of a queue's log, int64[n] each, in the order of the log.

    Attributes:
        log_offsets: offsets in the queue's log.
        tags_codes: by the TAGS of the records.
        timestamps_ms: store timestamps.
        lost: int64[m, 2], begin and end of ranges that are unreadable or in no file, ascending.
    """

    log_offsets: Longs
    sizes: Longs
    queue_offsets: Longs
    tags_codes: Longs
    timestamps_ms: Longs
    lost: Longs

    def is_lost(self, log_offsets: Longs) -> Mask:
        """Return which offsets of the log are in a lost range."""
        return are_in_ranges(self.lost[:, 0], self.lost[:, 1], log_offsets)


class QueueLogCheck:
    """Check of one queue's log."""

    def __init__(
        self, name: QueueName, storage: Storage, log: QueueLog, findings: FindingList, race_findings: FindingList
    ) -> None:
        self.name, self.storage, self.log = name, storage, log
        self.findings, self.race_findings = findings, race_findings

    def check(self, local: Longs) -> int:
        """Check the log; return the queue offset one past its last message.

        Args:
            local: the queue's records in the CommitLog, int64[n, ROW_COLUMNS] of ``kernels.units``.
        """
        records = self._records()
        self._check_order(records)
        if self.log.is_padded:
            self._check_compacted_units(records)
        else:
            self._check_units(records)
        self._compare(records, local)
        return int(records.queue_offsets.max(initial=-1)) + 1

    def _add(self, kind: Kind, detail: str, path: str | None = None, **fields: Any) -> None:
        self.name.report(self.findings, kind, detail, path=path, **fields)

    # --- records ------------------------------------------------------------------------------

    def _records(self) -> LogRecords:
        """Scan the log; damaged and missing ranges become findings."""
        dispatcher = Dispatcher(())
        lost: list[tuple[int, int]] = []
        for segment in self.log.segments:
            lost += self._scan(segment, dispatcher)
        if not self.log.is_padded:
            lost += self._gaps()
        units, _ = dispatcher.drain()
        self._report_foreign(units, dispatcher.queue_names())
        return LogRecords(
            log_offsets=units[:, kernel.UNIT_PHYSICAL_OFFSET].copy(),
            sizes=units[:, kernel.UNIT_SIZE].copy(),
            queue_offsets=units[:, kernel.UNIT_QUEUE_OFFSET].copy(),
            tags_codes=units[:, kernel.UNIT_TAGS_CODE].copy(),
            timestamps_ms=units[:, kernel.UNIT_STORE_TIMESTAMP].copy(),
            lost=np.array(sorted(lost), dtype=np.int64).reshape(-1, 2),
        )

    def _scan(self, segment: Segment, dispatcher: Dispatcher) -> Iterator[tuple[int, int]]:
        kind = layout_finding_kinds.QUEUE_LOG_RECORD
        at = segment.start_offset
        try:
            with self.storage.open(segment.path) as file:
                data_end = file.data_end() if self.log.is_padded else segment.size_bytes
                batches = scan_segment(file, segment.start_offset, segment.size_bytes, data_end=data_end)
                for batch in without_record_sums(batches):
                    for damage in batch.all_damages():
                        begin, size = damage.physical_offset, damage.size
                        self._add(kind, damage.code.text, segment.path, physical_offset=begin, size=size)
                        yield begin, begin + size
                    dispatcher.dispatch(batch)
                    at = batch.next_physical_offset
        except (FormatError, StoreError, OSError) as error:
            size = segment.end_offset - at
            self._add(kind, f"cannot be read: {error}", segment.path, physical_offset=at, size=size)
            yield at, segment.end_offset

    def _gaps(self) -> Iterator[tuple[int, int]]:
        for before, after in pairwise(self.log.segments):
            if before.end_offset < after.start_offset:
                size = after.start_offset - before.end_offset
                detail = f"no file holds this range, before {after.path}"
                kind = layout_finding_kinds.QUEUE_LOG_SEGMENT_MISSING
                self._add(kind, detail, physical_offset=before.end_offset, size=size)
                yield before.end_offset, after.start_offset

    def _report_foreign(self, units: Longs, names: Sequence[tuple[str, int]]) -> None:
        queue = (self.name.topic, self.name.queue_id)
        foreign = [number for number, name in enumerate(names) if name != queue]
        for row in np.flatnonzero(np.isin(units[:, kernel.UNIT_QUEUE], foreign)).tolist():
            log_offset = int(units[row, kernel.UNIT_PHYSICAL_OFFSET])
            topic, queue_id = names[int(units[row, kernel.UNIT_QUEUE])]
            self._add(
                layout_finding_kinds.QUEUE_LOG_RECORD,
                "a record of another queue",
                self._path(log_offset),
                physical_offset=log_offset,
                expected=f"{queue[0]}/{queue[1]}",
                actual=f"{topic}/{queue_id}",
            )

    def _path(self, log_offset: int) -> str | None:
        for segment in self.log.segments:
            if segment.start_offset <= log_offset < segment.end_offset:
                return segment.path
        return None

    def _check_order(self, records: LogRecords) -> None:
        steps = np.diff(records.queue_offsets)
        bad = steps < 1
        if not self.log.is_padded:
            last_bytes = records.log_offsets[1:] - 1  # before each record; lost if the records before are lost
            bad |= (steps > 1) & ~records.is_lost(last_bytes)
        for row in np.flatnonzero(bad).tolist():
            before, after = records.queue_offsets[row : row + 2].tolist()
            log_offset = int(records.log_offsets[row + 1])
            self._add(
                layout_finding_kinds.QUEUE_LOG_ORDER,
                "the record does not follow the one before it",
                self._path(log_offset),
                physical_offset=log_offset,
                queue_offset=after,
                actual=str(after),
                expected=f"more than {before}" if self.log.is_padded else str(before + 1),
            )

    # --- units --------------------------------------------------------------------------------

    def _check_units(self, records: LogRecords) -> None:
        """Compare the units of tiered storage, which stand at their queue offsets, with the records."""
        offsets, units = self._read_units()
        first = min((segment.start_offset for segment in self.log.segments), default=0)  # older ones have expired
        end = max((segment.end_offset for segment in self.log.segments), default=0)
        order = np.argsort(records.queue_offsets, kind="stable")
        sorted_offsets = records.queue_offsets[order]
        at = np.minimum(np.searchsorted(sorted_offsets, offsets), max(len(sorted_offsets) - 1, 0))
        is_known = sorted_offsets[at] == offsets if len(sorted_offsets) else np.zeros(len(offsets), dtype=bool)
        log_offsets = units["physical_offset"].astype(np.int64)
        for row in np.flatnonzero(~is_known & ((log_offsets >= first) | (log_offsets < 0))).tolist():
            log_offset = int(log_offsets[row])
            is_lost = bool(records.is_lost(log_offsets[row : row + 1])[0])
            kind = layout_finding_kinds.QUEUE_LOG_UNIT_LOST if is_lost else layout_finding_kinds.QUEUE_LOG_UNIT
            detail = "a unit of a message in a damaged range" if is_lost else "no such message is there"
            detail = f"{detail}, but the log ends at {end}" if log_offset >= end else detail
            self._add(kind, detail, physical_offset=log_offset, queue_offset=int(offsets[row]))
        rows = order[at[is_known]] if len(sorted_offsets) else np.zeros(0, dtype=np.int64)
        matched = units[is_known]
        wrong = (matched["physical_offset"] != records.log_offsets[rows]) | (matched["size"] != records.sizes[rows])
        codes = matched["tags_code"].astype(np.int64)
        wrong |= (codes != records.tags_codes[rows]) & (codes > EXT_MAX_ADDRESS)
        for row in np.flatnonzero(wrong).tolist():
            self._report_unit(records, int(rows[row]), matched[row].tolist())
        self._report_missing(records, ~np.isin(records.queue_offsets, offsets))

    def _report_unit(self, records: LogRecords, row: int, unit: tuple[int, int, int]) -> None:
        self._add(
            layout_finding_kinds.QUEUE_LOG_UNIT,
            "the unit is not that of its message",
            physical_offset=int(records.log_offsets[row]),
            queue_offset=int(records.queue_offsets[row]),
            expected=_unit_text(records.log_offsets[row], records.sizes[row], records.tags_codes[row]),
            actual=_unit_text(*unit),
        )

    def _report_missing(self, records: LogRecords, missing: Mask) -> None:
        for run in split_runs(np.flatnonzero(missing)):
            log_offset = int(records.log_offsets[run[0]])
            self.name.report(
                self.race_findings if run[-1] == len(records.log_offsets) - 1 else self.findings,
                layout_finding_kinds.QUEUE_LOG_UNIT_MISSING,
                f"{len(run)} records without a unit",
                path=self._path(log_offset),
                physical_offset=log_offset,
                queue_offset=int(records.queue_offsets[run[0]]),
                count=len(run),
            )

    def _read_units(self) -> tuple[Longs, NDArray[np.void]]:
        """Read the units of tiered storage, with their queue offsets."""
        offsets, units = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=UNIT_DTYPE)]
        for segment in self.log.units:
            data = self._read(segment)
            if segment.start_offset % UNIT_BYTES or len(data) % UNIT_BYTES:
                self._add(layout_finding_kinds.QUEUE_LOG_UNIT, "begins or ends within a unit", segment.path)
            segment_units = np.frombuffer(data, dtype=UNIT_DTYPE, count=len(data) // UNIT_BYTES)
            offsets.append(segment.start_offset // UNIT_BYTES + np.arange(len(segment_units), dtype=np.int64))
            units.append(segment_units)
        return np.concatenate(offsets), np.concatenate(units)

    def _read(self, segment: Segment) -> bytes:
        try:
            with self.storage.open(segment.path) as file:
                return read_range(file, 0, file.data_end() if self.log.is_padded else file.size_bytes)
        except (StoreError, OSError) as error:
            self._add(layout_finding_kinds.QUEUE_LOG_UNIT, f"cannot be read: {error}", segment.path)
            return b""

    # --- units of compacted topics --------------------------------------------------------------

    def _check_compacted_units(self, records: LogRecords) -> None:
        """Compare the units of a compacted log file by file: each file's units are those of the file's records."""
        expected = batch_units(
            records.log_offsets,
            records.sizes,
            records.tags_codes,
            records.timestamps_ms,
            records.queue_offsets,
            np.ones(len(records.log_offsets), dtype=np.int64),
        )
        starts = {segment.start_offset: segment for segment in self.log.units}
        for segment in self.log.segments:
            in_segment = (records.log_offsets >= segment.start_offset) & (records.log_offsets < segment.end_offset)
            units_file = starts.pop(segment.start_offset, None)
            if units_file is None:
                self._report_missing(records, in_segment)
                continue
            self._check_file(records, expected, np.flatnonzero(in_segment), units_file)
        for surplus in starts.values():
            self._add(layout_finding_kinds.QUEUE_LOG_UNIT, "units, and no log file of that name", surplus.path)

    def _check_file(self, records: LogRecords, expected: NDArray[np.void], rows: Longs, units_file: Segment) -> None:
        units, trailing = split_file(self._read(units_file))
        if not is_end(trailing):
            detail = f"no unit at byte {len(units) * BATCH_UNIT_BYTES}, and bytes behind it"
            self._add(layout_finding_kinds.QUEUE_LOG_UNIT, detail, units_file.path)
        log_offsets = units["physical_offset"].astype(np.int64)
        at = np.searchsorted(records.log_offsets[rows], log_offsets)
        has_record = at < len(rows)
        has_record[has_record] = records.log_offsets[rows[at[has_record]]] == log_offsets[has_record]
        right = np.zeros(len(units), dtype=bool)
        right[has_record] = units[has_record] == expected[rows[at[has_record]]]
        for row in np.flatnonzero(~right).tolist():
            is_there = bool(has_record[row])
            record = int(rows[at[row]]) if is_there else 0
            is_lost = not is_there and bool(records.is_lost(log_offsets[row : row + 1])[0])
            kind = layout_finding_kinds.QUEUE_LOG_UNIT_LOST if is_lost else layout_finding_kinds.QUEUE_LOG_UNIT
            detail = "the unit is not that of its message" if is_there else "no message is there"
            self._add(
                kind,
                f"unit at byte {row * BATCH_UNIT_BYTES}: {detail}",
                units_file.path,
                physical_offset=int(log_offsets[row]),
                queue_offset=int(units[row]["base_offset"]),
                expected=str(expected[record].tolist()) if is_there else None,
                actual=str(units[row].tolist()),
            )
        missing = np.zeros(len(records.log_offsets), dtype=bool)
        missing[rows] = ~np.isin(records.log_offsets[rows], log_offsets)
        self._report_missing(records, missing)

    # --- the CommitLog --------------------------------------------------------------------------

    def _compare(self, records: LogRecords, local: Longs) -> None:
        """Compare the messages that both the queue's log and the CommitLog have."""
        if not len(local) or not len(records.log_offsets):
            return
        offsets, first = np.unique(local[:, QUEUE_OFFSET], return_index=True)
        _, at, local_at = np.intersect1d(records.queue_offsets, offsets, return_indices=True)
        rows = local[first[local_at]]
        wrong = records.sizes[at] != rows[:, SIZE]
        wrong |= records.tags_codes[at] != rows[:, TAGS_CODE]
        wrong |= records.timestamps_ms[at] != rows[:, STORE_TIMESTAMP]
        for row in np.flatnonzero(wrong).tolist():
            number = int(at[row])
            log_offset = int(records.log_offsets[number])
            self._add(
                layout_finding_kinds.QUEUE_LOG_DIFFERS,
                "the CommitLog has another message of this queue offset",
                self._path(log_offset),
                physical_offset=log_offset,
                queue_offset=int(records.queue_offsets[number]),
                expected=_record_text(*rows[row, [SIZE, TAGS_CODE, STORE_TIMESTAMP]].tolist()),
                actual=_record_text(records.sizes[number], records.tags_codes[number], records.timestamps_ms[number]),
            )
        end, local_begin = int(records.queue_offsets.max()) + 1, int(offsets[0])
        if not self.log.is_padded and end < local_begin:
            detail = "messages that neither the tier nor the CommitLog has"
            self._add(layout_finding_kinds.TIER_GAP, detail, queue_offset=end, count=local_begin - end)


def _unit_text(log_offset: int, size: int, tags_code: int) -> str:
    return f"offset {log_offset}, size {size}, tags code {tags_code}"


def _record_text(size: int, tags_code: int, timestamp_ms: int) -> str:
    return f"size {size}, tags code {tags_code}, stored {timestamp_ms}"


def check_metadata_segments(name: QueueName, log: QueueLog, sizes: dict[int, int]) -> Iterator[Finding]:
    """Compare a tier's segments with the sizes by offset in the broker's metadata, ``tieredStoreMetadata.json``."""
    segments = {segment.start_offset: segment for segment in log.segments}
    for base, size in sorted(sizes.items()):
        if base not in segments:
            detail = "a segment of the metadata is not there"
            yield name.finding(layout_finding_kinds.QUEUE_LOG_SEGMENT_MISSING, detail, physical_offset=base, size=size)
        elif segments[base].size_bytes < size:
            yield name.finding(
                layout_finding_kinds.TIER_SEGMENT_SIZE,
                "shorter than the metadata says",
                path=segments[base].path,
                physical_offset=base,
                expected=str(size),
                actual=str(segments[base].size_bytes),
            )
