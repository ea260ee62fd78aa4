"""Checks the entries of a DLedger CommitLog: their headers, and the units of DLedger's own index.

A header is compared with its record and with its neighbours: indexes rise by one, terms never fall. The index unit of
an entry is compared with the entry's place in the log, and DLedger's small files with the last entry. Messages have
checksums of their own: wrong headers and units mislead a broker about the end of its log, or about entries to send.
One block of the index is in memory at a time.
"""

import bisect
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import dledger
from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES, ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.errors import DecodeError, StoreError
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.segment import FrameBatch
from rmq_formats.storage.segments import OpenRange, Segment, Storage, list_segments
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.findings import Finding, FindingList
from rmq_offline.verify.log_facts import Longs, split_runs

BLOCK_BYTES: Final = 256 << 10  # 8,192 units: small enough for a core's cache, large enough for a request
_FIELDS: Final = (
    (kernel.FAULT_MAGIC, "magic"), (kernel.FAULT_SIZE, "size"), (kernel.FAULT_POS, "pos"),
    (kernel.FAULT_BODY_BYTES, "body_bytes"), (kernel.FAULT_ZEROS, "channel, chain_crc or body_crc"),
)  # fmt: skip
_MAX_TERM_RUNS: Final = 64  # runs of one term in a window, above which terms are noise


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Indexes and terms of a split's first and last entry; -1 without an entry.

    Attributes:
        first_term: by the headers that agree with their neighbours, like ``last_term``.
        begins_after_damage: whether a damaged range stands before the first entry.
        first_at: physical offset of the first header.
    """

    first_index: int = -1
    last_index: int = -1
    first_term: int = -1
    last_term: int = -1
    begins_after_damage: bool = False
    first_at: int = -1


@dataclass(slots=True)
class _WrongUnits:
    """Run of units that differ from the log.

    Attributes:
        expected: the first unit, by the log.
        actual: the first unit, by the index.
        next_row: row of the split after the run.
    """

    expected: np.void
    actual: np.void
    last_index: int
    next_row: int
    count: int


class EntryCheck:
    """Check of the entries in one split of a segment."""

    def __init__(self, storage: Storage, path: str, findings: FindingList) -> None:
        self._path, self._findings = path, findings
        self._span = EntrySpan()
        self._units: EntryUnits | None = EntryUnits(storage, index_directory(path))
        self._wrong: _WrongUnits | None = None
        self._row = 0  # of the split
        self._after_damage = False

    def add_damage(self) -> None:
        """Record a damaged range before the next entries: entries may be lost there."""
        self._after_damage = True

    def add(self, batch: FrameBatch) -> None:
        """Check the headers and units of the next batch: entries without a damaged range between them."""
        if not self._continues_span(batch):
            self._compare_batch(batch)
        self._row += len(batch.frames)

    def finish(self) -> EntrySpan:
        """Report the last units that differ, and return the span of the split's entries."""
        self._report_wrong_units()
        return self._span

    def close(self) -> None:
        """Close the index."""
        if self._units is not None:
            self._units.close()

    def _continues_span(self, batch: FrameBatch) -> bool:
        """Return whether all entries have the next indexes and the same term, and sound units."""
        before, units = self._span, self._units
        if before.first_index < 0 or self._after_damage or units is None:
            return False
        frames, row, first = batch.frames, 0, before.last_index + 1
        while row < len(frames):
            try:
                at, end = units.find(first + row)
            except StoreError:
                return False
            if at == end:
                return False
            done = kernel.follow_entries(
                batch.data, batch.physical_offset, frames, row, first + row, before.last_term, units.block, at, end
            )
            if done < len(frames) and at + (done - row) * INDEX_UNIT_BYTES < end:
                return False
            row = done
        self._span = replace(before, last_index=before.last_index + len(frames))
        return True

    def _compare_batch(self, batch: FrameBatch) -> None:
        """Report the differences in a batch; a batch that only begins a new term has none."""
        frames = batch.frames
        heads = np.empty((len(frames), kernel.HEAD_COLUMNS), dtype=np.int64)
        kernel.check_heads(batch.data, batch.physical_offset, frames, heads)
        places = frames[:, scan_kernel.POSITION] + batch.physical_offset - ENTRY_HEAD_BYTES
        base = self._first_index(heads[:, kernel.HEAD_INDEX])
        indexes = base + np.arange(len(frames))
        terms = repaired_terms(heads[:, kernel.HEAD_TERM])
        self._add_faults(heads, places, frames, indexes, terms)
        self._join(EntrySpan(base, base + len(frames) - 1, int(terms[0]), int(terms[-1]), False, int(places[0])))
        units = np.empty(len(frames), dtype=INDEX_UNIT_DTYPE)
        units["magic"], units["pos"], units["index"], units["term"] = ENTRY_MAGIC, places, indexes, terms
        units["size"] = frames[:, scan_kernel.SIZE] + ENTRY_HEAD_BYTES
        self._check_units(units)

    def _first_index(self, indexes: Longs) -> int:
        """Return the index of the batch's first entry: the next one if any header agrees, else that of most headers."""
        bases = indexes - np.arange(len(indexes))
        follows = self._span.last_index + 1
        if not self._after_damage and self._span.first_index >= 0 and (bases == follows).any():
            return follows
        values, counts = np.unique(bases, return_counts=True)
        return int(values[np.argmax(counts)])

    def _add_faults(self, heads: Longs, places: Longs, frames: Longs, indexes: Longs, terms: Longs) -> None:
        faulty = (heads[:, kernel.HEAD_INDEX] != indexes) | (heads[:, kernel.HEAD_TERM] != terms)
        for row in np.flatnonzero(faulty | (heads[:, kernel.HEAD_FAULTS] != 0)).tolist():
            if not self._findings.has_room(layout_finding_kinds.ENTRY_HEADER):
                self._findings.add_uncounted(layout_finding_kinds.ENTRY_HEADER, 1)
                continue
            index, term, faults = heads[row].tolist()
            wrong = [name for bit, name in _FIELDS if faults & bit]
            wrong += ["index"] * int(index != indexes[row]) + ["term"] * int(term != terms[row])
            self._findings.report(
                layout_finding_kinds.ENTRY_HEADER,
                f"{', '.join(wrong)} of the entry's header",
                self._path,
                physical_offset=int(places[row]),
                size=int(frames[row, scan_kernel.SIZE]) + ENTRY_HEAD_BYTES,
                expected=f"index {indexes[row]}, term {terms[row]}",
                actual=f"index {index}, term {term}",
            )

    def _join(self, after: EntrySpan) -> None:
        before = self._span
        if before.first_index < 0:
            self._span = replace(after, begins_after_damage=self._after_damage)
        else:
            self._findings.extend(check_entry_boundary(before, after, self._path, after_damage=self._after_damage))
            self._span = replace(before, last_index=after.last_index, last_term=after.last_term)
        self._after_damage = False

    def _check_units(self, expected: NDArray[np.void]) -> None:
        """Compare the units of a batch with DLedger's index; units that differ in a row are one finding."""
        if self._units is None:
            return
        try:
            actual = self._units.read_units(int(expected[0]["index"]), len(expected))
        except StoreError as error:
            self._units.close()
            self._units = None
            self._findings.report(layout_finding_kinds.ENTRY_UNIT, str(error), index_directory(self._path))
            return
        wrong = np.flatnonzero(actual != expected)
        for run in split_runs(wrong):
            first, last, row = expected[run[0]], int(expected[run[-1]]["index"]), self._row + int(run[0])
            if self._wrong is None or self._wrong.next_row != row:
                self._report_wrong_units()
                self._wrong = _WrongUnits(first, actual[run[0]], last, row, 0)
            self._wrong.last_index, self._wrong.next_row = last, row + len(run)
            self._wrong.count += len(run)

    def _report_wrong_units(self) -> None:
        wrong, self._wrong = self._wrong, None
        if wrong is None:
            return
        what = "another unit" if any(wrong.actual.tolist()) else "no unit"
        self._findings.report(
            layout_finding_kinds.ENTRY_UNIT,
            f"{what} for entries {wrong.expected['index']} to {wrong.last_index}",
            index_directory(self._path),
            physical_offset=int(wrong.expected["pos"]),
            expected=_format_unit(wrong.expected),
            actual=_format_unit(wrong.actual),
            count=wrong.count,
        )


