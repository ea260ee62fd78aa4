"""Lite topics beside clients that leave, lie, or take what is not theirs: messages of others come all the same."""

import asyncio

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, Clock, eventually
from tests.broker.lite.conftest import GROUP, PARENT, Got, Watcher, make_group, make_parent, send
from tests.broker.test_administration import create

CHILDREN = [f"x{number}" for number in range(20)]
FROM_FIRST = {"type": "POLICY", "value": 1}


async def drained(watcher: Watcher) -> list[Got]:
    got: list[Got] = []
    while some := await watcher.pop(pollTime=500):
        got += some
        for one in some:
            await watcher.ack(one)
    return got


@pytest.mark.parametrize("action", ["PARTIAL_REMOVE", "COMPLETE_ADD"])
async def test_what_a_client_was_told_of_goes_to_another_when_it_unsubscribes(lite: Asker, action: str) -> None:
    first, second = Watcher(lite, "a"), Watcher(lite, "b")
    for one in (first, second):
        await one.add(*CHILDREN)
    for child in CHILDREN:
        await send(lite, child)
    children = CHILDREN if action == "PARTIAL_REMOVE" else ["other"]
    assert (await first.control(action, *children)).code == 0
    assert sorted(one.child for one in await drained(second)) == sorted(CHILDREN)


@pytest.mark.parametrize("model", ["Shared", "Exclusive"])
async def test_who_subscribes_again_from_the_first_message_gets_it(lite: Asker, model: str) -> None:
    await make_group(lite, "again", sub_model=model)
    watcher = Watcher(lite, "a", "again")
    await watcher.add("d1")
    await send(lite, "d1", b"0")
    assert [one.body for one in await drained(watcher)] == [b"0"]
    await watcher.add("d1", offsetOption=FROM_FIRST)
    assert [one.body for one in await drained(watcher)] == [b"0"]


@pytest.mark.parametrize("value", [1 << 63, -(1 << 70)])
async def test_an_offset_that_is_no_long_is_refused(lite: Asker, watcher: Watcher, value: int) -> None:
    answer = await watcher.control("PARTIAL_ADD", "d1", offsetOption={"type": "OFFSET", "value": value})
    assert (answer.code, answer.remark) == (
        ResponseCode.INVALID_PARAMETER, "offsetOption has a value of more than 64 bits",
    )  # fmt: skip


@pytest.mark.parametrize("action", ["PARTIAL_REMOVE", "COMPLETE_REMOVE"])
async def test_a_client_of_another_group_is_not_unsubscribed(lite: Asker, watcher: Watcher, action: str) -> None:
    await make_parent(lite, "Own")
    await make_group(lite, "mine", bind_topic="Own")
    await watcher.add("d1")
    rude = Watcher(lite, watcher.client_id, "mine", "Own")
    assert (await rude.control(action, "d1")).code == 0
    await send(lite, "d1", b"1")
    assert [one.body for one in await watcher.pop(pollTime=2000)] == [b"1"]


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("Other", {"INNER_MULTI_DISPATCH": "%LMQ%$Devices$d1"}),
        ("Other", {"INNER_MULTI_DISPATCH": "%LMQ%mine,%LMQ%$Devices$d1"}),
        (PARENT, {"INNER_MULTI_DISPATCH": "%LMQ%$Devices$d1"}),
        ("%LMQ%$Devices$d1", {}),
    ],
    ids=["named", "among others", "of the parent", "sent to it"],
)
async def test_no_child_takes_messages_of_other_topics(
    lite: Asker, watcher: Watcher, topic: str, properties: dict[str, str]
) -> None:
    await create(lite, "Other")
    await watcher.add("d1")
    await send(lite, "d1", b"good")
    answer = await lite.send(topic, b"bad", properties={"UNIQ_KEY": "0A"} | properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "is a lite topic, which takes messages by __LITE_TOPIC alone" in str(answer.remark)
    assert [one.body for one in await drained(watcher)] == [b"good"]


async def test_no_child_takes_half_messages(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    answer = await send(lite, "d1", b"half", TRAN_MSG="true", PGROUP="p")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "half message" in str(answer.remark)
    assert await watcher.pop(pollTime=300) == []


class TestFewHeld:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, max_held_pulls=20)

    async def test_pops_of_a_connection_that_is_closed_are_held_no_more(
        self, config: BrokerConfig, store_config: StoreConfig, clock: Clock
    ) -> None:
        async with Broker(config, store_config, clock) as broker, RemotingClient() as client:
            lite = Asker(broker, client, {})
            await make_parent(lite)
            await make_group(lite)
            pops = broker._lite._pops

            async def is_full() -> bool:
                return pops.count == 20

            async def is_free() -> bool:
                return pops.count == 0

            async with RemotingClient() as rude:
                asker = Asker(broker, rude, {})
                asking = [
                    asyncio.ensure_future(Watcher(asker, f"r{number}").ask(pollTime=10**15)) for number in range(20)
                ]
                await eventually(is_full)
            await asyncio.gather(*asking, return_exceptions=True)
            await eventually(is_free)
            watcher = Watcher(lite)
            await watcher.add("d1")
            popping = asyncio.ensure_future(watcher.pop(pollTime=5000))
            await send(lite, "d1", b"1")
            assert [one.body for one in await popping] == [b"1"]


async def test_a_group_that_is_a_wildcard_group_no_more_is_behind_no_more(lite: Asker) -> None:
    await make_group(lite, "all", sub_wildcard="true", sub_client_max_event_cnt="10")
    watcher = Watcher(lite, "a", "all")
    await watcher.control("COMPLETE_ADD")
    for child in CHILDREN:
        await send(lite, child)
    dispatcher = lite.broker._lite._dispatcher

    async def is_behind() -> bool:
        return "all" in dispatcher._lagging_groups

    await eventually(is_behind)
    body = encode_body(SubscriptionGroupConfig(group_name="all", attributes={"-lite.sub.wildcard": ""}))
    assert (await lite.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    dispatcher.scan()

    async def is_even() -> bool:
        return not dispatcher._lagging_groups

    await eventually(is_even)


async def test_the_offset_of_a_group_named_as_a_check_is_found(lite: Asker) -> None:
    """Work of groups and of the broker's own checks does not keep one another from running."""
    await make_group(lite, "orders", sub_wildcard="true")
    await send(lite, "d1", b"1")
    broker = lite.broker._lite
    broker._check()
    watcher = Watcher(lite, "a", "orders")
    await watcher.control("COMPLETE_ADD")
    assert [one.body for one in await watcher.pop(pollTime=2000)] == [b"1"]
    assert lite.broker.state.offsets.get(f"%LMQ%${PARENT}$d1", GROUP, 0) == -1
