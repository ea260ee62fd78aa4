"""Loads numba and the kernels of dispatch, most of a second, beside what else a start has to do.

What is in a log already is read by kernels, so that a store with one has them before it is open. A new one has
nothing to read and can be open without; the first dispatch waits for them.
"""

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from rmq_core.store.memory import lasting, release_compiler
from rmq_formats.errors import StoreError
from rmq_formats.kernels import drop_stale_code

_KERNELS: Final = "rmq_core.store.collector"  # the module that has all others loaded
_HERE: Final = Path(__file__).parent


def drop_stale_kernels() -> None:
    """Drop the kernels' machine code if it is of other sources than today's."""
    drop_stale_code(_HERE, (_HERE / "kernels.py", _HERE / "dispatch_tables.py"))


def load_kernels() -> None:
    """Have the kernels loaded, and what that took put out of the way."""
    if _KERNELS not in sys.modules:
        with lasting():
            import_module(_KERNELS)
        release_compiler()


class KernelLoading:
    """A thread that loads the kernels.

    Attributes:
        is_over: whether they are there, or cannot be had.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """Begin; a function is called in the thread at its end."""
        self.is_over = False
        self._on_end = on_end
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rmq-store-kernels", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            load_kernels()
        except Exception as error:
            self._error = error
        self.is_over = True
        self._on_end()

    def wait(self) -> None:
        """Wait until they are there.

        Raises:
            StoreError: they cannot be had.
        """
        self._thread.join()
        if self._error is not None:
            raise StoreError(f"the kernels of dispatch cannot be loaded: {self._error}") from self._error
