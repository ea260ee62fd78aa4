"""Slave side of replication: connects to the master, appends the pushed log, and reports the slave's end.

Source: ``DefaultHAClient``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from rmq_core.ha.frames import Pushes, ReplicationError, encode_report
from rmq_core.ha.log_comparison import ComparisonStart, LogComparison, LogsDifferError, OtherOffsetError
from rmq_core.ha.settings import HaSettings
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.replication")
_CONNECT_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 1.0  # between two attempts; Java's slave waits 5 s
_REFUSED_RETRY_S: Final = 30.0  # between two attempts after a refusal: a full disk stays full for a while


class StoreRefusedError(ReplicationError):
    """The store has no room for the master's log, or is broken."""


class HaSlave:
    """HA client of a slave: appends the bytes of its master's CommitLog.

    Attributes:
        master_address: ``host:port`` where the master listens for slaves; empty while no master is known.
        read_ms: time of the last bytes from the master, ms since 1970; 0 if there were none.
        written_ms: time of the last report to the master, ms since 1970; 0 if there was none.
        refusal_reason: reason of the refusal of the master's last push; empty after an accepted push.
        has_diverged: True if this log is not the beginning of the master's log.
    """

    def __init__(self, store: MessageStore, settings: HaSettings, clock_ms: Callable[[], int]) -> None:
        """Create a slave for a store; ``start`` connects."""
        self.master_address = settings.ha_master_address
        self.read_ms = self.written_ms = 0
        self.store = store
        self.settings = settings
        self.clock_ms = clock_ms
        self._tls = settings.ha_client_tls()
        self.is_sync = store.config.flush_disk_type is FlushDiskType.SYNC
        self._link: MasterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._address_changed = asyncio.Event()
        self._is_closed = False
        self._is_unreachable = False  # logged when it becomes True
        self.refusal_reason = ""
        self.has_diverged = False
        self._is_refused = False  # the store refused the last push, or the logs differ
        self._start = ComparisonStart(store, flushed_only=self.is_sync)
        self._on_log_confirmed: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        """True if the master is connected, and this log is the beginning of its log."""
        return self._link is not None and self._link.is_log_confirmed

    def start(self) -> None:
        """Start the task that connects to the master until ``close``."""
        self._loop = asyncio.get_running_loop()
        if self.is_sync:
            self.store.on_flushed(self._schedule_on_flush)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Disconnect from the master, and wait for the end of the task."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def follow(self, address: str) -> None:
        """Connect to the master at an address; do nothing if the address is the same."""
        if address == self.master_address:
            return
        log.info("the master listens for slaves at %(address)s", {"address": address})
        self.master_address = address
        self._is_refused = False
        self._start.reset()
        self._address_changed.set()
        if self._link is not None:
            self._link.end()

    def on_log_confirmed(self, listener: Callable[[], None]) -> None:
        """Register a callback for the moment when this log is confirmed as the beginning of the master's."""
        self._on_log_confirmed.append(listener)

    def check_heartbeats(self) -> None:
        """Send heartbeats, and close the connection of a silent master; call it periodically."""
        if self._link is not None:
            self._link.check_heartbeats()

    def _schedule_on_flush(self, _: int) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._on_flush)

    def _on_flush(self) -> None:
        self.store.dispatch()
        if self._link is not None:
            self._link.report()

    async def _run(self) -> None:
        wait_s = _FIRST_RETRY_S
        while True:
            while not self.master_address:
                self._address_changed.clear()
                await self._address_changed.wait()
            try:
                if await self._follow_once():
                    wait_s = _FIRST_RETRY_S
            except Exception:  # of any kind: the next attempt may reach another master
                log.exception("replication failed")
            wait_s = min(wait_s, _REFUSED_RETRY_S if self._is_refused else _MAX_RETRY_S)
            wait_s = _FIRST_RETRY_S if await self._wait_for_address(wait_s) else 2 * wait_s

    async def _wait_for_address(self, wait_s: float) -> bool:
        """Wait between two connection attempts; return True as soon as the master's address changes."""
        try:
            async with asyncio.timeout(wait_s):
                await self._address_changed.wait()
        except TimeoutError:
            return False
        self._address_changed.clear()
        return True

    def refuse(self, error: ReplicationError) -> None:
        """Record why the master's log is refused, and log the reason once."""
        if str(error) != self.refusal_reason:
            log.error("disconnects from the master: %(error)s", {"error": error})
        self.refusal_reason = str(error)

    def confirm_log(self) -> None:
        """Start replication: this log is the beginning of the master's."""
        self._start.reset()
        self.store.cut_deleted_topics()
        for listener in self._on_log_confirmed:
            listener()
        if self.has_diverged:
            self.has_diverged, self.refusal_reason = False, ""
        if not self.refusal_reason:
            self.log_master()

    def clear_refusal(self) -> None:
        """Clear the reason of a refusal after an accepted push."""
        if self.refusal_reason:
            self.refusal_reason = ""
            self.log_master()

    def log_master(self) -> None:
        """Write the master's address and the start offset to the log file."""
        log.info(
            "replicates the master at %(address)s from %(offset)d on",
            {"address": self.master_address, "offset": self.store.max_physical_offset},
        )

    async def _follow_once(self) -> bool:
        """Connect, and replicate until the connection ends; return True if bytes were appended.

        After a comparison without common bytes it connects again, and compares from an earlier offset.
        """
        if self._is_refused and self.store.refusals:  # the store would refuse what the master sends
            return False
        while True:
            link = await self._connect()
            if link is None:
                return False
            self._link = link
            try:
                await asyncio.shield(link.ended)
            finally:
                self._link = None
                link.end()
                await link.ended
            self._is_refused = isinstance(link.error, StoreRefusedError)
            if not isinstance(link.error, LogsDifferError | OtherOffsetError):
                return link.has_appended
            common_boundary = self._start.move_back(link.error)
            if common_boundary is not None:
                self._refuse_diverged(common_boundary)
                return False
            await asyncio.sleep(_FIRST_RETRY_S)

    async def _connect(self) -> "MasterLink | None":
        host, _, port = self.master_address.rpartition(":")
        host = host.strip("[]")
        tls: dict[str, Any] = {}
        try:
            if self._tls is not None:
                tls = {"ssl": self._tls.context(), "server_hostname": self._tls.server_name or host}
            async with asyncio.timeout(_CONNECT_S):
                _, link = await self._loop.create_connection(
                    lambda: MasterLink(self, self._start.next_comparison()), host, int(port), **tls
                )
        except (OSError, TimeoutError) as error:
            if not self._is_unreachable:
                log.warning(
                    "master %(address)s: cannot connect: %(error)s", {"address": self.master_address, "error": error}
                )
            self._is_unreachable, self._is_refused = True, False
            return None
        self._is_unreachable = False
        return link

    def _refuse_diverged(self, common: int) -> None:
        self._start.reset()
        self.has_diverged = self._is_refused = True
        overlap = f"is identical to the master's only up to offset {common}"
        if common < 0:
            overlap = "has nothing in common with the master's. Delete this store"
        log_range = f"{self.store.min_physical_offset} to {self.store.max_physical_offset}"
        self.refuse(ReplicationError(f"this log ({log_range}) {overlap}"))


