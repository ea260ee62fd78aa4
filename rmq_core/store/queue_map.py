"""The part of a ConsumeQueue's file that is written through a map: one that the dispatch kernel can write to."""

import ctypes
import mmap
from typing import Final

from rmq_core.store.disk import Disk

_LEAST_WINDOW_BYTES: Final = 4096
_MOST_WINDOW_BYTES: Final = 256 << 10


class QueueMap:
    """A file that is written through a map: only where its blocks have been taken, lest a full disk end the process.

    Attributes:
        view: the whole file.
        address: of its first byte.
        allocated: bytes from the start that have their blocks.
        row: of the queue in the table of targets.
    """

    __slots__ = ("_map", "address", "allocated", "row", "view")

    def __init__(self, descriptor: int, size: int, row: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.allocated = 0
        self.row = row

    def reserve(self, descriptor: int, position: int, disk: Disk) -> int:
        """Have blocks from a position on, more the further the file is filled.

        Returns:
            Bytes that may be written from there on.
        """
        size = len(self.view)
        if self.allocated <= position:
            window = min(max(position, _LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)
            end = min(-(-(position + window) // _LEAST_WINDOW_BYTES) * _LEAST_WINDOW_BYTES, size)
            disk.allocate(descriptor, position, end - position)
            self.allocated = end
        return self.allocated - position
