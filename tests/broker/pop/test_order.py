"""Pops in order: a queue gives nothing more until what it gave is acknowledged, or visible again."""

import asyncio
import json
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, Clock, small_store
from tests.broker.pop.conftest import Popper, popped
from tests.broker.pop.test_pop import sent


@pytest.fixture
def store_path(store_config: StoreConfig) -> Path:
    return Path(store_config.root)


async def in_order(popper: Popper, attempt: str = "", **more: object) -> list[tuple[int, int]]:
    fields: dict[str, object] = {"order": "true", "attemptId": attempt, "queueId": 0}
    return [one.place for one in await popper.pop(**fields | more)]


async def test_a_queue_is_blocked_until_all_is_acknowledged(asker: Asker, popper: Popper) -> None:
    await sent(asker, 5)
    found = await popper.pop(order="true", maxMsgNums=2, queueId=0)
    assert [one.place for one in found] == [(0, 0), (0, 1)]
    assert found[0].handle.revive_queue_id == 999
    assert await in_order(popper) == []
    await popper.ack(found[0])
    assert await in_order(popper) == []
    assert asker.broker.state.offsets.get("T", "g", 0) == 1
    await popper.ack(found[1])
    assert asker.broker.state.offsets.get("T", "g", 0) == 2
    assert await in_order(popper) == [(0, 2), (0, 3), (0, 4)]


async def test_the_same_attempt_gets_the_same_again_and_others_when_it_is_visible(
    asker: Asker, popper: Popper, clock: Clock
) -> None:
    await sent(asker, 2)
    assert await in_order(popper, "att-1", invisibleTime=5000) == [(0, 0), (0, 1)]
    assert await in_order(popper, "att-2") == []
    assert await in_order(popper, "att-1", invisibleTime=5000) == [(0, 0), (0, 1)]
    clock.ahead_ms += 5001
    answer = await popper.ask(order="true", attemptId="att-2", queueId=0)
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
    second = popped(answer)
    assert (await popper.ack(second[1])).code == 0
    clock.ahead_ms += 10_001
    answer = await popper.ask(order="true", attemptId="att-3", queueId=0)
    assert [one.place for one in popped(answer)] == [(0, 0), (0, 1)]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 2;0 qo0%1 2;0 0 2"


async def test_a_changed_time_holds_the_queue_for_that_long(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 2)
    (one,) = await popper.pop(order="true", maxMsgNums=1, queueId=0, invisibleTime=60_000)
    changed = await popper.change(one, 3000)
    assert (changed.revive_queue_id, changed.pop_time_ms) == (999, one.handle.pop_time_ms)
    clock.ahead_ms += 2000
    assert await in_order(popper) == []
    clock.ahead_ms += 1100
    assert await in_order(popper) == [(0, 0), (0, 1)]


async def test_a_pop_that_waits_gets_what_is_visible_again_at_once(asker: Asker, popper: Popper, clock: Clock) -> None:
    """Of three that wait, the one of the queue: the others would wait on, and it until its poll ends."""
    await sent(asker, 2)
    await popper.pop(order="true", queueId=0, invisibleTime=30_000)
    waiting = [asyncio.ensure_future(popper.ask(order="true", queueId=one, pollTime=3_600_000)) for one in (1, 0, 1)]
    await asyncio.sleep(0.1)
    clock.ahead_ms += 30_001
    answer = await asyncio.wait_for(waiting[1], 60)
    assert [one.place for one in popped(answer)] == [(0, 0), (0, 1)]
    assert not waiting[0].done()
    assert not waiting[2].done()
    again = asyncio.ensure_future(popper.pop(order="true", queueId=0, pollTime=3_600_000))
    await asyncio.sleep(0.1)
    for one in popped(answer):
        await popper.change(one, 1000)
    clock.ahead_ms += 1001
    assert len(await asyncio.wait_for(again, 60)) == 2
    clock.ahead_ms += 3_600_000
    assert [one.code for one in await asyncio.gather(waiting[0], waiting[2])] == [ResponseCode.POLLING_TIMEOUT] * 2


