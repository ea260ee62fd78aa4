"""Renewal of push consumers' messages: they stay invisible until they are acknowledged, or their client is gone.

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

from rmq_core.proxy.handles import Receipt
from rmq_core.proxy.sessions import Sessions
from rmq_core.remoting.errors import TransportError
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_EVERY_S: Final = 5.0
_AHEAD_S: Final = 10.0
_LONGEST_S: Final = 3 * 3600.0  # after which a message comes back
GONE_MS: Final = 1000  # of messages whose client is gone
_STEP_MS: Final = 60_000
_MOST_STEPS: Final = 10
_MOST: Final = 1_000_000  # messages; of more none is renewed
_MOST_OF_CLIENT: Final = 32_768  # likewise: eight times what the official clients keep in memory
_AT_ONCE: Final = 64  # renewals of one broker that are under way

Change = Callable[[str, str, Receipt, int], Awaitable[Receipt]]
Key = tuple[str, str, str]  # client, group, the first handle


@dataclass(slots=True)
class _Renewed:
    """A message that is renewed.

    Attributes:
        topic: of it.
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
    """Receipt handles that are renewed, by the text that their client has.

    Attributes:
        change: changes an invisible time; of a group, a topic, a receipt, to so many ms from now.
    """

    change: Change

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._kept: dict[Key, _Renewed] = {}
        self._counts: dict[str, int] = {}  # of what is kept, by client
        self._rounds: dict[str, asyncio.Task[None]] = {}  # by broker: one that does not answer must not hold up others

    def keep(self, client_id: str, group: str, topic: str, receipt: Receipt) -> None:
        """Renew a message, which was popped just now, from now on."""
        if len(self._kept) < _MOST and self._counts.get(client_id, 0) < _MOST_OF_CLIENT:
            now_s = monotonic()
            visible_s = now_s + receipt.handle.invisible_ms / 1000
            self._put((client_id, group, receipt.encode()), _Renewed(topic, receipt, now_s, visible_s))

    def count(self, client_id: str) -> int:
        """How many messages of a client are renewed."""
        return self._counts.get(client_id, 0)

    def _put(self, key: Key, one: _Renewed) -> None:
        if self._kept.setdefault(key, one) is one:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1

    def _pop(self, key: Key) -> _Renewed | None:
        one = self._kept.pop(key, None)
        if one is not None:
            left = self._counts[key[0]] = self._counts[key[0]] - 1
            if not left:
                del self._counts[key[0]]
        return one

    @asynccontextmanager
    async def taken(self, client_id: str, group: str, handle: str) -> AsyncIterator[Receipt | None]:
        """Renew a message no more; its newest receipt, None if it was not renewed.

        Where what is done with it gets no answer of the broker, it is renewed again: its client will ask again.
        """
        key = client_id, group, handle
        one = self._pop(key)
        if one is not None and one.under_way is not None:
            await asyncio.wait([one.under_way])  # the broker has a new handle of it then
        try:
            yield None if one is None else one.receipt
        except TransportError:
            if one is not None:
                self._put(key, one)
            raise

    async def run(self) -> None:
        """Renew what is about to be visible, again and again."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                self.look()
        finally:
            for task in self._rounds.values():
                task.cancel()
            await asyncio.gather(*self._rounds.values(), return_exceptions=True)

    def look(self) -> None:
        """Begin to renew what is about to be visible, and give back what is of clients that are gone."""
        now_s = monotonic()
        due: dict[str, list[Key]] = {}
        for key, one in self._kept.items():
            if one.visible_s - now_s <= _AHEAD_S or not self._sessions.has(key[0]):
                due.setdefault(one.receipt.handle.broker_name, []).append(key)
        for broker, keys in due.items():
            if broker not in self._rounds:
                task = self._rounds[broker] = asyncio.create_task(self._renew_all(keys))
                task.add_done_callback(partial(self._ended, broker))

    def _ended(self, broker: str, _: "asyncio.Task[None]") -> None:
        self._rounds.pop(broker, None)

    async def _renew_all(self, keys: list[Key]) -> None:
        left = iter(keys)
        await asyncio.gather(*(self._renew_each(left) for _ in range(min(_AT_ONCE, len(keys)))))

    async def _renew_each(self, left: Iterator[Key]) -> None:
        for key in left:
            one = self._kept.get(key)
            if one is None:
                continue
            done = one.under_way = asyncio.get_running_loop().create_future()
            try:
                await self._renew(key, one)
            except Exception:
                log.exception("a renewal failed")
                self._pop(key)
            finally:
                one.under_way = None
                done.set_result(None)

    async def _renew(self, key: Key, one: _Renewed) -> None:
        client_id, group, _ = key
        now_s = monotonic()
        is_over = not self._sessions.has(client_id) or now_s - one.since_s > _LONGEST_S
        step_ms = GONE_MS if is_over else _STEP_MS * min(one.times + 1, _MOST_STEPS)
        try:
            one.receipt = await self.change(group, one.topic, one.receipt, step_ms)
        except TransportError as error:
            if monotonic() < one.visible_s and not is_over:
                return  # the broker may be back in time
            self._forget(key, error)
        except RmqError as error:
            self._forget(key, error)
        else:
            one.times += 1
            one.visible_s = now_s + step_ms / 1000
            if is_over:
                self._pop(key)

    def _forget(self, key: Key, error: RmqError) -> None:
        log.info("a message cannot be renewed, and comes back: %(error)s", {"error": error})
        self._pop(key)
