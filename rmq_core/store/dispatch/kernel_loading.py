"""Loads numba and the kernels of dispatch, in half a second, or half a minute if the kernels are not compiled yet.

The kernels are loaded when a store is opened, not when its modules are imported. So the new objects can be excluded
from garbage collection, and memory that only the compiler needs can be released.
"""

import ctypes
import gc
import logging
import mmap
import re
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError

_LOGGER = logging.getLogger(__name__)
_KERNELS: Final = "rmq_core.store.dispatch.kernel_dispatch"  # this module imports all others
_WAIT_HINT_S: Final = 10.0  # loading time after which a hint is logged; a busy machine needs some seconds
_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n(?:[A-Z].*\n)*?Private_Dirty: +(\d+) kB", re.MULTILINE
)


def release_compiler() -> None:
    """Release the memory of numba's compiler: sixty megabytes of code and tables that loaded kernels do not need.

    The pages are clean pages of a file, so that the next access reads them again. Without Linux and glibc nothing is
    released.
    """
    with suppress(OSError, AttributeError, ValueError):
        c = ctypes.CDLL(None, use_errno=True)
        c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for begin, end in _clean_ranges():
            c.madvise(begin, end - begin, mmap.MADV_DONTNEED)
        c.malloc_trim(0)


def _clean_ranges() -> list[tuple[int, int]]:
    """Return the address ranges of the compiler's library without modified pages, which would be lost."""
    mappings = _MAPPING.findall(Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace"))
    return [
        (int(begin, 16), int(end, 16))
        for begin, end, access, path, dirty_kib in mappings
        if "libllvmlite" in path and access in ("r-xp", "r--p") and dirty_kib == "0"
    ]


def load_kernels() -> None:
    """Load numba and the kernels, once in a process; raise StoreError if that fails."""
    if _KERNELS in sys.modules:
        return
    hint = threading.Timer(_WAIT_HINT_S, _log_wait)
    hint.start()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import_module(_KERNELS)
    except Exception as error:
        raise StoreError(f"the kernels of dispatch cannot be loaded: {error}") from error
    finally:
        gc.freeze()  # numba and its kernels are 110,000 objects: each full collection would take 70 ms to traverse them
        if was_enabled:
            gc.enable()
        hint.cancel()
    release_compiler()


def _log_wait() -> None:
    _LOGGER.info("still loading the kernels: after an installation they are compiled, once")
