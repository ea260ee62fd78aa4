"""Tests of lite topics at a proxy, whatever broker is behind it: who imports them has a fixture ``parents``.

Source of what is expected: the broker and the proxy of RocketMQ 5.5.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rmq_core.proxy.messages import ReceiptHandle
from rmq_core.proxy.wire import rpc, v2
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash
from tests.proxy.conftest import named
from tests.proxy.lite_parents import Make, attempts, bodies, dead_letters, of


async def test_children_come_in_order_to_who_subscribes_to_them(parents: Make) -> None:
    parent = await parents()
    (queue, *_) = (await parent.caller.call("QueryRoute", topic=named(parent.topic))).message_queues
    assert list(queue.accept_message_types) == [v2.LITE]
    await parent.subscribe("a", "b")
    for number in range(3):
        for child in "abc":
            await parent.send(child, b"%d" % number)
    found = await parent.until(6)
    assert of(found, "a") == of(found, "b") == [b"0", b"1", b"2"]
    queues = {(one.system_properties.lite_topic, one.system_properties.queue_id) for one in found}
    assert queues == {(child, consistent_hash(java_string_hash(child), 2)) for child in "ab"}  # as brokers reckon it
    system = found[0].system_properties
    assert (system.message_type, system.queue_offset, system.delivery_attempt, system.tag) == (v2.LITE, 0, 1, "a")
    assert dict(found[0].user_properties) == {"colour": "blue"}
    await parent.send("a", b"3")  # comes when all before it are acknowledged
    await parent.ack(*(one for one in found if one.system_properties.lite_topic == "b"))
    await parent.send("b", b"3")
    assert bodies(await parent.until(1)) == [("b", b"3")]
    await parent.ack(*(one for one in found if one.system_properties.lite_topic == "a"))
    assert bodies(await parent.until(1)) == [("a", b"3")]


async def test_what_a_client_subscribes_to_is_changed_in_part_and_as_a_whole(parents: Make) -> None:
    parent = await parents()
    await parent.subscribe("a", "b")
    assert (await parent.sync(v2.PARTIAL_REMOVE, "a")).code == v2.OK
    await parent.send("a", b"0")
    await parent.send("b", b"0")
    assert bodies(await parent.until(1)) == [("b", b"0")]
    assert (await parent.sync(v2.COMPLETE_ADD, "c", version=2)).code == v2.OK
    await parent.send("b", b"1")
    await parent.send("c", b"1")
    assert bodies(await parent.until(1)) == [("c", b"1")]
    assert (await parent.sync(v2.COMPLETE_REMOVE)).code == v2.OK
    await parent.send("c", b"2")
    assert await parent.receive() == []


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"policy": v2.OffsetOption.MIN}, [b"0", b"1", b"2", b"3"]),
        ({"policy": v2.OffsetOption.MAX}, [b"3"]),
        ({"policy": v2.OffsetOption.LAST}, [b"0", b"1", b"2", b"3"]),  # a new group begins with what is in memory
        ({"offset": 1}, [b"1", b"2", b"3"]),
        ({"timestamp": 1}, [b"0", b"1", b"2", b"3"]),  # is passed over
    ],
)
async def test_a_child_begins_where_its_client_says(
    parents: Make, option: dict[str, Any], expected: list[bytes]
) -> None:
    parent = await parents()
    await parent.send("a", b"0", b"1", b"2")
    await asyncio.sleep(1.0)  # until they are in the child: the end of that is what MAX says
    await parent.subscribe("a", **option)
    await parent.send("a", b"3")
    found: list[Any] = []
    while len(found) < len(expected):
        some = await parent.until(1)
        await parent.ack(*some)
        found += some
    assert [one.body for one in found] == expected


async def test_a_child_goes_back_by_a_number_of_messages(parents: Make) -> None:
    parent = await parents()
    await parent.subscribe("a")
    await parent.send("a", b"0", b"1", b"2")
    await parent.ack(*await parent.until(3))
    await parent.sync(v2.PARTIAL_REMOVE, "a")
    await parent.subscribe("a", tail_n=2)
    assert [one.body for one in await parent.until(2)] == [b"1", b"2"]


async def test_a_client_of_a_wildcard_group_gets_all_children(parents: Make) -> None:
    parent = await parents(attributes={"+lite.sub.wildcard": "true"})
    assert (await parent.sync(v2.COMPLETE_ADD)).code == v2.OK
    await parent.send("a", b"0")
    await parent.send("b", b"0")
    assert sorted(bodies(await parent.until(2))) == [("a", b"0"), ("b", b"0")]


async def test_subscriptions_that_cannot_be_are_refused(parents: Make) -> None:
    parent = await parents(attributes={"+lite.sub.client.quota": "2"})
    option = v2.OffsetOption
    for action, names, more, code in (
        (v2.PARTIAL_ADD, [""], {}, v2.ILLEGAL_LITE_TOPIC),
        (v2.PARTIAL_ADD, ["a b"], {}, v2.ILLEGAL_LITE_TOPIC),
        (v2.PARTIAL_ADD, ["a$b"], {}, v2.ILLEGAL_LITE_TOPIC),
        (v2.COMPLETE_ADD, ["a\n"], {}, v2.ILLEGAL_LITE_TOPIC),
        (v2.PARTIAL_ADD, ["x" * 65], {}, v2.ILLEGAL_LITE_TOPIC),
        (v2.PARTIAL_ADD, ["x" * 64], {}, v2.OK),
        (v2.COMPLETE_ADD, [f"c{number}" for number in range(303)], {}, v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (v2.COMPLETE_REMOVE, [f"c{number}" for number in range(303)], {}, v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (v2.PARTIAL_ADD, ["a"], {"topic": named(f"{parent.topic}x")}, v2.ILLEGAL_TOPIC),
        (v2.PARTIAL_ADD, ["a"], {"topic": named("a/../b")}, v2.ILLEGAL_TOPIC),
        (v2.PARTIAL_ADD, ["a"], {"group": named("no_lite_group")}, v2.ILLEGAL_TOPIC),
        (v2.PARTIAL_ADD, ["a"], {"group": named("/")}, v2.ILLEGAL_CONSUMER_GROUP),
        (9, ["a"], {}, v2.BAD_REQUEST),
        (v2.PARTIAL_ADD, ["a"], {"offset_option": option()}, v2.BAD_REQUEST),
        (v2.PARTIAL_ADD, ["a"], {"offset_option": option(policy=7)}, v2.BAD_REQUEST),
        (v2.PARTIAL_ADD, ["a"], {"offset_option": option(offset=-1)}, v2.BAD_REQUEST),
    ):
        status = await parent.sync(action, *names, **more)
        assert status.code == code, (action, names[:1], more, status)
    other = await parents()
    status = await parent.sync(v2.PARTIAL_ADD, "a", topic=named(other.topic))
    assert (status.code, "is expected to bind topic" in status.message) == (v2.ILLEGAL_TOPIC, True)


async def test_sends_and_receives_that_cannot_be_are_refused(parents: Make) -> None:
    parent = await parents()
    conflict = v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for change, code in (
        ({}, conflict),
        ({"lite_topic": ""}, conflict),
        ({"lite_topic": "x" * 65}, v2.ILLEGAL_LITE_TOPIC),
        ({"lite_topic": "é"}, v2.ILLEGAL_LITE_TOPIC),
        ({"lite_topic": "a", "message_group": "g"}, conflict),
        ({"lite_topic": "a", "priority": 1}, conflict),
        ({"lite_topic": "a", "message_type": v2.TRANSACTION}, conflict),
    ):
        answer = await parent.caller.send(parent.caller.message(parent.topic, **change))
        assert answer.status.code == code, (change, answer.status)
    other = await parents()
    (refused, *_) = await parent.caller.ask_for(other.topic, parent.group)
    assert refused.status.code == v2.ILLEGAL_TOPIC


async def test_settings_have_limits_and_fit_the_group(parents: Make) -> None:
    parent = await parents(consume_message_orderly=True, attributes={"+lite.sub.client.quota": "7"})
    async with parent.stream() as stream:
        told = await stream.read()
        subscription = told.settings.subscription
        assert (told.status.code, subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (
            v2.OK,
            7,
            64,
        )
        assert subscription.fifo
    others = [parent.settings(kind) for kind in (v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER)]
    for settings in (*others, replace(parent, group="no_lite").settings()):
        async with parent.stream(settings) as stream:
            assert (await stream.read()).status.code == v2.ILLEGAL_CONSUMER_GROUP
    other = await parents()
    async with parent.stream(replace(parent, topic=other.topic).settings()) as stream:
        assert (await stream.read()).status.code == v2.ILLEGAL_TOPIC
    for kind in (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER):
        beat = await parent.caller.call("Heartbeat", client_type=kind, group=named(parent.group))
        assert beat.status.code == v2.OK
    assignments = await parent.caller.call("QueryAssignment", topic=named(parent.topic), group=named(parent.group))
    assert [one.message_queue.id for one in assignments.assignments] == [-1]


async def test_a_failed_message_comes_again_and_holds_up_its_child_alone(parents: Make) -> None:
    parent = await parents()
    await parent.subscribe("a", "b")
    await parent.send("a", b"0")
    (first,) = await parent.until(1, auto_renew=True)
    answer = await parent.change(first, 8)  # as the official client, which does not say the child
    assert answer.status.code == v2.OK
    await parent.send("a", b"1")
    await parent.send("b", b"0")
    (other,) = await parent.until(1)
    assert bodies([other]) == [("b", b"0")]
    again = await parent.until(2)
    assert attempts(again) == [(b"0", 2), (b"1", 1)]
    answer = await parent.change(again[0], 1, suspend=True)
    assert answer.status.code == v2.OK
    again = await parent.until(2)
    assert attempts(again) == [(b"0", 2), (b"1", 2)]
    await parent.ack(again[1])  # it is the first that the child waits for
    await parent.send("a", b"2")
    await parent.ack(again[0])
    assert attempts(await parent.until(1)) == [(b"2", 1)]


async def test_handles_of_other_proxies_and_of_nothing(parents: Make) -> None:
    parent = await parents()
    await parent.subscribe("a")
    await parent.send("a", b"0", b"1")
    found = await parent.until(2)
    receipts = [ReceiptHandle.decode(one.system_properties.receipt_handle) for one in found]
    assert [(one.lite_topic, one.handle.queue_id, one.handle.offset) for one in receipts] == [("a", 0, 0), ("a", 0, 1)]
    await parent.ack(found[0], receipt_handle=receipts[0]._replace(lite_topic="").encode(), lite_topic="a")
    handle = receipts[1].handle

    async def told(receipt: ReceiptHandle, **more: Any) -> int:
        entry = rpc.AckMessageEntry(message_id="x", receipt_handle=receipt.encode(), **more)
        topic, group = named(parent.topic), named(parent.group)
        answer = await parent.caller.call("AckMessage", group=group, topic=topic, entries=[entry])
        return int(answer.status.code)

    assert await told(receipts[1]._replace(handle=handle._replace(offset=99))) == v2.INVALID_RECEIPT_HANDLE
    assert await told(receipts[1]._replace(handle=handle._replace(queue_id=1))) == v2.INVALID_RECEIPT_HANDLE
    assert await told(receipts[1]._replace(lite_topic=""), lite_topic="a$") == v2.ILLEGAL_LITE_TOPIC
    assert await told(receipts[1]._replace(handle=handle._replace(invisible_ms=1))) == v2.INVALID_RECEIPT_HANDLE
    await parent.send("a", b"2")
    await parent.ack(found[1])
    assert [one.body for one in await parent.until(1)] == [b"2"]


async def test_a_dead_letter_of_a_child_is_the_handle_s_message(parents: Make) -> None:
    """Not the first of a child: of a dead letter of that Java's broker makes its next message, which is lost."""
    parent = await parents()
    await parent.subscribe("a")
    await parent.send("a", b"0", b"1", b"2")
    zeroth, first, second = await parent.until(3)
    await parent.ack(zeroth)

    async def forward(handle: str) -> int:
        answer = await parent.caller.call(
            "ForwardMessageToDeadLetterQueue",
            group=named(parent.group),
            topic=named(parent.topic),
            receipt_handle=handle,
            message_id=first.system_properties.message_id,
        )
        return int(answer.status.code)

    own, other = (ReceiptHandle.decode(one.system_properties.receipt_handle) for one in (first, second))
    assert await forward(own._replace(physical_offset=other.physical_offset).encode()) == v2.INVALID_RECEIPT_HANDLE
    assert await forward(own._replace(lite_topic="b").encode()) == v2.INVALID_RECEIPT_HANDLE
    assert await forward(own.encode()) == v2.OK
    await parent.ack(second)
    await parent.send("a", b"3")
    assert [one.body for one in await parent.until(1)] == [b"3"]
    assert await dead_letters(parent) == [b"1"]


