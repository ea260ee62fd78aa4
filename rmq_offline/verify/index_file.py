"""Checks one IndexFile: its size, its entries, its slot table and its header."""

from dataclasses import dataclass

import numpy as np

from rmq_formats.codecs.index import IndexBound, IndexHeader
from rmq_formats.codecs.layout import (
    INDEX_COUNT_AT,
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_PHYSICAL_OFFSET_AT,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    index_file_bytes,
)
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.bytes import read_i32, read_i64
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.index_entries import MAX_FAULTS, EntryWalk, IndexInput, KeySource
from rmq_offline.verify.log_facts import LogFacts


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Range of the log's keys in an IndexFile.

    Attributes:
        key_begin: number of the first key; -1 where no entry is of a key of the log.
        key_end: one past the last key.
        is_full: whether no more entry fits into the file.
        end_timestamp_ms: by the header; 0 without a header.
    """

    path: str
    entry_count: int
    key_begin: int
    key_end: int
    is_full: bool
    end_timestamp_ms: int = 0


class IndexCheck:
    """Check of one IndexFile."""

    def __init__(
        self, file: IndexInput, keys: KeySource, facts: LogFacts, findings: FindingList, race_findings: FindingList
    ) -> None:
        self.file, self.keys, self.facts = file, keys, facts
        self.findings, self.race_findings = findings, race_findings
        self.if_last = race_findings if file.is_last else findings  # brokers write only to the last file

    def run(self) -> IndexSpan:
        """Check the file. Raises StoreError where it cannot be read."""
        file = self.file
        expected_bytes = index_file_bytes(file.slots, file.entries)
        if file.size_bytes != expected_bytes:
            expected, actual = str(expected_bytes), str(file.size_bytes)
            self.findings.report(
                finding_kinds.INDEX_FILE_SIZE, "file of another size", file.path, expected=expected, actual=actual
            )
            if file.size_bytes < file.entries_at + INDEX_ENTRY_BYTES:
                return IndexSpan(file.path, 0, -1, -1, False)
        head = file.read(0, INDEX_HEADER_BYTES)
        header = IndexHeader.decode(head.tobytes())
        capacity = file.entries - 1
        used = min(max(file.data_end - 1 - file.entries_at, 0) // INDEX_ENTRY_BYTES, capacity)
        claimed = min(header.index_count - 1, capacity)
        walk = EntryWalk(file, self.keys, self.facts, self.findings, self.race_findings, header.begin_timestamp_ms)
        walk.walk(min(claimed, used) + 1)
        self._resolve_count(walk, claimed, used)
        walk.report_faults()
        self._check_slots(walk)
        self._check_header(walk, header, int(read_i32(head, INDEX_COUNT_AT)))
        if file.read(file.entries_at, INDEX_ENTRY_BYTES).any():
            self.findings.report(finding_kinds.INDEX_BEHIND, "entry 0, which is never used, is not zero", file.path)
        count = walk.number - 1
        key_end = -1 if walk.key is None else walk.key
        return IndexSpan(file.path, count, walk.key_begin, key_end, count == capacity, header.end_timestamp_ms)

    def _resolve_count(self, walk: EntryWalk, claimed: int, used: int) -> None:
        """Decide by the keys between the header's count and the file's last entry, where the two disagree."""
        if used > claimed:
            if walk.are_next_keys(used + 1):
                walk.walk(used + 1)
            else:
                detail = f"{used - claimed} entries beyond the header's count"
                self.if_last.report(finding_kinds.INDEX_BEHIND, detail, self.file.path, count=used - claimed)
        elif claimed > used and walk.key is not None and walk.key + claimed - used <= self.keys.count:
            walk.walk(claimed + 1)

    def _check_slots(self, walk: EntryWalk) -> None:
        data = self.file.read(INDEX_HEADER_BYTES, self.file.slots * INDEX_SLOT_BYTES)
        places = np.empty(MAX_FAULTS, dtype=np.int64)
        total = int(kernel.compare_slots(data, walk.slots, places))
        for slot in places[:total].tolist():
            actual = int(read_i32(data, slot * INDEX_SLOT_BYTES))
            findings = self.if_last if walk.number <= actual <= self.file.entries else self.findings
            expected = str(walk.slots[slot])
            findings.report(
                finding_kinds.INDEX_SLOT, f"slot {slot}", self.file.path, expected=expected, actual=str(actual)
            )
        self.findings.add_uncounted(finding_kinds.INDEX_SLOT, max(0, total - MAX_FAULTS))

    def _check_header(self, walk: EntryWalk, header: IndexHeader, index_count: int) -> None:
        count = walk.number - 1
        first = last = self.file.previous_end
        if count:  # an unknown key has no time: the header's time then counts as right
            first = walk.first or IndexBound(header.begin_timestamp_ms, _physical_offset(walk, 1))
            last = walk.last or IndexBound(header.end_timestamp_ms, _physical_offset(walk, count))
        if count or index_count != 0:  # 0 is read as 1, and stands in a file that has never had an entry
            self._compare("index count", count + 1, index_count)
        self._compare("begin timestamp", first.timestamp_ms, header.begin_timestamp_ms)
        self._compare("begin physical offset", first.physical_offset, header.begin_physical_offset)
        self._compare("end timestamp", last.timestamp_ms, header.end_timestamp_ms)
        self._compare("end physical offset", last.physical_offset, header.end_physical_offset)
        self._compare("slot count", walk.slots_used, header.slot_count)

    def _compare(self, name: str, expected: int, actual: int) -> None:
        if expected != actual:
            self.if_last.report(
                finding_kinds.INDEX_HEADER, name, self.file.path, expected=str(expected), actual=str(actual)
            )


def _physical_offset(walk: EntryWalk, number: int) -> int:
    return int(read_i64(walk.entries(number, number + 1), INDEX_ENTRY_PHYSICAL_OFFSET_AT))
