"""A file of fixed size that is open and mapped from its first use on."""

import mmap

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.disk import Disk


class MappedFile:
    """One file.

    The map lives as long as a slice of it does: a file that was deleted stays readable to those who hold one.

    Attributes:
        path: of the file.
        size: of the file, bytes.
    """

    def __init__(self, path: str, size: int, disk: Disk, descriptor: int | None = None) -> None:
        """Know a file.

        Args:
            path: of the file.
            size: of the file, bytes.
            disk: where it is.
            descriptor: of the file, if it is open already; it is this object's from now on.
        """
        self.path = path
        self.size = size
        self._disk = disk
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._array: NDArray[np.uint8] | None = None

    def __del__(self) -> None:
        if self._descriptor is not None:
            self._disk.close(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The file, open for reading and writing."""
        if self._descriptor is None:
            self._descriptor = self._disk.open(self.path)
        return self._descriptor

    @property
    def map(self) -> mmap.mmap:
        """The whole file, mapped."""
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, self.size)
        return self._map

    @property
    def view(self) -> memoryview:
        """The whole file."""
        if self._view is None:
            self._view = memoryview(self.map)
        return self._view

    @property
    def array(self) -> NDArray[np.uint8]:
        """The whole file, for kernels."""
        if self._array is None:
            self._array = np.frombuffer(self.map, dtype=np.uint8)
        return self._array

    def unmap(self) -> None:
        """Give the map up until the file is used again."""
        self._view = self._array = self._map = None

    def release(self) -> None:
        """Give the map and the descriptor up until the file is used again."""
        self.unmap()
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None