def _format_unit(unit: np.void) -> str:
    return f"pos {unit['pos']}, size {unit['size']}, index {unit['index']}, term {unit['term']}"


def repaired_terms(terms: Longs) -> Longs:
    """Return the terms without those that do not fit between their neighbours: terms never fall."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(terms)) + 1])
    if len(starts) == 1:
        return terms
    if len(starts) > _MAX_TERM_RUNS:
        return np.full(len(terms), np.median(terms).astype(np.int64))
    ends = [*starts[1:].tolist(), len(terms)]
    runs = [(int(terms[start]), start, end) for start, end in zip(starts.tolist(), ends, strict=True)]
    rising_runs = _heaviest_rise(runs)
    repaired = terms.copy()
    value = runs[rising_runs[0]][0]
    for number, (term, start, end) in enumerate(runs):
        value = term if number in rising_runs else value
        repaired[start:end] = value
    return repaired


def _heaviest_rise(runs: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the numbers of the runs with the most entries whose terms never fall."""
    weights: list[tuple[int, int]] = []  # entries up to here, number of the run before
    for number, (term, start, end) in enumerate(runs):
        before = max(((weights[i][0], i) for i in range(number) if runs[i][0] <= term), default=(0, -1))
        weights.append((before[0] + end - start, before[1]))
    at = max(range(len(runs)), key=lambda number: weights[number][0])
    rising_runs = []
    while at >= 0:
        rising_runs.append(at)
        at = weights[at][1]
    return rising_runs[::-1]


