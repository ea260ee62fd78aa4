"""A master and its slave in one process, on disks that lose their power, hang and fail, by a schedule of chance.

Each step is chosen by a seed: messages, cuts of the connection, losses of power on either side, topics that are
deleted and made again, retention, and a slave's disk that hangs or fails. After each the promises are looked at.
"""

import asyncio
import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rmq_core.ha import slave
from rmq_core.ha.master import HaMaster
from rmq_core.ha.settings import HaSettings
from rmq_core.ha.slave import HaSlave
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.results import PutStatus
from rmq_core.store.store import MessageStore
from tests.store.power_loss import LossyDisk
from tests.store.small_stores import NOW_MS, config_of, opened, put

PATIENCE_S = 60  # a machine may be busy
TICK_S = 0.002
TOPICS = ["T", "Other"]
QUEUES = 3
SETTINGS = HaSettings(in_sync_replicas=2, ha_send_heartbeat_interval_ms=20, ha_transfer_batch_size=3000)
Queues = dict[tuple[str, int], tuple[int, int, list[int]]]


@contextmanager
def quick_retries() -> Iterator[None]:
    """Slaves connect to their masters again at once."""

    async def pause(_: HaSlave, wait_s: float) -> bool:
        await asyncio.sleep(min(wait_s, TICK_S))
        return False

    with patch.object(HaSlave, "_pause", pause), patch.object(slave, "_FIRST_RETRY_S", TICK_S):
        yield


class FaultyDisk(LossyDisk):
    """A disk that can hang or fail, too.

    Attributes:
        works: clear while a force hangs.
        fails: whether a force fails.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.works = threading.Event()
        self.works.set()
        self.fails = False

    def sync(self, descriptor: int) -> None:
        self.works.wait()
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(descriptor)


class Node:
    """One broker's store, again and again.

    Attributes:
        store: it, open.
        disk: where it is.
    """

    def __init__(self, base: Path, name: str, *, slave: bool, flush: FlushDiskType) -> None:
        self._base, self._name, self._count = base, name, 0
        self._settings = {
            "slave": slave, "flush_disk_type": flush, "preallocate": False, "flush_interval_ms": 3_600_000,
            "flush_consumequeue_interval_ms": 3_600_000, "delete_batch": 2,
        }  # fmt: skip
        self._begin(base / f"{name}.0")

    def _begin(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.disk = FaultyDisk(root)
        self.store: MessageStore = opened(config_of(root, **self._settings), disk=self.disk)

    def end(self) -> None:
        """Stop; whatever that writes counts no more after a loss of power."""
        self.disk.works.set()
        self.store.shutdown()
        self.disk.close_kept()

    def lose_power(self, source: random.Random, lose: float) -> None:
        """Lose what is not forced, and start again."""
        self._count += 1
        root = self._base / f"{self._name}.{self._count}"
        while not root.exists():
            try:
                self.disk.picture(root, source, lose=lose)
            except FileNotFoundError:  # a thread of the store has removed a file meanwhile
                shutil.rmtree(root)
        self._end_and_remove()
        self._begin(root)

    def restart(self) -> None:
        """Stop in order, and start again."""
        self.end()
        self._begin(Path(self.store.config.root))

    def wipe(self) -> None:
        """Start again without anything, as an operator has deleted the store."""
        self._count += 1
        self._end_and_remove()
        self._begin(self._base / f"{self._name}.{self._count}")

    def _end_and_remove(self) -> None:
        self.end()
        shutil.rmtree(self.store.config.root)

    def age(self) -> None:
        """Have all files of the log be old."""
        for path in Path(self.store.config.commitlog_path).iterdir():
            os.utime(path, (1, 1))


def log_bytes(store: MessageStore, begin: int, end: int) -> bytes:
    """A stretch of a log."""
    found = bytearray()
    while begin + len(found) < end:
        stretch = store.log_stretch(begin + len(found), end - begin - len(found))
        assert stretch is not None
        found += stretch
    return bytes(found)


def is_beginning(slave: MessageStore, master: MessageStore) -> bool:
    """Whether a slave's log is what the master's begins with, as far as both have not deleted it."""
    begin = max(slave.min_physical_offset, master.min_physical_offset)
    end = slave.max_physical_offset
    return end <= master.max_physical_offset and (
        begin > end or log_bytes(slave, begin, end) == log_bytes(master, begin, end)
    )


def where_they_part(slave: MessageStore, master: MessageStore) -> str:
    """The bounds of two logs, and the first byte that differs."""
    begin = max(slave.min_physical_offset, master.min_physical_offset)
    end = min(slave.max_physical_offset, master.max_physical_offset)
    pairs = zip(log_bytes(slave, begin, end), log_bytes(master, begin, end), strict=True) if begin < end else ()
    first = next((begin + at for at, (left, right) in enumerate(pairs) if left != right), None)
    bounds = [(one.min_physical_offset, one.max_physical_offset) for one in (slave, master)]
    return f"slave and master are {bounds}, and differ from {first} on; recovered: {master.recovery}"


def queues_of(store: MessageStore) -> Queues:
    """Bounds and records of each queue that has messages."""
    found = {}
    for topic in TOPICS:
        for queue_id in range(QUEUES):
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            records = [record[28:36] for at in range(low, high) for record in store.get(topic, queue_id, at, 1).slices]
            if records:
                found[topic, queue_id] = low, high, [int.from_bytes(record, "big") for record in records]
    return found


def since(begin: int, queues: Queues) -> dict[tuple[str, int], tuple[int, list[int]]]:
    """The end of each queue, and its records from a physical offset on."""
    found = {key: (high, [one for one in records if one >= begin]) for key, (_, high, records) in queues.items()}
    return {key: one for key, one in found.items() if one[1]}


def rebuilt(config: StoreConfig, copy: Path) -> Queues:
    """The queues that a recovery makes of a stopped store's log alone."""
    shutil.copytree(config.root, copy)
    for name in ("watermark", "checkpoint"):
        (copy / name).unlink(missing_ok=True)
    shutil.rmtree(copy / "consumequeue", ignore_errors=True)
    store = opened(replace(config, root=str(copy), commitlog_path=str(copy / "commitlog")))
    found = queues_of(store)
    store.shutdown()
    shutil.rmtree(copy)
    return found


