"""Master side of replication: pushes the CommitLog to connected slaves, and tracks their acknowledgements.

Source: ``DefaultHAService``, ``DefaultHAConnection``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from rmq_core.ha.frames import Reports, encode_push
from rmq_core.ha.log_comparison import FROM_START, MORE_REPEATS_S, REPEATS, REPEATS_AT_START, load_sound_offset
from rmq_core.ha.settings import HaSettings
from rmq_core.remoting.errors import ListenError
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.replication")
_HIGH_WATER_BYTES: Final = 1 << 20  # in a slave's write buffer; above it pushes pause
_MAX_HOSTS: Final = 1024
_HANDSHAKE_S: Final = 10.0
_MAX_BYTES_PER_TURN: Final = 1 << 20  # of the event loop, so that a slave far behind does not delay clients


class HaMaster:
    """HA service of a master: sends the CommitLog to all slaves that connect.

    Attributes:
        acknowledged_offset: physical offset below which enough slaves have acknowledged the log
            (``inSyncReplicas``); never falls.
    """

    def __init__(self, store: MessageStore, settings: HaSettings) -> None:
        """Prepare to replicate a store; raise OptionError if the certificates cannot be used."""
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
        # Hosts and ends of slaves whose log was longer than this one: their ends have bytes of another log.
        self._longer_slaves: set[tuple[str, int]] = set()
        # Offsets up to which ended connections pushed the log to a host, and up to which the host acknowledged it.
        self._pushed_by_host: dict[str, int] = {}
        self._acknowledged_by_host: dict[str, int] = {}
        self._sound_offset = load_sound_offset(store)

    async def listen(self, host: str, port: int) -> int:
        """Listen for slaves, on a free port for 0; return the port. Raise ListenError if the address cannot be used."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: SlavePeer(self), host, port, **self._tls
            )
        except OSError as error:
            raise ListenError(f"{host}:{port}", f"cannot listen: {error.strerror}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close all connections; slaves try to reconnect."""
        if self._server is not None:
            self._server.close()
        slaves = list(self.slaves)
        for slave in slaves:
            slave.end()
        await asyncio.gather(*(slave.ended for slave in slaves))

    @property
    def limit(self) -> int:
        """Physical offset below which the log may be pushed.

        With SYNC_FLUSH it is the flushed offset: else slaves could have more of the log than a master after a loss of
        power.
        """
        return self.store.flushed_offset if self._flushed_only else self.store.max_physical_offset

    def record_pushed(self, host: str, pushed_offset: int, acknowledged_offset: int) -> None:
        """Record the pushed and the acknowledged offset of a slave's host, as its connection ends."""
        for offsets, offset in (self._pushed_by_host, pushed_offset), (self._acknowledged_by_host, acknowledged_offset):
            if host in offsets or len(offsets) < _MAX_HOSTS:
                offsets[host] = max(offset, offsets.get(host, 0))

    def alternative_start(self, host: str, offset: int, repeats: int) -> tuple[int, str] | None:
        """Return another start offset with the reason if a slave cannot start at its reported offset, else None.

        Args:
            offset: physical offset that the slave reports; 0 for an empty log.
            repeats: number of equal first reports; more than one says that the slave compares the logs from the offset
                on, one that its log ends there.
        """
        compares = repeats >= REPEATS
        begin, end = self.store.min_physical_offset, self.store.max_physical_offset
        if offset == 0:
            return None
        if offset < 0 or offset > end or (not compares and (host, offset) in self._longer_slaves):
            if not compares and offset > end and len(self._longer_slaves) < _MAX_HOSTS:
                self._longer_slaves.add((host, offset))
            return min(end, max(offset - 1, 0)), f"this log goes to {end}, and went no further before"
        if offset < begin:
            return begin, f"this log begins at {begin}"
        is_within = offset > self._pushed_by_host.get(host, 0) and not self.store.boundaries.is_boundary(offset)
        if is_within and offset != FROM_START:
            return offset - 1, "no record begins there"
        sound_offset = max(self._sound_offset, begin)
        if repeats == REPEATS and offset > sound_offset and offset > self._acknowledged_by_host.get(host, 0):
            return sound_offset, "a recovery may have changed the log before it: compare from there"
        return None

    def on_acknowledged(self, listener: Callable[[int], None]) -> None:
        """Register a callback for each rise of ``acknowledged_offset``."""
        self._listeners.append(listener)

    def push(self) -> None:
        """Push new bytes of the log to all slaves; call it after each append or flush."""
        for slave in list(self.slaves):
            slave.push()

    def check_heartbeats(self) -> None:
        """Send heartbeats, and close connections of silent slaves; call it periodically."""
        now = asyncio.get_running_loop().time()
        for slave in list(self.slaves):
            slave.check_heartbeats(now)

    def update_acknowledged(self) -> None:
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
        pushed_offset: physical offset up to which the slave was sent the log or had it; -1 before the first report.
        acknowledged_offset: physical offset up to which the slave has acknowledged the log; -1 before the second
            report, as the first one is only the start offset.
    """

    def __init__(self, master: HaMaster) -> None:
        self.address = ""
        self.pushed_offset = self.acknowledged_offset = -1
        self._master = master
        self._store = master.store
        self._settings = master.settings
        self._reports = Reports()
        self._doubtful_until = -1  # acknowledged offsets up to this one do not count
        self._first_reports: list[int] = []  # reports that came before the push started
        self._start_timer: asyncio.TimerHandle | None = None
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
        if self._start_timer is not None:
            self._start_timer.cancel()
        if self in self._master.slaves:
            self._remove_from_master()
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
        if self.pushed_offset >= 0:
            self._record_acknowledgements(offsets)
            return
        self._first_reports += offsets
        if self._first_reports and not self._may_lack_repeats():
            self._start_push()
        elif self._first_reports and self._start_timer is None:
            self._start_timer = self._loop.call_later(MORE_REPEATS_S, self._start_push)

    def _count_repeats(self) -> int:
        reports = self._first_reports
        return next((index for index, offset in enumerate(reports) if offset != reports[0]), len(reports))

    def _may_lack_repeats(self) -> bool:
        """Return True if repeats of the first report may still be under way."""
        offset, repeats = self._first_reports[0], self._count_repeats()
        if repeats < len(self._first_reports) or repeats >= REPEATS_AT_START:
            return False
        return repeats < REPEATS or self._master.alternative_start(self.host, offset, repeats) is not None

    def _start_push(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
        offsets, repeats, self._first_reports = self._first_reports, self._count_repeats(), []
        if not self._transport.is_closing() and self._start_at(offsets[0], repeats):
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
            if offset != FROM_START:  # which no record ends at: a start offset only
                self.acknowledged_offset = max(self.acknowledged_offset, offset)
        self._master.update_acknowledged()

    def _remove_from_master(self) -> None:
        self._master.record_pushed(self.host, self.pushed_offset, self.acknowledged_offset)
        self._master.slaves.pop(self, None)

    @property
    def host(self) -> str:
        """Host of the slave's remote address."""
        return self.address.rpartition(":")[0]

    @property
    def counted_offset(self) -> int:
        """Acknowledged offset that counts for ``inSyncReplicas``; -1 while a later connection may be the same slave."""
        return self.acknowledged_offset if self.acknowledged_offset > self._doubtful_until else -1

    def _start_at(self, offset: int, repeats: int) -> bool:
        """Start to push at a slave's offset, or at the last file if its log is empty; return True if that is possible.

        If not, a heartbeat reports another offset to the slave: Java's slave then stops, and a slave of ours compares
        from there.
        """
        alternative = self._master.alternative_start(self.host, offset, repeats)
        if alternative is not None:
            start_offset, reason = alternative
            log.log(
                logging.INFO if repeats >= REPEATS else logging.ERROR,
                "slave %(slave)s cannot have the log from %(offset)d on: %(why)s",
                {"slave": self.address, "offset": offset, "why": reason},
            )
            self._transport.write(encode_push(start_offset, 0))
            self.end(after_write=True)
            return False
        end = self._store.max_physical_offset
        self.pushed_offset = offset or end - end % self._store.config.commitlog_file_bytes
        log.info(
            "slave %(slave)s has the log up to %(offset)d, pushing from %(from)d on",
            {"slave": self.address, "offset": offset, "from": self.pushed_offset},
        )
        for older in self._master.slaves:  # connections from the same host may be half-open ones of this slave
            if older is not self and older.host == self.host:
                older._doubtful_until = older.pushed_offset
        self.push()
        return True

    def push(self) -> None:
        """Push as many new bytes of the log as the connection accepts now."""
        if self._is_scheduled or self._is_paused or self.pushed_offset < 0:
            return
        store, batch_bytes, limit = self._store, self._settings.ha_transfer_batch_size, self._master.limit
        offset = self.pushed_offset
        end = min(limit, offset + _MAX_BYTES_PER_TURN)
        buffers: list[bytes | memoryview] = []
        while offset < end:
            log_bytes = store.read_log_range(offset, min(batch_bytes, end - offset))
            if log_bytes is None:
                log.error(
                    "slave %(slave)s is disconnected: it needs the log at %(offset)d, which is deleted",
                    {"slave": self.address, "offset": offset},
                )
                self.end()
                return
            buffers += (encode_push(offset, len(log_bytes)), log_bytes)
            offset += len(log_bytes)
        if not buffers:
            return
        self.pushed_offset = offset
        self._written_at = self._loop.time()
        self._transport.writelines(buffers)
        if offset < limit:
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
            self.pushed_offset >= self._master.limit  # the slave has the whole log, which a heartbeat says
            and self.pushed_offset >= 0
            and not self._is_paused
            and now - self._written_at > self._settings.ha_send_heartbeat_interval_ms / 1000
        ):
            self._written_at = now
            self._transport.write(encode_push(self.pushed_offset, 0))

    def end(self, *, after_write: bool = False) -> None:
        """Close the connection, at once or after the buffered writes; its acknowledgements no longer count."""
        self._remove_from_master()
        if after_write:
            self._transport.close()
        else:
            self._transport.abort()
