"""Lite topics at the original's newest broker and at ours: the same requests get the same answers, on one store."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, messages
from tests.broker.lite.conftest import GROUP, PARENT, Got, Watcher, make_group, make_parent, send
from tests.broker.test_light_queues import light_store
from tests.broker.timer.test_against_java import START_S, JavaAsker
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, free_port, java
from tests.support.stores.store_files import tree

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("lite_against_java")]
NAME = "broker-a"
CONFIG = BrokerConfig(listen_port=0, broker_name=NAME, broker_cluster_name="InteropCluster")
SETTINGS = f"{SMALL_FILES}brokerName={NAME}\nenableLmq=true\nenableMultiDispatch=true\n"
SETTINGS += "autoCreateSubscriptionGroup=false\nfileReservedTime=87600\n"  # else a pop makes its group, and is refused


@pytest.fixture(autouse=True)
def newest() -> Iterator[None]:
    """Earlier releases have no lite topics."""
    with peer.running(peer.NEWEST):
        yield


def seen(got: list[Got]) -> list[tuple[str, bytes, int, int]]:
    return sorted((one.child, one.body, one.offset, one.times) for one in got)


async def popped(watcher: Watcher, count: int, **more: object) -> list[Got]:
    """Messages of several pops, as the original wakes a pop for each that arrives."""
    found: list[Got] = []
    async with asyncio.timeout(START_S):
        while len(found) < count:
            found += await watcher.pop(**{"pollTime": 1500, **more})
    return found


def told(answer: RemotingCommand, *without: str) -> dict[str, Any]:
    """What an administrator is told, without what differs by time and place."""
    assert answer.code == 0, answer.remark
    body = json.loads(bytes(answer.body))
    return {key: value for key, value in body.items() if key not in without and value is not None}


async def play(asker: Asker) -> dict[str, Any]:
    """Use lite topics; what is observed."""
    watcher, found = Watcher(asker), dict[str, Any]()
    await watcher.add("d1", "d2")
    for number in range(3):
        assert (await send(asker, "d1", b"%d" % number)).code == 0
    await send(asker, "d2", b"x")
    first = await popped(watcher, 4, invisibleTime=4000)
    found["first"] = seen(first)
    found["blocked"] = seen(await watcher.pop())
    of_d1 = [one for one in first if one.child == "d1"]
    found["acks"] = [(await watcher.ack(one)).code for one in (of_d1[0], of_d1[0], first[-1])]
    found["change"] = (await watcher.change(of_d1[1], 1000)).code
    again = await popped(watcher, 2, invisibleTime=2000)
    found["again"] = seen([one for one in again if one.child == "d1"])
    found["suspend"] = (await watcher.change(again[0], 500, suspend="true")).code
    third = await popped(watcher, 2, invisibleTime=60_000)
    found["after suspend"] = seen([one for one in third if one.child == "d1"])
    found["stale ack"] = (await watcher.ack(of_d1[1])).code
    found["last acks"] = [(await watcher.ack(one)).code for one in third]
    found["record"] = {
        key: value
        for key, value in messages(await asker.pull("%LMQ%$Devices$d1", consumerGroup=GROUP))[0].properties.items()
        if key not in ("UNIQ_KEY", "MSG_REGION", "TRACE_ON")
    }
    found["bad"] = await codes_of_bad_input(asker, watcher, third[0])
    found["taken"] = await taken_over(asker)
    found["told"] = await told_to_administrators(asker)
    return found


async def codes_of_bad_input(asker: Asker, watcher: Watcher, one: Got) -> list[tuple[str, int]]:
    """Codes of requests that cannot be."""
    await asker.send("Plain")
    pops: list[dict[str, object]] = [
        {"maxMsgNum": 33}, {"topic": "None"}, {"topic": "Plain"}, {"consumerGroup": "none"},
    ]  # fmt: skip
    acks: list[dict[str, object]] = [
        {"offset": 99}, {"queueId": 1}, {"topic": "None"}, {"consumerGroup": "none"},
    ]  # fmt: skip
    found = [(str(fields), (await watcher.ask(**fields)).code) for fields in pops]
    found += [(str(fields), (await watcher.ack(one, **fields)).code) for fields in acks]
    found.append(("no body", (await asker.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, b"")).code))
    found.append(("none", (await asker.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, b'{"subscriptionSet":[]}')).code))
    found.append(("action", (await watcher.control("ADD", "d1")).code))
    found.append(("group", (await Watcher(asker, "c9", "none").control("PARTIAL_ADD", "d1")).code))
    return found


async def taken_over(asker: Asker) -> list[object]:
    """An exclusive group's child goes from one client to another."""
    await make_group(asker, "one", sub_model="Exclusive")
    first, second = Watcher(asker, "x1", "one"), Watcher(asker, "x2", "one")
    await first.add("e1")
    await second.add("e1")
    await send(asker, "e1", b"e")
    return [seen(await first.pop()), seen(await popped(second, 1)), [one.ext_fields for one in asker.told]]


