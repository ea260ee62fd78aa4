"""The Index of an open store: its IndexFiles in order, of which the newest is appended to, and the test for TAGS.

Source: ``IndexService``.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.config import StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.opening import LocalTree
from rmq_core.store.index.file import MappedIndexFile
from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS, IndexHeader, entry_position, parse_index_tags
from rmq_formats.codecs.index_tags import ENTRIES_AT_ONCE, TaggedMessage, is_last_indexed, read_message, tagged_messages
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, index_file_bytes
from rmq_formats.codecs.paths import INDEX_NAME_DIGITS
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import FormatError
from rmq_formats.storage.store_layouts import StoreLayout, detect_layouts

Keys = NDArray[np.int64]
_MAX_WINDOWS: Final = 16  # windows of entries that are searched for TAGS at most; a store may have none


class Index:
    """The IndexFiles of a store: keys of messages with their physical offsets.

    Attributes:
        dirty: written files, for the flush thread.
        new_directories: directories with new entries, for the flush thread.
    """

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.files: list[MappedIndexFile] = []
        self.dirty: deque[MappedIndexFile] = deque()
        self.new_directories: deque[str] = deque()
        self._full_before = 0  # full_end_timestamp_ms without the newest file
        self._directory = paths.index_dir(config.root)
        self._slots = config.index_slots
        self._entries = config.index_entries
        self._disk = disk
        self._appended = 0  # keys of a batch that were appended before it failed

    def load(self) -> None:
        """Open the existing files; remove the first damaged one and all later ones, which are rebuilt from the log."""
        size = index_file_bytes(self._slots, self._entries)
        is_sound = True
        for path in _list_files(self._directory):
            file = MappedIndexFile(str(path), int(path.name), self._slots, self._entries, self._disk)
            is_sound = is_sound and path.stat().st_size == size and file.is_sound()
            if is_sound:
                self.files.append(file)
            else:
                self._disk.remove(str(path))
        self._update_full_before()

    @property
    def full_end_timestamp_ms(self) -> int:
        """Store timestamp of the last key in the newest full file; 0 without a full file."""
        if self.files and not self.files[-1].room:
            return self.files[-1].header.end_timestamp_ms
        return self._full_before

    def _update_full_before(self) -> None:
        full_files = [file for file in self.files[:-1] if not file.room]
        self._full_before = full_files[-1].header.end_timestamp_ms if full_files else 0

    @property
    def header_bytes(self) -> bytes:
        """Header of the newest file; zeros without one."""
        return self.files[-1].map[:INDEX_HEADER_BYTES] if self.files else bytes(INDEX_HEADER_BYTES)

    def append(self, keys: Keys, last_physical_offset: int, last_timestamp_ms: int) -> None:
        """Append the keys of a batch of messages.

        As in the original, a message creates a file if there is none or the newest is full, even if the message has no
        key.

        Args:
            keys: rows of a key table, in log order.
            last_physical_offset: physical offset of the batch's last message, with or without keys.

        Raises:
            OSError: the disk is full. Pass the whole batch again: the keys that were appended are skipped.
        """
        from rmq_formats.kernels.dispatch import KEY_STORE_TIMESTAMP  # noqa: PLC0415 # numba, see ``kernel_loading``

        at = self._appended
        while at < len(keys):
            room = self.files[-1].room if self.files else 0
            if not room:
                self._roll(int(keys[at, KEY_STORE_TIMESTAMP]))
                continue
            step = min(room, len(keys) - at)
            self.files[-1].append(keys[at : at + step])
            self.note_dirty(self.files[-1])
            at += step
            self._appended = at
        self.pass_over(last_physical_offset, last_timestamp_ms)
        self._appended = 0

    def pass_over(self, physical_offset: int, timestamp_ms: int) -> None:
        """Record a message without new keys as indexed."""
        if not self.files or (not self.files[-1].room and physical_offset > self.last_update()[1]):
            self._roll(timestamp_ms)

    def target(self) -> MappedIndexFile | None:
        """Return the newest file, for appends by the kernel; None after a batch that failed."""
        return self.files[-1] if self.files and not self._appended else None

    def note_dirty(self, file: MappedIndexFile) -> None:
        """Queue a file for fsync. Call after the write: the flush thread clears the flag before it syncs."""
        if not file.is_dirty:
            file.is_dirty = True
            self.dirty.append(file)

    def _roll(self, timestamp_ms: int) -> None:
        end = (0, 0)
        name = _file_name(timestamp_ms)
        if self.files:
            header = self.files[-1].header
            end = (header.end_timestamp_ms, header.end_physical_offset)
            name = max(name, self.files[-1].name + 1)
        self._disk.make_directory(self._directory)
        path = f"{self._directory}/{name:0{INDEX_NAME_DIGITS}d}"
        self.files.append(MappedIndexFile.create(path, name, self._slots, self._entries, self._disk, end))
        # Both, even if the directory exists: the process that created it may have been killed before the fsync.
        self.new_directories.extend([self._directory, str(Path(self._directory).parent)])
        self.note_dirty(self.files[-1])
        self._full_before = end[0]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets under the hash of a key, newest first; other keys may have the same hash.

        Source: ``IndexService#queryOffset``.
        """
        key_hash = index_key_hash(topic, key)
        for file in reversed(self.files):
            header = file.header
            if header.overlaps(begin_ms, end_ms):
                yield from file.find(key_hash, begin_ms, end_ms)
            if header.begin_timestamp_ms < begin_ms:
                return

    def last_update(self) -> tuple[int, int]:
        """Store timestamp (ms) and physical offset of the newest message with a key."""
        if not self.files:
            return 0, 0
        header = self.files[-1].header
        return header.end_timestamp_ms, header.end_physical_offset

    def remove_from(self, number: int) -> None:
        """Remove the files from the ``number``-th on."""
        for file in self.files[number:]:
            self._disk.remove(file.path)
        del self.files[number:]
        self._update_full_before()

    def restore(self, name: int, file_count: int, header: bytes) -> bool:
        """Cut the Index back to the state with a newest file of this name and header; False if files are missing."""
        if len(self.files) < file_count or (file_count and self.files[file_count - 1].name != name):
            return False
        self.remove_from(file_count)
        if file_count:
            self.files[-1].truncate(IndexHeader.decode(header))
            self.note_dirty(self.files[-1])
        self._update_full_before()
        return True

    def cut(self, physical_offset: int, store_timestamp_ms: Callable[[int], int | None]) -> None:
        """Remove the entries of records at or after a physical offset, the log's new end."""
        while self.files:
            file = self.files[-1]
            header = file.header
            count = file.count_below(physical_offset)
            if header.index_count <= 1 and header.begin_physical_offset < physical_offset:
                return
            if count > 1:
                break
            self.remove_from(len(self.files) - 1)
        if not self.files or count == header.index_count:
            return
        last_offset = file.entry(count - 1).physical_offset
        timestamp_ms = store_timestamp_ms(last_offset)
        if timestamp_ms is not None:
            header = replace(header, end_timestamp_ms=timestamp_ms)
        file.truncate(replace(header, end_physical_offset=last_offset, index_count=count))
        self.note_dirty(file)
        self._update_full_before()

    def resume(self) -> tuple[int, int]:
        """Return where dispatch resumes: physical offset of the newest indexed record, and its number of indexed keys.

        The record may have keys in two files, and further keys in no file.
        """
        end, count = -1, 0
        for file in reversed(self.files):
            for number in range(file.index_count - 1, 0, -1):
                physical_offset = file.entry(number).physical_offset
                if end not in (-1, physical_offset):
                    return end, count
                end, count = physical_offset, count + 1
        return max(end, 0), count

    def remove_expired(self, log_min: int) -> list[MappedIndexFile]:
        """Detach the files whose messages have all expired, except the last file; the caller removes the files.

        Source: ``IndexService#deleteExpiredFile``.
        """
        expired = []
        while len(self.files) > 1 and self.files[0].header.end_physical_offset < log_min:
            expired.append(self.files.pop(0))
        return expired


