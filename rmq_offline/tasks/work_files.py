"""Files in a job's work area: the port of a work area, and text and int64 arrays as files."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

WORK_DIRECTORY: Final = ".rmq-rebuild"  # below the root that is published into


class Area(Protocol):
    """Work area in which a rebuild's tasks write intermediate files, notes of done tasks, and ``new/``, the result."""

    def path(self, name: str) -> str:
        """Return the path or URI of a file."""

    def exists(self, name: str) -> bool:
        """Return whether a file exists, which then is complete."""

    def read_text(self, name: str) -> str:
        """Read a small text file."""

    def read_bytes(self, name: str) -> bytes:
        """Read a file whole."""

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file atomically, by a function of a path: a reader sees all of the file or none."""

    def note_files(self, task: str, files: Mapping[str, int]) -> None:
        """Note the files below ``new/`` that a task has written, with their sizes in bytes, for the publication."""


def write_whole(path: Path, work: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or none.

    A killed task leaves its half elsewhere, as a broker does not start if a queue has a foreign file.
    """
    temporary = work / "part" / f"{path.name}.{uuid.uuid4().hex}"
    write(temporary)
    temporary.replace(path)


def write_bytes(area: Area, name: str, data: bytes) -> None:
    """Write a small file."""

    def write(target: Path) -> None:
        target.write_bytes(data)

    area.write(name, write)


def write_text(area: Area, name: str, text: str) -> None:
    """Write a small text file."""
    write_bytes(area, name, text.encode())


def write_longs(work: Area, name: str, **arrays: NDArray[np.int64]) -> None:
    """Write flat int64 arrays by their names.

    Not as numpy's own files: numpy parses their heads with ``ast``, which Python 3.11 may fail to do in two threads
    at once ("AST constructor recursion depth mismatch"), and several stores are verified by threads.
    """
    images = {key: array.astype("<i8", copy=False).tobytes() for key, array in arrays.items()}
    write_bytes(work, name, msgspec.msgpack.encode(images))


def read_longs(work: Area, name: str) -> dict[str, NDArray[np.int64]]:
    """Read what ``write_longs`` wrote."""
    images = msgspec.msgpack.decode(work.read_bytes(name), type=dict[str, bytes])
    return {key: np.frombuffer(image, dtype="<i8").copy() for key, image in images.items()}
