"""The gRPC service, call by call."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rmq_core.client import Admin, Message, Producer
from rmq_core.proxy.messages import ReceiptHandle
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_formats.codecs.hashing import consistent_hash
from tests.broker.conftest import eventually
from tests.proxy.conftest import Caller, named, seconds

DAY_MS = 86_400_000


async def test_what_is_sent_is_received_as_it_was_and_acknowledged(caller: Caller) -> None:
    sent = [caller.message(body=b"%d" % number, message_id=f"ID{number}") for number in range(5)]
    answer = await caller.send(*sent)
    assert answer.status.code == v2.OK
    assert [entry.message_id for entry in answer.entries] == [f"ID{number}" for number in range(5)]
    found = []
    while len(found) < 5:
        found += await caller.receive()
    by_id = {one.system_properties.message_id: one for one in found}
    for number, message in enumerate(sent):
        one = by_id[f"ID{number}"]
        system = one.system_properties
        assert (one.body, dict(one.user_properties), one.topic.name) == (message.body, {"colour": "blue"}, "NormalT")
        assert (system.tag, list(system.keys), system.delivery_attempt) == ("a", ["k1", "k2"], 1)
        assert (system.message_type, system.body_encoding, system.born_host) == (v2.NORMAL, v2.IDENTITY, "here")
        assert system.body_digest.checksum == hashlib.md5(message.body).hexdigest().upper()
        assert system.born_timestamp.ToMilliseconds() == message.system_properties.born_timestamp.ToMilliseconds()
        assert (await caller.ack(one)).status.code == v2.OK
    caller.clock.ahead_ms += 40_000
    await asyncio.sleep(1.2)
    answer = await caller.ask_for()
    assert not [one.message for one in answer if one.HasField("message")]
    assert [one.status.code for one in answer[:1]] == [v2.MESSAGE_NOT_FOUND]
    assert answer[-1].HasField("delivery_timestamp")


@pytest.mark.long
async def test_what_is_not_acknowledged_comes_back_and_a_changed_time_counts(caller: Caller) -> None:
    await caller.send(*(caller.message("MixedT", b"%d" % number) for number in range(2)))
    found: list[Any] = []
    while len(found) < 2:
        found += await caller.receive("MixedT", invisible_s=10)
    kept, changed = found
    answer = await caller.call(
        "ChangeInvisibleDuration",
        group=named("g"),
        topic=named("MixedT"),
        invisible_duration=seconds(3600),
        receipt_handle=changed.system_properties.receipt_handle,
        message_id=changed.system_properties.message_id,
    )
    assert answer.status.code == v2.OK
    again: list[Any] = []

    async def back() -> bool:
        caller.clock.ahead_ms += 3000
        again.extend(await caller.receive("MixedT", invisible_s=60))
        return bool(again)

    await eventually(back, 60)
    assert [one.body for one in again] == [kept.body]
    assert again[0].system_properties.delivery_attempt == 2
    assert ReceiptHandle.decode(again[0].system_properties.receipt_handle).handle.kind == 1
    assert (await caller.ack(again[0])).status.code == v2.OK
    assert (await caller.ack(changed, handle=answer.receipt_handle)).status.code == v2.OK


async def test_the_highest_priority_is_received_first(caller: Caller) -> None:
    for number, priority in enumerate((0, 5, 1, 0, 1)):  # of two queues: the last has all from 1 on
        answer = await caller.send(caller.message("PriorityT", b"%d" % number, priority=priority))
        assert answer.status.code == v2.OK, answer.status
    found = [one for _ in range(2) for one in await caller.receive("PriorityT", batch_size=3)]
    assert [one.body for one in found] == [b"1", b"2", b"4", b"0", b"3"]
    assert [one.system_properties.priority for one in found] == [5, 1, 1, 0, 0]
    assert {one.system_properties.message_type for one in found} == {v2.PRIORITY}
    (queue, _) = (await caller.call("QueryRoute", topic=named("PriorityT"))).message_queues
    assert list(queue.accept_message_types) == [v2.PRIORITY]


async def test_messages_of_a_group_are_received_in_order(caller: Caller) -> None:
    config = SubscriptionGroupConfig(group_name="fifo", consume_message_orderly=True)
    caller.broker.state.groups.put(config)
    for number in range(4):
        await caller.send(caller.message("FifoT", b"%d" % number, message_group="one"))
    first = await caller.receive("FifoT", "fifo", batch_size=2)
    assert [one.body for one in first] == [b"0", b"1"]
    assert {one.system_properties.message_group for one in first} == {"one"}
    assert await caller.receive("FifoT", "fifo") == []
    for one in first:
        assert (await caller.ack(one, "fifo")).status.code == v2.OK
    assert [one.body for one in await caller.receive("FifoT", "fifo")] == [b"2", b"3"]
    assignments = await caller.call("QueryAssignment", topic=named("FifoT"), group=named("fifo"))
    assert [one.message_queue.id for one in assignments.assignments] == [0, 1]


async def test_delayed_messages_come_in_time_and_may_be_recalled(caller: Caller) -> None:
    due_ms = int(time.time() * 1000) + 3000
    kept = (await caller.send(caller.message("DelayT", b"kept", delivery_ms=due_ms))).entries[0]
    gone = (await caller.send(caller.message("DelayT", b"gone", delivery_ms=due_ms))).entries[0]
    answer = await caller.call("RecallMessage", topic=named("DelayT"), recall_handle=gone.recall_handle)
    assert (answer.status.code, answer.message_id) == (v2.OK, gone.message_id)
    assert kept.recall_handle
    (one,) = await caller.receive("DelayT", poll_s=20)
    assert one.body == b"kept"
    assert one.system_properties.delivery_timestamp.ToMilliseconds() == due_ms
    assert time.time() * 1000 >= due_ms - 1000


async def test_a_transaction_is_ended_and_one_that_is_not_is_asked_about(caller: Caller) -> None:
    settings = v2.Settings(publishing=v2.Publishing(topics=[named("TranT")]))
    closing = asyncio.Event()

    async def commands() -> AsyncIterator[Any]:
        yield rpc.TelemetryCommand(settings=settings)
        await closing.wait()

    stream = caller.telemetry(commands())
    told = await stream.read()
    assert told.settings.publishing.max_body_size == 4 << 20
    assert told.settings.backoff_policy.max_attempts == 3
    ends = {}
    for name, resolution in (("commit", v2.COMMIT), ("rollback", v2.ROLLBACK), ("open", None)):
        message = caller.message("TranT", name.encode(), message_type=v2.TRANSACTION)
        entry = (await caller.send(message)).entries[0]
        assert entry.status.code == v2.OK
        if resolution is not None:
            ends[name] = await caller.call(
                "EndTransaction",
                topic=named("TranT"),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=resolution,
                source=v2.SOURCE_CLIENT,
            )
            assert ends[name].status.code == v2.OK
    asked = await asyncio.wait_for(stream.read(), 60)
    command = asked.recover_orphaned_transaction_command
    assert command.message.body == b"open"
    assert command.message.system_properties.message_type == v2.TRANSACTION
    await caller.call(
        "EndTransaction",
        topic=named("TranT"),
        transaction_id=command.transaction_id,
        resolution=v2.COMMIT,
        message_id=command.message.system_properties.message_id,
        source=v2.SOURCE_SERVER_CHECK,
    )
    found: set[bytes] = set()
    while len(found) < 2:
        found |= {one.body for one in await caller.receive("TranT")}
    assert found == {b"commit", b"open"}
    closing.set()
    stream.cancel()


async def test_dead_letters_and_offsets(caller: Caller) -> None:
    await caller.send(caller.message(body=b"bad"))
    (one,) = await caller.receive()
    system = one.system_properties
    answer = await caller.call(
        "ForwardMessageToDeadLetterQueue",
        group=named("g"),
        topic=named("NormalT"),
        message_id=system.message_id,
        receipt_handle=system.receipt_handle,
    )
    assert answer.status.code == v2.OK
    store = caller.broker.store
    assert store.max_offset("%DLQ%g", 0) == 1
    queue = v2.MessageQueue(topic=named("NormalT"), id=system.queue_id, broker=v2.Broker(name="broker-a"))
    pulled = await caller.call("PullMessage", group=named("p"), message_queue=queue, offset=0, batch_size=32)
    assert [one.message.body for one in pulled if one.HasField("message")] == [b"bad"]
    assert pulled[-1].next_offset == 1
    unknown = await caller.call("GetOffset", group=named("p"), message_queue=queue)
    assert (await caller.call("UpdateOffset", group=named("p"), message_queue=queue, offset=1)).status.code == v2.OK
    known = await caller.call("GetOffset", group=named("p"), message_queue=queue)
    assert (known.status.code, known.offset) == (v2.OK, 1)
    assert unknown.status.code in (v2.OK, v2.OFFSET_NOT_FOUND)
    for policy, offset in ((v2.BEGINNING, 0), (v2.END, 1)):
        told = await caller.call("QueryOffset", message_queue=queue, query_offset_policy=policy)
        assert (told.status.code, told.offset) == (v2.OK, offset)
    told = await caller.call("QueryOffset", message_queue=queue, query_offset_policy=9)
    assert told.status.code == v2.BAD_REQUEST


async def test_pulls_take_inner_batches_apart(caller: Caller) -> None:
    async with Admin(caller.namesrv) as admin, Producer(caller.namesrv, "pg") as producer:
        await admin.create_topic("BatchT", queues=1, attributes="+queue.type=BatchCQ")
        await producer.send_batch([Message("BatchT", body, tags=tag) for body, tag in ((b"0", "a"), (b"1", "b"))])
        await producer.send(Message("BatchT", b"2", tags="a"))
    queue = v2.MessageQueue(topic=named("BatchT"), id=0, broker=v2.Broker(name="broker-a"))

    async def pulled(offset: int, tags: str = "*") -> list[tuple[bytes, int]]:
        answers = await caller.call(
            "PullMessage",
            group=named("p"),
            message_queue=queue,
            offset=offset,
            batch_size=32,
            filter_expression=v2.FilterExpression(type=v2.TAG, expression=tags),
        )
        assert answers[-1].next_offset == 3
        return [
            (one.message.body, one.message.system_properties.queue_offset) for one in answers if one.HasField("message")
        ]

    assert await pulled(0) == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert await pulled(1) == [(b"1", 1), (b"2", 2)]
    assert await pulled(0, "a") == [(b"0", 0), (b"2", 2)]


async def test_routes_say_where_and_what(caller: Caller) -> None:
    endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="10.1.2.3", port=8081)])
    answer = await caller.call("QueryRoute", topic=named("MixedT"), endpoints=endpoints)
    assert [queue.id for queue in answer.message_queues] == [0, 1]
    (queue, _) = answer.message_queues
    assert (queue.broker.name, queue.broker.endpoints, queue.permission) == ("broker-a", endpoints, v2.READ_WRITE)
    assert set(queue.accept_message_types) == {v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION}
    assert (await caller.call("QueryRoute", topic=named("none"))).status.code == v2.TOPIC_NOT_FOUND
    beat = await caller.call("Heartbeat", client_type=v2.PRODUCER)
    assert beat.status.code == v2.OK
    assert (await caller.call("NotifyClientTermination", group=named("g"))).status.code == v2.OK


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "FifoT"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_group": "x"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"priority": 1}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"topic": "PriorityT", "priority": -1}, v2.BAD_REQUEST),
        ({"lite_topic": "x"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"body": b""}, v2.MESSAGE_BODY_EMPTY),
        ({"body": b"x" * ((4 << 20) + 1)}, v2.MESSAGE_BODY_TOO_LARGE),
        ({"tag": " "}, v2.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, v2.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a", ""]}, v2.ILLEGAL_MESSAGE_KEY),
        ({"message_id": ""}, v2.ILLEGAL_MESSAGE_ID),
        ({"topic": "FifoT", "message_group": "x" * 64}, v2.ILLEGAL_MESSAGE_GROUP),
        ({"topic": "a/../b"}, v2.ILLEGAL_TOPIC),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, v2.ILLEGAL_TOPIC),
        ({"topic": "none"}, v2.TOPIC_NOT_FOUND),
        ({"topic": "DelayT", "delivery_ms": int(time.time() * 1000) + 2 * DAY_MS}, v2.ILLEGAL_DELIVERY_TIME),
    ],
)
async def test_messages_that_cannot_be_are_refused(caller: Caller, change: dict[str, Any], code: int) -> None:
    answer = await caller.send(caller.message(**change))
    assert answer.status.code == code, answer.status


async def test_properties_that_cannot_be_are_refused(caller: Caller) -> None:
    for name, value, code in (
        ("TAGS", "x", v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a\x01b", "x", v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a", "x\x02POP_CK\x01y", v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a", "x" * (17 << 10), v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ):
        message = caller.message()
        message.user_properties[name] = value
        assert (await caller.send(message)).status.code == code
    assert (await caller.send()).status.code == v2.MESSAGE_CORRUPTED
    two = await caller.send(caller.message(), caller.message("MixedT"))
    assert two.status.code == v2.MESSAGE_CORRUPTED


async def test_receives_and_handles_that_cannot_be_are_refused(caller: Caller) -> None:
    await caller.send(caller.message())
    for more, code in (
        ({"invisible_s": 1}, v2.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": 13 * 3600}, v2.ILLEGAL_INVISIBLE_TIME),
        ({"group": "a b"}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"timeout": 3.0}, v2.ILLEGAL_POLLING_TIME),
        ({"client_id": ""}, v2.CLIENT_ID_REQUIRED),
        ({"filter_expression": v2.FilterExpression(type=v2.TAG, expression="||")}, v2.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": v2.FilterExpression(type=v2.SQL)}, v2.ILLEGAL_FILTER_EXPRESSION),
        ({"batch_size": -1}, v2.INTERNAL_SERVER_ERROR),
    ):
        assert (await caller.ask_for(**more))[0].status.code == code, more
    (one,) = await caller.receive()
    own = one.system_properties.receipt_handle
    for handle in ("", "x", "1 2 3", own.rpartition(" ")[0], own + " 5", own.replace(" 0 ", " 999999 ", 1), "9" * 5000):
        answer = await caller.ack(one, handle=handle or "-")
        assert answer.status.code in (v2.INVALID_RECEIPT_HANDLE, v2.OK), handle
    expired = " ".join([own.split(" ")[0], "1000", *own.split(" ")[2:]])
    assert (await caller.ack(one, handle=expired)).status.code == v2.INVALID_RECEIPT_HANDLE
    bad = await caller.call("EndTransaction", topic=named("TranT"), message_id="x", transaction_id="junk")
    assert bad.status.code == v2.INVALID_TRANSACTION_ID
    assert (await caller.ack(one)).status.code == v2.OK


async def test_streams_that_cannot_be_are_ended(caller: Caller) -> None:
    async def commands() -> AsyncIterator[Any]:
        yield rpc.TelemetryCommand(settings=v2.Settings())

    told = await caller.telemetry(commands()).read()
    assert told.status.code == v2.BAD_REQUEST
    caller.client_id = " "
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.telemetry(commands()).read()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_groups_are_hashed_as_guava_does() -> None:
    assert [consistent_hash(seed, 8) for seed in (0, 1, 2, -1, 123456789)] == [0, 6, 6, 7, 7]  # by the original's class
    assert {consistent_hash(seed, 1) for seed in range(10)} == {0}
