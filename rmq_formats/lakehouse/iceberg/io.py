"""Metadata files of an Iceberg table that are on the disk before the catalog names them."""

import os
from pathlib import Path
from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from rmq_formats.tasks.publish import sync_directory


class ForcedFileIO(PyArrowFileIO):
    """pyiceberg's files of this machine, forced when they are closed: a power cut takes none that was committed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        return _ForcedFile(super().new_output(location))


class _ForcedFile(PyArrowFile):
    def __init__(self, file: PyArrowFile) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Create the file."""
        return _ForcedStream(super().create(overwrite), Path(self._path))


class _ForcedStream(OutputStream):
    """Stream that forces its file and the names that lead to it when it is closed."""

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
