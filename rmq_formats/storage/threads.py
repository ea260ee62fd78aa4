"""Threads for work on several stores at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_MAX_THREADS: Final = 16  # the stores' threads wait for disks and networks

Argument = TypeVar("Argument")
Output = TypeVar("Output")


def in_threads(function: Callable[[Argument], Output], arguments: Sequence[Argument]) -> list[Output]:
    """Apply a function to each of some stores, which wait for disks and networks more than for a processor."""
    if len(arguments) <= 1:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(arguments))) as pool:
        return list(pool.map(function, arguments))
