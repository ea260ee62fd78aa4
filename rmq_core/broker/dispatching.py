"""Dispatch of appended messages, in parts where there are many new queues.

A message may name a thousand light queues, and each new queue takes a directory and a file.
"""

import asyncio
from typing import Final

from rmq_core.broker.replication import Replication
from rmq_core.store.store import MessageStore

NEW_QUEUES_AT_ONCE: Final = 64  # some 10 ms of an idle processor


class Dispatching:
    """Dispatch after each batch of appends: of requests, timers, delays and transactions."""

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