def check_entry_boundary(before: EntrySpan, after: EntrySpan, path: str, *, after_damage: bool) -> Iterator[Finding]:
    """Check that entries continue where the entries before them end; damage in between may have lost some."""
    expected = before.last_index + 1
    goes_on = after.first_index > before.last_index if after_damage else after.first_index == expected
    if not goes_on or after.first_term < before.last_term:
        yield Finding(
            layout_finding_kinds.ENTRY_ORDER,
            "the entry does not follow the one before it",
            path,
            after.first_at,
            expected=f"index {expected}, term {before.last_term} or more",
            actual=f"index {after.first_index}, term {after.first_term}",
        )


def index_directory(data_path: str) -> str:
    """Return the directory of DLedger's index, beside that of the entries' files."""
    return f"{data_path.rsplit('/', 2)[0]}/index"


class EntryUnits:
    """The units of DLedger's index: ``block``, uint8[BLOCK_BYTES], has some; files are listed at the first request."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.block = np.zeros(BLOCK_BYTES, dtype=np.uint8)
        self._storage, self._directory = storage, directory
        self._file: tuple[Segment, OpenRange] | None = None
        self._begin = self._end = 0  # of the block, in bytes of the index

    def find(self, index: int) -> tuple[int, int]:
        """Load the block that has the unit of an entry. Raises StoreError: the index cannot be read.

        Returns:
            The unit's position in the block, and the end of the block's units; (0, 0) where the index has no such unit.
        """
        position = index * INDEX_UNIT_BYTES
        if not self._begin <= position < self._end:
            self._load(position)
        return (position - self._begin, self._end - self._begin) if self._begin <= position < self._end else (0, 0)

    def read_units(self, first_index: int, count: int) -> NDArray[np.void]:
        """Return the units of ``count`` entries, INDEX_UNIT_DTYPE[count]; zeros for missing ones. Raises StoreError."""
        units = np.zeros(count, dtype=INDEX_UNIT_DTYPE)
        row = 0
        while row < count:
            at, end = self.find(first_index + row)
            block_units = self.block[at:end].view(INDEX_UNIT_DTYPE)[: count - row]
            units[row : row + len(block_units)] = block_units
            row += len(block_units) or self._count_missing(first_index + row)
        return units

    def _count_missing(self, index: int) -> int:
        """Count the units from a missing one to the next file."""
        position = index * INDEX_UNIT_BYTES
        begins = [segment.start_offset for segment in self._segments if segment.start_offset > position]
        return -(-(min(begins) - position) // INDEX_UNIT_BYTES) if begins else MAX_LONG

    @functools.cached_property
    def _segments(self) -> list[Segment]:
        return list_segments(self._storage, self._directory)

    def _load(self, position: int) -> None:
        """Fill the block from ``position`` on, as far as its file goes; a unit that the file's end cuts has zeros."""
        number = bisect.bisect_right(self._segments, position, key=lambda segment: segment.start_offset) - 1
        if number < 0 or position >= self._segments[number].end_offset:
            self._begin = self._end = 0
            return
        segment = self._segments[number]
        if self._file is None or self._file[0] != segment:
            self.close()
            self._file = segment, self._storage.open(segment.path)
        at = position - segment.start_offset
        self._begin = self._end = 0  # of a read that fails
        got = self._file[1].read_into(at, self.block[: segment.size_bytes - at].data)
        end = got + -got % INDEX_UNIT_BYTES
        self.block[got:end] = 0
        self._begin, self._end = position, position + end

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file[1].close()
            self._file = None


