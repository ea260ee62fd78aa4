"""Lite topics: what is sent to a child is popped by those who subscribe to it, in its order."""

import asyncio

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, Clock, eventually, messages
from tests.broker.lite.conftest import GROUP, PARENT, Watcher, make_group, make_parent, send
from tests.broker.test_clock_steps import Clocks


async def test_a_message_to_a_child_stands_in_its_light_queue(lite: Asker) -> None:
    assert (await send(lite, "d1", b"1")).code == 0
    assert (await send(lite, "d2", b"2", INNER_MULTI_DISPATCH="%LMQ%other")).code == 0
    assert (await lite.send(PARENT, b"3")).code == 0
    first, second = await lite.pull("%LMQ%$Devices$d1"), await lite.pull("%LMQ%$Devices$d2")
    assert [one.body for one in messages(first)] == [b"1"]
    (one,) = messages(second)
    assert one.properties["INNER_MULTI_DISPATCH"] == "%LMQ%$Devices$d2"
    assert one.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"
    assert [one.body for one in messages(await lite.pull(PARENT))] == [b"1", b"2", b"3"]


async def test_each_child_is_popped_in_its_order(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1", "d2")
    for number in range(3):
        await send(lite, "d1", b"%d" % number)
    await send(lite, "d2", b"x")
    await send(lite, "d3", b"of nobody")
    got = await watcher.pop()
    assert sorted((one.child, one.body, one.offset, one.times) for one in got) == [
        ("d1", b"0", 0, 0), ("d1", b"1", 1, 0), ("d1", b"2", 2, 0), ("d2", b"x", 0, 0),
    ]  # fmt: skip
    await send(lite, "d1", b"3")  # not before the others are acknowledged
    assert await watcher.pop() == []
    for one in got:
        assert (await watcher.ack(one)).code == 0
    assert [(one.body, one.offset) for one in await watcher.pop(pollTime=5000)] == [(b"3", 3)]
    assert lite.broker.state.offsets.get("%LMQ%$Devices$d1", GROUP, 0) == 3


async def test_a_pop_waits_for_a_message_of_its_client(lite: Asker, watcher: Watcher) -> None:
    other = Watcher(lite, "c2")
    await watcher.add("d1")
    await other.add("d2")
    pops = [asyncio.ensure_future(one.pop(pollTime=20_000)) for one in (watcher, other)]
    await asyncio.sleep(0.1)
    await send(lite, "d2", b"for c2")
    assert [one.body for one in await pops[1]] == [b"for c2"]
    assert not pops[0].done()
    await send(lite, "d1", b"for c1")
    assert [one.body for one in await pops[0]] == [b"for c1"]


async def test_a_pop_that_waits_in_vain_is_told_so(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    answer = await watcher.ask(pollTime=300)
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext_fields["reviveQid"] == "999"


async def test_what_is_not_acknowledged_comes_again(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await watcher.add("d1")
    for number in range(3):
        await send(lite, "d1", b"%d" % number)
    first = await watcher.pop()
    assert (await watcher.ack(first[0])).code == 0
    clock.ahead_ms += 10_001
    again = await watcher.pop(pollTime=5000)
    assert [(one.body, one.times) for one in again] == [(b"1", 1), (b"2", 1)]
    assert (await watcher.ack(first[1])).code == 0  # of the first pop: it does nothing
    for one in again:
        assert (await watcher.ack(one)).code == 0
    assert lite.broker.state.offsets.get("%LMQ%$Devices$d1", GROUP, 0) == 3
    clock.ahead_ms += 20_000
    assert await watcher.pop(pollTime=1000) == []


async def test_a_child_is_popped_in_time_while_the_time_of_day_is_behind(
    config: BrokerConfig, store_config: StoreConfig
) -> None:
    """The time of day is set back by less than a step: the steady clock finds the child free 700 ms before."""
    clocks = Clocks()
    async with Broker(config, store_config, clocks.wall, steady_ms=clocks.steady) as broker, RemotingClient() as client:
        asker = Asker(broker, client, {})
        await make_parent(asker)
        await make_group(asker)
        watcher = Watcher(asker)
        await watcher.add("a")
        await send(asker, "a")
        assert len(await watcher.pop(invisibleTime=10_000)) == 1
        clocks.set(-700)
        waiting = asyncio.ensure_future(watcher.pop(pollTime=20_000))

        async def is_waiting() -> bool:
            return broker._lite._pops.is_waiting()

        await eventually(is_waiting)
        clocks.pass_ms(10_200)
        broker._lite._expire()
        assert [message.times for message in await asyncio.wait_for(waiting, 5)] == [1]


async def test_an_invisible_time_is_changed(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await watcher.add("d1")
    await send(lite, "d1", b"1")
    (one,) = await watcher.pop(invisibleTime=60_000)
    answer = await watcher.change(one, 500)
    assert answer.code == 0
    assert answer.ext_fields["reviveQid"] == "999"
    clock.ahead_ms += 600
    (again,) = await watcher.pop(pollTime=5000)
    assert (again.body, again.times) == (b"1", 1)
    assert (await watcher.ack(again)).code == 0


async def test_a_suspended_child_is_not_counted(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await watcher.add("d1")
    await send(lite, "d1", b"1")
    counts = []
    for _ in range(3):
        (one,) = await watcher.pop(pollTime=5000)
        counts.append(one.times)
        assert (await watcher.change(one, 100, suspend="true")).code == 0
        clock.ahead_ms += 200
    assert counts == [0, 1, 1]  # the first one is, as in the original


async def test_the_same_attempt_gets_the_same_again(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    await send(lite, "d1", b"1")
    assert [one.times for one in await watcher.pop(attemptId="a")] == [0]
    await send(lite, "d1", b"2")
    assert await watcher.pop(attemptId="b") == []
    await send(lite, "d1", b"3")
    assert [(one.body, one.times) for one in await watcher.pop(attemptId="a")] == [(b"1", 0), (b"2", 0), (b"3", 0)]


async def test_more_than_a_pop_takes_comes_with_the_next_ones(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1", "d2")
    for number in range(5):
        await send(lite, "d1", b"%d" % number)
        await send(lite, "d2", b"%d" % number)
    got = []
    while len(got) < 10:
        popped = await watcher.pop(maxMsgNum=3, pollTime=5000)
        assert 0 < len(popped) <= 3
        for one in popped:
            await watcher.ack(one)
        got += popped
    for child in ("d1", "d2"):
        assert [one.body for one in got if one.child == child] == [b"%d" % number for number in range(5)]


async def test_one_client_of_a_group_gets_a_message_and_each_group(lite: Asker) -> None:
    await make_group(lite, "others")
    watchers = [Watcher(lite, "c1"), Watcher(lite, "c2"), Watcher(lite, "c3", "others")]
    for one in watchers:
        await one.add("d1")
    await send(lite, "d1", b"1")
    pops = [asyncio.ensure_future(one.pop(pollTime=1000)) for one in watchers]
    found = [await one for one in pops]
    assert len(found[0]) + len(found[1]) == 1
    assert len(found[2]) == 1


async def test_a_client_that_does_not_ask_gives_way(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    """What it was told of is given to another one of its group."""
    silent, children = Watcher(lite, "silent"), [f"d{number}" for number in range(30)]
    await silent.add(*children)
    await watcher.add(*children)
    for child in children:
        await send(lite, child)
    found: set[str] = set()

    async def are_all() -> bool:
        got = await watcher.pop()
        for one in got:
            await watcher.ack(one)
        found.update(one.child for one in got)
        return not got

    await eventually(are_all)
    assert 0 < len(found) < 30
    clock.ahead_ms += 11_000
    await watcher.pop()
    lite.broker._lite._dispatcher.scan()

    async def are_there() -> bool:
        await are_all()
        return len(found) == 30

    await eventually(are_there)


async def test_what_is_there_is_told_to_who_subscribes(lite: Asker, watcher: Watcher) -> None:
    await send(lite, "d1", b"1")
    await watcher.add("d1")
    assert [one.body for one in await watcher.pop()] == [b"1"]


class TestFewEvents:
    async def test_more_children_than_events_are_all_popped(self, lite: Asker) -> None:
        await make_group(lite, "few", sub_client_max_event_cnt="10")
        watcher = Watcher(lite, "c1", "few")
        children = [f"d{number}" for number in range(60)]
        await watcher.add(*children)
        for child in children:
            await send(lite, child)
        got = []
        while len(got) < 60:
            popped = await watcher.pop(maxMsgNum=7, pollTime=5000)
            assert popped, len(got)
            got += popped
            for one in popped:
                await watcher.ack(one)
        assert sorted(one.child for one in got) == sorted(children)


async def test_a_notification_tells_that_there_is_something(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    fields: dict[str, object] = {
        "consumerGroup": GROUP, "topic": PARENT, "queueId": -1, "pollTime": 20_000, "bornTime": 0,
        "isLiteConsumer": "true", "clientId": "c1",
    }  # fmt: skip
    told = asyncio.ensure_future(lite.ask(RequestCode.NOTIFICATION, fields))
    await asyncio.sleep(0.1)
    assert not told.done()
    await send(lite, "d1")
    assert (await told).ext_fields["hasMsg"] == "true"
    assert len(await watcher.pop()) == 1


async def test_a_child_is_pulled_and_searched_by_its_name(lite: Asker) -> None:
    await send(lite, "d1", b"1")
    await send(lite, "d2", b"2")
    assert [one.body for one in messages(await lite.pull(PARENT, liteTopic="d2"))] == [b"2"]
    assert (await lite.pull(PARENT, liteTopic="a$b")).code == ResponseCode.INVALID_PARAMETER
    assert (await lite.pull("None", liteTopic="d2")).code == ResponseCode.TOPIC_NOT_EXIST
    pull = asyncio.ensure_future(lite.pull(PARENT, 1, liteTopic="d1", sysFlag=6, suspendTimeoutMillis=2000))
    await asyncio.sleep(0.1)
    await send(lite, "d1", b"3")
    assert [one.body for one in messages(await pull)] == [b"3"]
    fields: dict[str, object] = {"topic": PARENT, "queueId": 0, "timestamp": 1 << 60, "liteTopic": "d1"}
    answer = await lite.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
    assert answer.ext_fields["offset"] == "2"


async def test_a_delayed_message_comes_to_its_child(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await watcher.add("d1")
    assert (await send(lite, "d1", b"later", DELAY="1")).code == 0
    assert await watcher.pop() == []
    clock.ahead_ms += 2000
    assert [one.body for one in await watcher.pop(pollTime=10_000)] == [b"later"]


async def test_after_a_start_clients_subscribe_again(lite: Asker, watcher: Watcher) -> None:
    """Offsets are kept, and what was under way comes again: a late acknowledgement passes over nothing."""
    await watcher.add("d1")
    for number in range(3):
        await send(lite, "d1", b"%d" % number)
    got = await watcher.pop()
    await watcher.ack(got[0])
    state, orders = lite.broker.state, lite.broker._lite._orders
    orders.remove("%LMQ%$Devices$d1", GROUP, 0)  # as a start does
    assert (await watcher.ack(got[2])).code == 0
    assert state.offsets.get("%LMQ%$Devices$d1", GROUP, 0) == 1
    await watcher.add("d1")
    assert (await lite.ask(RequestCode.TRIGGER_LITE_DISPATCH, {"group": GROUP})).code == 0

    async def comes_again() -> bool:
        return [one.body for one in await watcher.pop(pollTime=1000)] == [b"1", b"2"]

    await eventually(comes_again)


@pytest.mark.parametrize("child", ["a$b", "a,b", "a@b", "a/b", " ", "\x01", "n" * 251, "n" * 242])
async def test_names_that_cannot_be_children_are_refused(lite: Asker, watcher: Watcher, child: str) -> None:
    answer = await send(lite, child)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
    answer = await watcher.control("PARTIAL_ADD", child)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "lite topic" in str(answer.remark)
    assert set(lite.broker.store.topics()) == set()


async def test_pops_are_checked(lite: Asker, watcher: Watcher) -> None:
    await make_parent(lite, "Other")
    assert (await lite.send("Plain")).code == 0
    illegal = ResponseCode.INVALID_PARAMETER
    for fields, code, remark in (
        ({"maxMsgNum": 33}, illegal, "num is greater"), ({"maxMsgNum": 0}, illegal, "num is greater"),
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"topic": "Plain"}, illegal, "type not match"), ({"topic": "Other"}, illegal, "bind topic not match"),
        ({"consumerGroup": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not exist"),
        ({"invisibleTime": 0}, illegal, "invisibleTime"), ({"clientId": ""}, illegal, "clientId"),
        ({"attemptId": "a" * 256}, illegal, "attemptId"),
    ):  # fmt: skip
        answer = await watcher.ask(**fields)
        assert answer.code == code, (fields, answer.remark)
        assert remark in str(answer.remark)


async def test_acknowledgements_are_checked(lite: Asker, watcher: Watcher) -> None:
    await make_parent(lite, "Other")
    await watcher.add("d1")
    await send(lite, "d1")
    (one,) = await watcher.pop()
    for fields, code in (
        ({"offset": 2}, ResponseCode.NO_MESSAGE), ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 1}, ResponseCode.MESSAGE_ILLEGAL), ({"topic": "Other"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST), ({"extraInfo": "?"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "none"}, ResponseCode.INVALID_PARAMETER), ({"liteTopic": "a$b"}, 29),
    ):  # fmt: skip
        assert (await watcher.ack(one, **fields)).code == code, fields
        assert (await watcher.change(one, 1000, **fields)).code == code, fields
    assert (await watcher.ack(one)).code == 0
    assert (await watcher.ack(one)).code == 0  # once more


async def test_a_client_that_never_acknowledges_blocks_its_child_only(
    lite: Asker, watcher: Watcher, clock: Clock
) -> None:
    other = Watcher(lite, "c2")
    await watcher.add("d1")
    await other.add("d2")
    for number in range(40):
        await send(lite, "d1", b"%d" % number)
    for times in range(5):
        got = await watcher.pop(pollTime=2000)
        assert {one.times for one in got} == {times}
        assert [one.offset for one in got] == list(range(32))
        await send(lite, "d2", b"%d" % times)
        (one,) = await other.pop(pollTime=2000)
        assert (await other.ack(one)).code == 0
        assert await watcher.pop() == []
        clock.ahead_ms += 10_001
    assert lite.broker._lite._orders.count == 1


async def test_a_dead_letter_of_a_child_is_no_message_of_the_child(lite: Asker, watcher: Watcher) -> None:
    """The original's is its next message, and the one that is sent then is lost (5.5.1)."""
    await watcher.add("d1")
    answer = await send(lite, "d1", b"0")
    await send(lite, "d1", b"1")
    first, second = await watcher.pop()
    place = int(answer.ext_fields["msgId"][-16:], 16)
    fields: dict[str, object] = {"offset": place, "group": GROUP, "delayLevel": -1, "originTopic": PARENT}
    assert (await lite.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    await send(lite, "d1", b"2")
    for one in (first, second):
        await watcher.ack(one)
    assert [one.body for one in messages(await lite.pull(f"%DLQ%{GROUP}"))] == [b"0"]
    assert [(one.body, one.offset) for one in await watcher.pop(pollTime=3000)] == [(b"2", 2)]
    assert [one.body for one in messages(await lite.pull("%LMQ%$Devices$d1"))] == [b"0", b"1", b"2"]


async def test_a_change_of_what_was_acknowledged_changes_nothing_and_says_so(lite: Asker, watcher: Watcher) -> None:
    await watcher.add("d1")
    await send(lite, "d1")
    (one,) = await watcher.pop()
    await watcher.ack(one)
    answer = await watcher.change(one, 5000)
    assert answer.code == 0
    assert [answer.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid")] == ["0", "0", "0"]
