"""Messages are popped, acknowledged, and come back."""

import asyncio
import json

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_formats.codecs.topics import TIMER_TOPIC
from tests.broker.conftest import Asker, Clock, eventually, messages
from tests.broker.pop.conftest import Popper
from tests.broker.timer.test_delivery import taken_in

SECOND_MS = 1000


async def sent(asker: Asker, count: int, topic: str = "T", queue_id: int = 0) -> None:
    for number in range(count):
        answer = await asker.send(topic, b"%d" % number, queue_id, properties={"UNIQ_KEY": f"K{number}", "TAGS": "a"})
        assert answer.code == 0, answer.remark


async def pass_time(clock: Clock, seconds: float) -> None:
    """Let time pass in steps that the broker's clocks see."""
    for _ in range(int(seconds * 2)):
        clock.ahead_ms += 500
        await asyncio.sleep(0.01)


async def test_what_is_popped_is_not_popped_again_and_queues_share(asker: Asker, popper: Popper) -> None:
    await sent(asker, 5)
    await sent(asker, 3, queue_id=2)
    first = await popper.pop(maxMsgNums=6)
    assert len(first) == 6
    assert len({delivery.handle.revive_queue_id for delivery in first}) == 1
    second = await popper.pop()
    assert sorted(delivery.place for delivery in first + second) == [(0, n) for n in range(5)] + [
        (2, n) for n in range(3)
    ]
    assert await popper.pop() == []
    other = Popper(asker, group="other")
    assert len(await other.pop()) == 8


async def test_a_check_point_is_a_timer_message_as_in_the_original(asker: Asker, popper: Popper) -> None:
    await sent(asker, 3)
    deliveries = await popper.pop(invisibleTime=15_000)
    handle = deliveries[0].handle
    await popper.ack(deliveries[1])
    at, ack_at = messages(await asker.pull(TIMER_TOPIC, suspendTimeoutMillis=100))
    pt = handle.pop_time_ms
    assert at.properties["UNIQ_KEY"] == f"T@0@0@g@{pt}@broker-a@ck"
    assert (at.properties["TAGS"], at.properties["TIMER_DELIVER_MS"]) == ("ck", str(pt + 14_000))
    assert at.properties["REAL_TOPIC"] == "rmq_sys_REVIVE_LOG_DefaultCluster"
    assert at.properties["REAL_QID"] == str(handle.revive_queue_id)
    assert at.body.decode() == (
        f'{{"bm":0,"bn":"broker-a","c":"g","d":[0,1,2],"it":15000,"n":3,"pt":{pt},"q":0,"reviveTime":{pt + 15_000},'
        '"ro":0,"so":0,"t":"T"}'
    )
    assert ack_at.body.decode() == f'{{"ao":1,"bn":"broker-a","c":"g","pt":{pt},"q":0,"so":0,"t":"T"}}'
    assert ack_at.properties["UNIQ_KEY"] == f"T@0@1@g@{pt}@broker-a@ack"
    assert (ack_at.properties["TAGS"], ack_at.properties["TIMER_DELIVER_MS"]) == ("ack", str(pt + 15_000))


async def test_what_is_not_acknowledged_comes_back_and_the_rest_does_not(
    asker: Asker, popper: Popper, clock: Clock
) -> None:
    await sent(asker, 4)
    deliveries = await popper.pop(invisibleTime=2000)
    assert len(deliveries) == 4
    for delivery in (deliveries[0], deliveries[2]):
        assert (await popper.ack(delivery)).code == 0
    again: dict[bytes, int] = {}

    async def back() -> bool:
        await pass_time(clock, 1)
        for delivery in await popper.pop(invisibleTime=60_000):
            again[delivery.body] = delivery.reconsume_times
            assert delivery.topic == "T"
            assert delivery.properties["1ST_POP_TIME"] == str(deliveries[0].handle.pop_time_ms)
            assert (await popper.ack(delivery)).code == 0
        return len(again) >= 2

    await eventually(back)
    assert again == {b"1": 1, b"3": 1}
    await pass_time(clock, 70)
    assert await popper.pop() == []
    offsets = asker.broker.state.offsets
    assert (
        offsets.get(
            "rmq_sys_REVIVE_LOG_DefaultCluster", "CID_RMQ_SYS_REVIVE_GROUP", deliveries[0].handle.revive_queue_id
        )
        >= 0
    )


async def test_a_changed_time_counts_and_its_new_handle(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 3)
    deliveries = await popper.pop(invisibleTime=2000)
    handle = await popper.change(deliveries[1], 30_000)
    for delivery in (deliveries[0], deliveries[2]):
        await popper.ack(delivery)
    await pass_time(clock, 10)
    assert await popper.pop() == []
    answer = await asker.ask(
        RequestCode.ACK_MESSAGE,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "offset": 1, "extraInfo": handle.encode()},
    )
    assert answer.code == 0
    await pass_time(clock, 60)
    assert await popper.pop() == []


