"""A broker's replication: a master sends its log to slaves, a slave follows its master.

Source: ``DefaultHAService``, ``BrokerController#handleRegisterBrokerResult``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.table_file import log
from rmq_core.broker.tables.waiters import Waiters
from rmq_core.ha.master import HaMaster
from rmq_core.ha.slave import HaSlave
from rmq_core.remoting.bodies import HaStatus
from rmq_core.remoting.bodies.stats import HaClient, HaConnection
from rmq_core.remoting.errors import ListenError
from rmq_core.store.config import FlushDiskType
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore

TICK_S: Final = 0.1  # interval of pushes, heartbeats and time-outs; Java's
_MAX_PORT: Final = 65535


class Replication:
    """Replication of a broker: its HA service for slaves and, at a slave, its HA client.

    Attributes:
        master: serves slaves; a slave does so as well, if others connect to it.
        slave: follows the master; None on a master.
        port: where slaves connect; 0 if they cannot.
        needs_slaves: whether sends wait for slaves.
        master_address: ``host:port`` where a slave's master takes requests; empty while none is known.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig, clock_ms: Callable[[], int]) -> None:
        """Prepare both sides; ``start`` runs them.

        Args:
            store: the broker's.
            config: the broker's.
            clock_ms: the time, ms since 1970.
        """
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

        Raises:
            ListenError: the port that the settings name, or that a SYNC_MASTER needs, cannot be listened on.
        """
        config, self._loop = self._config, asyncio.get_running_loop()
        port = config.ha_listen_port or (broker_port + 1 if config.listen_port and broker_port < _MAX_PORT else 0)
        try:
            self.port = await self.master.listen(config.bind_address, port)
        except ListenError as error:
            if config.ha_listen_port or self.needs_slaves:
                raise
            log.warning("no slaves are taken: %(error)s", {"error": error})
        self.master.on_acknowledged(self._waiters.release)
        if self._store.config.flush_disk_type is FlushDiskType.SYNC:
            self._store.on_flushed(self._call_push)
        if self.slave is not None:
            self.slave.start()

    def _call_push(self, _: int) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self.push)

    async def close(self) -> None:
        """Stop both sides."""
        self._is_closed = True
        if self.slave is not None:
            await self.slave.close()
        await self.master.close()

    async def drain(self) -> None:
        """Wait until no send waits for slaves any more."""
        await self._waiters.drain()

    def push(self) -> None:
        """Send new bytes of the log to the slaves; call it after each batch of appends."""
        if self.master.slaves:
            self.master.push()

    def tick(self) -> None:
        """Send what is left, heartbeats, and time-outs; call it every ``TICK_S``."""
        self.push()
        self.master.check_heartbeats()
        if self.slave is not None:
            self.slave.check_heartbeats()
        self._waiters.expire()

    def wait(self, result: PutResult, done: Callable[[bool], None]) -> None:
        """Runs a callback with whether enough slaves have a message in time."""
        if result.end_offset <= self.master.acknowledged_offset:
            done(True)
        else:
            self._waiters.add(result, done)

    @property
    def is_following(self) -> bool:
        """Whether this is a slave that is connected to its master."""
        return self.slave is not None and self.slave.is_connected

    @property
    def has_diverged(self) -> bool:
        """Whether this is a slave whose log is not the beginning of its master's."""
        return self.slave is not None and self.slave.has_diverged

    def address_beside(self, address: str) -> str:
        """Address that slaves connect to; empty if there is none. Source: ``BrokerController#getHAServerAddr``.

        Args:
            address: whose host that is, unless ``brokerIP2`` names another.
        """
        given = self._config.broker_ip2
        host = (f"[{given}]" if ":" in given else given) or address.rpartition(":")[0]
        return f"{host}:{self.port}" if self.port else ""

    def registered(self, master_address: str | None, ha_address: str | None) -> None:
        """Take over the master's addresses from the answer of a name server.

        Args:
            master_address: where the master takes requests; None while there is none.
            ha_address: where it takes slaves.
        """
        if self.slave is None:
            return
        self.master_address = master_address or ""
        if ha_address and not self._config.ha_master_address:
            self.slave.follow(ha_address)

    def status(self) -> HaStatus:
        """The body of the answer to GET_BROKER_HA_STATUS (907). Source: ``DefaultHAService#getRuntimeInfo``."""
        end = self._store.max_physical_offset
        slave = self.slave
        if slave is not None:
            client = HaClient(
                activated=slave.is_connected, master_addr=slave.master_address, max_offset=end,
                last_read_timestamp=slave.read_ms, last_write_timestamp=slave.written_ms,
            )  # fmt: skip
            return HaStatus(master=False, ha_client_runtime_info=client)
        gap = self._config.ha_max_gap_not_in_sync
        slaves = [
            HaConnection(
                addr=one.address, slave_ack_offset=one.acknowledged_offset, diff=end - one.acknowledged_offset,
                transfer_from_where=one.pushed_offset,
                in_sync=one.acknowledged_offset >= 0 and end - one.acknowledged_offset < gap,
            )
            for one in sorted(self.master.slaves, key=lambda one: one.address)
        ]  # fmt: skip
        return HaStatus(
            master_commit_log_max_offset=end, ha_connection_info=slaves,
            in_sync_slave_nums=sum(one.in_sync for one in slaves),
        )  # fmt: skip
