"""Work that may take long, done in slices: in between, the event loop serves the others.

A turn of the loop has one slice of all such work, however much there is: tables that are encoded while a heartbeat
is read share it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rmq_core.remoting.loop import work_clock

SLICE_S: Final = 0.0005  # half of what a send takes beside others: the slowest sends wait for one
_T = TypeVar("_T")


@dataclass(slots=True)
class Sliced(Generic[_T]):
    """What an iterator has given in slices.

    Attributes:
        items: that it has given.
        took_s: what it took of the event loop.
    """

    items: list[_T] = field(default_factory=list)
    took_s: float = 0.0


class Slices:
    """Gives slices of the running event loop's time to long work, in turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def collect(self, items: Iterable[_T]) -> "asyncio.Future[Sliced[_T]]":
        """Collect what an iterator gives, in slices; what it raises the future has."""
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        done: asyncio.Future[Sliced[_T]] = loop.create_future()
        found: Sliced[_T] = Sliced()
        rest = iter(items)

        def go_on() -> None:
            began = now()
            try:
                for item in rest:
                    found.items.append(item)
                    if now() > began + SLICE_S:
                        self._ask(go_on)
                        break
                else:
                    done.set_result(found)
            except Exception as error:
                done.set_exception(error)
            found.took_s += now() - began

        self._ask(go_on)
        return done

    async def each(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Give items one by one; wait for a turn whenever a slice is used up."""
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        end = now() + SLICE_S
        for item in items:
            yield item
            if now() > end:
                turn: asyncio.Future[None] = loop.create_future()
                self._ask(lambda turn=turn: None if turn.done() else turn.set_result(None))  # type: ignore[misc]
                await turn
                end = now() + SLICE_S

    def _ask(self, go_on: Callable[[], None]) -> None:
        """Have a function called when it is its turn."""
        self._waiting.append(go_on)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
        else:
            self._is_due = False
        go_on()
