"""Worker processes of commands, and how Ctrl-C ends them."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rmq_cli import output


@contextmanager
def interruptible_workers() -> Iterator[None]:
    """Make Ctrl-C end worker processes at once and silently, within this context.

    A terminal sends SIGINT to all of them, and each would print its own traceback; sent to the first only, it
    would wait for the others' tasks to end. Tasks write beside and rename, so that they may die.
    """
    leader = os.getpid()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() != leader:  # a forked worker, which has inherited this
            os._exit(output.EXIT_INTERRUPTED)
        for child in multiprocessing.active_children():
            child.kill()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
