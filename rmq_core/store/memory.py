"""Keeps what is loaded once out of the way: of the collector, and of memory where only the start needs it."""

import ctypes
import gc
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_COMPILER: Final = "libllvmlite"
_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n(?:[A-Z].*\n)*?Private_Dirty: +(\d+) kB", re.MULTILINE
)


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
    """Drop the pages of numba's compiler: sixty megabytes of code and tables that no one needs with the kernels there.

    They are clean pages of a file, and come back when they are touched. Nothing is done where that cannot be (no
    Linux, no glibc).
    """
    with suppress(OSError, AttributeError, ValueError):
        c = ctypes.CDLL(None, use_errno=True)
        c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for begin, end in _clean_ranges():
            c.madvise(begin, end - begin, mmap.MADV_DONTNEED)
        c.malloc_trim(0)


def _clean_ranges() -> list[tuple[int, int]]:
    """Addresses of the compiler's file in memory, where no page has been written to: those would be lost."""
    ranges: list[tuple[int, int]] = []
    for mapping in _MAPPING.finditer(Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")):
        begin, end, access, path, dirty_kib = mapping.groups()
        if _COMPILER in path and access in ("r-xp", "r--p") and dirty_kib == "0":
            ranges.append((int(begin, 16), int(end, 16)))
    return ranges
