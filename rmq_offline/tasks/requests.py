"""Many requests to a storage at once: object stores answer in tens of milliseconds, whatever else they do."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from rmq_formats.storage.segments import Storage

REQUESTS_AT_ONCE: Final = 128  # of a task
_WAITING: Final = 4096  # requests that a pool is given before their answers are taken: each takes a kilobyte

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


def request_all(
    storage: Storage, request: Callable[[Argument], Answer], arguments: Sequence[Argument]
) -> Iterator[Answer]:
    """Send a request per argument, and yield the answers in that order; on a disk, one after the other.

    Args:
        request: called in threads if the storage is remote.
    """
    if storage.is_local or len(arguments) < 2:
        yield from map(request, arguments)
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for at in range(0, len(arguments), _WAITING):
            yield from pool.map(request, arguments[at : at + _WAITING])