_MAX_TEXT_BYTES: Final = 4096  # each of the files has two short lines


def check_dledger_files(storage: Storage, data_directory: str, spans: Sequence[EntrySpan]) -> Iterator[Finding]:
    """Compare ``checkpoint``, ``currterm`` and the index's end with the log's last entry, in ``dledger-<selfId>``."""
    last = max((span.last_index for span in spans), default=-1)
    term = max((span.last_term for span in spans), default=-1)
    directory = data_directory.rsplit("/", 1)[0]
    for name, kind, keys, least, most in (
        ("checkpoint", layout_finding_kinds.DLEDGER_CHECKPOINT, ("committedIndex", "endIndex"), -1, last),
        ("currterm", layout_finding_kinds.DLEDGER_TERM, ("currTerm",), term, MAX_LONG),
    ):
        path = f"{directory}/{name}"
        try:
            numbers = _numbers(storage, path, keys)
        except (DecodeError, StoreError) as error:
            yield Finding(kind, str(error), path)
            continue
        for key, value in numbers.items():
            if not least <= value <= most:
                yield Finding(kind, key, path, expected=f"last entry {last}, term {term}", actual=str(value))
    yield from _surplus_findings(storage, f"{directory}/index", last)


def _numbers(storage: Storage, path: str, keys: Sequence[str]) -> dict[str, int]:
    """Read numbers of a properties file; empty without the file. Raises DecodeError, StoreError."""
    if not storage.exists(path):
        return {}
    values = dledger.properties(storage.read_bytes(path)[:_MAX_TEXT_BYTES].decode("utf-8", "replace"))
    try:
        return {key: int(values[key]) for key in keys if key in values}
    except ValueError as error:
        raise DecodeError(f"no number: {error}") from error


def _surplus_findings(storage: Storage, directory: str, last_index: int) -> Iterator[Finding]:
    end = (last_index + 1) * INDEX_UNIT_BYTES
    try:
        for segment in list_segments(storage, directory)[-1:]:
            with storage.open(segment.path) as file:
                used = segment.start_offset + file.data_end()
            if used > end:
                count = -(-(used - end) // INDEX_UNIT_BYTES)
                detail = f"{count} units behind that of the last entry, {last_index}"
                yield Finding(layout_finding_kinds.ENTRY_UNIT_SURPLUS, detail, segment.path, count=count)
    except StoreError as error:
        yield Finding(layout_finding_kinds.ENTRY_UNIT, str(error), directory)