async def test_what_is_delivered_too_often_becomes_a_dead_letter(parents: Make) -> None:
    parent = await parents(retry_max_times=0)
    await parent.subscribe("a")
    await parent.send("a", b"0", b"1", b"2")
    zeroth, first, _ = await parent.until(3)
    await parent.ack(zeroth)
    assert (await parent.change(first, 0.2, suspend=True)).status.code == v2.OK  # the third is visible as soon
    await asyncio.sleep(0.5)
    assert await parent.receive() == []  # both were delivered before
    await parent.send("a", b"3")
    assert attempts(await parent.until(1)) == [(b"3", 1)]
    assert await dead_letters(parent) == [b"1", b"2"]


@pytest.mark.long
async def test_a_client_that_does_not_acknowledge_gets_no_more(parents: Make) -> None:
    parent = await parents()
    children = [f"c{number}" for number in range(101)]
    await parent.subscribe(*children)
    for child in children:
        await parent.send(child, b"0")
    found = await parent.until(101, auto_renew=True)
    (refused, *_) = await parent.caller.ask_for(parent.topic, parent.group, auto_renew=True, client_id=parent.client_id)
    assert refused.status.code == v2.FORBIDDEN
    assert "too many unacked messages" in refused.status.message
    await parent.ack(*found[:2])
    await parent.send(found[0].system_properties.lite_topic, b"1")
    assert [one.body for one in await parent.until(1, auto_renew=True)] == [b"1"]


