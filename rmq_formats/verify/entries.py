"""Checks the entries of a DLedger CommitLog: their headers, and the units of DLedger's own index.

A header is compared with its record and with its neighbours: indexes rise by one, terms never fall. The unit of each
entry is compared with what its place in the log says. What guards messages is their own checksum, so that nothing here
is about a message lost; it is about what a broker of a DLedger group takes for the end of its log, or sends to others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.variants.dledger import ENTRY_HEAD_BYTES, ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.errors import StoreError
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.segment import FrameBatch
from rmq_formats.storage.segments import Segment, Storage, list_segments, opened, read_range
from rmq_formats.verify import variant_kinds
from rmq_formats.verify.findings import Finding, FindingList

_FIELDS: Final = (
    (kernel.FAULT_MAGIC, "magic"), (kernel.FAULT_SIZE, "size"), (kernel.FAULT_POS, "pos"),
    (kernel.FAULT_BODY_BYTES, "body_bytes"), (kernel.FAULT_ZEROS, "channel, chain_crc or body_crc"),
)  # fmt: skip
_TOLD_APART: Final = 64  # runs of one term in a window, above which terms are noise


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """The entries of a split, as its headers number them.

    Attributes:
        first_index: of the first entry; -1 if there is none.
        last_index: of the last.
        first_term: of the first, by the headers that agree with their neighbours.
        last_term: of the last.
        begins_after_damage: whether a damaged stretch stands before the first.
        first_at: physical offset of the first header.
    """

    first_index: int = -1
    last_index: int = -1
    first_term: int = -1
    last_term: int = -1
    begins_after_damage: bool = False
    first_at: int = -1


class EntryCheck:
    """Check of the entries in one split of a segment.

    Args:
        path: of the segment, for the findings.
        findings: added to.
    """

    def __init__(self, path: str, findings: FindingList) -> None:
        self._path, self._findings = path, findings
        self._span = EntrySpan()
        self._heads = np.empty((0, kernel.HEAD_COLUMNS), dtype=np.int64)
        self._units: list[NDArray[np.void]] = []
        self._after_damage = False

    def add_damage(self) -> None:
        """Note a damaged stretch before the next entries: some may be lost in it."""
        self._after_damage = True

    def add(self, batch: FrameBatch) -> None:
        """Check the headers of the next batch: entries without a damaged stretch between them."""
        frames = batch.frames
        if len(frames) > len(self._heads):
            self._heads = np.empty((len(frames), kernel.HEAD_COLUMNS), dtype=np.int64)
        heads = self._heads[: len(frames)]
        kernel.check_heads(batch.data, batch.physical_offset, frames, heads)
        places = frames[:, scan_kernel.POSITION] + batch.physical_offset - ENTRY_HEAD_BYTES
        base = self._first_index(heads[:, kernel.HEAD_INDEX])
        indexes = base + np.arange(len(frames))
        terms = mended_terms(heads[:, kernel.HEAD_TERM])
        self._add_faults(heads, places, frames, indexes, terms)
        self._join(EntrySpan(base, base + len(frames) - 1, int(terms[0]), int(terms[-1]), False, int(places[0])))
        units = np.empty(len(frames), dtype=INDEX_UNIT_DTYPE)
        units["magic"], units["pos"], units["index"], units["term"] = ENTRY_MAGIC, places, indexes, terms
        units["size"] = frames[:, scan_kernel.SIZE] + ENTRY_HEAD_BYTES
        self._units.append(units)

    def finish(self, storage: Storage) -> EntrySpan:
        """Compare the units of DLedger's index with the entries of the split."""
        if self._units:
            self._check_units(storage, np.concatenate(self._units))
        return self._span

    def _first_index(self, indexes: NDArray[np.int64]) -> int:
        """The index of the batch's first entry: that which follows, where any header agrees, else what most say."""
        bases = indexes - np.arange(len(indexes))
        follows = self._span.last_index + 1
        if not self._after_damage and self._span.first_index >= 0 and (bases == follows).any():
            return follows
        values, counts = np.unique(bases, return_counts=True)
        return int(values[np.argmax(counts)])

    def _add_faults(
        self,
        heads: NDArray[np.int64],
        places: NDArray[np.int64],
        frames: NDArray[np.int64],
        indexes: NDArray[np.int64],
        terms: NDArray[np.int64],
    ) -> None:
        faulty = (heads[:, kernel.HEAD_INDEX] != indexes) | (heads[:, kernel.HEAD_TERM] != terms)
        for row in np.flatnonzero(faulty | (heads[:, kernel.HEAD_FAULTS] != 0)).tolist():
            if not self._findings.has_room(variant_kinds.ENTRY_HEADER):
                self._findings.add_uncounted(variant_kinds.ENTRY_HEADER, 1)
                continue
            index, term, faults = heads[row].tolist()
            wrong = [name for bit, name in _FIELDS if faults & bit]
            wrong += ["index"] * int(index != indexes[row]) + ["term"] * int(term != terms[row])
            self._findings.add(
                Finding(
                    variant_kinds.ENTRY_HEADER, f"{', '.join(wrong)} of the entry's header", self._path,
                    int(places[row]), int(frames[row, scan_kernel.SIZE]) + ENTRY_HEAD_BYTES,
                    expected=f"index {indexes[row]}, term {terms[row]}", actual=f"index {index}, term {term}",
                )
            )  # fmt: skip

    def _join(self, after: EntrySpan) -> None:
        if self._span.first_index < 0:
            self._span = EntrySpan(
                after.first_index, after.last_index, after.first_term, after.last_term, self._after_damage,
                after.first_at,
            )  # fmt: skip
        else:
            for finding in seam_findings(self._span, after, self._path, after_damage=self._after_damage):
                self._findings.add(finding)
            before = self._span
            self._span = EntrySpan(
                before.first_index, after.last_index, before.first_term, after.last_term, before.begins_after_damage,
                before.first_at,
            )  # fmt: skip
        self._after_damage = False

    def _check_units(self, storage: Storage, expected: NDArray[np.void]) -> None:
        try:
            found = read_units(storage, index_directory(self._path), expected["index"])
        except StoreError as error:
            self._findings.add(Finding(variant_kinds.ENTRY_UNIT, str(error), index_directory(self._path)))
            return
        wrong = np.flatnonzero(found != expected)
        for run in np.split(wrong, np.flatnonzero(np.diff(wrong) > 1) + 1) if len(wrong) else ():
            first, last = expected[run[0]], expected[run[-1]]
            what = "no unit" if not any(found[run[0]].tolist()) else "another unit"
            self._findings.add(
                Finding(
                    variant_kinds.ENTRY_UNIT, f"{what} for entries {first['index']} to {last['index']}",
                    index_directory(self._path), int(first["pos"]), expected=_told(first), actual=_told(found[run[0]]),
                    count=len(run),
                )
            )  # fmt: skip


