"""A broker that listens before the kernels of its new store are loaded: messages are taken, and dispatched then.

Requests that look for messages wait meanwhile: what a producer was told is stored is found by who asks next.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rmq_core.broker.tables import log
from rmq_core.remoting.connection import Answer, Connection, Handler
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.store import MessageStore
from rmq_formats.errors import StoreError

_PATIENCE_S: Final = 3.0  # how long it lasts without a word
_READ_PATIENCE_S: Final = 2.0  # clients wait for 3 s or more


class KernelWatch:
    """Waits for the kernels beside the event loop. A broker that cannot have them ends."""

    def __init__(self, dispatch: Callable[[], None]) -> None:
        """Watch for the broker that the running task starts.

        Args:
            dispatch: is called on the loop when the kernels are there.
        """
        self._failure: StoreError | None = None
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._starter = asyncio.current_task()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._hint: asyncio.TimerHandle | None = None
        self._store: MessageStore | None = None

    def loaded(self) -> None:
        """Tell, in any thread, that loading has ended."""
        self._loop.call_soon_threadsafe(self._loaded)

    def begin(self, store: MessageStore) -> None:
        """Watch a store that has been opened."""
        self._store = store
        if store.is_loading_kernels:
            self._hint = self._loop.call_later(_PATIENCE_S, _log_wait)

    def waiting(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Handlers of requests that look for messages; they wait for the kernels, for some time."""
        if self._hint is None:  # they are there
            return handlers
        return {code: self._waiting(handler) for code, handler in handlers.items()}

    def end(self) -> None:
        """Watch no more."""
        self._store = None
        if not self._over.done():
            self._over.set_result(None)
        if self._hint is not None:
            self._hint.cancel()

    def check(self) -> None:
        """Say so, in the task that was cancelled, if that was for want of kernels.

        Raises:
            StoreError: they cannot be had.
        """
        if self._failure is not None:
            if self._starter is not None:
                self._starter.uncancel()
            raise self._failure

    def _waiting(self, handler: Handler) -> Handler:
        async def later(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            await asyncio.wait([self._over], timeout=_READ_PATIENCE_S)
            answer = handler(request, connection)
            return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

        def handle(request: RemotingCommand, connection: Connection) -> Answer:
            return handler(request, connection) if self._over.done() else later(request, connection)

        return handle

    def _loaded(self) -> None:
        store = self._store
        if store is None:
            return
        are_there = store.wait_for_kernels()
        try:
            if are_there:
                self._dispatch()
        finally:
            self.end()
        if not are_there:
            self._fail(store)

    def _fail(self, store: MessageStore) -> None:
        self._failure = StoreError(store.refusals["kernels"])
        log.error("no messages are taken: %(error)s", {"error": self._failure})
        if self._starter is not None:
            self._starter.cancel()  # it leaves the broker, which says why


def _log_wait() -> None:
    log.info("still loading the kernels, consumers wait: after an installation they are compiled, once")
