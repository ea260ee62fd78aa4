"""Our consumer that pops, at two brokers of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.client import (
    Admin,
    BrokerError,
    Later,
    Message,
    MessageError,
    MessageQueue,
    PopConsumer,
    PopOptions,
    Producer,
    ReceivedMessage,
    StartPosition,
)
from rmq_core.client.pop import consumer as pop_consumer
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import RequestTimeoutError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.codecs.layout import PROPERTY_POP_CK
from rmq_formats.errors import OptionError
from tests.broker import conftest
from tests.broker.conftest import Clock, small_store
from tests.broker.pop.test_pop import pass_time
from tests.client.conftest import FakeCluster
from tests.client.conftest import received as popped

FIRST = PopOptions(start=StartPosition.FIRST, invisible_time_s=10, suspend_timeout_s=20)
PATIENCE_S = 60


@dataclass(frozen=True)
class Site:
    """Two brokers and their clock."""

    namesrv: str
    clock: Clock
    producer: Producer

    def consumer(self, options: PopOptions = FIRST, tags: str = "*", group: str = "g") -> PopConsumer:
        """One that has subscribed."""
        made = PopConsumer(self.namesrv, group, options)
        made.subscribe("T", tags)
        return made

    async def send(self, *bodies: str, broker: str = "a", queue_id: int = 0, tags: str = "a") -> None:
        queue = MessageQueue(topic="T", broker_name=broker, queue_id=queue_id)
        for body in bodies:
            await self.producer.send(Message("T", body.encode(), tags=tags), queue=queue)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = Clock()
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)))
        for name in ("a", "b"):
            config = BrokerConfig(listen_port=0, namesrv_addr=names.address, broker_name=name)
            await stack.enter_async_context(Broker(config, small_store(tmp_path / name), clock))
        admin = await stack.enter_async_context(Admin(names.address))
        await admin.create_topic("T", queues=2)
        producer = await stack.enter_async_context(Producer(names.address, "senders"))
        yield Site(names.address, clock, producer)


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


async def received(consumer: PopConsumer, count: int) -> list[ReceivedMessage]:
    """So many messages, of as many takes as they need."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await consumer.receive()
    return found


async def test_what_is_acknowledged_stays_so_and_the_rest_comes_back(site: Site) -> None:
    await site.send("0", "1", "2", "3")
    await site.send("4", "5", broker="b", queue_id=1)
    async with site.consumer() as consumer:
        found = await received(consumer, 6)
        assert sorted(bodies(found)) == ["0", "1", "2", "3", "4", "5"]
        assert {message.queue.broker_name for message in found} == {"a", "b"}
        assert await consumer.receive(timeout_s=0) == []
        kept = {"1", "4"}
        await consumer.ack(*[message for message in found if message.body.decode() not in kept])
        await pass_time(site.clock, 16)
        again = await received(consumer, 2)
        assert {(message.body.decode(), message.reconsume_times, message.topic) for message in again} == {
            ("1", 1, "T"), ("4", 1, "T")
        }  # fmt: skip
        for message in again:
            await consumer.ack(message)
        await pass_time(site.clock, 16)
        assert await consumer.receive(timeout_s=0) == []


async def test_a_receive_waits_at_all_brokers_and_takes_of_one(site: Site) -> None:
    async with site.consumer() as one, site.consumer() as other:
        waiting = [asyncio.ensure_future(consumer.receive()) for consumer in (one, other)]
        await asyncio.sleep(0.3)
        await site.send("x", broker="b")
        await site.send("y", broker="a")
        async with asyncio.timeout(PATIENCE_S):
            assert sorted(bodies([message for found in await asyncio.gather(*waiting) for message in found])) == [
                "x",
                "y",
            ]


