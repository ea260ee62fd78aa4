"""A master's side of replication: slaves connect, are sent the log, and tell how much of it they have.

Source: ``DefaultHAService``, ``DefaultHAConnection``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from rmq_core.ha.frames import Reports, encode_push
from rmq_core.ha.settings import HaSettings
from rmq_core.remoting.errors import ListenError
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.replication")
_HIGH_WATER_BYTES: Final = 1 << 20  # on its way to a slave; more waits in the log
_MOST_AHEAD: Final = 1024
_TURN_BYTES: Final = 1 << 20  # sent at once: a slave that is far behind must not keep clients waiting


class HaMaster:
    """Sends the log to all who connect.

    Attributes:
        slaves: those that are there.
    """

    def __init__(self, store: MessageStore, settings: HaSettings) -> None:
        """Serve a store; ``listen`` begins.

        Args:
            store: whose log it is.
            settings: how.
        """
        self.slaves: set[SlavePeer] = set()
        self.store = store
        self.settings = settings
        self._forced_only = store.config.flush_disk_type is FlushDiskType.SYNC
        self._server: asyncio.Server | None = None
        self._listeners: list[Callable[[int], None]] = []
        self._acknowledged = 0
        self._ahead: set[tuple[str, int]] = set()  # hosts and ends of slaves whose log was longer than this one

    async def listen(self, host: str, port: int) -> int:
        """Let slaves connect; the port, which is a free one if 0 is asked for.

        Raises:
            ListenError: the address cannot be had.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: SlavePeer(self), host, port)
        except OSError as error:
            raise ListenError(f"{host}:{port}", f"cannot listen there: {error.strerror}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop; slaves connect again when they can."""
        if self._server is not None:
            self._server.close()
        slaves = list(self.slaves)
        for slave in slaves:
            slave.end()
        await asyncio.gather(*(slave.ended for slave in slaves))

    @property
    def limit(self) -> int:
        """Physical offset below which slaves may have the log.

        With SYNC_FLUSH only what is forced: a master that lost its memory would else be behind its slaves.
        """
        return self.store.flushed_offset if self._forced_only else self.store.max_physical_offset

    @property
    def acknowledged_offset(self) -> int:
        """Physical offset below which as many slaves have had the log as the settings want; it never falls."""
        return self._acknowledged

    def is_another_log(self, host: str, offset: int) -> bool:
        """Whether a slave's log is, or was once, longer than this one: what it has behind this one's end is not ours.

        When this log is as long it still has that, so it is let in by a restart of the master at the earliest.
        """
        if offset > self.store.max_physical_offset and len(self._ahead) < _MOST_AHEAD:
            self._ahead.add((host, offset))
        return offset > self.store.max_physical_offset or (host, offset) in self._ahead

    def on_acknowledged(self, listener: Callable[[int], None]) -> None:
        """Have a function called with ``acknowledged_offset`` whenever that has risen."""
        self._listeners.append(listener)

    def push(self) -> None:
        """Send slaves what is new; call it when something is."""
        for slave in list(self.slaves):
            slave.push()

    def keep(self) -> None:
        """Send heartbeats, and end connections that have been silent for too long; call it now and then."""
        now = asyncio.get_running_loop().time()
        for slave in list(self.slaves):
            slave.keep(now)

    def reported(self) -> None:
        """A slave has told how far it is."""
        wanted = self.settings.in_sync_replicas - 1
        if wanted < 1 or len(self.slaves) < wanted:
            return
        offset = sorted((slave.acknowledged_offset for slave in self.slaves), reverse=True)[wanted - 1]
        if offset > self._acknowledged:
            self._acknowledged = offset
            for listener in self._listeners:
                listener(offset)


class SlavePeer(asyncio.Protocol):
    """A slave's connection.

    Attributes:
        address: of the slave, as it is seen from here.
        pushed_offset: physical offset below which the slave has been sent the log, or had it; -1 before its
            first report.
        acknowledged_offset: how much of that it says it has.
        ended: done when the connection is gone.
    """

    def __init__(self, master: HaMaster) -> None:
        self.address = ""
        self.pushed_offset = self.acknowledged_offset = -1
        self._master = master
        self._store = master.store
        self._settings = master.settings
        self._reports = Reports()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._read_at = self._written_at = self._loop.time()
        self._is_paused = self._is_scheduled = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else ""
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if len(self._master.slaves) >= self._settings.max_ha_connections:
            log.warning("too many slaves: %(slave)s is refused", {"slave": self.address})
            self._transport.abort()
            return
        self._master.slaves.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        """It is gone."""
        if self in self._master.slaves:
            self._master.slaves.discard(self)
            log.info("slave %(slave)s has gone", {"slave": self.address})
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """Enough is on its way."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        self.push()

    def data_received(self, data: bytes) -> None:
        """Reports."""
        self._read_at = self._loop.time()
        for offset in self._reports.feed(data):
            refusal = self._begin(offset) if self.pushed_offset < 0 else self._take(offset)
            if refusal:
                log.error("slave %(slave)s is let go: " + refusal, {"slave": self.address})
                self.end()
                return
        self._master.reported()

    def _begin(self, offset: int) -> str:
        """Begin where a slave's log ends, an empty one's with the last file; why not, if that cannot be."""
        store = self._store
        end = store.max_physical_offset
        if offset < 0 or self._master.is_another_log(self.address.rpartition(":")[0], offset):
            return f"its log reaches to {offset}, this one to {end}: throw its store away"
        if 0 < offset < store.min_physical_offset:
            return f"its log ends at {offset}, this one begins at {store.min_physical_offset}"
        self.pushed_offset = offset or end - end % store.config.commitlog_file_bytes
        self.acknowledged_offset = offset
        log.info(
            "slave %(slave)s has the log to %(offset)d, and is sent it from %(from)d on",
            {"slave": self.address, "offset": offset, "from": self.pushed_offset},
        )
        self.push()
        return ""

    def _take(self, offset: int) -> str:
        """Note how far a slave is; why not, if it cannot be: apache/rocketmq #3015, #1155."""
        if not 0 <= offset <= self.pushed_offset:
            return f"it acknowledges {offset}, and was sent the log to {self.pushed_offset}"
        self.acknowledged_offset = max(self.acknowledged_offset, offset)
        return ""

    def push(self) -> None:
        """Send what is new, as much as the connection takes now."""
        if self._is_scheduled or self._is_paused or self.pushed_offset < 0:
            return
        store, most, limit = self._store, self._settings.ha_transfer_batch_size, self._master.limit
        at = self.pushed_offset
        until = min(limit, at + _TURN_BYTES)
        buffers: list[bytes | memoryview] = []
        while at < until:
            stretch = store.log_stretch(at, min(most, until - at))
            if stretch is None:
                log.error(
                    "slave %(slave)s is let go: the log at %(offset)d, which it needs, is gone",
                    {"slave": self.address, "offset": at},
                )
                self.end()
                return
            buffers += (encode_push(at, len(stretch)), stretch)
            at += len(stretch)
        if not buffers:
            return
        self.pushed_offset = at
        self._written_at = self._loop.time()
        self._transport.writelines(buffers)
        if at < limit:
            self._is_scheduled = True
            self._loop.call_soon(self._push_more)

    def _push_more(self) -> None:
        self._is_scheduled = False
        if not self._transport.is_closing():
            self.push()

    def keep(self, now: float) -> None:
        """Say that the master is there, if nothing else has been said; end it if the slave does not."""
        if now - self._read_at > self._settings.ha_housekeeping_interval_ms / 1000:
            log.warning("slave %(slave)s says nothing, and is let go", {"slave": self.address})
            self.end()
        elif (
            self.pushed_offset >= 0
            and not self._is_paused
            and now - self._written_at > self._settings.ha_send_heartbeat_interval_ms / 1000
        ):
            self._written_at = now
            self._transport.write(encode_push(self.pushed_offset, 0))

    def end(self) -> None:
        """Let it go; what it has acknowledged counts no more."""
        self._master.slaves.discard(self)
        self._transport.abort()
