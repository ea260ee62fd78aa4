"""A mapped ConsumeQueue file, which the dispatch kernel writes to as far as disk blocks are allocated."""

import ctypes
import mmap
from typing import Final

from rmq_core.store.files.disk import Disk

_LEAST_WINDOW_BYTES: Final = 4096
_MOST_WINDOW_BYTES: Final = 256 << 10


class QueueMap:
    """A mapped queue file; writes must stay below ``allocated``, as a full disk would end the process.

    Attributes:
        view: the whole file.
        address: of its first byte in memory.
        allocated: bytes from the start whose disk blocks are allocated.
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
        """Allocate disk blocks from a position on, more the further the file is filled.

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