class TwoNodes:
    """A master and a slave under one schedule.

    Attributes:
        steps: what was done, in order.
        counts: how often each was done, and what came of it.
    """

    def __init__(self, base: Path, seed: int) -> None:
        self.steps: list[str] = []
        self.counts: Counter[str] = Counter()
        self._base = base
        self._source = random.Random(seed)
        kinds = [FlushDiskType.ASYNC, FlushDiskType.ASYNC, FlushDiskType.SYNC]
        self._master = Node(base, "master", slave=False, flush=self._source.choice(kinds))
        self._slave = Node(base, "slave", slave=True, flush=FlushDiskType.SYNC)
        self._now_ms = NOW_MS
        self._covered: dict[int, bytes] = {}  # what the slave has acknowledged, by where it ends
        self._broken: list[str] = []

    async def run(self, count: int) -> None:
        """Do some steps, and look at the promises."""
        await self._start_master()
        self._start_slave()
        steps = [
            *[self._send] * 12, *[self._settle] * 4, self._flush_master, self._flush_slave, self._cut, self._cut,
            self._master_loses_power, self._master_loses_power, self._slave_loses_power, self._slave_loses_power,
            self._restart_master, self._restart_slave, self._delete_topic, self._delete_topic, self._tell_deletions,
            self._clean_master, self._clean_slave, self._hang, self._fail,
        ]  # fmt: skip
        try:
            for _ in range(count):
                step = self._source.choice(steps)
                name = step.__name__[1:]
                self.steps.append(name)
                self.counts[name] += 1
                await step()
                await self._tick()
                self._check()
            await self._settle()
            await self._check_queues()
        finally:
            await self._ha_slave.close()
            await self._ha_master.close()
            self._slave.end()
            self._master.end()

    # --- nodes -------------------------------------------------------------------------------
    async def _start_master(self) -> None:
        self._ha_master = HaMaster(self._master.store, SETTINGS)
        self._ha_master.on_acknowledged(self._acknowledged)
        self._port = await self._ha_master.listen("127.0.0.1", 0)

    def _start_slave(self) -> None:
        self._ha_slave = HaSlave(self._slave.store, SETTINGS, lambda: self._now_ms)
        self._ha_slave.follow(f"127.0.0.1:{self._port}")
        self._ha_slave.start()

    async def _master_loses_power(self) -> None:
        await self._ha_master.close()
        self._master.lose_power(self._source, self._source.choice([1.0, 1.0, 0.5]))
        if self._source.randrange(2):  # it grows while its slave is away
            await self._send()
        await self._start_master()
        self._ha_slave.follow(f"127.0.0.1:{self._port}")

    async def _restart_master(self) -> None:
        await self._ha_master.close()
        self._master.restart()
        await self._start_master()
        self._ha_slave.follow(f"127.0.0.1:{self._port}")

    async def _slave_loses_power(self) -> None:
        await self._ha_slave.close()
        self._slave.lose_power(self._source, self._source.choice([1.0, 1.0, 0.5]))
        for end, record in self._covered.items():
            if end - len(record) >= self._slave.store.min_physical_offset:
                found = self._slave.store.log_stretch(end - len(record), len(record))
                if found != record:
                    self._broken.append(f"the slave has lost what it acknowledged up to {end}")
        self._start_slave()

    async def _restart_slave(self) -> None:
        await self._ha_slave.close()
        self._slave.restart()
        self._start_slave()

    # --- steps -------------------------------------------------------------------------------
    async def _send(self) -> None:
        store, source = self._master.store, self._source
        for _ in range(source.randrange(1, 12)):
            self._now_ms += source.randrange(3)
            size = source.choice([10, 100, 100, 2500])
            body = source.randbytes(8) + bytes(size)
            result = put(store, source.choice(TOPICS), source.randrange(QUEUES), body, now_ms=self._now_ms)
            assert result.status is PutStatus.PUT_OK
        store.dispatch()
        self._ha_master.push()

    async def _flush_master(self) -> None:
        assert self._master.store.flush()

    async def _flush_slave(self) -> None:
        if self._slave.disk.works.is_set() and not self._slave.disk.fails:
            assert self._slave.store.flush()

    async def _cut(self) -> None:
        for one in list(self._ha_master.slaves):
            one.end()

    async def _delete_topic(self) -> None:
        self._master.store.delete_topics([self._source.choice(TOPICS)])

    async def _tell_deletions(self) -> None:
        disk = self._slave.disk
        if not self._ha_slave.is_apart and disk.works.is_set() and not disk.fails:
            self._slave.store.drop_before(dict(self._master.store.dropped_topics))

    async def _clean_master(self) -> None:
        self._master.age()
        self._master.store.clean(NOW_MS, manually=True)

    async def _clean_slave(self) -> None:
        self._slave.age()
        self._slave.store.clean(NOW_MS, manually=True)

    async def _hang(self) -> None:
        self._slave.disk.works.clear()

    async def _fail(self) -> None:
        self._slave.disk.fails = True

    # --- promises ----------------------------------------------------------------------------
    async def _tick(self) -> None:
        for _ in range(self._source.randrange(1, 10)):
            self._ha_master.push()
            self._ha_master.keep()
            self._ha_slave.keep()
            await asyncio.sleep(TICK_S)

    def _acknowledged(self, offset: int) -> None:
        """Note what the slave has acknowledged: its last bytes, which have to be there for good."""
        master, slave = self._master.store, self._slave.store
        begin = max(master.min_physical_offset, slave.min_physical_offset, offset - 500)
        if begin >= offset:
            return
        if slave.flushed_offset < offset or log_bytes(slave, begin, offset) != log_bytes(master, begin, offset):
            self._broken.append(f"the slave has acknowledged {offset}, and does not have it")
            return
        begin = max(begin, (offset - 1) // master.config.commitlog_file_bytes * master.config.commitlog_file_bytes)
        self._covered[offset] = log_bytes(slave, begin, offset)
        self.counts["acknowledged"] += 1

    def _check(self) -> None:
        assert not self._broken, self._broken
        if self._ha_slave.is_connected:
            ours, theirs = self._master.store, self._slave.store
            assert is_beginning(theirs, ours), f"says nothing: {where_they_part(theirs, ours)}"

    async def _settle(self) -> None:
        """Wait until the slave has all, or says that its log is another; then an operator deletes it."""
        if not self._slave.disk.works.is_set() or self._slave.disk.fails or self._slave.store.fault is not None:
            self._slave.disk.works.set()
            await self._slave_loses_power()
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not self._ha_slave.is_apart and not self._has_all():
            assert asyncio.get_running_loop().time() < deadline, f"neither follows nor says: {self._ha_slave.trouble}"
            await self._tick()
        self._check()
        if not self._ha_slave.is_apart:
            self.counts["followed"] += 1
            return
        ours, theirs = self._master.store, self._slave.store
        is_false_alarm = ours.min_physical_offset < theirs.max_physical_offset and is_beginning(theirs, ours)
        assert not is_false_alarm, f"{self._ha_slave.trouble}: {where_they_part(theirs, ours)}"
        self.counts["apart"] += 1
        await self._ha_slave.close()
        self._slave.wipe()
        self._covered.clear()
        self._start_slave()

    def _has_all(self) -> bool:
        slave = self._slave.store
        self._master.store.dispatch()
        return self._ha_slave.is_connected and slave.max_physical_offset == self._master.store.max_physical_offset

    async def _check_queues(self) -> None:
        """The slave's queues are those of a rebuild of its log and, once it has heard of deletions, its master's."""
        await self._ha_slave.close()
        self._slave.restart()
        self._slave.store.shutdown()
        wanted: Any = rebuilt(self._slave.store.config, self._base / "rebuilt")
        self._slave.restart()
        got: Any = queues_of(self._slave.store)
        differing = {key: (got.get(key), wanted.get(key)) for key in got | wanted if got.get(key) != wanted.get(key)}
        ours, theirs = self._master.store, self._slave.store
        places = f"dropped {theirs.dropped_topics}, at the master {ours.dropped_topics}"
        assert not differing, f"{places}: {differing}, at the master {queues_of(ours)}"
        has_all = theirs.max_physical_offset == ours.max_physical_offset and is_beginning(theirs, ours)
        if has_all and theirs.min_physical_offset <= ours.min_physical_offset:
            await self._tell_deletions()
            got, wanted = since(ours.min_physical_offset, queues_of(theirs)), since(0, queues_of(ours))
            assert got == wanted, f"{where_they_part(theirs, ours)}; {places}: {got} is not {wanted}"
        self._start_slave()
