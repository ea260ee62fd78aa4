"""Dispatch of appended records by a broker: to slaves first, then to queues, in parts."""

import asyncio

from rmq_core.broker.replication import MAX_NEW_QUEUES_PER_DISPATCH, Replication
from rmq_core.store.store import MessageStore


class Dispatching:
    """Dispatch after each batch of appends: of requests, timers, delays and transactions.

    Many new queues are dispatched in parts: a message may name a thousand light queues, and each needs a directory and
    a file.
    """

    def __init__(self, replication: Replication, store: MessageStore) -> None:
        self._replication, self._store = replication, store
        self._next: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Push appended bytes to slaves and dispatch them; many new queues take several turns of the event loop."""
        self._replication.push()  # before dispatch, so that slaves work meanwhile
        if self._next is None:
            self._dispatch()

    def _dispatch(self) -> None:
        self._next = None
        self._store.dispatch(MAX_NEW_QUEUES_PER_DISPATCH)
        if self._store.has_more_to_dispatch:
            self._next = asyncio.get_running_loop().call_later(0, self._dispatch)

    def cancel(self) -> None:
        """Stop dispatching; the store's shutdown dispatches the remaining records."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
