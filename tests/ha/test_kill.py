"""A SYNC_MASTER that is killed under load, again and again: its slave has all that was acknowledged."""

import asyncio
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from tests.broker.conftest import Asker, eventually
from tests.broker.test_commands import conf
from tests.broker.test_kill import LONGEST_LOAD_S, QUEUES, ROUNDS, Ledger, load, stored
from tests.ha.conftest import port_for_long, running, written
from tests.store.derived_from_log import check_derived
from tests.support.processes.forked_masters import Masters, masters

LONGEST_START_S = 120  # a machine may be busy


async def is_followed(slave: Asker) -> None:
    async def is_there() -> bool:
        return slave.broker.state.replication.is_following

    await eventually(is_there, LONGEST_START_S)


async def killed_again_and_again(master: Masters, slave: Asker) -> int:
    """Where the log ends in the end."""
    ledger, source = Ledger(), random.Random()  # the moments cannot be repeated whatever the seed
    topic = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"}
    made = await slave.ask(17, topic | {"readQueueNums": QUEUES, "writeQueueNums": QUEUES})
    assert made.code == 0, made
    for _ in range(ROUNDS):
        await asyncio.to_thread(master.start)
        await is_followed(slave)
        asyncio.get_running_loop().call_later(LONGEST_LOAD_S * source.random(), master.kill)
        await load(master.address, ledger)
        assert await asyncio.to_thread(master.ended) == -signal.SIGKILL
        ledger.take(await stored(slave.broker.address, ledger.ends()))
    await asyncio.to_thread(master.start)
    await is_followed(slave)
    end = await everything(master, slave, ledger)
    ledger.check()
    assert len(ledger.stored) > ROUNDS  # some rounds end before a first answer
    return end


async def everything(master: Masters, slave: Asker, ledger: Ledger) -> int:
    """Check that both have the same in the end; where that is."""
    master_messages = await stored(master.address, [0] * QUEUES)

    async def has_all() -> bool:
        return await stored(slave.broker.address, [0] * QUEUES) == master_messages

    await eventually(has_all, LONGEST_START_S)
    ledger.take({place: body for place, body in master_messages.items() if place not in ledger.stored})
    assert ledger.stored == master_messages
    os.kill(master.pid, signal.SIGTERM)
    assert await asyncio.to_thread(master.ended) == 0
    return slave.broker.store.max_physical_offset


@pytest.mark.torture
def test_what_was_acknowledged_is_on_the_slave(tmp_path: Path) -> None:
    port = port_for_long()
    text = f"brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=60000\nhaListenPort={port}\n"
    settings = conf(tmp_path, text)
    _, master, _ = load_config(str(tmp_path / "master"), Path(settings), environ={})
    slave_store = replace(master, root=str(tmp_path / "slave"), commitlog_path=str(tmp_path / "slave" / "commitlog"))
    following = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": f"127.0.0.1:{port}"}

    async def run() -> int:
        async with running(slave_store, slave_read_enable=True, **following) as slave:
            with masters(tmp_path / "master", settings, tmp_path / "log") as master:
                return await killed_again_and_again(master, slave)

    end = asyncio.run(run())
    assert written(slave_store, end) == written(master, end)
    check_derived(slave_store)
