"""Files of tables: their sizes, by splits of the log and Delta's optimized writes, and the stores that have them.

A file store is a directory of a file system that all machines share, or an object store.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from rmq_formats.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_FILE_BYTES: Final = 128 << 20
FEW_TOPICS: Final = 8  # with so few topics each task writes files of the target size without a shuffle
_MIN_TOPIC_FILE_BYTES: Final = 16 << 20
_MIN_SPLIT_BYTES: Final = 8 << 20  # smaller splits make small files for nothing: a task costs some 100 ms
Connect = Callable[[], pafs.FileSystem]
"""Opens an object store's file system. Tasks get it pickled, with its credentials, so its ``repr`` must not have them;
hashable."""
OBJECT_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})


def may_write_apart(topics: int, span_bytes: int, tasks: int) -> bool:
    """Return whether tasks may write files without a shuffle, since the files of each topic are large enough."""
    return tasks <= 1 or topics <= FEW_TOPICS or span_bytes // (tasks * topics) >= _MIN_TOPIC_FILE_BYTES


def set_file_sizes(spark: "SparkSession", topics: int) -> None:
    """Configure Delta so that it writes files of about the target size.

    Each task writes a file for each topic of its rows. With many topics, where these files would be many and small,
    Delta shuffles rows by partition first.
    """
    spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", str(topics > FEW_TOPICS).lower())
    spark.conf.set("spark.databricks.delta.optimizeWrite.binSize", f"{TARGET_FILE_BYTES >> 20}m")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET_FILE_BYTES))


def split_bytes(topics: int, span_bytes: int, processors: int) -> int:
    """Return the split size: files of the target size for ``topics`` at most, if all processors then have work."""
    target_bytes = TARGET_FILE_BYTES * min(max(topics, 1), FEW_TOPICS)
    return max(_MIN_SPLIT_BYTES, min(target_bytes, -(-span_bytes // max(1, processors))))


class TableFileStore(Protocol):
    """File store of a table; paths are absolute, below the table's directory."""

    def open(self, path: str) -> Any:
        """Open a new file for writing, an Arrow stream. Raises OSError."""

    def finish(self, path: str, sink: Any) -> tuple[int, int]:
        """Close a file and make it durable; return its size in bytes and its time in ms. Raises OSError."""

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises OSError."""

    def delete(self, path: str) -> None:
        """Delete a file. Raises OSError."""


class LocalFileStore:
    """Directory of a file system. If it does not exist, this is not the file system of the table."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def open(self, path: str) -> Any:
        """Open a new file. Raises StoreError if the table's directory does not exist."""
        if not self._directory.is_dir():
            raise StoreError(f"{self._directory}: the table's directory does not exist on {socket.gethostname()}")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(path, "wb")

    def finish(self, path: str, sink: Any) -> tuple[int, int]:
        os.fsync(sink.fileno())  # on a machine of its own no one else does
        sink.close()
        status = Path(path).stat()
        return status.st_size, status.st_mtime_ns // 1_000_000

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def delete(self, path: str) -> None:
        Path(path).unlink()


@dataclass(frozen=True, slots=True)
class ObjectFileStore:
    """Object store, in which a closed file exists as a whole.

    A killed process leaves parts of an upload that nobody sees. The store's lifecycle rules remove them.
    """

    connect: Connect = field(repr=False)

    def open(self, path: str) -> Any:
        return _file_system(self.connect).open_output_stream(_inner(path))

    def finish(self, path: str, sink: Any) -> tuple[int, int]:  # noqa: ARG002 # closed, an object lasts
        size = int(sink.tell())
        sink.close()
        return size, time.time_ns() // 1_000_000

    def size(self, path: str) -> int:
        info: Any = _file_system(self.connect).get_file_info(_inner(path))
        if info.type != pafs.FileType.File:
            raise FileNotFoundError("No such object")
        return int(info.size)

    def delete(self, path: str) -> None:
        _file_system(self.connect).delete_file(_inner(path))


@lru_cache(maxsize=8)  # connections are kept; a run has a few tables
def _file_system(connect: Connect) -> pafs.FileSystem:
    return connect()


def _inner(path: str) -> str:
    """Return bucket and key of a URI, as ``pyarrow.fs`` has them."""
    return path.partition("://")[2]
