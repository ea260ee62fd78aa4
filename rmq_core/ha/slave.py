"""A slave's side of replication: connects to the master, appends what that sends, and tells how far it is.

Source: ``DefaultHAClient``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from rmq_core.ha.frames import Pushes, ReplicationError, encode_report
from rmq_core.ha.settings import HaSettings
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.replication")
_CONNECT_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.1
_RETRY_S: Final = 1.0  # at most between two tries; Java's slave waits for five
_REFUSED_RETRY_S: Final = 30.0  # likewise where the disk was full: it seldom has room again soon


class NotTakenError(ReplicationError):
    """The store has no room for the master's log, or is broken."""


class HaSlave:
    """Follows a master.

    Attributes:
        master_address: ``host:port`` where the master takes slaves; empty while none is known.
        read_ms: when the master was heard last, ms since 1970; 0 if never.
        written_ms: when it was told something.
    """

    def __init__(self, store: MessageStore, settings: HaSettings, clock_ms: Callable[[], int]) -> None:
        """Be the slave that a store is; ``start`` begins.

        Args:
            store: takes the log.
            settings: how.
            clock_ms: the time, ms since 1970.
        """
        self.master_address = settings.ha_master_address
        self.read_ms = self.written_ms = 0
        self.store = store
        self.settings = settings
        self.clock_ms = clock_ms
        self.is_sync = store.config.flush_disk_type is FlushDiskType.SYNC
        self._link: MasterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._is_closed = False
        self._is_alone = False  # that the master is not there is told once
        self._trouble = ""  # why its log was not taken: told once, until some of it is
        self._is_refused = False  # the store did not take what the last connection brought

    @property
    def is_connected(self) -> bool:
        """Whether the master is there."""
        return self._link is not None

    def start(self) -> None:
        """Follow."""
        self._loop = asyncio.get_running_loop()
        if self.is_sync:
            self.store.on_flushed(self._call_flushed)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def follow(self, address: str) -> None:
        """Follow the master at an address, which may be the same."""
        if address == self.master_address:
            return
        log.info("the master takes slaves at %(address)s", {"address": address})
        self.master_address = address
        self._is_refused = False
        self._told.set()
        if self._link is not None:
            self._link.end()

    def keep(self) -> None:
        """Send heartbeats, and end a connection that has been silent for too long; call it now and then."""
        if self._link is not None:
            self._link.keep()

    def _call_flushed(self, _: int) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        self.store.dispatch()
        if self._link is not None:
            self._link.report()

    async def _run(self) -> None:
        wait_s = _FIRST_RETRY_S
        while True:
            while not self.master_address:
                self._told.clear()
                await self._told.wait()
            try:
                if await self._follow_once():
                    wait_s = _FIRST_RETRY_S
            except Exception:  # whatever it is, the master may be another tomorrow
                log.exception("replication failed")
            wait_s = min(wait_s, _REFUSED_RETRY_S if self._is_refused else _RETRY_S)
            wait_s = _FIRST_RETRY_S if await self._pause(wait_s) else 2 * wait_s

    async def _pause(self, wait_s: float) -> bool:
        """Wait between two tries; True if another master was told, which is not waited for."""
        try:
            async with asyncio.timeout(wait_s):
                await self._told.wait()
        except TimeoutError:
            return False
        self._told.clear()
        return True

    @property
    def is_in_trouble(self) -> bool:
        """Whether the master's log was not taken when it came last."""
        return bool(self._trouble)

    def refuse(self, trouble: ReplicationError) -> None:
        """The master's log is not taken, and why."""
        if str(trouble) != self._trouble:
            log.error("lets the master go: %(error)s", {"error": trouble})
        self._trouble = str(trouble)

    def take(self) -> None:
        """The master's log is taken."""
        if self._trouble:
            self._trouble = ""
            self.tell_following()

    def tell_following(self) -> None:
        """Log that the master is followed."""
        log.info(
            "follows the master at %(address)s from %(offset)d on",
            {"address": self.master_address, "offset": self.store.max_physical_offset},
        )

    async def _follow_once(self) -> bool:
        """Connect, and stay until that ends; whether the master's log went on here."""
        if self._is_refused and self.store.refusals:  # the master need not send what is thrown away
            return False
        host, _, port = self.master_address.rpartition(":")
        if self.is_sync:  # the first report acknowledges as well
            await asyncio.to_thread(self.store.wait_flushed, self.store.max_physical_offset, _CONNECT_S)
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: MasterLink(self), host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError) as error:
            if not self._is_alone:
                log.warning("no master at %(address)s: %(error)s", {"address": self.master_address, "error": error})
            self._is_alone, self._is_refused = True, False
            return False
        self._is_alone = False
        self._link = link
        try:
            await asyncio.shield(link.ended)
        finally:
            self._link = None
            link.end()
            await link.ended
        self._is_refused = link.is_refused
        return link.has_taken