class MasterLink(asyncio.Protocol):
    """One connection of a slave to its master.

    Attributes:
        error: reason why this slave closed the connection; None if it is open, or the master closed it.
    """

    def __init__(self, slave: HaSlave, comparison: LogComparison) -> None:
        """Connect a slave, whose log is compared with the master's first."""
        self.has_appended = False
        self.error: ReplicationError | None = None
        self._slave = slave
        self._comparison = comparison
        self._store = slave.store
        self._pushes = Pushes()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._read_at = self._written_at = self._loop.time()
        self._reported = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the start offset of the push."""
        self._transport = cast("asyncio.Transport", transport)
        self._reported = self._comparison.begin
        self._write(self._comparison.repeats)
        if self.is_log_confirmed:
            try:
                self._confirm_log()
            except StoreRefusedError as error:
                self._fail(error)

    @property
    def is_log_confirmed(self) -> bool:
        """Return True if the comparison with the master's log is complete and found no difference."""
        return self._comparison.is_done

    def connection_lost(self, _: Exception | None) -> None:
        """Record the end of the connection."""
        if self.is_log_confirmed and not self._slave.refusal_reason:
            log.info("the master at %(address)s has disconnected", {"address": self._slave.master_address})
        self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Append the pushed bytes, and report the new end."""
        self._read_at = self._loop.time()
        self._slave.read_ms = self._slave.clock_ms()
        try:
            for offset, chunk in self._pushes.feed(data):
                self._append(offset, chunk)
        except ReplicationError as error:
            self._fail(error)
        self._store.dispatch()
        self.report()

    def _confirm_log(self) -> None:
        """Notify the slave that its log is the beginning of the master's; raise StoreRefusedError if the disk fails."""
        try:
            self._slave.confirm_log()
        except OSError as error:
            raise StoreRefusedError(f"the store cannot be written: {error}") from error

    def _fail(self, error: ReplicationError) -> None:
        self.error = error
        if not isinstance(error, LogsDifferError | OtherOffsetError):
            self._slave.refuse(error)
        self.end()

    def _append(self, offset: int, chunk: memoryview) -> None:
        """Append pushed bytes, after the comparison of the logs; a push without bytes is a heartbeat."""
        store = self._store
        if not self._comparison.is_done:
            new_bytes = self._comparison.compare(offset, chunk)
            if not self._comparison.is_done:
                return
            self._confirm_log()
            offset, chunk = store.max_physical_offset, new_bytes
        end = store.max_physical_offset
        if end not in (0, offset):
            raise ReplicationError(f"the master pushed bytes at {offset}, but this log ends at {end}")
        if not chunk:
            return
        if not store.append_to_commit_log(offset, chunk):
            raise StoreRefusedError(f"{'; '.join(store.refusals.values()) or 'no room'}: nothing is appended")
        self.has_appended = True
        self._slave.clear_refusal()

    def report(self) -> None:
        """Report the end of this log if the end has risen; with SYNC_FLUSH the flushed end."""
        if not self.is_log_confirmed:
            return
        offset = self._store.flushed_offset if self._slave.is_sync else self._store.max_physical_offset
        if offset > self._reported and not self._transport.is_closing():
            self._reported = offset
            self._write()

    def _write(self, repeats: int = 1) -> None:
        self._written_at = self._loop.time()
        self._slave.written_ms = self._slave.clock_ms()
        self._transport.write(encode_report(self._reported) * repeats)

    def check_heartbeats(self) -> None:
        """Send a heartbeat on an idle connection; close the connection of a silent master."""
        now, settings = self._loop.time(), self._slave.settings
        if self._transport.is_closing():
            return
        if now - self._read_at > settings.ha_housekeeping_interval_ms / 1000:
            log.warning("the master at %(address)s is silent, disconnecting", {"address": self._slave.master_address})
            self.end()
        elif self.is_log_confirmed and now - self._written_at > settings.ha_send_heartbeat_interval_ms / 1000:
            self._write()

    def end(self) -> None:
        """Close the connection."""
        self._transport.abort()
