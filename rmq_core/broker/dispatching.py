"""Dispatch of appended records by a broker: pushed to slaves first, then to queues, a part at a time."""

import asyncio

from rmq_core.broker.replication import NEW_QUEUES_AT_ONCE, Replication
from rmq_core.store.store import MessageStore


class Dispatching:
    """Dispatch after each batch of appends: of requests, timers, delays and transactions.

    Many new queues are dispatched in parts: a message may name a thousand, and each takes a directory and a file.
    """

    def __init__(self, replication: Replication, store: MessageStore) -> None:
        self._replication, self._store = replication, store
        self._next: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Push appended bytes to slaves and dispatch them, many new queues in several turns."""
        self._replication.push()  # before dispatch, so that slaves work meanwhile
        if self._next is None:
            self._dispatch()

    def _dispatch(self) -> None:
        self._next = None
        self._store.dispatch(NEW_QUEUES_AT_ONCE)
        if self._store.has_more_to_dispatch:
            self._next = asyncio.get_running_loop().call_later(0, self._dispatch)

    def cancel(self) -> None:
        """Leave the rest of the dispatch to the store's shutdown."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
