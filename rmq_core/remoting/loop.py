"""Event loop of servers and clients, uvloop's if installed (twice as fast), and the base class of services."""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

_SWITCH_S: Final = 0.0005  # maximum wait of the loop for a thread that computes; Python's is 5 ms
_EVENT_TURNS: Final = 3  # turns of the loop in which it reads the end of a connection, and hands it on
_T = TypeVar("_T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of event loops: uvloop's if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 # not installed on Windows
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def work_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock, in seconds, for time slices of work on a loop.

    uvloop's ``time`` counts whole milliseconds, which is too coarse for slices of half a millisecond.
    """
    return time.perf_counter if type(loop).__module__.partition(".")[0] == "uvloop" else loop.time


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, as ``asyncio.run`` does."""
    sys.setswitchinterval(_SWITCH_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


class LoopRunner:
    """Event loop that runs coroutines one after the other, for a thread without a running loop.

    ``asyncio.Runner.run`` sets and resets the handler of SIGINT around each coroutine, which takes longer than a small
    request.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end, after the events since the last one, such as the end of an idle connection."""
        return self._runner.get_loop().run_until_complete(_after_events(work))

    def close(self) -> None:
        """Cancel all running tasks, and close the loop."""
        self._runner.close()


async def _after_events(work: Coroutine[Any, Any, _T]) -> _T:
    for _ in range(_EVENT_TURNS):
        await asyncio.sleep(0)
    return await work


class Closable(ABC):
    """Server or client that closes at the end of ``async with``."""

    @abstractmethod
    async def close(self) -> None:
        """Close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Service(Closable):
    """Server or client that also starts when ``async with`` is entered."""

    @abstractmethod
    async def start(self) -> None:
        """Start."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self