async def test_a_pop_waits_for_messages_and_a_wake_gives_each_one_to_one(asker: Asker, popper: Popper) -> None:
    await sent(asker, 1)
    await popper.pop()
    waiting = [asyncio.ensure_future(popper.pop(pollTime=20_000)) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert not any(delivery.done() for delivery in waiting)
    await sent(asker, 1, queue_id=1)
    done, still_waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [delivery.result()[0].place for delivery in done] == [(1, 0)]
    assert len(still_waiting) == 2
    await sent(asker, 2)
    deliveries = await asyncio.gather(*still_waiting)
    assert sorted(delivery.place for pops in deliveries for delivery in pops) == [(0, 1), (0, 2)]


async def test_a_poll_ends_without_messages(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 1)
    await popper.pop()
    waiting = asyncio.ensure_future(popper.ask(pollTime=5000))
    await asyncio.sleep(0.05)
    clock.ahead_ms += 5000
    answer = await waiting
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.ext_fields["popTime"] == "0"


async def test_tags_choose_and_what_does_not_fit_is_passed_over(asker: Asker, popper: Popper) -> None:
    for number, tag in enumerate("abab"):
        await asker.send("T", b"%d" % number, properties={"UNIQ_KEY": f"K{number}", "TAGS": tag})
    deliveries = await popper.pop(exp="b")
    assert [delivery.place for delivery in deliveries] == [(0, 1), (0, 3)]
    assert deliveries[0].handle.start_offset == 0
    assert await popper.pop() == []


async def test_a_batch_of_acknowledgements(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 5)
    deliveries = await popper.pop(invisibleTime=2000)
    handle = deliveries[0].handle
    ack = {
        "c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": handle.revive_queue_id, "pt": handle.pop_time_ms,
        "it": 2000, "b": "Fw==",
    }  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
    assert (await asker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
    bodies: list[bytes] = []

    async def back() -> bool:
        await pass_time(clock, 1)
        bodies.extend(delivery.body for delivery in await popper.pop())
        return bool(bodies)

    await eventually(back)
    await pass_time(clock, 5)
    bodies.extend(delivery.body for delivery in await popper.pop())
    assert bodies == [b"3"]  # bits 0, 1, 2 and 4


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 1 << 60}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"attemptId": "x" * 256}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_pops_that_cannot_be_are_refused(
    asker: Asker, popper: Popper, more: dict[str, object], code: ResponseCode
) -> None:
    await sent(asker, 1)
    answer = await popper.ask(**more)
    assert answer.code == code
    assert len(await popper.pop()) == 1


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 99}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 99_999}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "1 2 3"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 x 4 0 broker-a 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 5 4 7 broker-a 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": f"0 1 {'9' * 30} 4 0 broker-a 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 5 44 0 broker-a 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "x" * 100_000}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_handles_that_cannot_be_are_refused(
    asker: Asker, popper: Popper, more: dict[str, object], code: ResponseCode
) -> None:
    await sent(asker, 1)
    (delivery,) = await popper.pop()
    assert (await popper.ack(delivery, **more)).code == code
    assert (await popper.ack(delivery)).code == 0
    assert (await popper.ack(delivery)).code == 0  # once more is no error


@pytest.mark.parametrize("body", [b"", b"{}", b'{"acks":[]}', b'{"acks":[{"b":"/w=="}]}', b'{"acks":[{"b":"?"}]}'])
async def test_batches_that_cannot_be_are_refused_or_do_nothing(asker: Asker, popper: Popper, body: bytes) -> None:
    await sent(asker, 1)
    answer = await asker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    assert answer.code in (0, ResponseCode.NO_MESSAGE, ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert len(await popper.pop()) == 1


async def test_what_is_acknowledged_stays_so_when_the_clock_jumps(asker: Asker, popper: Popper, clock: Clock) -> None:
    await sent(asker, 5)
    deliveries = await popper.pop(invisibleTime=30_000)
    await taken_in(asker, 1)  # so that the timer has the check point, and not yet what comes with the jump
    clock.ahead_ms += 31_000
    for delivery in deliveries:
        await popper.ack(delivery)
    for _ in range(3):
        await asyncio.sleep(1.2)
        assert await popper.pop() == []
        clock.ahead_ms += 40_000


class TestCrowdedTimers:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, timer_congest_num_each_slot=-1)  # none is taken

    async def test_what_gets_no_check_point_is_not_taken(self, asker: Asker, popper: Popper) -> None:
        """It is no error of the pop: what it has of other queues by then must reach its consumer."""
        await sent(asker, 3)
        assert (await popper.ask()).code == ResponseCode.POLLING_TIMEOUT
        assert asker.broker.state.offsets.get("T", "g", 0) == 0
