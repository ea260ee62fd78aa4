"""The threads of a machine, as timers of a loop: each turn comes at a time that chance chooses, and is one step."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from rmq_core.store.files.threads import Threads, Worker, WorkerRun

_LONGEST_WAIT_S = 0.01  # for a turn that was asked for


class TurnThreads(Threads):
    """The threads of one machine.

    Attributes:
        is_hung: its disk lets nobody go on who forces something: no turns are taken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, dice: random.Random) -> None:
        self.is_hung = False
        self.workers: list[TurnWorker] = []
        self._loop = loop
        self._dice = dice
        self._held: list[Callable[[], None]] = []

    def monotonic_s(self) -> float:
        return self._loop.time()

    def worker(self, name: str, run: WorkerRun) -> Worker:
        self.workers.append(TurnWorker(self, name, run))
        return self.workers[-1]

    def pool(self, name: str, count: int) -> Executor:
        del name, count
        return TurnPool(self._loop, self._dice, self)

    def wait_for(self, changed: threading.Condition, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        """Let the others take the turns that they were asked for; nobody else would take them meanwhile."""
        del changed, timeout_s
        for worker in self._dice.sample(self.workers, len(self.workers)):
            if not self.is_hung and not is_done():
                worker.turn_if_wanted()

    def soon(self, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Make a call at a time that chance chooses."""
        return self._loop.call_later(self._dice.random() * _LONGEST_WAIT_S, call)

    def later(self, wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Make a call in some seconds."""
        return self._loop.call_later(wait_s, call)

    def hold(self, call: Callable[[], None]) -> bool:
        """Whether a call has to wait, as the disk hangs; it is made later."""
        if self.is_hung:
            self._held.append(call)
        return self.is_hung

    def go_on(self) -> None:
        """The disk hangs no more."""
        self.is_hung = False
        held, self._held = self._held, []
        for call in held:
            self.soon(call)


class TurnWorker(Worker):
    """A worker whose turns are timers."""

    def __init__(self, threads: TurnThreads, name: str, run: WorkerRun) -> None:
        super().__init__(name, run)
        self._threads = threads
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = self._is_over = False
        self.wake = self._wake

    def start(self, wait_s: float | None) -> None:
        self._set(wait_s)

    def _set(self, wait_s: float | None) -> None:
        if wait_s is not None and not self._is_over:
            self._timer = self._threads.later(wait_s, self._take)

    def _wake(self) -> None:
        if self._is_wanted or self._is_over:
            return
        self._is_wanted = True
        self._cancel()
        self._timer = self._threads.soon(self._take)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> None:
        if self._is_over or self._threads.hold(self._take):
            return
        self._cancel()
        self._is_wanted = False
        wait_s = self._run_once()
        if not self._is_wanted:
            self._set(wait_s)

    def turn_if_wanted(self) -> None:
        """Take the turn that was asked for now."""
        if self._is_wanted:
            self._take()

    def stop(self) -> None:
        self._cancel()
        if not self._is_over:
            self._is_over = True
            self._run_once()


class TurnPool(Executor):
    """Makes calls one by one, each at a time that chance chooses."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, dice: random.Random, threads: TurnThreads | None = None
    ) -> None:
        self._threads = threads or TurnThreads(loop, dice)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self._threads.soon(partial(self._make, done, partial(fn, *args, **kwargs)))
        return done

    def _make(self, done: Future[Any], call: Callable[[], Any]) -> None:
        if self._threads.hold(partial(self._make, done, call)):
            return
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
