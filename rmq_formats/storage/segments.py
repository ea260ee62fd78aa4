"""Opens and lists files of local disks and object stores.

A path is local, or any URI that ``pyarrow.fs`` opens (``s3://``, ``hdfs://``, ``gs://``). Local files are read with
``pread``, not mapped: a file that shrinks under a map kills the process, while a short read is reported as an error.
A URI may have a query, ``s3://bucket/store?endpoint_override=host:9000&scheme=http``. Names are joined to it as to any
path, so that every task can open the path it gets: ``…/store?scheme=http/commitlog/000…``. A query ends with the
first ``/`` that is not of a ``://``.
"""

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreNotFoundError, StoreSizeError
from rmq_formats.storage.range_reader import RangeReader

WRITE_DIRECTORY: Final = ".rmq-write"  # in a store: where a write works
PUBLISHING: Final = "publish.json"  # there: names what is being published, as long as it is
_TAIL_BLOCK_BYTES: Final = 4 << 20
_LAST_BLOCK_BYTES: Final = 64 << 10  # where the data of a full file ends, as a rule
_GCS_SCHEMES: Final = ("gs://", "gcs://")
_GCS_PATIENCE: Final = "retry_limit_seconds=30"  # its client tries for a quarter of an hour, without a word
_REASON_CHARACTERS: Final = 300  # libraries list each place where they looked
_QUERY: Final = re.compile(r"/*(\?(?:[^/]|(?<=:)//)*)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory entry.

    Attributes:
        size_bytes: 0 for a directory.
        version: a number that differs once the file has been changed or replaced: the time of its last change in ns
            (of a local file's inode, which, unlike that of its content, no copy tool sets back); 0 where none is known.
    """

    name: str
    is_directory: bool
    size_bytes: int
    version: int = field(default=0, compare=False)


class OpenRange(RangeReader, Protocol):
    """A file that is open for reads of ranges, up to the end of a ``with`` block."""

    size_bytes: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def data_end(self) -> int:
        """Find one past the last byte of the file that is not zero."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Storage(Protocol):
    """Storage backend: a local disk or an object store. Paths are those of ``open_storage``."""

    is_local: bool

    def entries(self, path: str) -> list[Entry]:
        """List a directory, sorted; empty where there is none."""
        ...

    def dangling_symlinks(self, path: str) -> list[str]:  # noqa: ARG002 # an object store has no links
        """List the links in a directory that ``entries`` passes over, sorted; empty if it cannot be listed."""
        return []

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        ...

    def open(self, path: str) -> OpenRange:
        """Open a file for reading. Raises StoreNotFoundError."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Read a whole (small) file. Raises StoreNotFoundError."""
        with self.open(path) as file:
            return read_range(file, 0, file.size_bytes)


def _data_end(reader: RangeReader, begin: int, end: int) -> int:
    """Find one past the last byte in ``[begin, end)`` that is not zero, searched from the back; else return begin."""
    from rmq_formats.kernels.scan import used_bytes  # noqa: PLC0415 # Spark's planning workers list files without kernels

    block_bytes = _LAST_BLOCK_BYTES
    while end > begin:
        at = max(begin, end - block_bytes)
        block = np.empty(end - at, dtype=np.uint8)
        used = int(used_bytes(block, reader.read_into(at, block.data)))
        if used:
            return at + used
        end, block_bytes = at, _TAIL_BLOCK_BYTES
    return begin


_NO_EXTENTS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})  # of a file system that does not know its holes


