"""Second task batch of a verification: each task compares one IndexFile with the keys of the log."""

import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.index import IndexBound, IndexHeader
from rmq_formats.codecs.layout import INDEX_HEADER_BYTES
from rmq_formats.errors import SpillError, StoreError
from rmq_formats.storage.segments import OpenRange, open_storage, read_range
from rmq_offline.tasks import spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_area import WorkArea
from rmq_offline.tasks.work_files import read_longs, write_longs
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, FindingList, Kind
from rmq_offline.verify.index_entries import Hashes, IndexInput, read_bound
from rmq_offline.verify.index_file import IndexCheck, IndexSpan
from rmq_offline.verify.log_facts import Longs
from rmq_offline.verify.phases.queues import read_facts
from rmq_offline.verify.phases.scan import SplitCheck

CACHED_SPLITS: Final = 2  # splits whose keys are in memory at a time: an IndexFile spans few
MAX_SAME_KEYS: Final = 64  # keys of one message that are searched for an entry's


@dataclass(frozen=True, slots=True)
class IndexFileTask:
    """Task of verifying one IndexFile; ``previous_path`` is None for the oldest."""

    path: str
    size_bytes: int
    previous_path: str | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class IndexResult:
    """Result of verifying one IndexFile; ``span`` is None where the file could not be read."""

    task: IndexFileTask
    span: IndexSpan | None
    findings: FindingList
    race_findings: FindingList


def write_key_table(work: WorkArea, checks: Sequence[SplitCheck]) -> None:
    """Write the range of keys of each split for the tasks."""
    counts = np.array([check.key_count for check in checks], dtype=np.int64)
    begins = np.array([check.split.file_offset + check.split.start for check in checks], dtype=np.int64)
    write_longs(work, "keys.msgpack", counts=counts, begins=begins)


Keys = tuple[Hashes, Longs, Longs]
"""Hashes, physical offsets and store timestamps (ms) of keys."""


def _join_keys(parts: Sequence[Keys]) -> Keys:
    if len(parts) == 1:
        return parts[0]
    hashes, offsets, timestamps = (np.concatenate(column) for column in zip(*parts, strict=True))
    return hashes, offsets, timestamps


class SpilledKeys:
    """Reads the keys of the log from the spill files of the scan."""

    def __init__(self, work: WorkArea) -> None:
        self._work = work
        arrays = read_longs(work, "keys.msgpack")
        self._begins = arrays["begins"]
        self._starts = np.concatenate([[0], np.cumsum(arrays["counts"])]).astype(np.int64)
        self._cached: OrderedDict[int, Keys] = OrderedDict()
        self.count = int(self._starts[-1])

    def _split(self, number: int) -> Keys:
        if number not in self._cached:
            if len(self._cached) == CACHED_SPLITS:
                self._cached.popitem(last=False)
            size = int(self._starts[number + 1] - self._starts[number])
            parts = list(spill.read_keys(self._work.path(f"spill/keys-{number:06d}.arrow"), 0, size))
            self._cached[number] = _join_keys(parts)
        self._cached.move_to_end(number)
        return self._cached[number]

    def read(self, begin: int, end: int) -> Keys:
        """Read hashes, physical offsets and store timestamps (ms) of the keys ``[begin, end)``."""
        parts = []
        for number, low, high in self._pieces(begin, end):
            hashes, offsets, timestamps = self._split(number)
            parts.append((hashes[low:high], offsets[low:high], timestamps[low:high]))
        return _join_keys(parts)

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        number = int(np.searchsorted(self._starts, begin, side="right")) - 1
        while begin < end:
            start, stop = int(self._starts[number]), int(self._starts[number + 1])
            if stop > begin:
                yield number, begin - start, min(end, stop) - start
                begin = min(end, stop)
            number += 1

    def locate(self, hashes: Hashes, physical_offsets: Longs, near: Longs) -> Longs:
        """Find the number of each of these keys, the nearest one if a message has a key twice; -1 if there is none."""
        numbers = np.full(len(hashes), -1, dtype=np.int64)
        # A split may own a little more than its bytes: what stands before its first byte is another's.
        owners = np.searchsorted(self._begins, physical_offsets, side="right") - 1
        for owner in np.unique(owners[owners >= 0]).tolist():
            rows = np.flatnonzero(owners == owner)
            if self._starts[owner + 1] > self._starts[owner]:
                numbers[rows] = self._locate_in(owner, hashes[rows], physical_offsets[rows], near[rows])
        return numbers

    def _locate_in(self, number: int, hashes: Hashes, physical_offsets: Longs, near: Longs) -> Longs:
        split_hashes, split_offsets, _ = self._split(number)
        start = int(self._starts[number])
        low = np.searchsorted(split_offsets, physical_offsets, side="left")
        high = np.searchsorted(split_offsets, physical_offsets, side="right")
        numbers = np.full(len(hashes), -1, dtype=np.int64)
        expected = near - start
        in_place = (expected >= low) & (expected < high)
        in_place[in_place] = split_hashes[expected[in_place]] == hashes[in_place]
        numbers[in_place] = near[in_place]
        for step in range(min(MAX_SAME_KEYS, int((high - low).max(initial=0)))):
            open_rows = np.flatnonzero((numbers < 0) & (low + step < high))
            hits = open_rows[split_hashes[low[open_rows] + step] == hashes[open_rows]]
            numbers[hits] = low[hits] + step + start
        return numbers


