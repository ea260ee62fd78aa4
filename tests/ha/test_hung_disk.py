"""A slave with SYNC_FLUSH whose disk hangs acknowledges nothing that is not forced, after a reconnect either."""

import threading
from pathlib import Path

import pytest

from rmq_core.store.config import FlushDiskType
from tests.broker.conftest import eventually
from tests.ha.conftest import caught_up, running, slave_of, store_of
from tests.ha.test_replication import fill

FLUSH_SLAVE_TIMEOUT = 12


async def test_what_a_hung_disk_has_not_forced_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master_store = store_of(tmp_path / "master")
    slave_store = store_of(tmp_path / "slave", flush_disk_type=FlushDiskType.SYNC)
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout_ms": 300}
    async with running(master_store, **sync) as master, running(slave_store, **slave_of(master)) as slave:
        await fill(master, 5)
        await caught_up(slave.broker, master.broker)
        store, following = slave.broker.store, slave.broker.state.replication.slave
        disk, works = store.disk, threading.Event()
        forced, force = store.flushed_offset, disk.sync

        def hangs(descriptor: int) -> None:
            works.wait()
            force(descriptor)

        monkeypatch.setattr(disk, "sync", hangs)
        try:
            assert (await master.send("T", b"." * 5000)).code == FLUSH_SLAVE_TIMEOUT
            await caught_up(slave.broker, master.broker)
            assert following is not None
            assert following._link is not None
            cut = following._link
            cut.end()

            async def is_back() -> bool:
                return following._link not in (None, cut) and following.is_connected

            await eventually(is_back, 60)
            assert (await master.send("T")).code == FLUSH_SLAVE_TIMEOUT
            await caught_up(slave.broker, master.broker)
            assert master.broker.state.replication.master.acknowledged_offset <= forced
        finally:
            works.set()

        async def is_acknowledged() -> bool:
            return master.broker.state.replication.master.acknowledged_offset == master.broker.store.max_physical_offset

        await eventually(is_acknowledged, 60)
