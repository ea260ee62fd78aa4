"""A Java slave of our master, and our slave of a Java master: the same log, byte for byte."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack

import pytest

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.stats import HaStatus
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs import fastjson
from rmq_formats.errors import DecodeError
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import FILE_BYTES, log_of, running, store_of, written
from tests.ha.test_replication import fill, stored
from tests.interop import peer
from tests.interop.test_namesrv_against_java import free_port
from tests.store.derived_from_log import check_derived
from tests.support.processes.broker_processes import PATIENT

pytestmark = [
    pytest.mark.peer, pytest.mark.xdist_group("ha_against_java"), pytest.mark.usefixtures("each_release"),
]  # fmt: skip
LONG_S = 150  # a Java broker may take long to start on a busy machine
MESSAGES = 120
SETTINGS = f"""{PATIENT}brokerClusterName=DefaultCluster
brokerName=broker-a
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
slaveReadEnable=true
mappedFileSizeCommitLog={FILE_BYTES}
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=500
maxIndexNum=2000
diskMaxUsedSpaceRatio=99
"""


@asynccontextmanager
async def java_broker(directory: Path, text: str) -> AsyncIterator[None]:
    """The original's broker on a store ``java`` of a directory, with settings."""
    conf = directory / "java.conf"
    conf.write_text(SETTINGS + text)
    environment = {**os.environ, "PEER_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -Xms256m", "PEER_HEAP": "512m"}
    with (directory / "java.log").open("ab") as log:
        command = ["bash", str(peer.SCRIPT), "broker", str(directory / "java"), str(conf)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, LONG_S)


@asynccontextmanager
async def namesrv(directory: Path) -> AsyncIterator[str]:
    config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(directory / "kvConfig.json"))
    async with NameServer(config) as server:
        yield server.address


def java_store(directory: Path) -> StoreConfig:
    return store_of(directory / "java")


@pytest.mark.long
async def test_a_java_slave_of_our_master_has_our_log(tmp_path: Path) -> None:
    ours, theirs = store_of(tmp_path / "ours"), java_store(tmp_path)
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout_ms": LONG_S * 1000}
    async with namesrv(tmp_path) as names, running(ours, namesrv_addr=names, **sync) as master:
        # What a slave of Java's asks for when it is ten seconds old; next time is a minute later.
        assert (await master.heartbeat("readers")).code == 0
        topic = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"}
        assert (await master.ask(17, topic | {"readQueueNums": 2, "writeQueueNums": 2})).code == 0
        master.broker.state.offsets.commit("T", "readers", 0, 3)
        ports = f"listenPort={free_port()}\nhaListenPort={free_port()}\n"
        settings = f"brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr={names}\n{ports}"
        async with java_broker(tmp_path, settings):

            async def has_slave() -> bool:
                return len(master.broker.state.replication.master.slaves) == 1

            await eventually(has_slave, LONG_S)
            await fill(master, MESSAGES)  # each is answered when the slave has it
            end = master.broker.store.max_physical_offset
            assert end > 5 * FILE_BYTES
            assert master.broker.state.replication.master.acknowledged_offset == end

            async def knows_all() -> bool:
                return (
                    read(tmp_path, "topics", "topicConfigTable", "T")
                    and read(tmp_path, "consumerOffset", "offsetTable", "T@readers")
                    and read(tmp_path, "subscriptionGroup", "subscriptionGroupTable", "readers")
                )

            await eventually(knows_all, LONG_S)
    assert written(theirs, end) == written(ours, end)


def read(directory: Path, name: str, table: str, key: str) -> bool:
    """Whether a table of a Java broker's configuration has a key."""
    path = directory / "java" / "config" / f"{name}.json"
    if not path.is_file():
        return False
    try:
        config = fastjson.loads(path.read_text())
    except DecodeError:  # Java writes over it
        return False
    return isinstance(config, dict) and key in config.get(table, {})


async def ask(address: str, code: int) -> RemotingCommand:
    async with RemotingClient() as client:
        return await client.invoke(address, request(code))


async def end_of(address: str) -> int:
    """Where a Java master's log ends; -1 while it does not answer."""
    try:
        return decode_body((await ask(address, 907)).body, HaStatus).master_commit_log_max_offset
    except RemotingError:
        return -1


BATCHES = "Batches"


async def fill_others(master: "AtJava") -> None:
    """Send inner batches, and messages for light queues."""
    topic = {"topic": BATCHES, "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"}
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0, "attributes": "+queue.type=BatchCQ"}
    assert (await master.ask(17, topic | queues)).code == 0
    for number in range(30):
        batch = (pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + pack(">h", 0)) * (1 + number % 4)
        assert (await master.send(BATCHES, batch, m="true", properties={"UNIQ_KEY": f"{number}"})).code == 0
        names = {"UNIQ_KEY": f"l{number}", "INNER_MULTI_DISPATCH": f"%LMQ%all,%LMQ%{number % 3}"}
        assert (await master.send("Light", properties=names)).code == 0


class AtJava(Asker):
    """A client of a Java broker."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address, self.client = address, client

    async def ask(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b"", version: int = 479
    ) -> RemotingCommand:
        command = request(code, {name: str(value) for name, value in (fields or {}).items()}, body)
        command.version = version
        return await self.client.invoke(self.address, command, LONG_S)


@pytest.mark.long
async def test_our_slave_of_a_java_master_has_its_log_and_java_consumers_read_it(tmp_path: Path) -> None:
    light = {"lmq_enabled": True, "multi_dispatch_enabled": True}
    ours = store_of(tmp_path / "ours", batchconsumequeue_file_bytes=920, **light)
    theirs = java_store(tmp_path)
    following = {"broker_role": "SLAVE", "broker_id": 1, "slave_read_enable": True}
    port = free_port()
    address = f"127.0.0.1:{port}"
    async with namesrv(tmp_path) as names, RemotingClient() as client:
        more = {"namesrv_addr": names, "register_name_server_period_ms": 1000, "slave_sync_interval_ms": 1000}
        async with running(ours, **following, **more) as slave:
            settings = (
                f"brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout={LONG_S * 1000}\nbrokerId=0\n"
                f"namesrvAddr={names}\nlistenPort={port}\nhaListenPort={free_port()}\n"
                "enableLmq=true\nenableMultiDispatch=true\n"
            )
            async with java_broker(tmp_path, settings):

                async def is_following() -> bool:
                    return slave.broker.state.replication.is_following

                await eventually(is_following, LONG_S)
                await fill(AtJava(address, client), MESSAGES)  # type: ignore[arg-type]
                await fill_others(AtJava(address, client))
                end = await end_of(address)
                assert slave.broker.store.max_physical_offset == end > 5 * FILE_BYTES
                assert len(stored(slave)) == MESSAGES // 2

                async def knows() -> bool:
                    return "T" in slave.broker.state.topics.table and slave.broker.store.batch_topics == {BATCHES}

                await eventually(knows, LONG_S)
            consumed = await asyncio.to_thread(peer.run, "consume", names, "T", str(MESSAGES), str(LONG_S))
            lines = [line for line in consumed.splitlines() if line.startswith("{")]
            places = {(one["queue_id"], one["queue_offset"]) for one in map(json.loads, lines)}
            assert places == {(queue_id, offset) for queue_id in range(2) for offset in range(MESSAGES // 2)}
    assert log_of(theirs).keys() >= written(ours, end).keys()
    assert written(theirs, end) == written(ours, end)
    check_derived(ours, batch_topics=(BATCHES,))
