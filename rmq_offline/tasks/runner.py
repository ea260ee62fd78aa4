"""Runners map a task function over arguments, in a process pool or on Spark; results are in the arguments' order."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final, Protocol, TypeVar

_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Runner(Protocol):
    """Interface of a runner. Functions and arguments are pickled."""

    parallelism: int

    def map(
        self,
        function: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        on_done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Apply ``function`` to each argument; ``on_done`` is called with each result as it comes."""


def collect(results: Iterable[Result], on_done: Callable[[Result], None] | None) -> list[Result]:
    """Collect results into a list; ``on_done`` is called with each."""
    collected = []
    for result in results:
        collected.append(result)
        if on_done:
            on_done(result)
    return collected


def _end_with(parent: int) -> None:
    """Kill this process, by the kernel, when its parent dies; a pool's process would wait for ever."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


class ProcessRunner:
    """Runner on processes of this machine, one a processor; in this process where there is one task only."""

    def __init__(self, parallelism: int | None = None) -> None:
        self.parallelism = parallelism or len(os.sched_getaffinity(0))

    def map(
        self,
        function: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        on_done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Apply ``function`` to each argument."""
        if len(arguments) == 1 or self.parallelism == 1:
            return collect((function(argument) for argument in arguments), on_done)
        workers = min(self.parallelism, len(arguments) or 1)
        with ProcessPoolExecutor(workers, get_context("fork"), _end_with, (os.getpid(),)) as pool:
            try:
                return collect(pool.map(function, arguments), on_done)
            except BaseException:
                # Waits for the pool's thread: at the interpreter's exit both would wait on one pipe.
                pool.shutdown(cancel_futures=True)
                raise


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a rebuild: bytes of the log scanned, then tasks of the second batch done."""

    phase: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def counted_progress(
    on_progress: OnProgress | None, phase: str, total: int, size_of: Callable[[Any], int] = lambda _: 1
) -> Callable[[Any], None]:
    """Return a callback for a runner's results that sums up their sizes and reports the progress of a phase."""
    done = 0

    def report(result: Any) -> None:
        nonlocal done
        done += size_of(result)
        if on_progress:
            on_progress(Progress(phase, done, total))

    return report
