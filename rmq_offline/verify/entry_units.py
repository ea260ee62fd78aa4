"""Reads the units of DLedger's index beside a walk over the entries of the log: one block of them at a time."""

import bisect
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.codecs.variants.dledger import INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.storage.segments import OpenRange, Segment, Storage, list_segments

BLOCK_BYTES: Final = 256 << 10  # 8,192 units: small enough for a core's cache, large enough for a request


def index_directory(data_path: str) -> str:
    """Return the directory of DLedger's index, beside that of the entries' files."""
    return f"{data_path.rsplit('/', 2)[0]}/index"


class EntryUnits:
    """The units of DLedger's index, of which one block is in memory.

    Args:
        directory: of its files, which are listed when the first unit is requested.

    Attributes:
        block: uint8[BLOCK_BYTES], units as the file has them.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self.block = np.zeros(BLOCK_BYTES, dtype=np.uint8)
        self._storage, self._directory = storage, directory
        self._segments: list[Segment] | None = None
        self._file: tuple[Segment, OpenRange] | None = None
        self._begin = self._end = 0  # of the block, in bytes of the index

    def find(self, index: int) -> tuple[int, int]:
        """Load the block that has the unit of an entry.

        Returns:
            The unit's position in the block, and the end of the block's units; (0, 0) where the index has no such unit.

        Raises:
            StoreError: the index cannot be read.
        """
        position = index * INDEX_UNIT_BYTES
        if not self._begin <= position < self._end:
            self._load(position)
        return (position - self._begin, self._end - self._begin) if self._begin <= position < self._end else (0, 0)

    def take(self, first_index: int, count: int) -> NDArray[np.void]:
        """Return the units of that many entries in a row, INDEX_UNIT_DTYPE[count]; zeros where there is none.

        Raises:
            StoreError: the index cannot be read.
        """
        units = np.zeros(count, dtype=INDEX_UNIT_DTYPE)
        row = 0
        while row < count:
            at, end = self.find(first_index + row)
            block_units = self.block[at:end].view(INDEX_UNIT_DTYPE)[: count - row]
            units[row : row + len(block_units)] = block_units
            row += len(block_units) or self._count_missing(first_index + row)
        return units

    def _count_missing(self, index: int) -> int:
        """Count the units from a missing one to the next file."""
        position = index * INDEX_UNIT_BYTES
        begins = [segment.start_offset for segment in self._segments or () if segment.start_offset > position]
        return -(-(min(begins) - position) // INDEX_UNIT_BYTES) if begins else MAX_LONG

    def _load(self, position: int) -> None:
        """Fill the block from ``position`` on, as far as its file goes; a unit that the file's end cuts has zeros."""
        segment = self._segment_of(position)
        if segment is None:
            self._begin = self._end = 0
            return
        at = position - segment.start_offset
        got = self._opened(segment).read_into(at, self.block[: segment.size_bytes - at].data)
        end = got + -got % INDEX_UNIT_BYTES
        self.block[got:end] = 0
        self._begin, self._end = position, position + end

    def _segment_of(self, position: int) -> Segment | None:
        if self._segments is None:
            self._segments = list_segments(self._storage, self._directory)
        number = bisect.bisect_right(self._segments, position, key=lambda segment: segment.start_offset) - 1
        return self._segments[number] if number >= 0 and position < self._segments[number].end_offset else None

    def _opened(self, segment: Segment) -> OpenRange:
        if self._file is None or self._file[0] != segment:
            self.close()
            self._file = segment, self._storage.open(segment.path)
        return self._file[1]

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file[1].close()
            self._file = None
