"""Keeps what is loaded once out of the way: of the collector, and of memory where only the start needs it."""

import ctypes
import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_COMPILER: Final = "libllvmlite"


@contextmanager
def lasting() -> Iterator[None]:
    """What is made meanwhile lives as long as the process: the collector looks at it neither now nor later.

    numba and its kernels are some 110,000 objects to go over, again and again while they are made, and later in a
    pause of 70 ms each time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def release_compiler() -> None:
    """Drop the pages of numba's compiler: fifty megabytes of code that no one runs once the kernels are there.

    They are clean pages of a file, mapped to be executed, and come back when they are touched. Nothing is
    done where that cannot be (no Linux).
    """
    with suppress(OSError, AttributeError, ValueError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            addresses, access, *_ = line.split(maxsplit=2)
            if access == "r-xp" and _COMPILER in line:
                begin, end = (int(address, 16) for address in addresses.split("-"))
                madvise(begin, end - begin, mmap.MADV_DONTNEED)
