"""The end of lite topics: those that nobody sends to, and those of a deleted parent."""

import asyncio
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, Clock, eventually
from tests.broker.lite.conftest import GROUP, PARENT, Watcher, make_group, make_parent, send
from tests.broker.test_administration import create


def children(asker: Asker) -> set[str]:
    return {name for name in asker.broker.store.topics() if name.startswith("%LMQ%")}


async def test_a_child_without_messages_for_long_is_deleted(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await make_parent(lite, "Lasting")
    await make_group(lite, "lasting", bind_topic="Lasting")
    await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
    await make_parent(lite, minutes=30)
    await watcher.add("d1", "d2")
    await send(lite, "d1", parent="Lasting")
    for child in ("d1", "d2"):
        await send(lite, child)
    for one in await watcher.pop():
        await watcher.ack(one)
    lifecycle = lite.broker._lite._lifecycle
    clock.ahead_ms += 20 * 60_000
    await lifecycle.expire()
    assert len(children(lite)) == 3
    await send(lite, "d2")
    clock.ahead_ms += 11 * 60_000
    await lifecycle.expire()
    assert children(lite) == {"%LMQ%$Devices$d2", "%LMQ%$Lasting$d1"}
    assert lite.broker.state.offsets.get("%LMQ%$Devices$d1", GROUP, 0) == -1
    assert lite.broker.state.offsets.get("%LMQ%$Devices$d2", GROUP, 0) == 1
    assert list(lite.broker._lite._registry.clients["c1"].queues) == ["%LMQ%$Devices$d2"]
    await watcher.add("d1")
    await send(lite, "d1", b"anew")  # it begins at 0 again
    found = await watcher.pop(pollTime=5000)
    assert (b"anew", 0) in [(one.body, one.offset) for one in found]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3 * 3_600_000])
async def test_a_child_lives_for_its_time_however_the_clock_is_set(
    config: BrokerConfig, store_config: StoreConfig, step_ms: int
) -> None:
    wall, steady = Clock(), Clock()
    async with (
        Broker(config, store_config, wall, steady_ms=steady) as broker,
        RemotingClient() as client,
    ):
        asker = Asker(broker, client, {})
        await make_parent(asker, minutes=30)
        await send(asker, "d1")
        wall.ahead_ms += step_ms
        for minutes, count in ((20, 1), (11, 0)):
            for clock in (wall, steady):
                clock.ahead_ms += minutes * 60_000
            await broker._lite._lifecycle.expire()
            assert len(children(asker)) == count


async def test_nothing_is_deleted_soon_after_a_start(lite: Asker, clock: Clock) -> None:
    await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
    await make_parent(lite, minutes=1)
    await send(lite, "d1")
    clock.ahead_ms += 14 * 60_000
    await lite.broker._lite._lifecycle.expire()
    assert len(children(lite)) == 1
    clock.ahead_ms += 2 * 60_000
    await lite.broker._lite._lifecycle.expire()
    assert not children(lite)


class TestClock:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, lite_ttl_check_interval_ms=50)

    async def test_it_is_looked_for_periodically(self, lite: Asker, clock: Clock) -> None:
        await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
        await make_parent(lite, minutes=1)
        await send(lite, "d1")
        clock.ahead_ms += 16 * 60_000

        async def is_gone() -> bool:
            return not children(lite)

        await eventually(is_gone)


