"""Files of an Iceberg table: metadata on a disk before the catalog names it, and the object store that tasks open."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from rmq_offline.tasks.publish import sync_directory

_OF_STORES: Final = ("s3.", "client.")  # properties of an object store; a catalog's own ones stay in the driver


@dataclass(frozen=True, slots=True)
class TableFileSystem:
    """Opens the file system of a table's files as pyiceberg does; see ``files.Connect``."""

    location: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, location: str, io: FileIO) -> "TableFileSystem":
        """Select the properties of the object store from those of a table's catalog or configuration."""
        properties = ((name, str(value)) for name, value in io.properties.items() if name.startswith(_OF_STORES))
        return cls(location, tuple(sorted(properties)))

    def io(self) -> PyArrowFileIO:
        return PyArrowFileIO(dict(self.properties))

    def __call__(self) -> pafs.FileSystem:
        url = urlsplit(self.location)
        return self.io().fs_by_scheme(url.scheme, url.netloc)


class FsyncFileIO(PyArrowFileIO):
    """File IO of pyiceberg that syncs files to disk on close, so that no power cut loses committed files."""

    def new_output(self, location: str) -> PyArrowFile:
        return _FsyncFile(super().new_output(location))


class _FsyncFile(PyArrowFile):
    def __init__(self, file: PyArrowFile) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _FsyncStream(super().create(overwrite), Path(self._path))


class _FsyncStream(OutputStream):
    """Stream that syncs its file and the directories above it to disk when it is closed."""

    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream, self._path = stream, path

    def write(self, b: bytes) -> int:
        return self._stream.write(b)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        for directory in (self._path.parent, self._path.parent.parent):
            sync_directory(directory)

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
