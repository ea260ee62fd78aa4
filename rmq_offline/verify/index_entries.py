"""Compares the entries of one IndexFile with the keys of the log, both ways.

Entries and keys are walked in step, in log order. After a difference, the next entries are looked up among the keys
until an entry matches again, so that one fault is one finding and the rest is still checked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.index import ENTRY_DTYPE, IndexBound
from rmq_formats.codecs.layout import (
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_PHYSICAL_OFFSET_AT,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.bytes import read_i32, read_i64
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import FindingList, Kind
from rmq_offline.verify.log_facts import LogFacts, Longs, Mask

BLOCK: Final = 1 << 16  # entries compared at once; some pages of each array
MAX_FAULTS: Final = 4096  # wrong links and seconds that are reported one by one
MAX_REPORTED_RUN: Final = 8  # entries in a row that are reported one by one; more are one finding
_FIRST_LOOK_UP: Final = 64
_LAST_LOOK_UP: Final = 1 << 18

Hashes = NDArray[np.int32]


class KeySource(Protocol):
    """The keys of the log, in log order."""

    count: int

    def read(self, begin: int, end: int) -> tuple[Hashes, Longs, Longs]:
        """Read hashes, physical offsets and store timestamps (ms) of the keys ``[begin, end)``."""
        ...

    def locate(self, hashes: Hashes, physical_offsets: Longs, near: Longs) -> Longs:
        """Find the number of each of these keys, the nearest one if a message has a key twice; -1 if there is none."""
        ...


def read_bound(keys: KeySource, number: int) -> IndexBound:
    """Read store timestamp and physical offset of a key's message."""
    _, physical_offsets, timestamps_ms = keys.read(number, number + 1)
    return IndexBound(int(timestamps_ms[0]), int(physical_offsets[0]))


@dataclass(frozen=True, slots=True)
class IndexInput:
    """One IndexFile to check.

    Attributes:
        data_end: one past the last byte that is not zero.
        read: returns a range by offset and size, with zeros after the file's end; raises StoreError.
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``; entry 0 is never used.
        previous_end: the end in the header of the file before.
    """

    path: str
    size_bytes: int
    data_end: int
    read: Callable[[int, int], NDArray[np.uint8]]
    slots: int
    entries: int
    is_first: bool
    is_last: bool
    previous_end: IndexBound

    @property
    def entries_at(self) -> int:
        """Position of entry 0 in the file, in bytes."""
        return INDEX_HEADER_BYTES + self.slots * INDEX_SLOT_BYTES


