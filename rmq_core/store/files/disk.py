"""All file system calls of a store, so that tests can simulate I/O errors and loss of power."""

import os
from pathlib import Path
from typing import Final, NamedTuple

from rmq_formats.codecs import paths

_FILE_MODE: Final = 0o644
_ZERO_BLOCK: Final = bytes(1 << 20)


class Disk:
    """The real file system. Methods raise OSError; paths are strings, offsets and sizes bytes."""

    def open(self, path: str) -> int:
        """Open a file for reading and writing; refuse a symbolic link, which may lead out of the store."""
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        """Create a file of zeros and open it; after a crash the file has its full size or does not exist.

        The file gets its name after its size, as the original refuses to start with a file of another size. On file
        systems without unnamed files a crash may leave such a file.

        Args:
            allocate: allocate the blocks too, so that writes through a map cannot fail; else the file is sparse.
        """
        try:
            descriptor = os.open(str(Path(path).parent), os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, _FILE_MODE)
        except OSError:
            return self._create_named(path, size, allocate)
        try:
            self._extend(descriptor, size, allocate)
            is_named = self._link_unnamed_file(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
        if is_named:
            return descriptor
        os.close(descriptor)
        return self._create_named(path, size, allocate)

    def _link_unnamed_file(self, descriptor: int, path: str) -> bool:
        """Link an unnamed file (``O_TMPFILE``) to a path; False where that is not supported."""
        try:
            os.link(f"/proc/self/fd/{descriptor}", path, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError:  # no /proc
            return False
        return True

    def _create_named(self, path: str, size: int, allocate: bool) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            self._extend(descriptor, size, allocate)
        except OSError:
            os.close(descriptor)
            os.unlink(path)  # noqa: PTH108 # paths are strings here, as errors name them
            raise
        return descriptor

    def _extend(self, descriptor: int, size: int, allocate: bool) -> None:
        if allocate:
            self.allocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        """Allocate the disk blocks of a range; a shorter file grows."""
        os.posix_fallocate(descriptor, offset, size)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes of a file; fewer at its end."""
        return os.pread(descriptor, size, offset)

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of the data."""
        written = os.pwrite(descriptor, data, offset)
        while written < len(data):  # a full disk accepts a part, then raises
            data = memoryview(data)[written:]
            offset += written
            written = os.pwrite(descriptor, data, offset)

    def zero(self, descriptor: int, begin: int, end: int) -> None:
        """Fill a range with zeros; a range at the file's end becomes a hole without disk blocks."""
        if end == os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, begin)
            os.ftruncate(descriptor, end)
            return
        for at in range(begin, end, len(_ZERO_BLOCK)):
            self.write(descriptor, memoryview(_ZERO_BLOCK)[: end - at], at)

    def truncate(self, descriptor: int, size: int) -> None:
        """Change a file's size; a longer file ends with a hole."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Flush a file's data, and the metadata needed to read the data, to the disk (``fdatasync``)."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Flush a directory's entries to the disk (``fsync``)."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: str) -> list[str]:
        """Create a directory and its missing parents; return the directories that have a new entry, to be synced."""
        missing = []
        directory = Path(path)
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
        return [str(directory.parent) for directory in missing]

    def make_durable_directory(self, path: str) -> None:
        """Create a directory and its missing parents, and fsync their names."""
        for changed in self.make_directory(path):
            self.sync_directory(changed)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        Path(path).unlink(missing_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def read_file(self, path: str) -> bytes:
        """Read a whole small file."""
        return Path(path).read_bytes()

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole small file, and fsync the file but not its directory; a crash may leave any part of the data.

        A symbolic link, which may lead out of the store, is refused.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        try:
            self.write(descriptor, data, 0)
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file's content atomically: after a crash the file has the old or the new content."""
        beside = f"{path}.new"
        self.write_file(beside, data)
        os.rename(beside, path)  # noqa: PTH104 # paths are strings here, as errors name them
        self.sync_directory(str(Path(path).parent))

    def used_ratio(self, path: str) -> float:
        """Return the used share of a directory's disk, 0 to 1, rounded up to whole percents; 0 if the share is unknown.

        Source: ``UtilAll#getDiskPartitionSpaceUsedPercent``, whose -1 for a missing directory makes its caller
        delete files.
        """
        try:
            status = os.statvfs(path)
        except OSError:
            return 0.0
        used = status.f_blocks - status.f_bfree
        whole = used + status.f_bavail
        return -(-100 * used // whole) / 100 if whole else 0.0


class SegmentFile(NamedTuple):
    """A file whose name is the offset of its first byte."""

    start: int
    path: str
    size: int


def list_segments(directory: str) -> list[SegmentFile]:
    """List the segment files in a directory by offset; none if there is no directory. Other files are ignored."""
    files = []
    for path in Path(directory).iterdir() if Path(directory).is_dir() else []:
        start = paths.parse_segment_name(path.name)
        if start is not None and path.is_file():
            files.append(SegmentFile(start, str(path), path.stat().st_size))
    return sorted(files)