def _list_files(directory: str) -> list[Path]:
    files = Path(directory).iterdir() if Path(directory).is_dir() else []
    return sorted(path for path in files if paths.is_index_file_name(path.name) and path.is_file())


def _file_name(timestamp_ms: int) -> int:
    """Return the name of a file created at a time: local time to the millisecond, as in the original."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    except (ValueError, OSError, OverflowError):  # a damaged header has a time beyond the calendar
        return 0
    return int(f"{moment:%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}")


def tags_from(config: StoreConfig) -> int:
    """Return the physical offset from which the store's TAGS are indexed: ALL_TAGS or NO_TAGS.

    With ``indexTags=auto`` the end of the Index decides, as this broker continues there: brokers from 5.4 on index
    TAGS; see ``rmq_formats.codecs.index_tags``.
    """
    configured_offset = parse_index_tags(config.index_tags)
    if configured_offset is not None:
        return configured_offset
    is_indexed = is_last_indexed(_newest_tagged_messages(config))
    if is_indexed is None:
        is_indexed = _is_from_5_4(config.root)
    return ALL_TAGS if is_indexed else NO_TAGS


def _is_from_5_4(root: str) -> bool:
    with suppress(FormatError, OSError):
        if Checkpoint.decode(Path(paths.checkpoint_file(root)).read_bytes()).logics_physical_offset > 0:
            return True
    return StoreLayout.FROM_5_4 in detect_layouts(LocalTree(), root)


def _newest_tagged_messages(config: StoreConfig) -> Iterator[TaggedMessage]:
    windows_left = _MAX_WINDOWS
    is_last = True
    for path in reversed(_list_files(paths.index_dir(config.root))):
        with suppress(FormatError, OSError), path.open("rb") as file:
            end = min(IndexHeader.decode(file.read(INDEX_HEADER_BYTES)).index_count, config.index_entries)
            while end > 1 and windows_left > 0:
                begin = max(1, end - ENTRIES_AT_ONCE)
                file.seek(entry_position(begin, config.index_slots))
                entries = file.read((end - begin) * INDEX_ENTRY_BYTES)
                messages = tagged_messages(entries, partial(_read_message, config), is_end=is_last)
                yield from reversed(list(messages))
                end, is_last, windows_left = begin, False, windows_left - 1


def _read_message(config: StoreConfig, physical_offset: int) -> StoredMessage | None:
    start = physical_offset - physical_offset % config.commitlog_file_bytes
    with suppress(OSError), Path(config.commitlog_path, paths.segment_name(start)).open("rb") as file:
        position = physical_offset - start
        return read_message(lambda at, count: os.pread(file.fileno(), count, at), position, physical_offset)
    return None