async def test_a_changed_time_counts_and_tags_choose(site: Site) -> None:
    await site.send("no", tags="b")
    await site.send("soon", "late")
    async with site.consumer(tags="a") as consumer:
        soon, late = await received(consumer, 2)
        handle = late.properties[PROPERTY_POP_CK]
        await consumer.change_invisible_time(soon, 2)
        await consumer.change_invisible_time(late, 60)
        assert late.properties[PROPERTY_POP_CK] != handle
        await pass_time(site.clock, 20)
        (again,) = await received(consumer, 1)
        assert bodies([again]) == ["soon"]
        assert await consumer.receive(timeout_s=0) == []
        await consumer.ack(late, again)
        await pass_time(site.clock, 60)
        assert await consumer.receive(timeout_s=0) == []


async def test_changes_in_the_millisecond_of_the_pop_have_check_points_of_their_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_ms()
    monkeypatch.setattr(conftest, "now_ms", lambda: now)
    await site.send("first", "second", "third")
    async with site.consumer() as consumer:
        first, second, third = await received(consumer, 3)
        for seconds in (60, 30, 10):
            await consumer.change_invisible_time(first, seconds)
        await consumer.change_invisible_time(third, 60)
        await consumer.ack(second, third)
        await pass_time(site.clock, 20)
        (again,) = await received(consumer, 1)
        assert (bodies([again]), again.reconsume_times) == (["first"], 1)
        await consumer.ack(again)
        await pass_time(site.clock, 80)
        assert await consumer.receive(timeout_s=0) == []


async def test_a_check_point_has_its_unacknowledged_messages_after_a_change_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_ms()
    monkeypatch.setattr(conftest, "now_ms", lambda: now)
    await site.send("first", "second")
    async with site.consumer() as consumer:
        first, _ = await received(consumer, 2)
        await consumer.change_invisible_time(first, 10)
        await pass_time(site.clock, 20)
        assert sorted(bodies(await received(consumer, 2))) == ["first", "second"]


async def test_a_listener_s_failures_come_back_or_are_dead_letters(site: Site) -> None:
    seen: list[tuple[str, int]] = []

    async def listen(messages: list[ReceivedMessage]) -> Later | None:
        (message,) = messages
        seen.append((message.body.decode(), message.reconsume_times))
        if message.body == b"dead":
            return Later(delay_level=-1)
        if message.body == b"again" and message.reconsume_times == 0:
            raise RuntimeError("this once")
        return None

    await site.send("good", "again", "dead")
    async with site.consumer() as consumer, PopConsumer(site.namesrv, "undertakers", FIRST) as undertaker:
        consuming = asyncio.ensure_future(consumer.consume(listen))
        undertaker.subscribe("%DLQ%g")
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 3:
                await asyncio.sleep(0.01)
            (dead,) = await received(undertaker, 1)
            assert bodies([dead]) == ["dead"]
            while len(seen) < 4:
                await pass_time(site.clock, 2)
        await pass_time(site.clock, 60)
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert await consumer.receive(timeout_s=0) == []
    assert sorted(seen) == [("again", 0), ("again", 1), ("dead", 0), ("good", 0)]


@pytest.mark.parametrize("in_order", [False, True])
async def test_messages_whose_tags_only_have_the_hash_are_acknowledged(site: Site, *, in_order: bool) -> None:
    """Java's hash of BB is that of Aa, so that brokers give both."""
    options = PopOptions(start=StartPosition.FIRST, in_order=in_order, invisible_time_s=10, suspend_timeout_s=5)
    await site.send("no", tags="BB")
    await site.send("yes", tags="Aa")
    async with site.consumer(options, tags="Aa") as consumer:
        found = await received(consumer, 1)
        assert bodies(found) == ["yes"]
        await consumer.ack(*found)
        await pass_time(site.clock, 16)
        async with site.consumer(options, tags="*") as other:
            assert await other.receive(timeout_s=3) == []
        await site.send("next", tags="Aa")
        assert bodies(await received(consumer, 1)) == ["next"]


async def test_in_order_a_failure_holds_its_queue(site: Site) -> None:
    seen: list[str] = []

    def listen(messages: list[ReceivedMessage]) -> Later | None:
        seen.append(messages[0].body.decode())
        return Later() if seen.count("1") == 1 and seen[-1] == "1" else None

    await site.send("0", "1", "2")
    options = PopOptions(start=StartPosition.FIRST, in_order=True, suspend_timeout_s=5)
    async with site.consumer(options) as consumer:
        consuming = asyncio.ensure_future(consumer.consume(listen))
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 4:
                await pass_time(site.clock, 1)
        consuming.cancel()
    assert seen == ["0", "1", "1", "2"]