def _read_padded(file: OpenRange, offset: int, size_bytes: int) -> NDArray[np.uint8]:
    """Read a range of an IndexFile, with zeros after the file's end. Raises StoreError."""
    data = np.empty(size_bytes, dtype=np.uint8)
    got = file.read_into(offset, data.data) if size_bytes else 0
    data[got:] = 0
    return data


def check_index(task: IndexFileTask, sizes: StoreSizes, work: WorkArea) -> IndexResult:
    """Task: compare one IndexFile. Raises SpillError, OSError: the work directory cannot be read."""
    findings, race_findings = FindingList(), FindingList()
    keys, facts = SpilledKeys(work), read_facts(work)
    span = None
    try:
        previous_end = _previous_end(task)
        storage, path = open_storage(task.path)
        with storage.open(path) as file:
            index = IndexInput(
                path=task.path,
                size_bytes=task.size_bytes,
                data_end=file.data_end(),
                read=functools.partial(_read_padded, file),
                slots=sizes.index_slots,
                entries=sizes.index_entries,
                is_first=task.previous_path is None,
                is_last=task.is_last,
                previous_end=previous_end,
            )
            span = IndexCheck(index, keys, facts, findings, race_findings).run()
    except SpillError:  # no fault of the IndexFile itself
        raise
    except (StoreError, OSError) as error:
        findings.report(finding_kinds.INDEX_UNREADABLE, str(error), task.path)
    return IndexResult(task, span, findings, race_findings)


def _previous_end(task: IndexFileTask) -> IndexBound:
    """Read end timestamp and end physical offset of the file before, with which a new file begins."""
    if task.previous_path is None:
        return IndexBound(0, 0)
    try:
        storage, path = open_storage(task.previous_path)
        with storage.open(path) as file:
            head = read_range(file, 0, INDEX_HEADER_BYTES).ljust(INDEX_HEADER_BYTES, b"\0")
    except StoreError:
        return IndexBound(0, 0)
    header = IndexHeader.decode(head)
    return IndexBound(header.end_timestamp_ms, header.end_physical_offset)


def check_index_files(
    results: Sequence[IndexResult], keys: SpilledKeys, last_message_offset: int, race_findings: FindingList
) -> Iterator[Finding]:
    """Check all IndexFiles together: keys missing between files, before the first, after the last.

    Args:
        last_message_offset: physical offset of the log's last record; -1 in an empty log.
    """
    spans = [result.span for result in results if result.span is not None and result.span.key_begin >= 0]
    if not results:
        if keys.count:
            yield Finding(finding_kinds.INDEX_MISSING, f"no IndexFile for {keys.count} keys", count=keys.count)
        return
    end = 0
    for number, span in enumerate(spans):
        if span.key_begin > end:
            kind = finding_kinds.INDEX_ENTRY_MISSING if number else finding_kinds.INDEX_BEGINS_LATE
            yield _missing(kind, keys, end, span.key_begin, span.path)
        elif span.key_begin < end:
            yield _overlap(keys, span, end)
        end = max(end, span.key_end)
    if end < keys.count:
        path = results[-1].task.path
        race_findings.add(_missing(finding_kinds.INDEX_ENTRY_MISSING, keys, end, keys.count, path))
    yield from _fill_findings(results, end == keys.count, keys, last_message_offset)


def _missing(kind: Kind, keys: SpilledKeys, begin: int, end: int, path: str) -> Finding:
    first, last = (read_bound(keys, number).physical_offset for number in (begin, end - 1))
    detail = f"no entries for keys of the messages at offsets {first} to {last}"
    return Finding(kind, detail, path, first, count=end - begin)


def _overlap(keys: SpilledKeys, span: IndexSpan, end: int) -> Finding:
    """Make the finding for keys that an earlier file has: a recovery repeats keys of one message alone."""
    stop = min(end, span.key_end)
    numbers = span.key_begin, max(stop - 1, span.key_begin)
    first, last = (read_bound(keys, number).physical_offset for number in numbers)
    kind = finding_kinds.INDEX_ENTRY_REPEATED if first == last else finding_kinds.INDEX_FILE_SURPLUS
    detail = f"keys of the messages at offsets {first} to {last}, which an earlier file has"
    return Finding(kind, detail, span.path, first, count=max(1, stop - span.key_begin))


def _fill_findings(
    results: Sequence[IndexResult], is_complete: bool, keys: SpilledKeys, last_message_offset: int
) -> Iterator[Finding]:
    """Find files that are not full though others follow, and files without an entry that should not be there."""
    for number, result in enumerate(results):
        span = result.span
        if span is None or (span.entry_count and result.task.is_last):
            continue
        if span.entry_count and not span.is_full:
            detail = f"{span.entry_count} entries"
            yield Finding(finding_kinds.INDEX_FILE_SHORT, detail, span.path, actual=str(span.entry_count))
        if span.entry_count == 0 and not _may_be_empty(results, number, is_complete, keys, last_message_offset):
            yield Finding(finding_kinds.INDEX_FILE_SURPLUS, "a file without an entry", span.path)


def _may_be_empty(
    results: Sequence[IndexResult], number: int, is_complete: bool, keys: SpilledKeys, last_message_offset: int
) -> bool:
    """Return whether an empty file is normal, as the newest file may be.

    A broker creates a file as soon as none has room, even for a message without keys (``IndexService#buildIndex``).
    """
    if number + 1 < len(results) or last_message_offset < 0:
        return False
    if number == 0:
        return keys.count == 0
    before = results[number - 1].span
    return before is None or before.is_full or not is_complete