class _LocalFile(OpenRange):
    def __init__(self, path: str) -> None:
        try:
            # Non-blocking, as opening a named pipe would wait for a writer; regular files are not affected.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise StoreNotFoundError(f"{path}: no such file") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened ({error.strerror})") from error
        status = os.fstat(self._descriptor)
        if stat.S_ISFIFO(status.st_mode):
            self.close()
            raise StoreError(f"{path}: cannot be opened (it is a named pipe)")
        self.size_bytes = status.st_size
        self._path = path

    def read_into(self, offset: int, target: memoryview) -> int:
        done = 0
        while done < len(target):
            try:
                got = os.preadv(self._descriptor, [target[done:]], offset + done)
            except OSError as error:
                raise StoreError(f"{self._path}: cannot be read at {offset + done} ({error.strerror})") from error
            if got == 0:
                break
            done += got
        return done

    def data_end(self) -> int:
        """Find one past the last byte that is not zero; skips holes, of which Java's preallocated files mostly are.

        Raises StoreError: the file cannot be read.
        """
        end = self.size_bytes
        for begin, extent_end in reversed(self._extents()):
            data_end = _data_end(self, begin, min(extent_end, end))
            if data_end > begin:
                return data_end
        return 0

    def _extents(self) -> list[tuple[int, int]]:
        extents, at = [], 0
        while at < self.size_bytes:
            try:
                begin = os.lseek(self._descriptor, at, os.SEEK_DATA)
                end = os.lseek(self._descriptor, begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                if error.errno not in _NO_EXTENTS:
                    raise StoreError(f"{self._path}: cannot be read at {at} ({error.strerror})") from error
                begin, end = at, self.size_bytes
            extents.append((begin, end))
            at = end
        return extents

    def close(self) -> None:
        os.close(self._descriptor)


def _entry(item: os.DirEntry[str]) -> Entry | None:
    """Describe a directory entry; None for a link to nowhere, and for what was deleted since it was listed."""
    try:
        if item.is_dir():
            return Entry(item.name, True, 0)
        status = item.stat()
        return Entry(item.name, False, status.st_size, status.st_ctime_ns)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR}:
            return None
        raise


class LocalStorage(Storage):
    """Storage of local files or of a shared mount."""

    is_local = True

    def entries(self, path: str) -> list[Entry]:
        """List a directory, sorted; empty where there is none."""
        try:
            with os.scandir(path) as scan:
                entries = [entry for item in scan if (entry := _entry(item)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"{path}: cannot be listed ({error.strerror})") from error
        return sorted(entries, key=lambda entry: entry.name)

    def dangling_symlinks(self, path: str) -> list[str]:
        """List the links in a directory that ``entries`` passes over, sorted; empty if it cannot be listed."""
        try:
            with os.scandir(path) as scan:
                return sorted(item.name for item in scan if item.is_symlink() and not Path(item.path).exists())
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        return Path(path).exists()

    def open(self, path: str) -> OpenRange:
        """Open a file for reading."""
        return _LocalFile(path)


class _ArrowFile(OpenRange):
    def __init__(self, file_system: pafs.FileSystem, path: str) -> None:
        try:
            self._file = file_system.open_input_file(path)
        except FileNotFoundError:
            raise StoreNotFoundError(f"{path}: no such object") from None
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be opened ({_reason(error)})") from error
        self.size_bytes = int(self._file.size())
        self._path = path

    def read_into(self, offset: int, target: memoryview) -> int:
        try:
            got = self._file.read_at(min(len(target), max(0, self.size_bytes - offset)), offset)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self._path}: cannot be read at {offset} ({_reason(error)})") from error
        target[: len(got)] = got
        return len(got)

    def data_end(self) -> int:
        return _data_end(self, 0, self.size_bytes)

    def close(self) -> None:
        self._file.close()


def _reason(error: Exception) -> str:
    """Return a library's error on one line, shortened."""
    words = " ".join(str(error).split())
    return words if len(words) <= _REASON_CHARACTERS else f"{words[:_REASON_CHARACTERS]} …"


def split_query(uri: str) -> tuple[str, str]:
    """Split a URI, or a path below one, into the part before the query and the query with its ``?``, empty if none."""
    query = _QUERY.search(uri)
    if query is None:
        return uri, ""
    return uri[: query.start()] + uri[query.end() :].rstrip("/"), query.group(1)


def canonical_path(path: str) -> PurePosixPath:
    """Normalise a path or URI: without credentials, query, links and Hadoop's aliases of S3."""
    path = re.sub(r"^file:(//)?(?=/)", "", path)
    if "://" not in path:
        return PurePosixPath(Path(path).resolve())
    scheme, _, rest = split_query(path)[0].partition("://")
    bucket, slash, name = rest.partition("/")
    bucket = bucket.rpartition("@")[2]
    return PurePosixPath(f"{re.sub('^s3[an]$', 's3', scheme)}:{posixpath.normpath(bucket + slash + name)}")