class MasterLink(asyncio.Protocol):
    """A connection to the master.

    Attributes:
        ended: done when it is gone.
        has_taken: whether anything of the master's log has been appended.
        is_refused: whether it ended because the store did not take more.
    """

    def __init__(self, slave: HaSlave) -> None:
        self.has_taken = self.is_refused = False
        self._slave = slave
        self._store = slave.store
        self._pushes = Pushes()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._read_at = self._written_at = self._loop.time()
        self._reported = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the master where to begin."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._slave.is_in_trouble:
            self._slave.tell_following()
        self._reported = self._store.max_physical_offset
        self._write()

    def connection_lost(self, _: Exception | None) -> None:
        """It is gone."""
        if not self._slave.is_in_trouble:
            log.info("the master at %(address)s has gone", {"address": self._slave.master_address})
        self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Append what has come, and tell the master."""
        self._read_at = self._loop.time()
        self._slave.read_ms = self._slave.clock_ms()
        try:
            for offset, piece in self._pushes.feed(data):
                self._append(offset, piece)
        except ReplicationError as error:
            self.is_refused = isinstance(error, NotTakenError)
            self._slave.refuse(error)
            self.end()
        self._store.dispatch()
        self.report()

    def _append(self, offset: int, piece: bytes | memoryview) -> None:
        """Append what belongs at a physical offset; of no bytes, it only says that the master is there.

        Raises:
            NotTakenError: the store does not take it now.
            ReplicationError: it does not belong there.
        """
        store = self._store
        mine = store.max_physical_offset
        if mine not in (0, offset):
            raise ReplicationError(f"the master pushed what is at {offset}, this log ends at {mine}")
        if not piece:
            return
        if not store.put_encoded(offset, piece):
            raise NotTakenError(f"{'; '.join(store.refusals.values()) or 'no room'}: nothing is taken")
        self.has_taken = True
        self._slave.take()

    def report(self) -> None:
        """Tell the master how far this store is, if that is news. With SYNC_FLUSH only what is forced counts."""
        offset = self._store.flushed_offset if self._slave.is_sync else self._store.max_physical_offset
        if offset > self._reported and not self._transport.is_closing():
            self._reported = offset
            self._write()

    def _write(self) -> None:
        self._written_at = self._loop.time()
        self._slave.written_ms = self._slave.clock_ms()
        self._transport.write(encode_report(self._reported))

    def keep(self) -> None:
        """Tell the master that this slave is there, if nothing else has been said; end it if that is silent."""
        now, settings = self._loop.time(), self._slave.settings
        if self._transport.is_closing():
            return
        if now - self._read_at > settings.ha_housekeeping_interval_ms / 1000:
            log.warning("the master at %(address)s says nothing", {"address": self._slave.master_address})
            self.end()
        elif now - self._written_at > settings.ha_send_heartbeat_interval_ms / 1000:
            self._write()

    def end(self) -> None:
        """End it."""
        self._transport.abort()
