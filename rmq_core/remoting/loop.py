"""Event loop of servers and clients (uvloop if installed, which is about twice as fast), and their begin and end."""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

_SWITCH_S: Final = 0.0005  # a thread that computes keeps the loop for that long, where it would for 5 ms
_T = TypeVar("_T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of event loops: uvloop's if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 # may not be there, as on Windows
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def work_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock, in seconds, by which slices of work on a loop end.

    uvloop's ``time`` has whole milliseconds: a slice of half of one would end anywhere within it.
    """
    return time.perf_counter if type(loop).__module__.partition(".")[0] == "uvloop" else loop.time


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, as ``asyncio.run`` does."""
    sys.setswitchinterval(_SWITCH_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


class LoopRunner:
    """Event loop on which a thread without one runs coroutines, one after the other.

    ``asyncio.Runner.run`` sets and resets the handler of SIGINT around each coroutine, which takes longer than a small
    request.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end."""
        return self._runner.get_loop().run_until_complete(work)

    def close(self) -> None:
        """Cancel what still runs, and close the loop."""
        self._runner.close()


class Service(ABC):
    """Server or client that starts when ``async with`` is entered, and closes at its end."""

    @abstractmethod
    async def start(self) -> None:
        """Start."""

    @abstractmethod
    async def close(self) -> None:
        """Close."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