class ArrowStorage(Storage):
    """Storage in a ``pyarrow.fs`` file system; each process resolves the URI anew."""

    is_local = False

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._location, query = split_query(uri)
        if self._location.startswith(_GCS_SCHEMES) and "retry_limit_seconds" not in query:
            query = f"{query}&{_GCS_PATIENCE}" if query else f"?{_GCS_PATIENCE}"
        try:
            self.file_system, root = pafs.FileSystem.from_uri(self._location + query)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"{uri}: cannot be opened ({_reason(error)})") from error
        self._root = root.rstrip("/")

    def __reduce__(self) -> tuple[type["ArrowStorage"], tuple[str]]:
        return ArrowStorage, (self._uri,)

    def inner(self, path: str) -> str:
        """Return the file system's own name for a path."""
        return f"{self._root}{split_query(path)[0].removeprefix(self._location)}"

    def entries(self, path: str) -> list[Entry]:
        """List a directory, sorted; empty where there is none."""
        selector = pafs.FileSelector(self.inner(path), allow_not_found=True)
        try:
            infos: list[Any] = self.file_system.get_file_info(selector)
        except NotADirectoryError:
            return []
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be listed ({_reason(error)})") from error
        directory = pafs.FileType.Directory
        entries = [Entry(info.base_name, info.type == directory, info.size or 0, info.mtime_ns or 0) for info in infos]
        return sorted(entries, key=lambda entry: entry.name)

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        try:
            return bool(self.file_system.get_file_info(self.inner(path)).type != pafs.FileType.NotFound)
        except (OSError, pa.ArrowException) as error:  # Azure reports bad credentials by the latter
            raise StoreError(f"{path}: cannot be looked up ({_reason(error)})") from error

    def open(self, path: str) -> OpenRange:
        """Open a file for reading."""
        return _ArrowFile(self.file_system, self.inner(path))


def open_storage(path: str) -> tuple[Storage, str]:
    """Return the storage of ``path`` and the path to join names to: without a slash at its end, a URI's query there.

    Raises StoreError if the URI's scheme is unknown or its store does not answer.
    """
    path = path.rstrip("/") or "/"
    if "://" not in path:
        return LocalStorage(), path
    if path.startswith("file://"):
        return LocalStorage(), path.removeprefix("file://")
    location, query = split_query(path)
    path = location.rstrip("/") + query
    return ArrowStorage(path), path


def read_range(file: OpenRange, offset: int, size_bytes: int) -> bytes:
    """Read ``size_bytes`` bytes from ``offset`` on, fewer at the file's end."""
    target = bytearray(size_bytes)
    got = file.read_into(offset, memoryview(target))
    return bytes(target[:got])


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a sequence of files, each named by the offset of its first byte.

    Attributes:
        head_bytes: in front of each record: 48 in a DLedger CommitLog, else 0.
        log_bytes: bytes from the file's begin that belong to the log, if leftovers of an earlier recovery follow; None
            if all bytes up to the last that is not zero belong to it.
    """

    path: str
    start_offset: int
    size_bytes: int
    head_bytes: int = 0
    version: int = field(default=0, compare=False)
    log_bytes: int | None = None

    @property
    def end_offset(self) -> int:
        """Offset one past the file's last byte."""
        return self.start_offset + self.size_bytes

    def data_end(self, file: OpenRange) -> int:
        """Find the end of the data in the file, which is open: one past the log's last byte that is not zero."""
        if self.log_bytes is not None:
            return self.log_bytes
        return min(file.data_end(), self.size_bytes)


def list_segments(storage: Storage, directory: str, head_bytes: int = 0) -> list[Segment]:
    """List the segments of a CommitLog or queue directory, by offset; other names are passed over."""
    segments = []
    for entry in storage.entries(directory):
        start_offset = paths.parse_segment_name(entry.name, entry.size_bytes)
        if start_offset is not None and not entry.is_directory:
            path = f"{directory}/{entry.name}"
            segments.append(Segment(path, start_offset, entry.size_bytes, head_bytes, entry.version))
    return segments


def refuse_overlaps(segments: Sequence[Segment]) -> None:
    """Refuse files, sorted by offset, of which two have the same offsets. Raises StoreSizeError."""
    for before, after in pairwise(segments):
        if before.end_offset > after.start_offset:
            raise StoreSizeError(f"{after.path}: begins inside of {before.path} ({before.size_bytes} bytes)")


REQUESTS_AT_ONCE: Final = 128  # of a task
_WAITING: Final = 4096  # requests that a pool is given before their answers are taken: each takes a kilobyte

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


def request_all(
    storage: Storage, request: Callable[[Argument], Answer], arguments: Sequence[Argument]
) -> Iterator[Answer]:
    """Send a request per argument, and yield the answers in that order: in threads, or one by one on a disk."""
    if storage.is_local or len(arguments) < 2:
        yield from map(request, arguments)
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for at in range(0, len(arguments), _WAITING):
            yield from pool.map(request, arguments[at : at + _WAITING])
