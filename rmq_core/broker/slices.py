"""Long work in time slices of the event loop, so that requests run in between.

A turn of the loop has one slice for all long work: an encoded table and a heartbeat that is being read share the slice.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rmq_core.remoting.loop import work_clock

SLICE_S: Final = 0.0005  # half the time of a send under load: the slowest sends wait for one slice
_T = TypeVar("_T")


@dataclass(slots=True)
class Sliced(Generic[_T]):
    """Items of an iterator that ran in time slices; ``took_s`` is the time of the event loop used."""

    items: list[_T] = field(default_factory=list)
    took_s: float = 0.0


class Slices:
    """Scheduler of long work: time slices of the running event loop, in turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def collect(self, items: Iterable[_T]) -> "asyncio.Future[Sliced[_T]]":
        """Run an iterator in time slices; return a future of its items or its exception."""
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        done: asyncio.Future[Sliced[_T]] = loop.create_future()
        sliced: Sliced[_T] = Sliced()
        remaining = iter(items)

        def run_slice() -> None:
            if done.cancelled():
                return
            began = now()
            try:
                for item in remaining:
                    sliced.items.append(item)
                    if now() > began + SLICE_S:
                        self._schedule(run_slice)
                        break
                else:
                    done.set_result(sliced)
            except Exception as error:
                done.set_exception(error)
            sliced.took_s += now() - began

        self._schedule(run_slice)
        return done

    async def each(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield items one by one; wait for the next time slice when one is used up."""
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        end = now() + SLICE_S
        for item in items:
            yield item
            if now() > end:
                turn: asyncio.Future[None] = loop.create_future()
                self._schedule(lambda turn=turn: None if turn.done() else turn.set_result(None))  # type: ignore[misc]
                await turn
                end = now() + SLICE_S

    def _schedule(self, run_slice: Callable[[], None]) -> None:
        """Schedule a function for the next free time slice."""
        self._waiting.append(run_slice)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        run_slice = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_next)
        else:
            self._is_due = False
        run_slice()