async def told_to_administrators(asker: Asker) -> list[object]:
    """The answers to 200074 to 200079."""
    broker = await asker.ask(RequestCode.GET_BROKER_LITE_INFO)
    parent = await asker.ask(RequestCode.GET_PARENT_TOPIC_INFO, {"topic": PARENT})
    topic = await asker.ask(RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": PARENT, "liteTopic": "d1"})
    client: dict[str, object] = {"parentTopic": PARENT, "group": GROUP, "clientId": "c1", "maxCount": 10}
    of_client = told(await asker.ask(RequestCode.GET_LITE_CLIENT_INFO, client), "lastAccessTime", "lastConsumeTime")
    of_client["liteTopicSet"].sort()
    unknown = await asker.ask(RequestCode.GET_LITE_CLIENT_INFO, client | {"clientId": "none"})
    group = await asker.ask(RequestCode.GET_LITE_GROUP_INFO, {"group": GROUP, "liteTopic": "d1", "topK": 5})
    of_group = told(group, "earliestUnconsumedTimestamp")
    of_group["liteTopicOffsetWrapper"].pop("lastTimestamp")
    all_of_group = told(await asker.ask(RequestCode.GET_LITE_GROUP_INFO, {"group": GROUP, "topK": 5}))
    of_topic = told(topic)
    assert of_topic["topicOffset"].pop("lastUpdateTimestamp") > 0
    groups = told(parent)
    groups["groups"].sort()
    of_broker = told(broker, "orderInfoCount", "offsetTableSize", "cqTableSize", "eventMapSize", "maxLmqNum")
    for names in of_broker["groupMeta"].values():
        names.sort()
    codes = [
        (await asker.ask(code, fields)).code
        for code, fields in (
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "Plain"}),
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "None"}),
            (RequestCode.GET_LITE_GROUP_INFO, {"group": "none", "topK": 1}),
            (RequestCode.GET_LITE_CLIENT_INFO, client | {"maxCount": 0}),
            (RequestCode.TRIGGER_LITE_DISPATCH, {"group": GROUP}),
            (RequestCode.TRIGGER_LITE_DISPATCH, {"group": "none"}),
        )
    ]
    return [of_broker, groups, of_topic, of_client, told(unknown, "lastConsumeTime"), of_group, all_of_group, codes]


class JavaLite(JavaAsker):
    """A client of the original's broker that is told which lite topics others took."""

    def __init__(self, address: str, client: RemotingClient, handlers: dict[int, Handler]) -> None:
        super().__init__(address, client)
        self.told = []
        listen(self, handlers)


def listen(asker: Asker, handlers: dict[int, Handler]) -> None:
    def note(command: RemotingCommand, _: Connection) -> None:
        asker.told.append(command)

    handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE] = note


