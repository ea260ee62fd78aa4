"""Pieces that a write's task leaves for the commit: encoded records without offsets yet, in files beside the store."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.encode import EncodeOptions, RowEncoder
from rmq_formats.errors import StoreError
from rmq_formats.kernels.encode import rows as kernel

PIECE_BYTES: Final = 256 << 20  # bounds what the commit holds of a piece: the tiniest records give 2.8 M rows

Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded records of one task, in ``PATH.records`` and ``PATH.rows``, with the first and the last ORDER_KEY.

    ``is_sorted`` means that keys never go down.
    """

    path: str
    row_count: int
    first_key: int
    last_key: int
    is_sorted: bool

    def rows(self) -> Table:
        """Read the table of the records, int64[row_count, ENCODED_COLUMNS]."""
        return np.fromfile(f"{self.path}.rows", dtype=np.int64).reshape(-1, kernel.ENCODED_COLUMNS)

    def records(self) -> NDArray[np.uint8]:
        """Map the records' bytes, uint8[n]."""
        return np.memmap(f"{self.path}.records", dtype=np.uint8, mode="r")


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """Pieces that one task wrote, in the order of its rows, and the topics and ids of the queues by their numbers."""

    pieces: tuple[Piece, ...]
    queues: tuple[tuple[str, int], ...]


class _PieceFile:
    """Writer of one piece."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / uuid.uuid4().hex
        self._records: BinaryIO = self._path.with_suffix(".records").open("xb", buffering=0)
        self._rows: BinaryIO = self._path.with_suffix(".rows").open("xb")
        self.byte_count = self._row_count = 0
        self._first_key: int | None = None
        self.last_key = 0
        self._is_sorted = True

    def append(self, records: NDArray[np.uint8], rows: Table) -> None:
        keys = rows[:, kernel.ORDER_KEY]
        if self._first_key is None:
            self._first_key = self.last_key = int(keys[0])
        self._is_sorted &= self.last_key <= keys[0] and bool((keys[1:] >= keys[:-1]).all())
        self.last_key = int(keys[-1])
        self._row_count += len(rows)
        unwritten = records.data
        while len(unwritten):
            unwritten = unwritten[self._records.write(unwritten) :]
        self.byte_count += len(records)
        self._rows.write(rows.data)

    def finish(self) -> Piece:
        self._records.close()
        self._rows.close()
        return Piece(str(self._path), self._row_count, self._first_key or 0, self.last_key, self._is_sorted)


def write_pieces(batches: Iterable[pa.RecordBatch], directory: Path, options: EncodeOptions) -> WrittenTask:
    """Encode rows, and write them as pieces beside the store; the task of a write.

    A piece ends when it is large, or when the next rows sort before its last one: such pieces can be put
    into log order without a look at their rows.

    Raises:
        StoreError: a row that no store can hold, or a disk that is full.
    """
    encoder = RowEncoder(options)
    pieces: list[Piece] = []
    file: _PieceFile | None = None
    try:
        for batch in batches:
            for encoded in encoder.encode(batch):
                first_key = int(encoded.rows[0, kernel.ORDER_KEY])
                if file is not None and (file.byte_count >= PIECE_BYTES or first_key < file.last_key):
                    pieces.append(file.finish())
                    file = None
                if file is None:
                    file = _PieceFile(directory)
                file.append(encoded.records, encoded.rows)
        if file is not None:
            pieces.append(file.finish())
    except FileNotFoundError as error:
        raise StoreError(f"{directory}: is gone; another write into this store has begun") from error
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
    return WrittenTask(tuple(pieces), tuple(encoder.queue_names()))
