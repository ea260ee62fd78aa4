"""Master side of replication: pushes the CommitLog to connected slaves, and tracks their acknowledgements.

Source: ``DefaultHAService``, ``DefaultHAConnection``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from rmq_core.ha.frames import Reports, encode_push
from rmq_core.ha.log_comparison import FROM_START, MORE_REPEATS_S, REPEATS, REPEATS_AT_START, sound_until
from rmq_core.ha.settings import HaSettings
from rmq_core.remoting.errors import ListenError
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.replication")
_HIGH_WATER_BYTES: Final = 1 << 20  # in flight to a slave; more waits in the log
_MOST_HOSTS: Final = 1024
_HANDSHAKE_S: Final = 10.0
_TURN_BYTES: Final = 1 << 20  # sent at once: a slave that is far behind must not keep clients waiting


class HaMaster:
    """HA service of a master: sends the CommitLog to all slaves that connect.

    Attributes:
        acknowledged_offset: physical offset below which enough slaves have acknowledged the log
            (``inSyncReplicas``); never falls.
    """

    def __init__(self, store: MessageStore, settings: HaSettings) -> None:
        """Replicate a store; ``listen`` starts.

        Raises:
            OptionError: certificates that cannot be used.
        """
        self.slaves: dict[SlavePeer, None] = {}
        self.store = store
        self.settings = settings
        self._flushed_only = store.config.flush_disk_type is FlushDiskType.SYNC
        tls = settings.ha_server_tls()
        self._tls: dict[str, Any] = {} if tls is None else {
            "ssl": tls.listening_context(), "ssl_handshake_timeout": _HANDSHAKE_S
        }  # fmt: skip
        self._server: asyncio.Server | None = None
        self._listeners: list[Callable[[int], None]] = []
        self.acknowledged_offset = 0
        # Hosts and ends of slaves whose log was longer than this one: its end still has bytes of another log.
        self._ahead: set[tuple[str, int]] = set()
        self._pushed: dict[str, int] = {}  # up to where a host was pushed the log, by connections that have ended
        self._compared: dict[str, int] = {}  # likewise up to where it has acknowledged it
        self._sound_until = sound_until(store)

    async def listen(self, host: str, port: int) -> int:
        """Listen for slaves; return the port, a free one for 0.

        Raises:
            ListenError: the address cannot be had.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: SlavePeer(self), host, port, **self._tls
            )
        except OSError as error:
            raise ListenError(f"{host}:{port}", f"cannot listen there: {error.strerror}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop; slaves reconnect when they can."""
        if self._server is not None:
            self._server.close()
        slaves = list(self.slaves)
        for slave in slaves:
            slave.end()
        await asyncio.gather(*(slave.ended for slave in slaves))

    @property
    def limit(self) -> int:
        """Physical offset below which the log may be pushed.

        With SYNC_FLUSH only what is flushed: a master that loses power would else be behind its slaves.
        """
        return self.store.flushed_offset if self._flushed_only else self.store.max_physical_offset

    def record_pushed(self, host: str, pushed_offset: int, acknowledged_offset: int) -> None:
        """Record the pushed and the acknowledged offset of a slave's host, as its connection ends."""
        for offsets, offset in (self._pushed, pushed_offset), (self._compared, acknowledged_offset):
            if host in offsets or len(offsets) < _MOST_HOSTS:
                offsets[host] = max(offset, offsets.get(host, 0))

    def alternative_start(self, host: str, offset: int, repeats: int) -> tuple[int, str] | None:
        """Return another start offset with the reason if a slave cannot start at its reported offset, else None.

        Args:
            offset: physical offset that it reports; 0 of an empty log.
            repeats: how often; more than once if it compares what comes with its own log. Else its log ends there.
        """
        compares = repeats >= REPEATS
        first, end = self.store.min_physical_offset, self.store.max_physical_offset
        if offset == 0:
            return None
        if offset < 0 or offset > end or (not compares and (host, offset) in self._ahead):
            if not compares and offset > end and len(self._ahead) < _MOST_HOSTS:
                self._ahead.add((host, offset))
            return min(end, max(offset - 1, 0)), f"this log goes to {end}, and went no further before"
        if offset < first:
            return first, f"this log begins at {first}"
        is_within = offset > self._pushed.get(host, 0) and not self.store.boundaries.is_boundary(offset)
        if is_within and offset != FROM_START:
            return offset - 1, "no record begins there"
        sound = max(self._sound_until, first)
        if repeats == REPEATS and offset > sound and offset > self._compared.get(host, 0):
            return sound, "a recovery may have found holes before that, so more is to be compared"
        return None

    def on_acknowledged(self, listener: Callable[[int], None]) -> None:
        """Register a callback for each rise of ``acknowledged_offset``."""
        self._listeners.append(listener)

    def push(self) -> None:
        """Push new bytes of the log to slaves; to be called for new bytes."""
        for slave in list(self.slaves):
            slave.push()

    def check_heartbeats(self) -> None:
        """Send heartbeats, and close connections of silent slaves; to be called periodically."""
        now = asyncio.get_running_loop().time()
        for slave in list(self.slaves):
            slave.check_heartbeats(now)

    def on_begin(self, slave: "SlavePeer") -> None:
        """Mark older connections from a slave's host, which may be half-open, as doubtful."""
        for other in self.slaves:
            if other is not slave and other.host == slave.host:
                other.doubt()

    def on_report(self) -> None:
        """Recompute ``acknowledged_offset`` after a slave's report."""
        required_slaves = self.settings.in_sync_replicas - 1
        if required_slaves < 1 or len(self.slaves) < required_slaves:
            return
        offset = sorted((slave.counted_offset for slave in self.slaves), reverse=True)[required_slaves - 1]
        if offset > self.acknowledged_offset:
            self.acknowledged_offset = offset
            for listener in self._listeners:
                listener(offset)


class SlavePeer(asyncio.Protocol):
    """Connection of one slave, and its progress.

    Attributes:
        address: of the slave, as it is seen from here.
        pushed_offset: physical offset below which the slave has been sent the log, or had it; -1 before its
            first report.
        acknowledged_offset: physical offset up to which the slave has acknowledged the log; -1 before its second
            report, as the first one says only where to begin.
        ended: done when the connection is gone.
    """

    def __init__(self, master: HaMaster) -> None:
        self.address = ""
        self.pushed_offset = self.acknowledged_offset = -1
        self._master = master
        self._store = master.store
        self._settings = master.settings
        self._reports = Reports()
        self._doubted_until = -1
        self._first: list[int] = []  # reports, before it is known how often the first one comes
        self._begins_later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._read_at = self._written_at = self._loop.time()
        self._is_paused = self._is_scheduled = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the slave, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else ""
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if len(self._master.slaves) >= self._settings.max_ha_connections:
            log.warning("too many slaves: %(slave)s is refused", {"slave": self.address})
            self._transport.abort()
            return
        self._master.slaves[self] = None

    def connection_lost(self, _: Exception | None) -> None:
        """Remove the slave."""
        if self._begins_later is not None:
            self._begins_later.cancel()
        if self in self._master.slaves:
            self._leave()
            log.info("slave %(slave)s has disconnected", {"slave": self.address})
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """Stop pushing: the write buffer is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Resume pushing."""
        self._is_paused = False
        self.push()

    def data_received(self, data: bytes) -> None:
        """Handle reports; the first is the start offset, and a slave that compares logs repeats the first report."""
        self._read_at = self._loop.time()
        offsets = self._reports.feed(data)
        if self.pushed_offset < 0:
            self._first += offsets
            if self._first and self._begins_later is None:
                if self._may_lack_repeats():
                    self._begins_later = self._loop.call_later(MORE_REPEATS_S, self._start_push)
                else:
                    self._start_push()
            elif self._first and not self._may_lack_repeats():
                self._start_push()
        else:
            self._record_acknowledgements(offsets)

    def _repeats(self) -> int:
        first = self._first
        return next((at for at, offset in enumerate(first) if offset != first[0]), len(first))

    def _may_lack_repeats(self) -> bool:
        """Return True if repeats of the first report may still be under way."""
        offset, repeats = self._first[0], self._repeats()
        if repeats < len(self._first) or repeats >= REPEATS_AT_START:
            return False
        return repeats < REPEATS or self._master.alternative_start(self.host, offset, repeats) is not None

    def _start_push(self) -> None:
        if self._begins_later is not None:
            self._begins_later.cancel()
        offsets, repeats, self._first = self._first, self._repeats(), []
        if not self._transport.is_closing() and self._begin(offsets[0], repeats):
            self._record_acknowledgements(offsets[repeats:])

    def _record_acknowledgements(self, offsets: list[int]) -> None:
        for offset in offsets:
            if not 0 <= offset <= self.pushed_offset:  # apache/rocketmq #3015, #1155
                log.error(
                    "slave %(slave)s is disconnected: it acknowledges %(offset)d, but was pushed the log up to %(end)d",
                    {"slave": self.address, "offset": offset, "end": self.pushed_offset},
                )
                self.end()
                return
            if offset != FROM_START:  # that is a place to compare from, and no record ends there
                self.acknowledged_offset = max(self.acknowledged_offset, offset)
        self._master.on_report()

    def _leave(self) -> None:
        self._master.record_pushed(self.host, self.pushed_offset, self.acknowledged_offset)
        self._master.slaves.pop(self, None)

    @property
    def host(self) -> str:
        """The slave's host, as seen from here."""
        return self.address.rpartition(":")[0]

    @property
    def counted_offset(self) -> int:
        """The acknowledged offset for ``inSyncReplicas``; -1 while a later connection may be the same slave."""
        return self.acknowledged_offset if self.acknowledged_offset > self._doubted_until else -1

    def doubt(self) -> None:
        """Count no acknowledgement up to here: a later connection from the same host may be the same slave."""
        self._doubted_until = self.pushed_offset

    def _begin(self, offset: int, repeats: int) -> bool:
        """Start to push at a slave's offset, for an empty slave at the last file; return False if that is impossible.

        The slave gets the other offset: Java's slave gives up then, ours compares further back.
        """
        other = self._master.alternative_start(self.host, offset, repeats)
        places = {"slave": self.address, "offset": offset}
        if other is not None:
            place, why = other
            level = logging.INFO if repeats >= REPEATS else logging.ERROR
            log.log(level, "slave %(slave)s cannot have the log from %(offset)d on: %(why)s", places | {"why": why})
            self._transport.write(encode_push(place, 0))
            self.end(after_write=True)
            return False
        end = self._store.max_physical_offset
        self.pushed_offset = offset or end - end % self._store.config.commitlog_file_bytes
        log.info(
            "slave %(slave)s has the log up to %(offset)d, pushing from %(from)d on",
            {"slave": self.address, "offset": offset, "from": self.pushed_offset},
        )
        self._master.on_begin(self)
        self.push()
        return True

    def push(self) -> None:
        """Push new bytes of the log, as many as the connection accepts now."""
        if self._is_scheduled or self._is_paused or self.pushed_offset < 0:
            return
        store, most, limit = self._store, self._settings.ha_transfer_batch_size, self._master.limit
        at = self.pushed_offset
        until = min(limit, at + _TURN_BYTES)
        buffers: list[bytes | memoryview] = []
        while at < until:
            stretch = store.read_log_range(at, min(most, until - at))
            if stretch is None:
                log.error(
                    "slave %(slave)s is disconnected: it needs the log at %(offset)d, which is deleted",
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

    def check_heartbeats(self, now: float) -> None:
        """Send a heartbeat on an idle connection; close the connection of a silent slave."""
        if now - self._read_at > self._settings.ha_housekeeping_interval_ms / 1000:
            log.warning("slave %(slave)s is silent, and is disconnected", {"slave": self.address})
            self.end()
        elif (
            self.pushed_offset >= self._master.limit  # nothing is left to push: a slave takes a heartbeat for that
            and self.pushed_offset >= 0
            and not self._is_paused
            and now - self._written_at > self._settings.ha_send_heartbeat_interval_ms / 1000
        ):
            self._written_at = now
            self._transport.write(encode_push(self.pushed_offset, 0))

    def end(self, *, after_write: bool = False) -> None:
        """Close the connection, at once or after the buffered writes; its acknowledgements no longer count."""
        self._leave()
        if after_write:
            self._transport.close()
        else:
            self._transport.abort()