async def test_what_cannot_be_is_refused(site: Site) -> None:
    await site.send("x")
    with pytest.raises(OptionError, match="not at a time"):
        PopOptions(start=StartPosition.TIMESTAMP)
    with pytest.raises(OptionError, match="1 to 300"):
        PopOptions(invisible_time_s=0)
    async with PopConsumer(site.namesrv, "g", FIRST) as consumer:
        with pytest.raises(OptionError, match="must subscribe"):
            await consumer.receive()
        consumer.subscribe("T")
        with pytest.raises(OptionError, match="1 to 32"):
            await consumer.receive(33)
        (message,) = await received(consumer, 1)
        with pytest.raises(OptionError, match="invisible time"):
            await consumer.change_invisible_time(message, -1)
        words = message.properties[PROPERTY_POP_CK].split(" ")
        message.properties[PROPERTY_POP_CK] = " ".join([*words[:7], "99"])
        with pytest.raises(BrokerError):
            await consumer.ack(message)
        del message.properties[PROPERTY_POP_CK]
        with pytest.raises(MessageError, match="was not popped"):
            await consumer.ack(message)


async def test_a_lost_answer_in_order_is_asked_for_again_as_the_same_attempt(fakes: FakeCluster) -> None:
    attempts: list[str] = []

    def answer(command: RemotingCommand, _: Connection) -> Any:
        attempts.append(command.ext_fields["attemptId"])
        return (
            None if len(attempts) == 1 else command.response(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        )  # the first is never told

    del fakes.addresses["b"]
    fakes.brokers["a"].answer = answer
    options = PopOptions(in_order=True, suspend_timeout_s=0.1, request_timeout_s=0.5)
    async with PopConsumer(fakes.namesrv, "g", options) as consumer:
        consumer.subscribe("T")
        with pytest.raises(RequestTimeoutError):
            await consumer.receive(timeout_s=0)
        assert await consumer.receive(timeout_s=0) == []
        assert await consumer.receive(timeout_s=0) == []
    assert attempts[0] == attempts[1] != attempts[2]


async def test_a_response_that_cannot_be_decoded_ends_no_consumption(
    fakes: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pop_consumer, "_AFTER_ERROR_S", 0.01)
    pops = 0

    def answer(command: RemotingCommand, _: Connection) -> Any:
        nonlocal pops
        pops += 1
        if pops == 1:
            return command.response(body=b"\0\0\0\x10no record")
        return command.response(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    del fakes.addresses["b"]
    fakes.brokers["a"].answer = answer
    async with PopConsumer(fakes.namesrv, "g", PopOptions(suspend_timeout_s=0.1)) as consumer:
        consumer.subscribe("T")
        consuming = asyncio.ensure_future(consumer.consume(lambda _: None))

        async def went_on() -> bool:
            return pops > 1

        await conftest.eventually(went_on, PATIENCE_S)
        assert not consuming.done()
        consuming.cancel()
    assert "cannot receive" in caplog.text


async def test_in_order_nothing_follows_a_failed_message_whose_time_cannot_be_changed() -> None:
    calls: list[tuple[str, int]] = []

    class Unanswered:
        async def ack(self, messages: list[ReceivedMessage]) -> None:
            calls.append(("ack", messages[0].queue_offset))

        async def change(self, message: ReceivedMessage, _: float) -> None:
            calls.append(("change", message.queue_offset))
            raise RequestTimeoutError("127.0.0.1:1", "no answer")

    def listener(messages: list[ReceivedMessage]) -> Later | None:
        return Later() if messages[0].queue_offset == 1 else None

    requests: Any = Unanswered()
    receive: Any = None
    service = pop_consumer.ConsumeMessagePopService(receive, requests, PopOptions(in_order=True), listener)
    await service._consume([popped(0), popped(1), popped(2)])
    assert calls == [("ack", 0), ("change", 1)]
