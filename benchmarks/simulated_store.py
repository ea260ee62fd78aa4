"""Simulated object store: a CommitLog of any number of segments, each request of which needs a round trip.

Nothing is stored: listings, sizes and bytes are computed. ``ArrowStorage`` and all above it are the product's own.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import pyarrow.fs as pafs

from rmq_formats.codecs import paths
from rmq_formats.storage.segments import ArrowStorage

URI: Final = "simulated://bucket/store"
KEYS_PER_PAGE: Final = 1000  # of a listing, in S3
ROOT: Final = "bucket/store"
LOG: Final = f"{ROOT}/commitlog"
_CHANGED_NS: Final = 1_760_000_000_000_000_000


@dataclass
class Requests:
    """Counter of the store's requests: their number, and the largest number in flight."""

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


class _Segment:
    """An open segment whose bytes are all 1: what is not read does not exist."""

    def __init__(self, store: "SimulatedStore") -> None:
        self._store = store

    def size(self) -> int:
        return self._store.segment_bytes

    def read_at(self, size: int, _offset: int) -> bytes:
        with self._store.requests.one(self._store.round_trip_s):
            return b"\1" * size

    def close(self) -> None:
        pass


@dataclass
class SimulatedStore:
    """A store of nothing but a CommitLog, with those methods of a ``pyarrow.fs.FileSystem`` that reads need.

    Attributes:
        round_trip_s: seconds that a request takes; a listing takes one for each page.
    """

    segments: int
    segment_bytes: int = 1 << 30
    round_trip_s: float = 0.02
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
        """Open a file; like S3's client, request the file's size."""
        with self.requests.one(self.round_trip_s):
            info = self.info(path)
            if info.type != pafs.FileType.File:
                raise FileNotFoundError(path)
        return self.opened(path, info.size)

    def opened(self, _path: str, _size_bytes: int) -> Any:
        """Return an open file."""
        return _Segment(self)

    @contextmanager
    def at_uri(self) -> Iterator[str]:
        """Serve it at a URI, in this process."""

        def connect(storage: Any) -> None:
            storage._location, storage._root, storage.file_system = URI, ROOT, self

        with patch.object(ArrowStorage, "_connect", connect):
            yield URI
