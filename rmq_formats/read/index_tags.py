"""Detection whether a store's Index has an entry for each message's TAGS, as brokers from 5.4 on write.

Entries of some messages at both ends of the Index are compared with their records. In a store that was upgraded, old
files lack such entries, new files have them, and one file has both kinds: then the first message with such an entry is
searched. Without an Index, or without a tagged message, other traces of a later broker decide.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS, IndexEntry, entry_position
from rmq_formats.codecs.index_tags import (
    ENTRIES_AT_ONCE,
    TaggedMessage,
    is_first_indexed,
    is_last_indexed,
    read_message,
    tagged_messages,
)
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.dirty import read_checkpoint
from rmq_formats.read.index_lookup import IndexFile, index_paths
from rmq_formats.read.ranges import segment_at
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import StoreLayout

_MAX_READ: Final = 64  # records read at each end of the Index; a store may have no tags at all
_MAX_READ_IN_SEARCH: Final = 4096  # between two messages with tags


class IndexTags(NamedTuple):
    """Physical offset from which TAGS are indexed, with the evidence in words."""

    tags_from: int
    reason: str


def find_index_tags(store: StoreFiles, segments: Sequence[Segment] | None = None) -> IndexTags:
    """Find the physical offset from which the Index of a store has entries for TAGS; None lists the segments."""
    with suppress(StoreError, OSError):
        log = store.segments if segments is None else segments
        index_tags = _index_tags_by_entries(_Index(store.storage, log, index_paths(store)))
        if index_tags is not None:
            return index_tags
    return _index_tags_by_store_files(store)


def _index_tags_by_entries(index: "_Index") -> IndexTags | None:
    first = is_first_indexed(index.messages(is_backwards=False))
    last = is_last_indexed(index.messages(is_backwards=True))
    if first is None or last is None:
        return None
    if first == last:
        answer = "yes" if last else "no"
        return IndexTags(ALL_TAGS if last else NO_TAGS, f"{answer}, as the Index has it")
    if first:
        return IndexTags(NO_TAGS, "no, as the end of the Index has it; its beginning has entries for TAGS")
    tags_from = index.first_with_tags()
    return IndexTags(tags_from, f"from physical offset {tags_from} on, as the Index has it")


def _index_tags_by_store_files(store: StoreFiles) -> IndexTags:
    """Find traces of a broker from 5.4 on in the store's files beside the Index."""
    checkpoint = read_checkpoint(store)
    if checkpoint is not None and checkpoint.logics_physical_offset > 0:
        return IndexTags(ALL_TAGS, "yes, because the checkpoint is that of a broker 5.5 or later")
    evidence = store.layouts.evidence.get(StoreLayout.FROM_5_4)
    if evidence is not None:
        return IndexTags(ALL_TAGS, f"yes, because of {evidence}, which brokers from 5.4 on make")
    return IndexTags(NO_TAGS, "no, because there is no sign of a broker 5.4 or later")


class _Index:
    """The entries of all IndexFiles, oldest first, and their records."""

    def __init__(self, storage: Storage, log: Sequence[Segment], files: Sequence[str]) -> None:
        self._storage = storage
        self._log = log
        self._files = files
        self._reads_left = 0

    def messages(self, *, is_backwards: bool) -> Iterator[TaggedMessage]:
        """Read messages with TAGS from one end on, of at most _MAX_READ records."""
        self._reads_left = _MAX_READ
        numbers = range(len(self._files))
        for number in reversed(numbers) if is_backwards else numbers:
            yield from self._file(number, is_backwards=is_backwards)

    def first_with_tags(self) -> int:
        """Search the physical offset of the first message with an entry for its TAGS."""
        number = bisect_left(range(len(self._files)), True, key=lambda number: self._is_indexed(number, 0))
        if number > 0:
            windows = range(self._windows(number - 1))
            window = bisect_left(windows, True, key=lambda window: self._is_indexed(number - 1, window))
            message = self._first(number - 1, max(0, window - 1), only_indexed=True)
            if message is not None:
                return message.physical_offset
        message = self._first(number, 0, only_indexed=True) if number < len(self._files) else None
        return NO_TAGS if message is None else message.physical_offset

    def _is_indexed(self, number: int, window: int) -> bool:
        """Return whether a file's first message with TAGS from a window on has entries for them; True without one."""
        message = self._first(number, window)
        return message is None or message.is_indexed

    def _first(self, number: int, window: int, *, only_indexed: bool = False) -> TaggedMessage | None:
        self._reads_left = _MAX_READ_IN_SEARCH
        return next((item for item in self._file(number, window) if item.is_indexed or not only_indexed), None)

    def _windows(self, number: int) -> int:
        with suppress(FormatError, StoreError, OSError), self._storage.open(self._files[number]) as file:
            return _window_count(IndexFile.read(file, self._files[number]))
        return 0

    def _file(self, number: int, first: int = 0, *, is_backwards: bool = False) -> Iterator[TaggedMessage]:
        """Read messages with TAGS of a file's entries, from a window of entries on; none of a damaged file."""
        with suppress(FormatError, StoreError, OSError), self._storage.open(self._files[number]) as file:
            index = IndexFile.read(file, self._files[number])
            windows = range(first, _window_count(index))
            for window in reversed(windows) if is_backwards else windows:
                if self._reads_left <= 0:
                    return
                begin = 1 + window * ENTRIES_AT_ONCE
                end = min(begin + ENTRIES_AT_ONCE, index.header.index_count)
                if not self._has_record(index, end - 1):
                    continue
                entries = read_range(file, entry_position(begin, index.slots), (end - begin) * INDEX_ENTRY_BYTES)
                is_end = number + 1 == len(self._files) and end == index.header.index_count
                messages = tagged_messages(entries, self._message, is_end=is_end)
                yield from reversed(list(messages)) if is_backwards else messages

    def _has_record(self, index: IndexFile, number: int) -> bool:
        """Return whether the record of an entry is still stored; records are deleted in the order of entries."""
        data = read_range(index.file, entry_position(number, index.slots), INDEX_ENTRY_BYTES)
        return bool(self._log) and IndexEntry.decode(data).physical_offset >= self._log[0].start_offset

    def _message(self, physical_offset: int) -> StoredMessage | None:
        """Return the record at a physical offset; None where there is no sound one."""
        segment = segment_at(self._log, physical_offset)
        if segment is None or self._reads_left <= 0:
            return None
        self._reads_left -= 1
        with suppress(StoreError, OSError), self._storage.open(segment.path) as file:
            position = physical_offset - segment.start_offset
            return read_message(partial(read_range, file), position, physical_offset)
        return None


def _window_count(index: IndexFile) -> int:
    return -(-index.entry_count // ENTRIES_AT_ONCE) if index.slots else 0
