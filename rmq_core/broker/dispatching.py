"""Dispatches what a broker has appended, and keeps nobody waiting for many new queues.

A message may name a thousand light queues, and each new queue takes a directory and a file.
"""

import asyncio
from typing import Final

from rmq_core.broker.replication import Replication
from rmq_core.store.store import MessageStore

NEW_QUEUES_AT_ONCE: Final = 64  # some 10 ms of an idle processor


class Dispatching:
    """Dispatches after each batch of appends: of requests, timers, delays and transactions."""

    def __init__(self, replication: Replication, store: MessageStore) -> None:
        self._replication, self._store = replication, store
        self._next: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Send what was appended to slaves, and dispatch it; where there are many new queues, some now."""
        self._replication.push()  # before dispatch, so that slaves work meanwhile
        if self._next is None:
            self._dispatch()

    def _dispatch(self) -> None:
        self._next = None
        self._store.dispatch(NEW_QUEUES_AT_ONCE)
        if self._store.has_more_to_dispatch:
            self._next = asyncio.get_running_loop().call_later(0, self._dispatch)

    def cancel(self) -> None:
        """Leave what is not dispatched yet to the store, which does it when it is closed."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