def _told(unit: np.void) -> str:
    return f"pos {unit['pos']}, size {unit['size']}, index {unit['index']}, term {unit['term']}"


def mended_terms(terms: NDArray[np.int64]) -> NDArray[np.int64]:
    """The terms without those that do not fit between their neighbours: terms never fall."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(terms)) + 1])
    if len(starts) == 1:
        return terms
    if len(starts) > _TOLD_APART:
        return np.full(len(terms), np.median(terms).astype(np.int64))
    ends = [*starts[1:].tolist(), len(terms)]
    runs = [(int(terms[start]), start, end) for start, end in zip(starts.tolist(), ends, strict=True)]
    kept = _heaviest_rise(runs)
    mended = terms.copy()
    value = runs[kept[0]][0]
    for number, (term, start, end) in enumerate(runs):
        value = term if number in kept else value
        mended[start:end] = value
    return mended


def _heaviest_rise(runs: Sequence[tuple[int, int, int]]) -> list[int]:
    """The numbers of runs whose terms never fall, and that hold the most entries together."""
    weights: list[tuple[int, int]] = []  # entries up to here, number of the run before
    for number, (term, start, end) in enumerate(runs):
        before = max(((weights[i][0], i) for i in range(number) if runs[i][0] <= term), default=(0, -1))
        weights.append((before[0] + end - start, before[1]))
    at = max(range(len(runs)), key=lambda number: weights[number][0])
    kept = []
    while at >= 0:
        kept.append(at)
        at = weights[at][1]
    return kept[::-1]


def seam_findings(before: EntrySpan, after: EntrySpan, path: str, *, after_damage: bool) -> Iterator[Finding]:
    """Check that entries go on where those before them end; in a damaged stretch between them some may be lost."""
    expected = before.last_index + 1
    goes_on = after.first_index > before.last_index if after_damage else after.first_index == expected
    if not goes_on or after.first_term < before.last_term:
        yield Finding(
            variant_kinds.ENTRY_ORDER, "the entry does not follow the one before it", path, after.first_at,
            expected=f"index {expected}, term {before.last_term} or more",
            actual=f"index {after.first_index}, term {after.first_term}",
        )  # fmt: skip


def index_directory(data_path: str) -> str:
    """The directory of DLedger's index, beside that of the entries' files."""
    return f"{data_path.rsplit('/', 2)[0]}/index"


def read_units(storage: Storage, directory: str, indexes: NDArray[np.int64]) -> NDArray[np.void]:
    """Read the units of entries with ascending indexes; zeros where there is none. Raises StoreError."""
    found = np.zeros(len(indexes), dtype=INDEX_UNIT_DTYPE)
    places = indexes * INDEX_UNIT_BYTES
    for segment in list_segments(storage, directory):
        own = slice(*np.searchsorted(places, [segment.start_offset, segment.end_offset]).tolist())
        if own.start < own.stop:
            found[own] = _units_of(storage, segment, places[own] - segment.start_offset)
    return found


def _units_of(storage: Storage, segment: Segment, places: NDArray[np.int64]) -> NDArray[np.void]:
    begin, end = int(places[0]), int(places[-1]) + INDEX_UNIT_BYTES
    with opened(storage, segment.path) as file:
        data = read_range(file, begin, end - begin).ljust(end - begin, b"\0")
    units = np.frombuffer(data, dtype=INDEX_UNIT_DTYPE)
    return units if len(units) == len(places) else units[(places - begin) // INDEX_UNIT_BYTES]