async def until_it_answers(asker: Asker) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                if (await asker.ask(RequestCode.GET_BROKER_LITE_INFO)).code == 0:
                    return
            except RemotingError:
                await asyncio.sleep(0.2)


async def at_java_s(store: Path, tmp_path: Path, what: Any) -> Any:
    """Run something at a broker of the original on a store, which ends in order."""
    conf, port = tmp_path / "broker.conf", free_port()
    async with NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        settings = f"namesrvAddr={names.address}\nbrokerIP1=127.0.0.1\nlistenPort={port}\nhaListenPort={free_port()}\n"
        conf.write_text(SETTINGS + settings)
        handlers: dict[int, Handler] = {}
        with (tmp_path / "java.log").open("wb") as log, java(log, "broker", str(store), str(conf)) as process:
            async with RemotingClient(handlers) as client:
                asker = JavaLite(f"127.0.0.1:{port}", client, handlers)
                await until_it_answers(asker)
                found = await what(asker)
            process.terminate()
            assert await asyncio.to_thread(process.wait, START_S) in (0, 143)
    return found


async def at_ours(config: StoreConfig, what: Any) -> Any:
    """Run something at our broker on a store."""
    handlers: dict[int, Handler] = {}
    async with Broker(CONFIG, config) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)
        listen(asker, handlers)
        return await what(asker)


async def prepare_and_play(asker: Asker) -> dict[str, Any]:
    await make_parent(asker, minutes=30)
    await make_group(asker)
    return await play(asker)


async def leave_some(asker: Asker) -> list[bytes]:
    """Send more to a child, and leave them popped, but not acknowledged."""
    watcher = Watcher(asker)
    await watcher.add("d1")
    for number in range(2):
        await send(asker, "d1", b"left %d" % number)
    return sorted(one.body for one in await popped(watcher, 2))


async def take_what_is_left(asker: Asker) -> list[tuple[bytes, int]]:
    watcher = Watcher(asker, "c2")
    await watcher.add("d1")
    found = await popped(watcher, 2)
    for one in found:
        assert (await watcher.ack(one)).code == 0
    return sorted((one.body, one.offset) for one in found)


async def check_queues(ours: Path, java_s: Path) -> None:
    """The light queues of lite topics are those that the original makes of the log."""
    shutil.copytree(ours / "commitlog", java_s / "commitlog")
    await asyncio.to_thread(
        peer.rebuild,
        java_s,
        mappedFileSizeCommitLog=1 << 20,
        mappedFileSizeConsumeQueue=2000,
        enableLmq="true",
        enableMultiDispatch="true",
    )
    queues = tree(ours / "consumequeue")
    assert {name.split("/")[0] for name in queues} >= {f"%LMQ%$Devices${child}" for child in ("d1", "d2", "e1")}
    assert queues == tree(java_s / "consumequeue")


@pytest.mark.long
async def test_both_answer_the_same_and_one_goes_on_where_the_other_stopped(tmp_path: Path) -> None:
    await asyncio.to_thread(peer.build)
    ours = light_store(tmp_path / "ours")
    here = await at_ours(ours, prepare_and_play)
    await check_queues(tmp_path / "ours", tmp_path / "rebuilt")
    assert await at_ours(ours, leave_some) == [b"left 0", b"left 1"]

    async def at_java(asker: Asker) -> Any:
        return await take_what_is_left(asker), await leave_some(asker)

    assert await at_java_s(tmp_path / "ours", tmp_path, at_java) == (
        [(b"left 0", 3), (b"left 1", 4)], [b"left 0", b"left 1"],
    )  # fmt: skip
    assert await at_ours(ours, take_what_is_left) == [(b"left 0", 5), (b"left 1", 6)]
    there = await at_java_s(tmp_path / "java", tmp_path, prepare_and_play)
    for key, observed in here.items():
        assert observed == there[key], (key, observed, there[key])
