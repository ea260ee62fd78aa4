"""The time of day is set while something waits: durations are those of a clock that nobody sets."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.state import WallClock
from rmq_core.client.pop.handles import Handles, ack_fields
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import PopResponse
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store

STEPS_MS = [-3_600_000, 3 * 3_600_000]
POP = {
    "consumerGroup": "cg", "topic": "T", "queueId": 0, "maxMsgNums": 32, "pollTime": 0, "initMode": 0,
    "expType": "TAG", "exp": "*", "bornTime": 0,
}  # fmt: skip


class Clocks:
    """A broker's clocks: time passes on both, and only one is set."""

    def __init__(self) -> None:
        self.wall, self.steady = Clock(), Clock()

    def pass_ms(self, duration_ms: int) -> None:
        self.wall.ahead_ms += duration_ms
        self.steady.ahead_ms += duration_ms

    def set(self, step_ms: int) -> None:
        self.wall.ahead_ms += step_ms


class Stepped(Asker):
    """A client of a broker whose clock is set."""

    clocks: Clocks


@pytest.fixture
async def asker(tmp_path: Path) -> AsyncIterator[Stepped]:
    clocks, handlers = Clocks(), dict[int, Handler]()
    config = BrokerConfig(listen_port=0, transaction_check_interval_ms=3_600_000)
    async with (
        Broker(config, small_store(tmp_path / "store"), clocks.wall, steady_ms=clocks.steady) as broker,
        RemotingClient(handlers) as client,
    ):
        asker = Stepped(broker, client, handlers)
        asker.clocks = clocks
        yield asker


