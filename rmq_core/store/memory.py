"""Gives memory back that is needed only to get started."""

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

_COMPILER: Final = "libllvmlite"


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