async def test_what_an_acknowledgement_frees_goes_to_the_pop_that_waits_for_it(
    asker: Asker, popper: Popper, clock: Clock
) -> None:
    await sent(asker, 2)
    (first,) = await popper.pop(order="true", queueId=0, maxMsgNums=1)
    waiting = [asyncio.ensure_future(popper.ask(order="true", queueId=one, pollTime=3_600_000)) for one in (1, 0)]
    await asyncio.sleep(0.1)
    await popper.ack(first)
    assert [one.place for one in popped(await asyncio.wait_for(waiting[1], 60))] == [(0, 1)]
    clock.ahead_ms += 3_600_000
    assert (await waiting[0]).code == ResponseCode.POLLING_TIMEOUT


async def test_a_handle_of_an_earlier_take_does_nothing_and_strange_ones_are_refused(
    asker: Asker, popper: Popper, clock: Clock
) -> None:
    await sent(asker, 2)
    (old,) = await popper.pop(order="true", maxMsgNums=1, queueId=0, invisibleTime=1000)
    clock.ahead_ms += 1001
    await popper.pop(order="true", maxMsgNums=1, queueId=0)
    assert (await popper.ack(old)).code == 0
    assert asker.broker.state.offsets.get("T", "g", 0) == 0
    answer = await popper.ack(old, offset=1)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_the_file_is_the_original_s(asker: Asker, popper: Popper, store_path: Path) -> None:
    await sent(asker, 3)
    (one, *_) = await popper.pop(order="true", attemptId="att", queueId=0, invisibleTime=60_000)
    await popper.ack(one)
    await asker.broker.close()
    asker.broker.close = _done  # type: ignore[method-assign]
    info = json.loads((store_path / "config" / "consumerOrderInfo.json").read_text())["table"]["T@g"]["0"]
    pt = one.handle.pop_time_ms
    assert info == {
        "a": "att", "cm": 1, "i": 60_000, "l": pt, "o": [0, 1, 2], "oc": {}, "ot": {}, "popTime": pt,
    }  # fmt: skip


async def _done() -> None:
    pass


@pytest.mark.parametrize("text", ["{", '{"table":{"T@g":{"0":{"o":[]}}}}', '{"table":{"T@g":{0:{"o":[7,1],"cm":1}}}}'])
async def test_a_broker_starts_with_a_file_of_others(store_path: Path, text: str) -> None:
    (store_path / "config").mkdir(parents=True)
    (store_path / "config" / "consumerOrderInfo.json").write_text(text)
    handlers: dict[int, Handler] = {}
    async with (
        Broker(BrokerConfig(listen_port=0), small_store(store_path)) as broker,
        RemotingClient(handlers) as client,
    ):
        popper = Popper(Asker(broker, client, handlers))
        await sent(popper.asker, 1)
        assert await in_order(popper) == [(0, 0)]


async def test_assignments_tell_all_queues_of_a_broker_to_who_pops(asker: Asker) -> None:
    await sent(asker, 1)
    await asker.heartbeat("g")

    async def assigned(**more: object) -> object:
        body = {
            "clientId": "c1",
            "consumerGroup": "g",
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "topic": "T",
        }
        answer = await asker.ask(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(body | more).encode())
        assert answer.code == 0, answer.remark
        return json.loads(bytes(answer.body))

    pulled = [
        {"messageQueue": {"brokerName": "broker-a", "queueId": one, "topic": "T"}, "mode": "PULL"} for one in range(4)
    ]
    assert await assigned() == {"messageQueueAssignments": pulled}
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    assert (await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())).code == 0
    assert await assigned() == {
        "messageQueueAssignments": [
            {"messageQueue": {"brokerName": "broker-a", "queueId": -1, "topic": "T"}, "mode": "POP"}
        ]
    }
    assert await assigned(topic="none") == {"messageQueueAssignments": None}
    modes = await asker.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(bytes(modes.body)) == {"messageRequestModeMap": {"T": {"g": mode}}}
    for more, code in [
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "no*ne"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH", "consumerGroup": "new"}, ResponseCode.INVALID_PARAMETER),
    ]:
        answer = await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode | more).encode())
        assert answer.code == code
    groups = asker.broker.state.groups.table
    assert "new" not in groups
    answer = await asker.ask(
        RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode | {"consumerGroup": "new"}).encode()
    )
    assert answer.code == 0
    assert "new" in groups


