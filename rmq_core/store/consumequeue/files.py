"""Sequences of fixed-size files for ConsumeQueues, read and written by calls instead of maps.

A write call to a full disk raises an error, where a write to a map would end the process. So the files can be sparse,
and a thousand small queues need little space. The number of open files is limited.
"""

import ctypes
import mmap
import os
import resource
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.store.files.disk import Disk, list_segments
from rmq_formats.codecs import paths
from rmq_formats.errors import StoreSizeError

_MIN_OPEN_FILES: Final = 64
_MAX_OPEN_FILES: Final = 16_384
_BLOCK_BYTES: Final = 1 << 20
_PARENT_LEVELS: Final = 4  # parent directories of a file: of the queue, of the topic, of all topics, of the store
_DESCRIPTOR_SHARE: Final = 4  # one in so many of the process's descriptors; sockets and the log need the others
_MIN_WINDOW_BYTES: Final = 4096
_MAX_WINDOW_BYTES: Final = 256 << 10


class QueueMap:
    """A mapped queue file; writes must stay below ``allocated``, as a full disk would end the process.

    Attributes:
        address: memory address of the first byte.
        allocated: bytes from the start whose disk blocks are allocated.
        row: the queue's row in the table of targets.
    """

    __slots__ = ("_map", "address", "allocated", "row", "view")

    def __init__(self, descriptor: int, size: int, row: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.allocated = 0
        self.row = row

    def reserve(self, descriptor: int, position: int, disk: Disk) -> int:
        """Allocate disk blocks from a position on, more the fuller the file is; return the bytes allocated there."""
        size = len(self.view)
        if self.allocated <= position:
            window = min(max(position, _MIN_WINDOW_BYTES), _MAX_WINDOW_BYTES)
            end = min(-(-(position + window) // _MIN_WINDOW_BYTES) * _MIN_WINDOW_BYTES, size)
            disk.allocate(descriptor, position, end - position)
            self.allocated = end
        return self.allocated - position


@dataclass(slots=True, eq=False)
class ConsumeQueueFile:
    """One file of a ConsumeQueue.

    Attributes:
        start: offset of its first byte in the queue.
        descriptor: -1 while it is closed.
        is_dropped: about to be removed, so that no fsync is needed.
        mapped: the map, while the queue appends to this file.
    """

    path: str
    start: int
    descriptor: int = -1
    is_dirty: bool = False
    is_dropped: bool = False
    mapped: QueueMap | None = None


class OpenFiles:
    """Opens files, and closes those that were opened first above a limit; used by one thread.

    Attributes:
        dirty: written files, for the flush thread, which opens them itself.
        new_directories: directories with new entries, for the flush thread.
        expired_directories: directories with expired files whose removal nobody has requested yet.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.dirty: deque[ConsumeQueueFile] = deque()
        self.new_directories: deque[str] = deque()
        self.expired_directories: deque[str] = deque()
        self._expired: dict[str, list[str]] = {}  # paths of expired files, by directory
        self._removal_lock = threading.Lock()  # held while files are removed, so that no new file of the same name is
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTOR_SHARE
        self.limit = min(max(limit, _MIN_OPEN_FILES), _MAX_OPEN_FILES)
        self._open: OrderedDict[ConsumeQueueFile, None] = OrderedDict()  # in the order of opening

    def open(self, file: ConsumeQueueFile) -> int:
        """Return the file's descriptor."""
        if file.descriptor < 0:
            self._add_open(file, self.disk.open(file.path))
        return file.descriptor

    def create(self, file: ConsumeQueueFile, size: int) -> None:
        """Create the file, filled with zeros."""
        directories = Path(file.path).parents[:_PARENT_LEVELS]
        self.remove_expired(str(directories[0]))  # the queue of a recreated topic begins at 0 again
        self.disk.make_directory(str(directories[0]))
        self._add_open(file, self.disk.create(file.path, size, allocate=False))
        # Existing directories too: the process that created them may have been killed before their fsync.
        self.new_directories.extend(map(str, directories))

    def _add_open(self, file: ConsumeQueueFile, descriptor: int) -> None:
        while len(self._open) >= self.limit:
            self.close(self._open.popitem(last=False)[0])
        file.descriptor = descriptor
        self._open[file] = None

    def close(self, file: ConsumeQueueFile) -> None:
        """Close a file; its next use opens it again."""
        if file.descriptor >= 0:
            self.disk.close(file.descriptor)
            file.descriptor = -1

    def discard(self, file: ConsumeQueueFile) -> None:
        """Close a file that is about to be removed."""
        if file.descriptor >= 0:
            self.close(file)
            del self._open[file]

    def expire(self, file: ConsumeQueueFile, directory: str) -> None:
        """Close a file of a directory, and leave its removal to ``remove_expired``."""
        file.is_dropped = True
        self.discard(file)
        with self._removal_lock:
            if directory not in self._expired:
                self._expired[directory] = []
                self.expired_directories.append(directory)
            self._expired[directory].append(file.path)

    def remove_expired(self, directory: str) -> None:
        """Remove the expired files of a directory, the oldest first, up to an OSError. Any thread may call this."""
        if directory not in self._expired:
            return
        with self._removal_lock:
            paths = self._expired.get(directory, [])
            while paths:
                self.disk.remove(paths[0])
                del paths[0]
            self._expired.pop(directory, None)
        self.new_directories.append(directory)

    def close_all(self) -> None:
        """Close all files."""
        while self._open:
            self.close(self._open.popitem(last=False)[0])

    def write(self, file: ConsumeQueueFile, data: bytes, position: int) -> None:
        """Write into a file, and queue it for fsync."""
        self.disk.write(file.descriptor if file.descriptor >= 0 else self.open(file), data, position)
        self.note_dirty(file)

    def note_dirty(self, file: ConsumeQueueFile) -> None:
        """Queue a file for fsync. Call after the write: the flush thread clears the flag before it syncs."""
        if not file.is_dirty:
            file.is_dirty = True
            self.dirty.append(file)

    def read(self, file: ConsumeQueueFile, size: int, position: int) -> bytes | memoryview:
        """Read from a file; bytes that were never written are zeros."""
        if file.mapped is not None:
            return file.mapped.view[position : position + size]
        return self.disk.read(file.descriptor if file.descriptor >= 0 else self.open(file), size, position)


class FileSequence:
    """The files of one ConsumeQueue, without a gap; the first one begins at any multiple of ``file_bytes``."""

    def __init__(self, directory: str, file_bytes: int, open_files: OpenFiles) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: list[ConsumeQueueFile] = []
        self._open = open_files

    def load(self) -> bool:
        """Find the existing files; raise StoreSizeError for a wrong size.

        Files before a gap are removed. False means that there was one: the queue must be rebuilt from the log.
        """
        segments = list_segments(self.directory)
        first_empty = next((number for number, segment in enumerate(segments) if not segment.size), len(segments))
        for segment in segments[
            first_empty:
        ]:  # created, but not flushed before a loss of power: no later one has units
            self._open.disk.remove(segment.path)
        is_whole = True
        for start, path, size in segments[:first_empty]:
            if size != self.file_bytes or start % self.file_bytes:
                raise StoreSizeError(f"{path}: has {size} bytes, but this store's files have {self.file_bytes}")
            if self.files and start != self.files[-1].start + self.file_bytes:
                is_whole = False
                for file in list(self.files):
                    self.remove(file)
            self.files.append(ConsumeQueueFile(path, start))
        return is_whole

    @property
    def start(self) -> int:
        """Offset of the first file's first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Offset after the last file's last byte; 0 without files."""
        return self.files[-1].start + self.file_bytes if self.files else 0

    def file_at(self, offset: int) -> ConsumeQueueFile | None:
        """Return the file that contains an offset."""
        if not self.files:
            return None
        number = (offset - self.files[0].start) // self.file_bytes
        return self.files[number] if 0 <= number < len(self.files) else None

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset, across file boundaries, creating files at the end as needed."""
        done = 0
        while done < len(data):
            at = offset + done
            file = self.file_at(at) or self._append_file(at)
            position = at - file.start
            step = min(len(data) - done, self.file_bytes - position)
            self._open.write(file, data if step == len(data) else data[done : done + step], position)
            done += step

    def rewrite(self, offset: int, end: int) -> None:
        """Write the bytes between two offsets again, and queue their files and directories for fsync.

        The bytes may be in memory alone: the process that wrote them was killed, or an fsync failed.
        """
        if offset < end and self.files:
            self._open.new_directories.extend(map(str, Path(self.files[-1].path).parents[:_PARENT_LEVELS]))
        while offset < end:
            data = bytes(self.read(offset, min(end - offset, _BLOCK_BYTES)))
            if not data:
                return
            self.write(data, offset)
            offset += len(data)

    def _append_file(self, offset: int) -> ConsumeQueueFile:
        start = offset - offset % self.file_bytes
        file = ConsumeQueueFile(f"{self.directory}/{paths.segment_name(start)}", start)
        self._open.create(file, self.file_bytes)
        self.files.append(file)
        return file

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Read up to ``size`` bytes from an offset on, within one file; nothing if there is no file."""
        file = self.file_at(offset)
        if file is None:
            return b""
        position = offset - file.start
        return self._open.read(file, min(size, self.file_bytes - position), position)

    def has_data(self, offset: int) -> bool:
        """Return whether there may be bytes other than zero at or after an offset."""
        file = self.file_at(offset)
        if file is None:
            return False
        if file is not self.files[-1]:
            return True
        position = offset - file.start
        page_rest_bytes = min(-position % mmap.PAGESIZE, self.file_bytes - position)
        descriptor = self._open.open(file)
        if any(self._open.disk.read(descriptor, page_rest_bytes, position)):
            return True
        try:
            os.lseek(descriptor, position + page_rest_bytes, os.SEEK_DATA)
        except OSError:  # the rest of the file is a hole
            return False
        return True

    def trim(self, offset: int) -> None:
        """Fill the files with zeros from an offset on, and remove all later files."""
        while self.files and self.files[-1].start >= offset:
            self.remove(self.files[-1])
        file = self.file_at(offset) if self.files else None
        if file is not None:
            file.mapped = None
            self._open.disk.zero(self._open.open(file), offset - file.start, self.file_bytes)
            self._open.note_dirty(file)

    def remove(self, file: ConsumeQueueFile) -> None:
        """Remove a file."""
        self.files.remove(file)
        file.mapped = None
        self._open.discard(file)
        self._open.disk.remove(file.path)
        self._open.new_directories.append(self.directory)

    def expire_before(self, offset: int) -> int:
        """Detach the files before an offset, except the last file; return their number.

        ``OpenFiles.remove_expired`` removes them.
        """
        expired = 0
        while len(self.files) > 1 and self.start + self.file_bytes <= offset:
            file = self.files.pop(0)
            file.mapped = None
            self._open.expire(file, self.directory)
            expired += 1
        return expired

    def remove_expired(self) -> None:
        """Remove the files that ``expire_before`` detached."""
        self._open.remove_expired(self.directory)

    def cancel_fsync(self) -> None:
        """Cancel the fsync of all files, as ``clear`` will remove them."""
        for file in self.files:
            file.is_dropped = True

    def clear(self) -> None:
        """Remove all files, and the directory if no other file is in it."""
        for file in list(self.files):
            self.remove(file)
        self.remove_expired()
        with suppress(OSError):
            self._open.disk.remove_directory(self.directory)
