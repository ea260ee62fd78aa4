"""Simulated object stores: a CommitLog whose requests need round trips, and the target of a rebuild of many queues.

Nothing is stored: listings, sizes and bytes are computed. ``ArrowStorage`` and all above it are the product's own.
"""

import functools
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import pyarrow.fs as pafs

from rmq_formats.codecs import paths
from rmq_formats.storage.segments import ArrowStorage
from rmq_offline.tasks.log_tasks import MAX_PARTITIONS
from rmq_offline.tasks.object_work_area import MANIFEST
from rmq_offline.tasks.work_files import WORK_DIRECTORY

URI: Final = "simulated://bucket/store"
KEYS_PER_PAGE: Final = 1000  # of a listing, in S3
ROOT: Final = "bucket/store"
LOG: Final = f"{ROOT}/commitlog"
_CHANGED_NS: Final = 1_760_000_000_000_000_000
QUEUE_FILE_BYTES: Final = 400
_WORK_FILES: Final = f"{ROOT}/{WORK_DIRECTORY}/files"


@dataclass
class Requests:
    """Counter of the store's requests, in all and in flight."""

    count: int = 0
    most_at_once: int = 0
    _under_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def one(self, seconds: float) -> Iterator[None]:
        """Sleep for a round trip."""
        with self._lock:
            self.count += 1
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        if seconds:
            time.sleep(seconds)
        yield
        with self._lock:
            self._under_way -= 1


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Open file whose bytes are computed, with the methods of a ``pyarrow.NativeFile`` that reads need."""

    size_bytes: int
    read_at: Callable[[int, int], bytes]  # size and offset
    close: Callable[[], None] = lambda: None

    def size(self) -> int:
        """Return the size in bytes."""
        return self.size_bytes


@dataclass
class SimulatedStore:
    """A store of only a CommitLog, with the methods of a ``pyarrow.fs.FileSystem`` that reads need."""

    segments: int
    segment_bytes: int = 1 << 30
    round_trip_s: float = 0.02  # of a request; a listing takes a request for each page
    requests: Requests = field(default_factory=Requests)

    def get_file_info(self, name_or_selector: str | pafs.FileSelector) -> pafs.FileInfo | list[pafs.FileInfo]:
        """Look up a name, or list a directory."""
        if isinstance(name_or_selector, str):
            with self.requests.one(self.round_trip_s):
                return self.info(name_or_selector)
        entries = self.listed(name_or_selector.base_dir)
        for _ in range(0, max(1, len(entries)), KEYS_PER_PAGE):
            with self.requests.one(self.round_trip_s):
                pass
        return entries

    def listed(self, directory: str) -> list[pafs.FileInfo]:
        """Describe the entries of a directory."""
        return [self.info(f"{directory}/{name}") for name in self.names(directory)]

    def names(self, directory: str) -> list[str]:
        """Return the entries of a directory."""
        if directory == LOG:
            return [paths.segment_name(number * self.segment_bytes) for number in range(self.segments)]
        return ["commitlog"] if directory == ROOT else []

    def info(self, name: str) -> pafs.FileInfo:
        """Describe a file or directory."""
        if name in {ROOT, LOG}:
            return pafs.FileInfo(name, pafs.FileType.Directory)
        if name.startswith(f"{LOG}/"):
            return pafs.FileInfo(name, pafs.FileType.File, size=self.segment_bytes, mtime_ns=_CHANGED_NS)
        return pafs.FileInfo(name, pafs.FileType.NotFound)

    def open_input_file(self, path: str) -> Any:
        """Open a file; request the size first, as the client of S3."""
        with self.requests.one(self.round_trip_s):
            info = self.info(path)
            if info.type != pafs.FileType.File:
                raise FileNotFoundError(path)
        return self.opened(path, info.size)

    def opened(self, _path: str, size_bytes: int) -> OpenFile:
        """Return an open segment, whose bytes are all 1."""

        def read_at(size: int, _offset: int) -> bytes:
            with self.requests.one(self.round_trip_s):
                return b"\1" * size

        return OpenFile(size_bytes, read_at)

    @contextmanager
    def at_uri(self) -> Iterator[str]:
        """Serve the store at a URI in this process."""

        def init(storage: Any, uri: str) -> None:
            storage._uri, storage._location, storage._root, storage.file_system = uri, URI, ROOT, self

        with patch.object(ArrowStorage, "__init__", init):
            yield URI


class _Put(io.BytesIO):
    """Object that is being written."""

    def __init__(self, target: "SimulatedTarget", path: str) -> None:
        super().__init__()
        self._target, self._path = target, path

    def write(self, data: Any) -> int:
        if self._path.endswith(MANIFEST):
            self._target.manifest_bytes += len(data)
            return len(data)
        return super().write(data)

    def close(self) -> None:
        self._target.objects[self._path] = self.getvalue()
        super().close()


@functools.lru_cache(maxsize=1)  # the size is requested before the bytes
def _work_file(task: int, queues: int) -> bytes:
    """Return the work file of a task, with a file of each of its queues."""
    numbers = range(task, queues, MAX_PARTITIONS)
    names = (f"consumequeue/Topic{number % 1000:04d}/{number // 1000}/{0:020d}" for number in numbers)
    return json.dumps(dict.fromkeys(names, QUEUE_FILE_BYTES)).encode()


@dataclass
class SimulatedTarget(SimulatedStore):
    """A store after a rebuild of all queues, before the publication.

    Names of objects and the work files of tasks are computed; copies are counted. Objects that the driver puts are
    stored, but of the manifest only the size.
    """

    segments: int = 0
    round_trip_s: float = 0
    queues: int = 0
    copies: int = 0
    manifest_bytes: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)  # by path

    def listed(self, directory: str) -> list[pafs.FileInfo]:
        """List the work files of tasks, the only entries that a rebuild lists."""
        numbers = range(MAX_PARTITIONS if directory == _WORK_FILES else 0)
        names = [f"{_WORK_FILES}/queues-{number:06d}" for number in numbers]
        return [pafs.FileInfo(name, pafs.FileType.File, size=0) for name in names]

    def info(self, name: str) -> pafs.FileInfo:
        """Describe an object."""
        if name in self.objects or name.startswith(f"{_WORK_FILES}/"):
            return pafs.FileInfo(name, pafs.FileType.File, size=len(self._data(name)))
        return pafs.FileInfo(name, pafs.FileType.NotFound)

    def opened(self, path: str, size_bytes: int) -> OpenFile:
        """Return an open object."""
        data = self._data(path)
        return OpenFile(size_bytes, lambda size, offset: data[offset : offset + size])

    def _data(self, path: str) -> bytes:
        return self.objects[path] if path in self.objects else _work_file(int(path[-6:]), self.queues)

    def open_output_stream(self, path: str) -> _Put:
        """Begin to put an object."""
        return _Put(self, path)

    def copy_file(self, _source: str, _target: str) -> None:
        """Count a copy."""
        with self.requests.one(0):
            self.copies += 1

    def delete_file(self, path: str) -> None:
        """Delete an object."""
        self.objects.pop(path, None)
