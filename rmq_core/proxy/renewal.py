"""Renewal of push consumers' messages: invisible until the acknowledgement, or until the client has ended.

When a message is due is counted from when it came, by this machine's own clock: that of its broker may be another.

Source: ``ReceiptHandleProcessor``, ``RenewEvent``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from rmq_core.proxy.messages import Receipt
from rmq_core.proxy.sessions import Sessions
from rmq_core.remoting.errors import TransportError
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_INTERVAL_S: Final = 5.0
_RENEW_BEFORE_S: Final = 10.0
_LONGEST_S: Final = 3 * 3600.0  # after which a message comes back
RELEASE_MS: Final = 1000  # of messages whose client is gone
_STEP_MS: Final = 60_000
_MOST_STEPS: Final = 10
_MOST: Final = 1_000_000  # messages; of more none is renewed
_MOST_OF_CLIENT: Final = 32_768  # likewise: eight times what the official clients keep in memory
_MOST_CONCURRENT: Final = 64  # renewals of one broker that are under way

Change = Callable[[str, str, Receipt, int], Awaitable[Receipt]]
Key = tuple[str, str, str]  # client, group, the first handle


@dataclass(slots=True)
class _RenewedMessage:
    """Message under renewal.

    Attributes:
        receipt: the newest.
        since_s: when it came.
        visible_s: when it is visible, unless it is renewed.
        times: how often it was renewed.
        under_way: its renewal, while the broker is asked.
    """

    topic: str
    receipt: Receipt
    since_s: float
    visible_s: float
    times: int = 0
    under_way: "asyncio.Future[None] | None" = None


class Renewal:
    """Renewed receipt handles, by the text that their client has.

    Attributes:
        change: changes an invisible time; of a group, a topic, a receipt, to so many ms from now.
    """

    change: Change

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._messages: dict[Key, _RenewedMessage] = {}
        self._counts: dict[str, int] = {}  # of what is kept, by client
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by broker: one that does not answer must not hold up others

    def start(self, client_id: str, group: str, topic: str, receipt: Receipt) -> None:
        """Start to renew a message that was just popped."""
        if len(self._messages) < _MOST and self._counts.get(client_id, 0) < _MOST_OF_CLIENT:
            now_s = monotonic()
            visible_s = now_s + receipt.handle.invisible_ms / 1000
            self._put((client_id, group, receipt.encode()), _RenewedMessage(topic, receipt, now_s, visible_s))

    def count(self, client_id: str) -> int:
        """Return how many messages of a client are renewed."""
        return self._counts.get(client_id, 0)

    def _put(self, key: Key, message: _RenewedMessage) -> None:
        if self._messages.setdefault(key, message) is message:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1

    def _pop(self, key: Key) -> _RenewedMessage | None:
        message = self._messages.pop(key, None)
        if message is not None:
            count = self._counts[key[0]] = self._counts[key[0]] - 1
            if not count:
                del self._counts[key[0]]
        return message

    @asynccontextmanager
    async def stop_renewal(self, client_id: str, group: str, handle: str) -> AsyncIterator[Receipt | None]:
        """Stop the renewal of a message, and yield its newest receipt, or None if the message was not renewed.

        Where what is done with it gets no answer of the broker, it is renewed again: its client will ask again.
        """
        key = client_id, group, handle
        message = self._pop(key)
        if message is not None and message.under_way is not None:
            await asyncio.wait([message.under_way])  # the broker has a new handle of it then
        try:
            yield None if message is None else message.receipt
        except TransportError:
            if message is not None:
                self._put(key, message)
            raise

    async def run(self) -> None:
        """Renew messages periodically, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL_S)
                self.renew_due()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def renew_due(self) -> None:
        """Renew messages that are soon visible, and release those of ended clients."""
        now_s = monotonic()
        due: dict[str, list[Key]] = {}
        for key, message in self._messages.items():
            if message.visible_s - now_s <= _RENEW_BEFORE_S or not self._sessions.has(key[0]):
                due.setdefault(message.receipt.handle.broker_name, []).append(key)
        for broker, keys in due.items():
            if broker not in self._tasks:
                task = self._tasks[broker] = asyncio.create_task(self._renew_all(keys))
                task.add_done_callback(partial(self._on_task_end, broker))

    def _on_task_end(self, broker: str, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(broker, None)

    async def _renew_all(self, keys: list[Key]) -> None:
        pending = iter(keys)
        await asyncio.gather(*(self._renew_each(pending) for _ in range(min(_MOST_CONCURRENT, len(keys)))))

    async def _renew_each(self, pending: Iterator[Key]) -> None:
        for key in pending:
            message = self._messages.get(key)
            if message is None:
                continue
            done = message.under_way = asyncio.get_running_loop().create_future()
            try:
                await self._renew(key, message)
            except Exception:
                log.exception("a renewal failed")
                self._pop(key)
            finally:
                message.under_way = None
                done.set_result(None)

    async def _renew(self, key: Key, message: _RenewedMessage) -> None:
        client_id, group, _ = key
        now_s = monotonic()
        is_over = not self._sessions.has(client_id) or now_s - message.since_s > _LONGEST_S
        step_ms = RELEASE_MS if is_over else _STEP_MS * min(message.times + 1, _MOST_STEPS)
        try:
            message.receipt = await self.change(group, message.topic, message.receipt, step_ms)
        except TransportError as error:
            if monotonic() < message.visible_s and not is_over:
                return  # the broker may be back in time
            self._abandon(key, error)
        except RmqError as error:
            self._abandon(key, error)
        else:
            message.times += 1
            message.visible_s = now_s + step_ms / 1000
            if is_over:
                self._pop(key)

    def _abandon(self, key: Key, error: RmqError) -> None:
        log.info("a message cannot be renewed, and comes back: %(error)s", {"error": error})
        self._pop(key)
