"""Losses of power under a running broker: what it has acknowledged is there, and no progress of what is not."""

import random
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.connection import Handler
from rmq_core.store.config import FlushDiskType
from tests.broker.conftest import Asker, Clock, small_store
from tests.broker.power_cuts import CONFIG, check, cut, cut_store
from tests.store.power_loss import LossyDisk
from tests.support.stores.store_files import tree
from tests.support.torture import rounds

PICTURES = 6  # of a seed; each gives another, of the recovery
STEPS = 60


async def test_all_files_of_a_stopped_broker_went_through_its_disk_and_are_forced(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = LossyDisk(root)
    handlers: dict[int, Handler] = {}
    async with (
        Broker(BrokerConfig(listen_port=0), small_store(root), Clock(), disk) as broker,
        RemotingClient(handlers) as client,
    ):
        asker = Asker(broker, client, handlers)
        await asker.send("Fresh")
        await asker.send("Fresh", properties={"DELAY": "3"})
        await asker.send("Fresh", properties={"TIMER_DELAY_SEC": "60"})
        await asker.pull("Fresh", consumerGroup="readers", sysFlag=5, commitOffset=1)
    disk.picture(tmp_path / "picture", random.Random(1), lose=1)
    disk.close_kept()
    assert tree(tmp_path / "picture") == tree(root)


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(3))
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_promises_survive_a_loss_of_power(tmp_path: Path, seed: int, flush: FlushDiskType) -> None:
    source = random.Random(seed)
    promises, states = await cut(tmp_path / "live", flush, source, STEPS, PICTURES)
    assert len(states) >= PICTURES // 2
    for state in states:
        await check(state.root, flush, promises[: state.acknowledged], source)


async def test_a_name_that_a_killed_broker_had_not_forced_is_forced_before_it_counts(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = LossyDisk(root)
    store_config = cut_store(root, FlushDiskType.SYNC)
    async with Broker(CONFIG, store_config, disk=disk) as broker, RemotingClient({}) as client:
        assert (await Asker(broker, client, {}).send("Old")).code == 0
    path = root / "config" / "topics.json"
    disk.write_file(f"{path}.new", path.read_bytes().replace(b'"Old"', b'"New"'))
    Path(f"{path}.new").rename(path)  # and here it was killed
    async with Broker(CONFIG, store_config, disk=disk) as broker, RemotingClient({}) as client:
        assert (await Asker(broker, client, {}).send("New")).code == 0
        disk.picture(tmp_path / "left", random.Random(1), lose=1)
    disk.close_kept()
    async with Broker(CONFIG, cut_store(tmp_path / "left", FlushDiskType.SYNC)) as broker:
        assert "New" in broker.state.topics.table