@pytest.mark.parametrize("by_list", [False, True])
async def test_children_are_deleted_with_their_parent(lite: Asker, watcher: Watcher, *, by_list: bool) -> None:
    await make_parent(lite, "DevicesToo")
    await send(lite, "d1", parent="DevicesToo")
    await watcher.add("d1")
    await send(lite, "d1")
    await send(lite, "d2")
    for one in await watcher.pop():
        await watcher.ack(one)
    if by_list:
        answer = await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, {}, b'{"topicList":["Devices"]}')
    else:
        answer = await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
    assert answer.code == 0
    assert children(lite) == {"%LMQ%$DevicesToo$d1"}
    assert lite.broker.state.offsets.get("%LMQ%$Devices$d1", GROUP, 0) == -1
    assert lite.broker._lite._registry.count == 0
    assert (await watcher.ask()).code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_are_deleted_with_a_group_of_lite_topics(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    await send(lite, "d1")
    await send(lite, "d1")
    await watcher.ack((await watcher.pop())[0])
    answer = await lite.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "false"})
    assert answer.code == 0
    assert lite.broker.state.offsets.topics_of(GROUP) == []
    assert lite.broker._lite._orders.count == 1
    lite.broker._lite._check()

    async def is_forgotten() -> bool:
        return lite.broker._lite._orders.count == 0

    await eventually(is_forgotten)
    assert (await watcher.ask()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestFew:
    @pytest.fixture
    def store_config(self, store_config: StoreConfig) -> StoreConfig:
        values = {name: getattr(store_config, name) for name in StoreConfig.__dataclass_fields__}
        return StoreConfig(**values | {"max_lmq_queues": 2})

    async def test_more_children_than_there_may_be_are_refused(self, lite: Asker) -> None:
        assert [(await send(lite, child)).code for child in ("d1", "d2", "d1")] == [0, 0, 0]
        answer = await send(lite, "d3")
        assert answer.code == ResponseCode.LMQ_QUOTA_EXCEEDED
        assert answer.remark == "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."


async def test_a_parent_has_no_batch_queues(lite: Asker) -> None:
    attributes = "+message.type=LITE,+queue.type=BatchCQ"
    fields: dict[str, object] = {
        "topic": "B", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": attributes,
    }  # fmt: skip
    answer = await lite.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "BatchCQ" in str(answer.remark)


async def test_a_group_that_is_bound_elsewhere_gets_nothing_more(lite: Asker, watcher: Watcher) -> None:
    await make_parent(lite, "Other")
    await watcher.add("d1")
    body = encode_body(SubscriptionGroupConfig(group_name=GROUP, attributes={"+lite.bind.topic": "Other"}))
    assert (await lite.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    await send(lite, "d1")
    answer = await watcher.ask()
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "bind topic not match" in str(answer.remark)


class TestOldLog:
    """Children whose messages are in no log any more."""

    async def test_they_are_deleted_whatever_the_parents_limit(
        self, config: BrokerConfig, store_config: StoreConfig, clock: Clock
    ) -> None:
        async with Broker(config, store_config, clock) as broker, RemotingClient() as client:
            lite = Asker(broker, client, {})
            for parent, minutes in (("Lasting", -1), ("Brief", 1), ("Gone", -1)):
                await make_parent(lite, parent, minutes)
                await send(lite, "old", parent=parent)
            await send(lite, "new", parent="Lasting")
            await create(lite, "Other")
            while len(list(Path(store_config.commitlog_path).iterdir())) < 3:  # the last is prepared, and empty
                await lite.send("Other", bytes(5000))
            await send(lite, "new", parent="Lasting")
        for path in sorted(Path(store_config.commitlog_path).iterdir())[:-1]:
            path.unlink()
        async with Broker(config, store_config, clock) as broker, RemotingClient() as client:
            lite = Asker(broker, client, {})
            del broker.state.topics.table["Gone"]  # as a kill left it behind, before children were deleted first
            clock.ahead_ms += 60 * 60_000
            for _ in range(7):
                await broker._lite._lifecycle.expire()
            assert children(lite) == {"%LMQ%$Lasting$new"}


async def test_children_are_deleted_before_their_parent(lite: Asker) -> None:
    for number in range(40):
        await send(lite, f"d{number}")
    deleting = asyncio.ensure_future(lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT}))
    while not deleting.done():
        # At a kill the topic is there as long as a child is, and can be deleted again.
        assert PARENT in lite.broker.state.topics.table or not children(lite)
        await asyncio.sleep(0)
    assert (await deleting).code == 0
    assert not children(lite)


async def test_a_list_with_a_topic_that_cannot_be_deleted_deletes_no_child(lite: Asker) -> None:
    await send(lite, "d1")
    body = b'{"topicList":["Devices","RMQ_SYS_TRACE_TOPIC","a b"]}'
    assert (await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, {}, body)).code == ResponseCode.INVALID_PARAMETER
    assert len(children(lite)) == 1
    assert PARENT in lite.broker.state.topics.table
