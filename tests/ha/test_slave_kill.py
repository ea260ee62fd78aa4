"""A slave process that is killed in the midst of catching up, again and again: it ends with its master's log."""

import asyncio
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import FILE_BYTES, port_for_long, running, written
from tests.store.derived_from_log import check_derived
from tests.support.processes.forked_masters import Masters, masters
from tests.support.torture import rounds

ROUNDS = rounds(8)
PATIENCE_S = 240  # a machine may be busy
SETTINGS = f"""mappedFileSizeCommitLog={FILE_BYTES}
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=500
maxIndexNum=2000
brokerRole=SLAVE
brokerId=1
haMasterAddress=127.0.0.1:%d
"""


def fill(master: Asker, count: int) -> int:
    """Append messages; where the log ends."""
    store = master.broker.store
    for number in range(count):
        body = random.randbytes(random.randrange(1, 3000))
        assert store.appender.put("T", number % 2, body, b"UNIQ_KEY\x01%d\x02" % number, 1, bytes(8), 1).end_offset > 0
    store.dispatch()
    return store.max_physical_offset


class Reported:
    """How far the slave says it is, and where it is to be killed for that."""

    def __init__(self, master: Asker, slave: Masters) -> None:
        self.offset = 0
        self.kills_at: int | None = None
        self._slave = slave
        master.broker.state.replication.master.on_acknowledged(self._rose)

    def _rose(self, offset: int) -> None:
        self.offset = offset
        if self.kills_at is not None and offset >= self.kills_at:
            self.kills_at = None
            self._slave.kill()

    async def reaches(self, offset: int) -> None:
        """Wait until it is there."""

        async def is_there() -> bool:
            return self.offset >= offset

        await eventually(is_there, PATIENCE_S)


async def killed_again_and_again(master: Asker, slave: Masters) -> int:
    """Where the log ends in the end."""
    reported, end = Reported(master, slave), fill(master, 5)
    await asyncio.to_thread(slave.start)
    await reported.reaches(end)  # an empty slave would begin with the last file
    slave.kill()
    assert await asyncio.to_thread(slave.ended) == -signal.SIGKILL
    for _ in ROUNDS:
        begin, end = end, fill(master, 200)
        reported.kills_at = random.randrange(begin, end)
        await asyncio.to_thread(slave.start)
        assert await asyncio.to_thread(slave.ended) == -signal.SIGKILL
        assert reported.kills_at is None
    await asyncio.to_thread(slave.start)
    await reported.reaches(end)
    os.kill(slave.pid, signal.SIGTERM)
    assert await asyncio.to_thread(slave.ended) == 0
    return end


@pytest.mark.torture
def test_a_slave_that_is_killed_while_it_catches_up_ends_with_its_masters_log(tmp_path: Path) -> None:
    port, conf = port_for_long(), tmp_path / "broker.conf"
    conf.write_text(SETTINGS % port)
    _, slave_store, _ = load_config(str(tmp_path / "slave"), conf, environ={})
    ours = replace(slave_store, root=str(tmp_path / "master"), commitlog_path=str(tmp_path / "master" / "commitlog"))

    async def run() -> int:
        # In sync with two: the master is told of each report; small frames: there are many.
        following = {"ha_listen_port": port, "in_sync_replicas": 2, "ha_transfer_batch_size": 5000}
        async with running(ours, **following) as master:
            with masters(tmp_path / "slave", str(conf), tmp_path / "log") as slave:
                return await killed_again_and_again(master, slave)

    end = asyncio.run(run())
    assert len(written(ours, end)) > len(ROUNDS)
    check_same(slave_store, ours, end)


def check_same(slave: StoreConfig, master: StoreConfig, end: int) -> None:
    """The slave's log is the master's, byte for byte, and its queues and Index are those of it."""
    assert written(slave, end) == written(master, end)
    check_derived(slave)
