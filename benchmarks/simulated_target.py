"""A simulated object store into which a rebuild has put a file of each of its queues: all is there but the publication.

Names of objects and the notes of tasks are computed; copies are counted. Objects that the driver puts are kept, but for
the manifest, of which the size is.
"""

import functools
import io
import json
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.fs as pafs

from benchmarks.simulated_store import ROOT, SimulatedStore
from rmq_offline.tasks.object_workspace import MANIFEST
from rmq_offline.tasks.waves import MAX_PARTITIONS, WORK_DIRECTORY

QUEUE_FILE_BYTES: Final = 400
_NOTES: Final = f"{ROOT}/{WORK_DIRECTORY}/files"


class _Put(io.BytesIO):
    """An object that is being written."""

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


class _Object:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read_at(self, size: int, offset: int) -> bytes:
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


@functools.lru_cache(maxsize=1)  # for it is asked for its size before it is read
def _note(task: int, queues: int) -> bytes:
    """Return the note of a task: a file of each of its queues."""
    numbers = range(task, queues, MAX_PARTITIONS)
    names = (f"consumequeue/Topic{number % 1000:04d}/{number // 1000}/{0:020d}" for number in numbers)
    return json.dumps(dict.fromkeys(names, QUEUE_FILE_BYTES)).encode()


@dataclass
class SimulatedTarget(SimulatedStore):
    """A target of a rebuild of many queues.

    Attributes:
        manifest_bytes: of the manifest that was put.
        objects: that were put, by path.
    """

    segments: int = 0
    round_trip_s: float = 0
    queues: int = 0
    copies: int = 0
    manifest_bytes: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)

    def listed(self, directory: str) -> list[pafs.FileInfo]:
        """List the tasks' notes, the only entries that a rebuild lists."""
        names = [f"{_NOTES}/queues-{number:06d}" for number in range(MAX_PARTITIONS)] if directory == _NOTES else []
        return [pafs.FileInfo(name, pafs.FileType.File, size=0) for name in names]

    def info(self, name: str) -> pafs.FileInfo:
        """Describe an object."""
        if name in self.objects or name.startswith(f"{_NOTES}/"):
            return pafs.FileInfo(name, pafs.FileType.File, size=len(self._data(name)))
        return pafs.FileInfo(name, pafs.FileType.NotFound)

    def opened(self, path: str, _size_bytes: int) -> _Object:
        """Return an open object."""
        return _Object(self._data(path))

    def _data(self, path: str) -> bytes:
        return self.objects[path] if path in self.objects else _note(int(path[-6:]), self.queues)

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
