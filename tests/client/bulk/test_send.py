"""Bulk sending: one request at a time to a queue, again where there was no answer; keys by the array."""

import asyncio
import struct

import pytest

from rmq_core.client import BrokerError, MessageQueue, NoRouteError
from rmq_core.client.bulk.send import BulkSender, BulkUniqKeys, RefusedMessage
from rmq_core.client.producer.packet import message_ends
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.codecs.properties import encode_properties
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


def encode(*bodies: bytes, **properties: str) -> bytes:
    """Encode messages as a batch request has them."""
    block = encode_properties(properties)
    heads = (struct.pack(">iiiii", 22 + len(body) + len(block), 0, 0, 0, len(body)) for body in bodies)
    return b"".join(
        head + body + struct.pack(">h", len(block)) + block for head, body in zip(heads, bodies, strict=True)
    )


def refuse_above(max_bytes: int, stored: list[bytes]) -> Handler:
    """Answer as a broker with ``maxMessageSize``; ``stored`` gets the bodies of the messages."""

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        if len(command.body) > max_bytes:
            return command.response(13, "the message is illegal")
        data, position = bytes(command.body), 0
        for end in message_ends(data):
            stored.append(data[position + 20 : end - 2])
            position = end
        return sent(command)

    return answer


async def test_a_batch_that_is_too_large_for_a_broker_is_halved_in_order(fakes: FakeCluster) -> None:
    stored: list[bytes] = []
    bodies = [b"%03d" % number for number in range(40)]
    fakes.brokers["a"].answer = refuse_above(3 * 25, stored)
    async with BulkSender(fakes.namesrv, "g") as sender:
        await sender.queues("T")
        for first in range(0, 40, 8):
            await sender.put(QUEUE, memoryview(encode(*bodies[first : first + 8])), 8)
        await sender.flush()
        assert sender.messages == 40
    assert stored == bodies


async def test_a_refused_message_is_named_and_the_others_are_stored(fakes: FakeCluster) -> None:
    stored: list[bytes] = []
    refused: list[RefusedMessage] = []
    finished: list[int] = []
    fakes.brokers["a"].answer = refuse_above(100, stored)
    bodies = [b"1", b"2", b"x" * 200, b"3"]
    async with BulkSender(fakes.namesrv, "g") as sender:
        await sender.queues("T")
        await sender.put(QUEUE, encode(*bodies), 4, refused=refused.append, done=lambda: finished.append(1))
        await sender.flush()
        assert sender.messages == 3
    assert stored == [b"1", b"2", b"3"]
    assert finished == [1]
    (message,) = refused
    assert (message.queue, bytes(message.data), message.error.code) == (QUEUE, encode(b"x" * 200), 13)


async def test_a_refused_message_is_an_error_that_names_its_place(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = refuse_above(100, [])
    async with BulkSender(fakes.namesrv, "g") as sender:
        await sender.queues("T")
        await sender.put(QUEUE, encode(b"1", b"2") + encode(b"x" * 200, UNIQ_KEY="U7"), 3)
        expected = "topic T, queue a/0, message 3 that was sent to it, UNIQ_KEY U7: the message is illegal"
        with pytest.raises(BrokerError, match=expected):
            await sender.flush()
    assert sender.messages == 2


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