@pytest.mark.long
async def test_what_a_client_has_that_is_gone_others_get_and_it_is_subscribed_to_nothing(parents: Make) -> None:
    parent = await parents()
    other = parent.other()
    await parent.subscribe("a", "b")
    async with parent.stream() as stream:
        await stream.read()
    await asyncio.sleep(0.5)  # the end of a stream is told in the background
    await other.subscribe("a")
    await parent.send("b", b"0")
    await parent.send("a", b"0")
    assert bodies(await other.until(1)) == [("a", b"0")]
    assert await parent.receive() == []
    await parent.subscribe("b")
    assert bodies(await parent.until(1, auto_renew=True)) == [("b", b"0")]
    await other.subscribe("b")
    ended = await parent.caller.call("NotifyClientTermination", group=named(parent.group), client_id=parent.client_id)
    assert ended.status.code == v2.OK
    assert attempts(await other.until(1)) == [(b"0", 2)]  # of its child, and not of the parent's first queue
    await parent.send("b", b"1")
    assert await parent.receive() == []


async def test_a_client_is_told_that_another_has_its_child(parents: Make) -> None:
    parent = await parents(attributes={"+lite.sub.model": "Exclusive"})
    async with parent.stream() as stream:
        await stream.read()
        await parent.subscribe("a", "b")
        await parent.other().subscribe("b")
        told = await asyncio.wait_for(stream.read(), 20)
        assert told.notify_unsubscribe_lite_command.lite_topic == "b"
