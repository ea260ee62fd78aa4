"""Loads numba and the kernels of dispatch: most of a second, which a new store's first messages need not wait for.

What is in a log already is read by kernels, so that a store with one has them before it is open. A new one has
nothing to read, and appending is done without: dispatch follows when they are there.
"""

import logging
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Final

from rmq_core.store.memory import lasting, release_compiler

_LOGGER = logging.getLogger(__name__)
_KERNELS: Final = "rmq_core.store.collector"  # the module that has all others loaded


def load_kernels() -> None:
    """Have the kernels loaded, and what that took put out of the way."""
    if _KERNELS not in sys.modules:
        with lasting():
            import_module(_KERNELS)
        release_compiler()


class KernelLoading:
    """A thread that loads the kernels while messages are taken already."""

    def __init__(self, on_done: Callable[[], None], on_fault: Callable[[str], None]) -> None:
        """Begin.

        Args:
            on_done: called by the thread when they are there.
            on_fault: called by the thread, with the reason, if they cannot be had.
        """
        self._on_done = on_done
        self._on_fault = on_fault
        self._thread = threading.Thread(target=self._run, name="rmq-store-kernels", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            load_kernels()
        except Exception as error:
            _LOGGER.exception("the kernels of dispatch")
            self._on_fault(f"the kernels of dispatch cannot be loaded: {error}")
            return
        self._on_done()

    def wait(self) -> None:
        """Wait until they are there, or cannot be had."""
        self._thread.join()