def test_an_age_is_that_of_the_steady_clock_where_the_step_came_later() -> None:
    now = {"wall": 1_000_000, "steady": 5000, "end": 0}
    clock = WallClock(lambda: now["wall"], lambda: now["steady"], lambda: now["end"])
    now |= {"wall": 1_002_000, "steady": 7000, "end": 100}
    assert clock() == 1_002_000
    now |= {"wall": 1_002_000 - 3_600_000, "steady": 7000}
    assert clock.age_ms(1_001_000, 50) == 1000
    now |= {"wall": now["wall"] + 500, "steady": 7500, "end": 200}
    assert clock.age_ms(1_001_000, 50) == 1500
    assert clock.age_ms(now["wall"] - 300, 150) == 300  # stored behind the step
    now |= {"wall": now["wall"] + 10_000_000, "steady": 7600}
    assert clock.age_ms(1_001_000, 50) == 1600
    assert clock.age_ms(now["wall"] - 10_000_000 - 300, 150) == 400
    for _ in range(1000):
        now["wall"] += 5_000
        clock()
    assert len(clock._steps) == 256


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_delay_level_takes_its_time(asker: Stepped, step_ms: int) -> None:
    await asker.send("T", properties={"DELAY": "4", "UNIQ_KEY": "A"})  # 30 s
    asker.clocks.set(step_ms)
    schedule = asker.broker._schedule
    schedule.deliver()
    asker.clocks.pass_ms(20_000)
    schedule.deliver()
    assert not messages(await asker.pull("T"))
    asker.clocks.pass_ms(11_000)
    schedule.deliver()
    assert len(messages(await asker.pull("T"))) == 1


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_lock_is_held_for_its_time(asker: Stepped, step_ms: int) -> None:
    def body(client_id: str) -> bytes:
        queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
        return json.dumps({"consumerGroup": "cg", "clientId": client_id, "mqSet": [queue]}).encode()

    async def locks(client_id: str) -> bool:
        return b'"T"' in bytes((await asker.ask(RequestCode.LOCK_BATCH_MQ, {}, body(client_id))).body)

    await asker.send("T")
    await asker.heartbeat()
    assert await locks("a")
    asker.clocks.set(step_ms)
    asker.broker.state.locks.remove_expired()
    assert not await locks("b")
    asker.clocks.pass_ms(61_000)
    assert await locks("b")


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_client_with_heartbeats_stays_and_a_silent_one_goes(asker: Stepped, step_ms: int) -> None:
    await asker.heartbeat("cg", SubscriptionData(topic="T"))
    asker.clocks.set(step_ms)
    asker.broker._client_manager.scan_inactive_clients()
    assert "cg" in asker.broker.state.consumers.groups
    told = json.loads(bytes((await asker.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body))
    seen_ms = told["data"]["pg"][0]["lastUpdateTimestamp"]
    assert abs(seen_ms - asker.clocks.wall()) < 60_000
    asker.clocks.pass_ms(121_000)
    asker.broker._client_manager.scan_inactive_clients()

    async def is_gone() -> bool:
        return "cg" not in asker.broker.state.consumers.groups

    await eventually(is_gone)


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_producer_is_asked_about_a_half_message_in_time(asker: Stepped, step_ms: int) -> None:
    asked: list[RemotingCommand] = []

    def note(command: RemotingCommand, _: Connection) -> None:
        asked.append(command)

    asker.handlers[RequestCode.CHECK_TRANSACTION_STATE] = note
    await asker.heartbeat()
    half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "A"}
    await asker.send("T", properties=half, g=asker.clocks.wall(), f=4)
    asker.clocks.set(step_ms)
    await asker.broker.checks.check()
    assert (await asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})).code == 0
    assert not asked
    asker.clocks.pass_ms(7000)
    await asker.broker.checks.check()

    async def is_asked() -> bool:
        return len(asked) == 1

    await eventually(is_asked)


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_queue_in_order_is_blocked_for_its_time(asker: Stepped, step_ms: int) -> None:
    await asker.send("T")

    async def pop() -> RemotingCommand:
        fields: dict[str, Any] = POP | {"invisibleTime": 60_000, "order": "true"}
        return await asker.ask(RequestCode.POP_MESSAGE, fields)

    assert len(messages(await pop())) == 1
    asker.clocks.set(step_ms)
    asker.broker._pop.expire()
    assert not messages(await pop())
    asker.clocks.pass_ms(59_000)
    assert not messages(await pop())
    asker.clocks.pass_ms(2000)
    assert len(messages(await pop())) == 1


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_pull_waits_as_long_as_it_asks_to(asker: Stepped, step_ms: int) -> None:
    await asker.send("T")
    broker = asker.broker
    task = asyncio.ensure_future(asker.pull("T", 1, sysFlag=6, suspendTimeoutMillis=30_000))

    async def is_held() -> bool:
        return broker._parked_pulls.count == 1

    await eventually(is_held)
    asker.clocks.set(step_ms)
    broker._parked_pulls.expire(broker.state.steady_ms())
    assert broker._parked_pulls.count == 1
    asker.clocks.pass_ms(31_000)
    broker._parked_pulls.expire(broker.state.steady_ms())
    assert (await task).code == 19


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_popped_message_stays_away_for_its_time_and_an_acknowledged_one_for_good(
    asker: Stepped, step_ms: int
) -> None:
    """One is taken before the clock is set and one after, and of each take one message is acknowledged."""
    broker, retry = asker.broker, "%RETRY%cg_T"

    async def pop_two() -> list[bytes]:
        for body in (b"acknowledged", b"open"):
            await asker.send("T", body)
        answer = await asker.ask(RequestCode.POP_MESSAGE, POP | {"invisibleTime": 30_000, "order": "false"})
        found = messages(answer)
        handles = Handles(read_fields(answer, PopResponse), "broker-a")
        first = found[0]
        handle = handles.handle_of(first.properties, first.queue_id, first.queue_offset)
        acked = await asker.ask(RequestCode.ACK_MESSAGE, write_fields(ack_fields("cg", "T", handle)))
        assert acked.code == 0
        return [message.body for message in found]

    async def revived(count: int) -> list[bytes]:
        async def work() -> bool:
            assert broker._timer_service is not None
            broker._timer_service.run()
            broker._pop.revive()
            return broker.store.max_offset(retry, 0) >= count

        if count:
            await eventually(work)
        for _ in range(20):
            await work()
            await asyncio.sleep(0.01)
        return [message.body for message in messages(await asker.pull(retry))]

    assert await pop_two() == [b"acknowledged", b"open"]
    asker.clocks.set(step_ms)
    asker.clocks.pass_ms(20_000)
    assert await revived(0) == []
    assert await pop_two() == [b"acknowledged", b"open"]
    asker.clocks.pass_ms(14_000)
    assert await revived(1) == [b"open"]
    asker.clocks.pass_ms(20_000)
    assert await revived(2) == [b"open", b"open"]
    asker.clocks.pass_ms(4 * 3_600_000)  # the check points of before have come by now
    assert await revived(2) == [b"open", b"open"]
