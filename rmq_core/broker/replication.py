"""Work after an append: dispatch, replication, and callbacks that wait for the flush or the replication.

Source: ``DefaultHAService``, ``BrokerController#handleRegisterBrokerResult``, ``CommitLog#handleDiskFlush``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.table_file import log
from rmq_core.ha.master import HaMaster
from rmq_core.ha.slave import HaSlave
from rmq_core.remoting.bodies.stats import HaClient, HaConnection, HaStatus
from rmq_core.remoting.errors import ListenError
from rmq_core.store.config import FlushDiskType
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore

_DRAIN_POLL_S: Final = 0.005
TICK_S: Final = 0.1  # interval of pushes, heartbeats and time-outs; Java's
_MAX_PORT: Final = 65535
MAX_NEW_QUEUES_PER_DISPATCH: Final = 64  # some 10 ms of an idle processor


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    callback: Callable[[bool], None]


class Waiters:
    """Callbacks that wait for the log to be flushed or replicated up to an offset, in the order of the log."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiter] = deque()

    def add(self, result: PutResult, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` with True once a message is flushed and replicated, with False on a timeout or an error."""
        self._waiting.append(_Waiter(result.end_offset, self._loop.time() + self._timeout_s, callback))

    def release(self, offset: int) -> None:
        """Run the callbacks of messages that end at or below an offset."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= offset:
            waiting.popleft().callback(True)

    async def drain(self) -> None:
        """Wait until all current callbacks have run; callbacks added meanwhile do not delay the return."""
        last_offset = self._waiting[-1].end_offset if self._waiting else -1
        while self._waiting and self._waiting[0].end_offset <= last_offset:
            await asyncio.sleep(_DRAIN_POLL_S)
            self.expire()

    def expire(self) -> None:
        """Run expired callbacks with False; to be called periodically."""
        now, waiting = self._loop.time(), self._waiting
        while waiting and waiting[0].deadline <= now:
            waiting.popleft().callback(False)

    def fail(self) -> None:
        while self._waiting:
            self._waiting.popleft().callback(False)


class DiskWaiters(Waiters):
    """Callbacks that wait for the flush of a message; with ASYNC_FLUSH there are none."""

    def __init__(self, store: MessageStore, timeout_ms: int, dispatch: Callable[[], None]) -> None:
        """Wait on the running event loop; ``dispatch`` makes flushed messages readable."""
        super().__init__(timeout_ms)
        self.is_sync = store.config.flush_disk_type is FlushDiskType.SYNC
        self._store = store
        self._dispatch = dispatch
        self._is_closed = False
        if self.is_sync:
            store.on_flushed(lambda _: self._call(self._release_flushed))
            store.on_fault(lambda _: self._call(self.fail))  # no waiting message will be flushed

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function on the event loop, from any thread."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(function)

    def _release_flushed(self) -> None:
        """Dispatch the flushed messages, so that they are readable, then run their callbacks."""
        self._dispatch()
        self.release(self._store.flushed_offset)

    def close(self) -> None:
        """Ignore the store from now on, as it will be closed."""
        self._is_closed = True


class Replication:
    """Replication of a broker: its HA service for slaves and, at a slave, its HA client.

    Attributes:
        master: HA service for slaves; a slave has one, too.
        port: port for slaves; 0 without HA service.
        master_address: ``host:port`` of a slave's master; empty while unknown.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig, clock_ms: Callable[[], int]) -> None:
        self.master = HaMaster(store, config)
        self.slave = HaSlave(store, config, clock_ms) if config.is_slave else None
        self.port = 0
        self.master_address = ""
        self.needs_slaves = config.broker_role == "SYNC_MASTER" and config.in_sync_replicas > 1
        self._store = store
        self._config = config
        self._waiters = Waiters(config.slave_timeout_ms)
        self._is_closed = False

    async def start(self, broker_port: int) -> None:
        """Listen for slaves and, on a slave, follow the master.

        Raises ListenError if listening fails at the port of the settings, or on a SYNC_MASTER.
        """
        config, self._loop = self._config, asyncio.get_running_loop()
        port = config.ha_listen_port or (broker_port + 1 if config.listen_port and broker_port < _MAX_PORT else 0)
        try:
            self.port = await self.master.listen(config.bind_address, port)
        except ListenError as error:
            if config.ha_listen_port or self.needs_slaves:
                raise
            log.warning("no slaves can connect: %(error)s", {"error": error})
        self.master.on_acknowledged(self._waiters.release)
        if self._store.config.flush_disk_type is FlushDiskType.SYNC:
            self._store.on_flushed(self._call_push)
        if self.slave is not None:
            self.slave.start()

    def _call_push(self, _: int) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self.push)

    async def close(self) -> None:
        self._is_closed = True
        if self.slave is not None:
            await self.slave.close()
        await self.master.close()

    async def drain(self) -> None:
        """Wait until all sends are replicated or expired."""
        await self._waiters.drain()

    def push(self) -> None:
        """Send new bytes of the log to the slaves; call it after each batch of appends."""
        if self.master.slaves:
            self.master.push()

    def tick(self) -> None:
        """Push remaining bytes and heartbeats, and expire waits; to be called every ``TICK_S``."""
        self.push()
        self.master.check_heartbeats()
        if self.slave is not None:
            self.slave.check_heartbeats()
        self._waiters.expire()

    def wait(self, result: PutResult, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` with True once enough slaves have a message, with False on a timeout."""
        if result.end_offset <= self.master.acknowledged_offset:
            callback(True)
        else:
            self._waiters.add(result, callback)

    @property
    def is_following(self) -> bool:
        return self.slave is not None and self.slave.is_connected

    @property
    def has_diverged(self) -> bool:
        return self.slave is not None and self.slave.has_diverged

    def ha_server_address(self, address: str) -> str:
        """Return the address for slaves, with ``brokerIP2`` or the host of an address; empty without HA service."""
        broker_ip2 = self._config.broker_ip2
        host = (f"[{broker_ip2}]" if ":" in broker_ip2 else broker_ip2) or address.rpartition(":")[0]
        return f"{host}:{self.port}" if self.port else ""

    def update_master_addresses(self, master_address: str | None, ha_address: str | None) -> None:
        """Apply the master's addresses from the response of a name server."""
        if self.slave is None:
            return
        self.master_address = master_address or ""
        if ha_address and not self._config.ha_master_address:
            self.slave.follow(ha_address)

    def status(self) -> HaStatus:
        """Return the body of GET_BROKER_HA_STATUS (907). Source: ``DefaultHAService#getRuntimeInfo``."""
        end = self._store.max_physical_offset
        slave = self.slave
        if slave is not None:
            client = HaClient(
                activated=slave.is_connected,
                master_addr=slave.master_address,
                max_offset=end,
                last_read_timestamp=slave.read_ms,
                last_write_timestamp=slave.written_ms,
            )
            return HaStatus(master=False, ha_client_runtime_info=client)
        gap = self._config.ha_max_gap_not_in_sync
        slaves = [
            HaConnection(
                addr=connection.address,
                slave_ack_offset=connection.acknowledged_offset,
                diff=end - connection.acknowledged_offset,
                transfer_from_where=connection.pushed_offset,
                in_sync=connection.acknowledged_offset >= 0 and end - connection.acknowledged_offset < gap,
            )
            for connection in sorted(self.master.slaves, key=lambda connection: connection.address)
        ]
        return HaStatus(
            master_commit_log_max_offset=end,
            ha_connection_info=slaves,
            in_sync_slave_nums=sum(status.in_sync for status in slaves),
        )


class Dispatching:
    """Dispatch after each batch of appends: of requests, timers, delays and transactions.

    Many new queues are dispatched in parts: a message may name a thousand light queues, and each needs a directory and
    a file.
    """

    def __init__(self, replication: Replication, store: MessageStore) -> None:
        self._replication, self._store = replication, store
        self._next: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Push appended bytes to slaves, and dispatch; many new queues need several runs of the event loop."""
        self._replication.push()  # before dispatch, so that slaves work meanwhile
        if self._next is None:
            self._dispatch()

    def _dispatch(self) -> None:
        self._next = None
        self._store.dispatch(MAX_NEW_QUEUES_PER_DISPATCH)
        if self._store.has_more_to_dispatch:
            self._next = asyncio.get_running_loop().call_later(0, self._dispatch)

    def cancel(self) -> None:
        """Stop dispatching; the store's shutdown dispatches the remaining records."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
