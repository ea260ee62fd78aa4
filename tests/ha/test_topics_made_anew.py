"""Topics that the master deletes and makes again: a slave serves the new messages, and no deleted one."""

import errno
from pathlib import Path

import pytest

from rmq_core.store.files.disk import Disk
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import caught_up, running, running_pair, slave_of, store_of
from tests.ha.test_replication import stored

DELETE_TOPIC, MAKE_TOPIC = 215, 17


async def send(master: Asker, bodies: list[bytes], queue_id: int = 0) -> None:
    for body in bodies:
        assert (await master.send("T", body, queue_id=queue_id)).code == 0


async def make_again(master: Asker) -> None:
    assert (await master.ask(DELETE_TOPIC, {"topic": "T"})).code == 0
    queues = {"readQueueNums": 4, "writeQueueNums": 4}
    topic = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert (await master.ask(MAKE_TOPIC, topic | queues)).code == 0


def bodies(asker: Asker, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(asker, queue_id=queue_id)]


async def follows_tables(master: Asker, slave: Asker) -> None:
    """Wait until a slave has its master's topics."""

    async def has_them() -> bool:
        master_state, slave_state = master.broker.state, slave.broker.state
        return (
            slave_state.topics.version == master_state.topics.version
            and slave_state.store.deleted_topics == master_state.store.deleted_topics
        )

    await eventually(has_them, 60)


def _fill_for_deletions(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> list[str]:
    """Have a disk be full twice when deletions are written to it; what it has refused."""
    refused: list[str] = []
    write_file = disk.write_file

    def full(path: str, data: bytes) -> None:
        if "droppedTopics" in path and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, data)

    monkeypatch.setattr(disk, "write_file", full)
    return refused


@pytest.mark.parametrize("interval_ms", [50, 60_000])  # 60 s: the slave asks because of what it finds in the log
async def test_a_topic_that_is_made_again(tmp_path: Path, interval_ms: int) -> None:
    settings = {"slave_sync_interval_ms": interval_ms}
    async with running_pair(tmp_path, **settings) as (master, slave):
        slave.broker.state.replication.master_address = master.broker.address
        await send(master, [b"old"] * 5)
        await send(master, [b"old"] * 2, queue_id=1)
        await caught_up(slave.broker, master.broker)
        slave.broker.state.offsets.commit("T", "readers", 0, 5)
        await make_again(master)
        for new in ([b"n0"], [b"n1", b"n2", b"n3", b"n4", b"n5", b"n6"]):
            await send(master, new)
            await caught_up(slave.broker, master.broker)
            assert bodies(slave) == bodies(master)
        await follows_tables(master, slave)
        assert bodies(slave, 1) == bodies(master, 1) == []
        assert slave.broker.state.offsets.of("T", "readers") == {}


async def test_a_slave_whose_disk_is_full_when_it_hears_of_a_deletion_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"slave_sync_interval_ms": 50}
    async with running_pair(tmp_path, **settings) as (master, slave):
        slave.broker.state.replication.master_address = master.broker.address
        await send(master, [b"old"] * 5)
        await caught_up(slave.broker, master.broker)
        refused = _fill_for_deletions(monkeypatch, slave.broker.store.disk)
        await make_again(master)
        await follows_tables(master, slave)
        assert len(refused) == 2
        assert bodies(slave) == []


@pytest.mark.parametrize("messages", [0, 5])  # at the slave, before it connects
async def test_a_slave_whose_disk_is_full_when_it_joins_a_shorter_log_connects_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    slave_store = store_of(tmp_path / "slave")
    async with running(store_of(tmp_path / "master")) as master:
        settings = slave_of(master, slave_sync_interval_ms=50)
        async with running(slave_store, **settings) as slave:
            await send(master, [b"old"] * messages)
            await caught_up(slave.broker, master.broker)
        async with running(slave_store, **settings | {"ha_master_address": "127.0.0.1:1"}) as slave:
            store, replicates = slave.broker.store, slave.broker.state.replication.slave
            store.remove_deleted_before(
                {"Gone": 1 << 20}
            )  # as a master had it that lost its power since, and these bytes
            refused = _fill_for_deletions(monkeypatch, store.disk)
            assert replicates is not None
            replicates.follow(f"127.0.0.1:{master.broker.state.replication.port}")
            await send(master, [b"new"] * 3)
            await caught_up(slave.broker, master.broker)
            assert len(refused) == 2
            assert max(store.deleted_topics.values()) < store.max_physical_offset
            assert bodies(slave) == bodies(master)


async def test_a_topic_that_is_deleted_while_its_slave_is_behind(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    settings = {"slave_sync_interval_ms": 50}
    async with running(master_store) as master:
        async with running(slave_store, **slave_of(master, **settings)) as slave:
            await send(master, [b"old"] * 5)
            await caught_up(slave.broker, master.broker)
        await send(master, [b"late"] * 5)  # has not come to the slave when that hears of the deletion
        await make_again(master)
        await send(master, [b"new"] * 3, queue_id=2)
        async with running(slave_store, **slave_of(master, **settings | {"ha_master_address": "127.0.0.1:1"})) as slave:
            slave.broker.state.replication.master_address = master.broker.address
            await follows_tables(master, slave)
            assert bodies(slave) == []
            port = master.broker.state.replication.port
            slave.broker.state.replication.slave.follow(f"127.0.0.1:{port}")  # type: ignore[union-attr]
            await caught_up(slave.broker, master.broker)
            assert [bodies(slave, queue_id) for queue_id in range(4)] == [[], [], [b"new"] * 3, []]
