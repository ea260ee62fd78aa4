"""Bulk sending: one request at a time to a queue, again where there was no answer; keys by the array."""

import asyncio

import pytest

from rmq_core.client import BrokerError, MessageQueue, NoRouteError
from rmq_core.client.bulk.send import BulkSender, BulkUniqKeys
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.uniq_key import UniqKeys
from tests.client.conftest import QUEUE, FakeCluster, sent


async def test_a_queue_s_chunks_stay_in_order_and_share_requests(fakes: FakeCluster) -> None:
    bodies: list[bytes] = []
    on_way = 0

    async def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        nonlocal on_way
        on_way += 1
        assert on_way == 1
        bodies.append(bytes(command.body))
        response = sent(command)
        await asyncio.sleep(0.01)
        on_way -= 1
        return response

    fakes.brokers["a"].answer = answer
    stored: list[int] = []
    async with BulkSender(fakes.namesrv, "g", batch_bytes=10) as sender:
        await sender.queues("T")
        for number in range(20):
            await sender.put(QUEUE, b"%03d" % number, 1, done=lambda number=number: stored.append(number))  # type: ignore[misc]
        await sender.flush()
        assert sender.messages == 20
    assert b"".join(bodies) == b"".join(b"%03d" % number for number in range(20))
    assert max(map(len, bodies)) == 9
    assert stored == list(range(20))


async def test_chunks_of_other_flags_are_not_mixed(fakes: FakeCluster) -> None:
    async with BulkSender(fakes.namesrv, "g") as sender:
        await sender.queues("T")
        for flag in (0, 0, 1, 1, 0):
            await sender.put(QUEUE, b"%d" % flag, 1, sys_flag=flag)
        await sender.flush()
    requests = [
        (one.ext_fields["f"], one.ext_fields["m"]) for one in fakes.brokers["a"].requests if "f" in one.ext_fields
    ]
    assert requests == [("0", "true"), ("1", "true"), ("0", "true")]


async def test_a_busy_broker_is_asked_again_and_a_refusal_is_raised(fakes: FakeCluster) -> None:
    codes = iter([2, 14, 0])
    fakes.brokers["a"].answer = lambda command, _: (
        sent(command) if (code := next(codes)) == 0 else command.response(code, "busy")
    )
    async with BulkSender(fakes.namesrv, "g") as sender:
        await sender.queues("T")
        await sender.put(QUEUE, b"x", 1)
        await sender.flush()
        fakes.brokers["a"].answer = lambda command, _: command.response(13, "too large")
        await sender.put(QUEUE, b"y", 1)
        with pytest.raises(BrokerError, match="too large"):
            await sender.flush()
        with pytest.raises(BrokerError, match="too large"):
            await sender.put(QUEUE, b"z", 1)
    assert sender.messages == 1


async def test_put_waits_while_too_much_is_on_its_way(fakes: FakeCluster) -> None:
    go_on = asyncio.Event()

    async def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        response = sent(command)
        await go_on.wait()
        return response

    for broker in fakes.brokers.values():
        broker.answer = answer
    async with BulkSender(fakes.namesrv, "g", max_pending_bytes=4) as sender:
        await sender.queues("T")
        await sender.put(QUEUE, b"1234", 1)
        waiting = asyncio.ensure_future(sender.put(MessageQueue(topic="T", broker_name="b", queue_id=1), b"5", 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        go_on.set()
        await waiting
        await sender.flush()
    assert sender.messages == 2


async def test_a_topic_that_is_not_there_is_told(fakes: FakeCluster) -> None:
    fakes.topics = {"T"}
    async with BulkSender(fakes.namesrv, "g") as sender:
        with pytest.raises(NoRouteError, match="Nowhere"):
            await sender.queues("Nowhere")


def test_keys_are_those_of_a_producer_and_none_comes_twice() -> None:
    keys = BulkUniqKeys(UniqKeys("10.0.0.1", 7, b"abcd"))
    made = [bytes(row).decode() for _ in range(3) for row in keys.next(70_000, now_ms=1_700_000_000_000)]
    assert len(set(made)) == len(made) == 210_000
    one = UniqKeys("10.0.0.1", 7, b"abcd").next(1_700_000_000_000)
    assert made[0] == one
    assert {key[:20] for key in made} == {one[:20]}