class EntryWalk:
    """Walk over the entries of one file in step with the keys of the log.

    Attributes:
        number: of the next entry.
        key: number of the key that the next entry should have; None before the first known key.
        key_begin: number of the file's first key; -1 while unknown.
        slots: int32[slot count], the slot table as it should be after the entries so far.
        first: time and place of the message of entry 1, if its key is known.
        last: of the last entry so far, if its key is known.
    """

    def __init__(
        self,
        file: IndexInput,
        keys: KeySource,
        facts: LogFacts,
        findings: FindingList,
        race_findings: FindingList,
        header_begin_ms: int,
    ) -> None:
        """Start a walk at entry 1; the header's begin timestamp is for seconds where the first entry is unknown."""
        self.file, self.keys, self.facts = file, keys, facts
        self.findings, self.race_findings = findings, race_findings
        self.number = 1
        self.key: int | None = None
        self.key_begin = -1
        self.slots = np.zeros(file.slots, dtype=np.int32)
        self.first: IndexBound | None = None
        self.last: IndexBound | None = None
        self._begin_ms = header_begin_ms
        self._faults = np.empty((MAX_FAULTS, 4), dtype=np.int64)
        self._state = np.zeros(kernel.STATE_COLUMNS, dtype=np.int64)
        self._last_old_offset = -1

    @property
    def slots_used(self) -> int:
        """Number of slots that are not empty."""
        return int(self._state[kernel.STATE_SLOTS_USED])

    def entries(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Read the bytes of entries ``[begin, end)``."""
        at = self.file.entries_at + begin * INDEX_ENTRY_BYTES
        return self.file.read(at, (end - begin) * INDEX_ENTRY_BYTES)

    def walk(self, end: int) -> None:
        """Walk the entries before ``end``."""
        while self.number < end:
            if self.key is None or self.key == self.keys.count or not self._match(self.key, end):
                self._find_key(end)

    def _match(self, key: int, end: int) -> bool:
        """Walk some entries in step with the keys from ``key`` on; return whether all matched."""
        count = min(end - self.number, BLOCK, self.keys.count - key) if self.number > 1 else 1
        hashes, physical_offsets, timestamps = self.keys.read(key, key + count)
        entries = self.entries(self.number, self.number + count)
        begin_ms = self._begin_ms if self.number > 1 else self._first_begin_ms(key)
        done: int = kernel.match_entries(
            entries, self.number, hashes, physical_offsets, timestamps, begin_ms, self.slots, self._faults, self._state
        )
        if done:
            self.key_begin = key if self.key_begin < 0 else self.key_begin
            if self.number == 1:
                self.first = IndexBound(int(timestamps[0]), int(physical_offsets[0]))
                self._begin_ms = self.first.timestamp_ms
                self._check_first_seconds(int(read_i32(entries, 12)), key, self.first)
            self.last = IndexBound(int(timestamps[done - 1]), int(physical_offsets[done - 1]))
            self.number += done
            self.key = key + done
        return done == count

    def _first_begin_ms(self, key: int) -> int:
        """Return the time that the first entry's seconds count from: the end of the file before, if there is one."""
        return kernel.NO_BEGIN if self.file.is_first or key == 0 else read_bound(self.keys, key - 1).timestamp_ms

    def _check_first_seconds(self, seconds: int, key: int, first: IndexBound) -> None:
        """Check entry 1's seconds in the first file: 0, unless there was an older file that has been deleted since."""
        if not self.file.is_first or seconds == 0:
            return
        expected = 0
        if key > 0:
            expected = max(0, first.timestamp_ms - read_bound(self.keys, key - 1).timestamp_ms) // 1000
        elif self.facts.start > 0 and seconds > 0:
            expected = seconds
        if seconds != expected:
            kind, at = finding_kinds.INDEX_ENTRY_WRONG, first.physical_offset
            self._add(kind, "seconds of entry 1", str(expected), str(seconds), at=at)

    def _find_key(self, end: int) -> None:
        """Find the next entry that is one of the log's keys, and report what lies between."""
        at, size, next_key = self.number, _FIRST_LOOK_UP, -1
        while at < end and next_key < 0:
            stop = min(at + size, end)
            hashes, physical_offsets = decode_entries(self.entries(at, min(stop + 1, end)))
            first_near = (self.key or 0) + at - self.number
            near = np.arange(first_near, first_near + len(hashes), dtype=np.int64)
            keys = self.keys.locate(hashes, physical_offsets, near)
            hit = _first_run(keys, near, is_end=stop == end)
            if hit < stop - at:
                at, next_key = at + hit, int(keys[hit])
            else:
                at, size = stop, min(2 * size, _LAST_LOOK_UP)
        back = self._matches_before(at, next_key)
        self._report_between(at - back, next_key - back)

    def _matches_before(self, at: int, next_key: int) -> int:
        """Count the entries right before ``at`` that have the keys right before ``next_key``.

        A message may have a key twice: only the entries around then show which entry is of which key.
        """
        count = min(at - self.number, next_key - (self.key or 0), _LAST_LOOK_UP)
        if count <= 0:
            return 0
        hashes, offsets = decode_entries(self.entries(at - count, at))
        key_hashes, key_offsets, _ = self.keys.read(next_key - count, next_key)
        differing = np.flatnonzero((hashes != key_hashes) | (offsets != key_offsets))
        return count - int(differing[-1]) - 1 if len(differing) else count

    def _report_between(self, entry_end: int, next_key: int) -> None:
        """Report the entries from the next one up to ``entry_end``, where key ``next_key`` stands (-1: nowhere)."""
        begin = self.number
        unexplained = self._report_explained(begin, entry_end, is_end=next_key < 0)
        unexplained_count = int(np.count_nonzero(unexplained))
        key = self.key
        if key is None and next_key >= 0:  # the first entries of the file
            key = max(0, next_key - unexplained_count)
        gap = 0
        if key is not None:
            gap = next_key - key if next_key >= 0 else min(unexplained_count, self.keys.count - key)
        pair = key if unexplained_count > 0 and gap == unexplained_count else None
        if unexplained_count:
            self._report_unexplained(begin, unexplained, pair)
        if key is not None and gap > 0 and pair is None:
            self._report_missing(key, gap)
        if key is not None and gap < 0:
            self._report_repeated(next_key, key)
        self._follow_chains(begin, entry_end, unexplained, pair)
        if entry_end > begin:
            self._set_bounds(begin, unexplained, pair)
        self.number = entry_end
        if key is not None:
            self.key = next_key if next_key >= 0 else key + gap
            self.key_begin = key if self.key_begin < 0 else self.key_begin

    def _set_bounds(self, begin: int, unexplained: Mask, pair: int | None) -> None:
        """Set ``first`` and ``last`` after entries without a key, from the keys in the same places."""
        self.last = None
        if pair is None:
            return
        if begin == 1 and unexplained[0]:
            self.first = read_bound(self.keys, pair)
            self._begin_ms = self.first.timestamp_ms
        if unexplained[-1]:
            self.last = read_bound(self.keys, pair + int(np.count_nonzero(unexplained)) - 1)

    def _report_explained(self, begin: int, end: int, *, is_end: bool) -> Mask:
        """Report unmatched entries that the log's bounds or its damage explain; return which are unexplained."""
        unexplained = np.zeros(end - begin, dtype=bool)
        for low in range(begin, end, _LAST_LOOK_UP):
            high = min(low + _LAST_LOOK_UP, end)
            hashes, offsets = decode_entries(self.entries(low, high))
            lost = self.facts.is_lost(offsets)
            beyond = np.zeros(len(offsets), dtype=bool)
            if is_end and high == end:  # only the newest entries can be newer than the log
                inside = np.flatnonzero(offsets < self.facts.end)
                beyond[int(inside[-1]) + 1 if len(inside) else 0 :] = True
            old = (offsets >= 0) & (offsets < self.facts.start) & (hashes >= 0) & (self.key is None)
            at = np.flatnonzero(old)
            if len(at):
                old[at[np.diff(offsets[at], prepend=self._last_old_offset) < 0]] = False
                self._last_old_offset = int(offsets[at].max())
            for kind, mask, target in (
                (finding_kinds.INDEX_ENTRY_LOST, lost, self.findings),
                (finding_kinds.INDEX_ENTRY_BEYOND, beyond, self.race_findings),
            ):
                if mask.any():
                    first, count = int(np.argmax(mask)), int(np.count_nonzero(mask))
                    detail = f"from entry {low + first} on"
                    target.report(kind, detail, self.file.path, physical_offset=int(offsets[first]), count=count)
            unexplained[low - begin : high - begin] = ~(lost | beyond | old)
        return unexplained

    def _report_unexplained(self, begin: int, unexplained: Mask, key: int | None) -> None:
        """Report entries without a key; with ``key``, the entries stand in the places of the keys from ``key`` on."""
        kind = finding_kinds.INDEX_ENTRY_SURPLUS if key is None else finding_kinds.INDEX_ENTRY_WRONG
        places = np.flatnonzero(unexplained)
        reported = places if len(places) <= MAX_REPORTED_RUN else places[:1]
        for order, place in enumerate(reported.tolist()):
            number = begin + place
            entry = self.entries(number, number + 1)
            expected, physical_offset = None, int(read_i64(entry, INDEX_ENTRY_PHYSICAL_OFFSET_AT))
            actual = f"hash {read_i32(entry, 0)}, offset {physical_offset}"
            if key is not None:
                hashes, offsets, _ = self.keys.read(key + order, key + order + 1)
                physical_offset = int(offsets[0])
                expected = f"hash {hashes[0]}, offset {physical_offset}"
            count = 1 if len(reported) == len(places) else len(places)
            detail = f"entry {number}" if count == 1 else f"{count} entries from number {number} on"
            self._add(kind, detail, expected, actual, at=physical_offset, count=count)

    def _report_missing(self, key: int, count: int) -> None:
        first, last = (read_bound(self.keys, number).physical_offset for number in (key, key + count - 1))
        detail = f"keys of the messages at offsets {first} to {last}, before entry {self.number}"
        self._add(finding_kinds.INDEX_ENTRY_MISSING, detail, at=first, count=count)

    def _report_repeated(self, next_key: int, key: int) -> None:
        """Report keys with entries before: a broker's recovery repeats the keys of one message."""
        first, last = (read_bound(self.keys, number).physical_offset for number in (next_key, key - 1))
        kind = finding_kinds.INDEX_ENTRY_REPEATED if first == last else finding_kinds.INDEX_ENTRY_SURPLUS
        detail = f"keys that are in the Index before, from entry {self.number} on"
        self._add(kind, detail, at=first, count=key - next_key)

    def _follow_chains(self, begin: int, end: int, unexplained: Mask, key: int | None) -> None:
        """Update the slot table through entries that match no key of the log.

        An entry in the place of a known key counts with that key's hash, so that one wrong hash does not
        break the chains behind it. Links of entries that match no key are not reported: the entries are.
        """
        state, faults = self._state, self._faults
        if unexplained.any():
            state, faults = self._state.copy(), self._faults[:0]
        for low in range(begin, end, _LAST_LOOK_UP):
            high = min(low + _LAST_LOOK_UP, end)
            entries = self.entries(low, high)
            hashes = decode_entries(entries)[0]
            if key is not None:
                places = np.flatnonzero(unexplained[low - begin : high - begin])
                before = int(np.count_nonzero(unexplained[: low - begin]))
                hashes[places] = self.keys.read(key + before, key + before + len(places))[0]
            kernel.chain_only(entries, low, hashes, self.slots, faults, state)
        self._state[kernel.STATE_SLOTS_USED] = state[kernel.STATE_SLOTS_USED]

    def are_next_keys(self, end: int) -> bool:
        """Return whether the entries up to ``end`` match the next keys, one by one."""
        if self.key is None:
            hashes, offsets = decode_entries(self.entries(self.number, self.number + 1))
            numbers = self.keys.locate(hashes, offsets, np.zeros(1, dtype=np.int64))
            self.key = int(numbers[0]) if numbers[0] >= 0 else None
        key = self.key
        if key is None or key + end - self.number > self.keys.count:
            return False
        for low in range(self.number, end, BLOCK):
            high = min(low + BLOCK, end)
            hashes, offsets = decode_entries(self.entries(low, high))
            expected = self.keys.read(key + low - self.number, key + high - self.number)
            if not (np.array_equal(hashes, expected[0]) and np.array_equal(offsets, expected[1])):
                return False
        return True

    def report_faults(self) -> None:
        """Report wrong links and seconds of entries that match their keys."""
        total = int(self._state[kernel.STATE_FAULTS])
        for number, field, expected, actual in self._faults[:total].tolist():
            if field == kernel.FAULT_SECONDS:
                self._add(finding_kinds.INDEX_ENTRY_WRONG, f"seconds of entry {number}", str(expected), str(actual))
            else:
                kind = finding_kinds.INDEX_CYCLE if actual >= number else finding_kinds.INDEX_CHAIN
                self._add(kind, f"link of entry {number}", str(expected), str(actual))
        self.findings.add_uncounted(finding_kinds.INDEX_CHAIN, max(0, total - MAX_FAULTS))

    def _add(
        self,
        kind: Kind,
        detail: str,
        expected: str | None = None,
        actual: str | None = None,
        *,
        at: int | None = None,
        count: int = 1,
    ) -> None:
        self.findings.report(
            kind, detail, self.file.path, physical_offset=at, expected=expected, actual=actual, count=count
        )


def decode_entries(entries: NDArray[np.uint8]) -> tuple[Hashes, Longs]:
    """Decode the hashes and physical offsets of entries."""
    rows = entries.view(ENTRY_DTYPE)
    return rows["key_hash"].astype(np.int32), rows["physical_offset"].astype(np.int64)


def _first_run(keys: Longs, near: Longs, *, is_end: bool) -> int:
    """Return where the keys match again: one in its place, or two in a row; ``len(keys)`` if nowhere."""
    has_key = keys >= 0
    follows = np.zeros(len(keys), dtype=bool)
    follows[:-1] = has_key[:-1] & (keys[1:] == keys[:-1] + 1)
    if is_end and len(keys):
        follows[-1] = has_key[-1]
    hits = np.flatnonzero((has_key & (keys == near)) | follows)
    return int(hits[0]) if len(hits) else len(keys)
