"""Java's push consumer pops at our broker; and either broker goes on where the other one stopped."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.client import PopConsumer, PopOptions, ReceivedMessage, StartPosition
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import request
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker
from tests.broker.pop.conftest import Popped, Popper
from tests.broker.pop.test_pop import sent
from tests.broker.timer.test_against_java import FILE_BYTES, SETTINGS, JavaAsker
from tests.interop import peer
from tests.interop.test_namesrv_against_java import free_port, java
from tests.support.processes.broker_processes import configured

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("timers_against_java")]
TOPIC = "PopT"
START_S = 120


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    peer.build()
    directory = tmp_path_factory.mktemp("pop")
    with configured(directory, "") as running:
        yield running.namesrv


@pytest.mark.long
@pytest.mark.usefixtures("each_release")
def test_java_s_consumer_pops_and_what_it_fails_comes_back(namesrv: str) -> None:
    async def prepare() -> None:
        async with RemotingClient() as client:
            broker = await broker_of(client, namesrv)
            made = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
            group = {"groupName": "pop_g", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}
            mode = {"topic": TOPIC, "consumerGroup": "pop_g", "mode": "POP", "popShareQueueNum": 1}
            for command in (
                request(RequestCode.UPDATE_AND_CREATE_TOPIC, made),
                request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()),
                request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()),
            ):
                assert (await client.invoke(broker, command)).code == 0

    asyncio.run(prepare())
    out = peer.run("pop", "retry", namesrv, TOPIC, "pop_g", "5", java_options=peer.QUICK_START)
    told = json.loads(out.splitlines()[-1])
    assert told["ok"], told
    assert told["got"] == 5


async def broker_of(client: RemotingClient, namesrv: str) -> str:
    """The only broker of a name server."""
    answer = await client.invoke(namesrv, request(RequestCode.GET_BROKER_CLUSTER_INFO, {}))
    (broker,) = json.loads(bytes(answer.body))["brokerAddrTable"].values()
    return str(broker["brokerAddrs"]["0"])


CONFIG = BrokerConfig(
    listen_port=0, broker_name="broker-t", broker_cluster_name="InteropCluster", timer_log_file_bytes=FILE_BYTES
)


def store_of(path: Path) -> StoreConfig:
    return StoreConfig(
        root=str(path),
        commitlog_file_bytes=1 << 20,
        consumequeue_file_bytes=2000,
        index_slots=500,
        index_entries=2000,
        disk_max_used_ratio=99,
        disk_warning_ratio=100,
    )


async def eventually_popped(popper: Popper, count: int) -> dict[bytes, int]:
    """Bodies that are popped until there are so many, with reconsume times; a broker that starts is waited for."""
    found: dict[bytes, int] = {}
    end = asyncio.get_running_loop().time() + START_S
    while len(found) < count and asyncio.get_running_loop().time() < end:
        try:
            answers = await popper.pop(invisibleTime=60_000, pollTime=1000)
        except (RemotingError, AssertionError):
            await asyncio.sleep(0.2)
            continue
        for one in answers:
            found[one.body] = one.reconsume_times
            await popper.ack(one)
    return found


async def consumed_by_ours(namesrv: str) -> list[bytes]:
    """What our consumer gets of Java's broker: a batch is acknowledged, one alone, and one comes back sooner."""
    options = PopOptions(start=StartPosition.FIRST, invisible_time_s=60, suspend_timeout_s=5)
    consumer, found = PopConsumer(namesrv, "ours", options), list[ReceivedMessage]()
    consumer.subscribe("T")
    async with asyncio.timeout(START_S), consumer:
        while len(found) < 4:
            found += await consumer.receive()
        await consumer.ack(*found[:2])
        await consumer.ack(found[2])
        await consumer.change_invisible_time(found[3], 1)
        while not (again := await consumer.receive()):
            pass
        assert [(one.body, one.reconsume_times, one.topic) for one in again] == [(found[3].body, 1, "T")]
        await consumer.ack(*again)
    return sorted(message.body for message in found)


async def at_java_s(namesrv: str, address: str) -> list[bytes]:
    """What was popped here and is left comes; what is popped there and not acknowledged is returned."""
    async with RemotingClient() as client:
        popper = Popper(JavaAsker(address, client), broker="broker-t")
        assert await eventually_popped(popper, 2) == {b"1": 1, b"2": 1}
        assert await consumed_by_ours(namesrv) == [b"0", b"1", b"2", b"3"]
        await sent(popper.asker, 3, queue_id=1)
        left: list[Popped] = []
        while len(left) < 3:
            left += await popper.pop(invisibleTime=4000, pollTime=1000)
        assert (await popper.ack(left[1])).code == 0
        return [left[0].body, left[2].body]


@pytest.mark.long
async def test_java_revives_what_was_popped_here_and_we_what_was_popped_there(tmp_path: Path) -> None:
    await asyncio.to_thread(peer.build)
    store = tmp_path / "store"
    async with Broker(CONFIG, store_of(store)) as broker, RemotingClient() as client:
        popper = Popper(Asker(broker, client, {}), broker="broker-t")
        await sent(popper.asker, 4)
        here = await popper.pop(invisibleTime=10_000)
        assert len(here) == 4
        await popper.ack(here[0])
        await popper.ack(here[3])
    conf, port = tmp_path / "broker.conf", free_port()
    async with NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        settings = f"namesrvAddr={names.address}\nbrokerIP1=127.0.0.1\nlistenPort={port}\nhaListenPort={free_port()}\n"
        conf.write_text(SETTINGS + settings)
        with (tmp_path / "java.log").open("wb") as log, java(log, "broker", str(store), str(conf)) as process:
            kept = await at_java_s(names.address, f"127.0.0.1:{port}")
            process.terminate()
            assert await asyncio.to_thread(process.wait, START_S) in (0, 143)
    async with Broker(CONFIG, store_of(store)) as broker, RemotingClient() as client:
        popper = Popper(Asker(broker, client, {}), broker="broker-t")
        assert await eventually_popped(popper, 2) == dict.fromkeys(kept, 1)
        assert await popper.pop() == []
