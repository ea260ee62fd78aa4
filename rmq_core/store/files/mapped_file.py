"""File of fixed size that is opened and mapped into memory on first use."""

import mmap
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.files.disk import Disk


class MappedFile:
    """One file of a store, of fixed size, that is opened and mapped on its first use.

    The map lives as long as one of its slices: slices of a deleted file stay readable.
    """

    def __init__(self, path: str, size: int, disk: Disk, descriptor: int | None = None) -> None:
        """Create the object without opening the file; an open ``descriptor`` is closed with this object."""
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
        """File descriptor, open for reading and writing."""
        if self._descriptor is None:
            self._descriptor = self._disk.open(self.path)
        return self._descriptor

    @property
    def map(self) -> mmap.mmap:
        """The map of the whole file."""
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, self.size)
        return self._map

    @property
    def view(self) -> memoryview:
        """The whole file as a memoryview."""
        if self._view is None:
            self._view = memoryview(self.map)
        return self._view

    @property
    def array(self) -> NDArray[np.uint8]:
        """The whole file as uint8[size], for kernels."""
        if self._array is None:
            self._array = np.frombuffer(self.map, dtype=np.uint8)
        return self._array

    def track_readers(self) -> Callable[[], bool]:
        """Return a function that is true while another object refers to this file or to a slice of its map."""
        if self._map is None:
            return lambda: False
        reference = weakref.ref(self._map)
        return lambda: reference() is not None

    def unmap(self) -> None:
        """Drop the map; the next use maps the file again."""
        self._view = self._array = self._map = None

    def release(self) -> None:
        """Drop the map and close the descriptor; the next use opens the file again."""
        self.unmap()
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None
