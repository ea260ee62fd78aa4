"""Memory with a page behind it, or before it, that no one may touch: a stray load ends the process."""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@contextmanager
def guarded(data: bytes, *, at_end: bool = True) -> Iterator[NDArray[np.uint8]]:
    """An array of these bytes that ends, or begins, where readable memory does."""
    pages = 1 + len(data) // mmap.PAGESIZE
    inner_bytes = pages * mmap.PAGESIZE
    memory = mmap.mmap(-1, inner_bytes + 2 * mmap.PAGESIZE)
    whole: NDArray[Any] = np.frombuffer(memory, dtype=np.uint8)
    begin = mmap.PAGESIZE + (inner_bytes - len(data) if at_end else 0)
    array = whole[begin : begin + len(data)]
    array[:] = np.frombuffer(data, dtype=np.uint8)
    first = whole.ctypes.data
    guards = [first, first + mmap.PAGESIZE + inner_bytes]
    for guard in guards:
        assert _LIBC.mprotect(guard, mmap.PAGESIZE, 0) == 0
    try:
        yield array
    finally:
        for guard in guards:
            _LIBC.mprotect(guard, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
