"""A broker on a machine of its own: it is started, stopped, killed, loses its power, and its disk has faults."""

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.store.config import StoreConfig
from rmq_core.store.store import MessageStore
from tests.lab.faulty_disk import FaultyDisk
from tests.lab.virtual.loop import VirtualLoop
from tests.lab.virtual.network import Machine
from tests.lab.virtual.workers import TurnThreads
from tests.store.small_stores import NOW_MS

PORT = 10911


class BrokerNode:
    """One broker's machine, again and again.

    Attributes:
        host: its address.
        address: where it takes requests.
        broker: it; None while it is down.
        machine: of this life.
        disk: what it is on.
        jumps: how often its clock was set.
        is_well: it has left in order only, and its disk has had no faults.
    """

    def __init__(self, loop: VirtualLoop, base: Path, config: BrokerConfig, store: StoreConfig, seed: object) -> None:
        self.host, self.address = config.bind_address, f"{config.bind_address}:{PORT}"
        self.broker: Broker | None = None
        self.jumps = 0
        self.is_well = True
        self._skew_ms = self._latest_ms = 0
        self._loop, self._base = loop, base
        self._config, self._store_config = config, store
        self._dice = random.Random(f"{seed} {self.host}")
        self._count = 0
        self._ghosts: list[asyncio.Task[None]] = []
        self._on_start: list[Callable[[Broker], None]] = []
        self._begin(base / f"{self.host}.0")

    def _begin(self, root: Path, before: FaultyDisk | None = None) -> None:
        """Go on in a directory, which may be the copy of another, whose disk knows what of it is forced."""
        root.mkdir(exist_ok=True)
        self._store_config = replace(self._store_config, root=str(root), commitlog_path="")
        self.disk = FaultyDisk(root, random.Random(self._dice.random()))
        if before is not None:
            self.disk.remember(before)
        self.machine = Machine(self.host)
        self.threads = TurnThreads(self._loop, self._dice)

    def clock_ms(self) -> int:
        """What its clock shows."""
        return NOW_MS + int(self._loop.now_s * 1000) + self._skew_ms

    @property
    def latest_ms(self) -> int:
        """The latest time that its clock has ever shown."""
        self._latest_ms = max(self._latest_ms, self.clock_ms())
        return self._latest_ms

    def set_clock(self, skew_ms: int) -> None:
        """Have its clock be wrong by so much."""
        self._latest_ms, self._skew_ms = self.latest_ms, skew_ms
        self.jumps += 1

    @property
    def store(self) -> MessageStore:
        """The store of the broker, which is up."""
        assert self.broker is not None
        return self.broker.store

    @property
    def config(self) -> StoreConfig:
        """Settings of its store."""
        return self._store_config

    def on_start(self, listener: Callable[[Broker], None]) -> None:
        """Register a callback for each start."""
        self._on_start.append(listener)

    async def start(self) -> None:
        """Start the broker, on a disk that is well."""
        self.well()
        self.disk.evict()
        with self.machine.owns():
            broker = Broker(
                self._config,
                self._store_config,
                self.clock_ms,
                self.disk,
                self.threads,
                steady_ms=lambda: int(self._loop.now_s * 1000),
            )
            await broker.start()
        self.broker = broker
        for listener in self._on_start:
            listener(broker)

    def well(self) -> None:
        """The disk has no faults."""
        self.disk.lack_rate = self.disk.break_rate = 0.0
        self.threads.go_on()

    async def stop(self) -> None:
        """Stop in order, or as far as the disk lets it."""
        self.threads.go_on()
        broker, self.broker = self.broker, None
        assert broker is not None
        with self.machine.owns():
            await broker.close()
        self.machine = Machine(self.host)
        self.threads = TurnThreads(self._loop, self._dice)

    def kill(self) -> None:
        """The process is killed: what was written is there, forced or not; its peers are told by the kernel."""
        self._leave(lose=0.0, told=True, remembers=True)

    def lose_power(self, lose: float) -> None:
        """Lose what is not forced; nobody is told."""
        self._leave(lose=lose, told=False)

    def wipe(self) -> None:
        """An operator has deleted the store of a broker that is killed."""
        self._leave(lose=None, told=True)

    def _leave(self, *, lose: float | None, told: bool, remembers: bool = False) -> None:
        self.is_well = False
        self._count += 1
        root = self._base / f"{self.host}.{self._count}"
        if lose is not None:
            self.disk.picture(root, self._dice, lose=lose)
        broker, disk, self.broker = self.broker, self.disk, None
        assert broker is not None
        self._loop.network.drop(self.machine, told=told)
        self.well()
        with self.machine.owns():
            self._ghosts.append(asyncio.create_task(_end_unseen(broker, disk)))
        self._begin(root, disk if remembers else None)

    async def end(self) -> None:
        """Stop for good, and let go of everything."""
        if self.broker is not None:
            await self.stop()
        for ghost in self._ghosts:
            await ghost
        self.disk.close_kept()


async def _end_unseen(broker: Broker, disk: FaultyDisk) -> None:
    """End what is left of a broker whose machine is gone: it reaches nobody, and its directory is nobody's."""
    await broker.close()
    shutil.rmtree(broker.store.config.root)
    disk.close_kept()