async def held(asker: Asker, popper: Popper, *queue_ids: int) -> list["asyncio.Task[list[tuple[int, int]]]"]:
    """Pops in order that wait, of a queue each."""
    waiting = []
    for queue_id in queue_ids:
        before = asker.broker._pop.polls.count
        waiting.append(asyncio.ensure_future(in_order(popper, pollTime=50_000, queueId=queue_id)))
        async with asyncio.timeout(60):
            while asker.broker._pop.polls.count == before:
                await asyncio.sleep(0.01)
    return waiting


async def test_a_held_pop_gets_what_is_visible_again(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 2)
    assert await in_order(popper, invisibleTime=5000) == [(0, 0), (0, 1)]
    (waiting,) = await held(asker, popper, 0)
    clock.ahead_ms += 5001
    assert await waiting == [(0, 0), (0, 1)]


async def test_a_held_pop_and_a_notification_heed_a_changed_time(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 1)
    (one,) = await popper.pop(order="true", queueId=0, invisibleTime=60_000)
    (waiting,) = await held(asker, popper, 0)
    asked: dict[str, object] = {"consumerGroup": "g", "topic": "T", "queueId": 0, "order": "true"}
    told = asyncio.ensure_future(asker.ask(RequestCode.NOTIFICATION, asked | {"pollTime": 50_000, "bornTime": 0}))
    later = await popper.change(one, 30_000)
    await popper.change(one, 3000)
    assert later.pop_time_ms == one.handle.pop_time_ms
    clock.ahead_ms += 3001
    assert await waiting == [(0, 0)]
    clock.ahead_ms += 10_001
    assert (await told).ext_fields["hasMsg"] == "true"


async def test_a_queue_that_is_free_wakes_the_pop_that_is_for_it(asker: Asker, popper: Popper) -> None:
    for queue_id in (0, 1):
        await sent(asker, 2, queue_id=queue_id)
    taken = [await popper.pop(order="true", maxMsgNums=1, queueId=one, invisibleTime=60_000) for one in (0, 1)]
    first, second = await held(asker, popper, 0, 1)
    await popper.ack(taken[1][0])
    assert await second == [(1, 1)]
    assert not first.done()
    await popper.ack(taken[0][0])
    assert await first == [(0, 1)]


async def test_looks_take_nothing(asker: Asker, popper: Popper) -> None:
    await sent(asker, 2)
    fields: dict[str, object] = {"consumerGroup": "g", "topic": "T", "queueId": -1}
    peeked = await asker.ask(RequestCode.PEEK_MESSAGE, fields | {"maxMsgNums": 32})
    assert peeked.code == 0
    told = await asker.ask(RequestCode.NOTIFICATION, fields | {"pollTime": 0, "bornTime": 0})
    assert told.ext_fields["hasMsg"] == "true"
    assert len(await popper.pop()) == 2
    assert (await asker.ask(RequestCode.PEEK_MESSAGE, fields | {"maxMsgNums": 32})).code == ResponseCode.PULL_NOT_FOUND
    waiting = asyncio.ensure_future(asker.ask(RequestCode.NOTIFICATION, fields | {"pollTime": 20_000, "bornTime": 0}))
    await asyncio.sleep(0.05)
    info = await asker.ask(RequestCode.POLLING_INFO, fields)
    assert info.ext_fields["pollingNum"] == "1"
    await sent(asker, 1)
    assert (await waiting).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
    assert len(await popper.pop()) == 1
