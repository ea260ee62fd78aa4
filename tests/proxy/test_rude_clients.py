"""What clients of the proxy must not be able to do to others, and what a lost call must not cost."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from rmq_core.client.options import ClientOptions
from rmq_core.proxy import brokers as proxied_brokers
from rmq_core.proxy.access import Caller as ProxyCaller
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.messages import ReceiptHandle
from rmq_core.proxy.receipts import Receipts, Renewal
from rmq_core.proxy.receiving import ReceiveMessageActivity
from rmq_core.proxy.routing import ClientActivity
from rmq_core.proxy.sessions import SILENT_S, Collector, Sessions
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.recall_handle import RecallHandle
from tests.broker.conftest import Asker, eventually
from tests.proxy.conftest import Caller, named, seconds

PRODUCER = v2.Settings(publishing=v2.Publishing(topics=[named("NormalT")]))


@pytest.fixture
async def receiving(caller: Caller) -> AsyncIterator[ReceiveMessageActivity]:
    """What is behind ReceiveMessage, without gRPC."""
    sessions = Sessions()
    async with Brokers(caller.namesrv, ClientOptions(), None) as brokers:
        receipts = Receipts(brokers, Renewal(sessions))
        yield ReceiveMessageActivity(brokers, sessions, receipts)
        await receipts.close()


def asked(**more: Any) -> Any:
    fields: dict[str, Any] = {
        "group": named("g"), "message_queue": v2.MessageQueue(topic=named("NormalT"), id=-1), "batch_size": 32,
        "invisible_duration": seconds(3600), "long_polling_timeout": seconds(20),
    }  # fmt: skip
    return rpc.ReceiveMessageRequest(**(fields | more))


async def back(caller: Caller, count: int) -> list[Any]:
    """Receive messages that come back soon."""
    found: list[Any] = []

    async def are_there() -> bool:
        caller.clock.ahead_ms += 3000
        found.extend(await caller.receive(invisible_s=3600))
        return len(found) >= count

    await eventually(are_there, 60)
    return found


@pytest.mark.parametrize("renews", [False, True])
async def test_what_is_popped_for_a_call_that_has_ended_goes_to_others(
    caller: Caller, receiving: ReceiveMessageActivity, renews: bool
) -> None:
    waiting = asyncio.ensure_future(anext(receiving.receive(asked(auto_renew=renews), "c", None)))

    async def is_held() -> bool:
        return caller.broker._pop.polls.count == 1

    await eventually(is_held, 60)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await caller.send(caller.message(body=b"kept"))
    (one,) = await back(caller, 1)
    assert one.body == b"kept"
    assert not receiving._receipts.renewal._messages


async def test_a_broker_that_goes_away_in_the_middle_of_a_receive_is_told_at_once(caller: Caller) -> None:
    waiting = asyncio.ensure_future(caller.ask_for(poll_s=20))

    async def is_held() -> bool:
        return caller.broker._pop.polls.count == 1

    await eventually(is_held, 60)
    for connection in list(caller.broker._server.connections):
        connection.abort()
    assert (await waiting)[0].status.code == v2.PROXY_TIMEOUT
    assert (await caller.send(caller.message(body=b"later"))).status.code == v2.OK
    assert [one.body for one in await caller.receive()] == [b"later"]


@pytest.mark.parametrize("renews", [False, True])
async def test_what_a_client_does_not_take_goes_to_others(
    caller: Caller, receiving: ReceiveMessageActivity, renews: bool
) -> None:
    for number in range(6):
        await caller.send(caller.message(body=b"%d" % number))
    stream = receiving.receive(asked(auto_renew=renews), "c", None)
    assert (await anext(stream)).status.code == v2.OK
    written = {(await anext(stream)).message.body for _ in range(2)}  # the last one may be read, or not
    await stream.aclose()
    rest: set[bytes] = set()
    while len(rest) < 4:
        rest |= {one.body for one in await back(caller, 1)}
    assert rest == {b"%d" % number for number in range(6)} - written
    assert len(receiving._receipts.renewal._messages) == 2 * renews


async def test_a_broker_whose_clock_is_late_or_early_is_no_hindrance(caller: Caller) -> None:
    for ahead_ms in (-3_600_000, 7_200_000):
        caller.clock.ahead_ms += ahead_ms
        await caller.send(caller.message())
        (one,) = await caller.receive()
        answer = await caller.call(
            "ChangeInvisibleDuration",
            group=named("g"),
            topic=named("NormalT"),
            invisible_duration=seconds(60),
            receipt_handle=one.system_properties.receipt_handle,
            message_id=one.system_properties.message_id,
        )
        assert answer.status.code == v2.OK, answer.status
        assert (await caller.ack(one, handle=answer.receipt_handle)).status.code == v2.OK


async def test_tags_with_the_same_hash_are_told_apart(caller: Caller) -> None:
    await caller.send(caller.message(tag="AaAa"), caller.message(tag="BBBB", body=b"wanted"))
    wanted = v2.FilterExpression(type=v2.TAG, expression="c || BBBB")
    found: list[Any] = []
    while not found:
        found += await caller.receive(filter_expression=wanted)
    assert [one.body for one in found] == [b"wanted"]


async def test_what_a_producer_of_the_remoting_protocol_sends_is_readable(caller: Caller) -> None:
    """A time that cannot be would make each receive of the topic fail, and nobody here inflates zlib."""
    async with RemotingClient() as client:
        asker = Asker(caller.broker, client, {})
        body = b"x" * 5000
        for fields in ({"g": 1 << 62}, {"f": 1 | 3 << 8}):
            sent = zlib.compress(body) if "f" in fields else body
            answer = await asker.send("NormalT", sent, **fields)
            assert answer.code == 0, answer.remark
    found: list[Any] = []
    while len(found) < 2:
        found += await caller.receive()
    assert [(one.body, one.system_properties.body_encoding) for one in found] == [(body, v2.IDENTITY)] * 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"message_id": "a\x02REAL_TOPIC\x01SecretT\x02"}, v2.ILLEGAL_MESSAGE_ID),
        ({"message_id": "x" * 256}, v2.ILLEGAL_MESSAGE_ID),
        ({"born_host": "a\x02INNER_MULTI_DISPATCH\x01%LMQ%x"}, v2.BAD_REQUEST),
        ({"trace_context": "a\x02DELAY\x011"}, v2.BAD_REQUEST),
        ({"trace_context": "x" * (17 << 10)}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
async def test_no_text_of_a_message_forges_properties(caller: Caller, change: dict[str, Any], code: int) -> None:
    assert (await caller.send(caller.message(**change))).status.code == code


async def test_a_handle_with_the_place_of_another_record_makes_no_dead_letter_of_it(caller: Caller) -> None:
    await caller.send(caller.message("MixedT", b"a secret"))
    await caller.send(caller.message())
    (secret,), (own,) = await caller.receive("MixedT", "other"), await caller.receive()
    place = ReceiptHandle.decode(secret.system_properties.receipt_handle).physical_offset
    receipt = ReceiptHandle.decode(own.system_properties.receipt_handle)

    async def forward(handle: str) -> int:
        answer = await caller.call(
            "ForwardMessageToDeadLetterQueue",
            group=named("g"),
            topic=named("NormalT"),
            receipt_handle=handle,
            message_id="",
        )
        return int(answer.status.code)

    for offset in (place, 1, 1 << 40):
        assert await forward(receipt._replace(physical_offset=offset).encode()) == v2.INVALID_RECEIPT_HANDLE
    assert "%DLQ%g" not in caller.broker.state.topics.table
    assert await forward(receipt.encode()) == v2.OK
    assert "%DLQ%g" in caller.broker.state.topics.table


async def test_a_message_that_came_again_becomes_a_dead_letter(caller: Caller) -> None:
    await caller.send(caller.message())
    await caller.receive()
    caller.clock.ahead_ms += 30_000
    (again,) = await back(caller, 1)
    system = again.system_properties
    assert system.delivery_attempt == 2
    answer = await caller.call(
        "ForwardMessageToDeadLetterQueue",
        group=named("g"),
        topic=named("NormalT"),
        message_id=system.message_id,
        receipt_handle=system.receipt_handle,
    )
    assert answer.status.code == v2.OK
    assert "%DLQ%g" in caller.broker.state.topics.table


async def test_a_recall_goes_to_the_broker_that_has_the_message(caller: Caller) -> None:
    due_ms = int(time.time() * 1000) + 60_000
    handle = (await caller.send(caller.message("DelayT", delivery_ms=due_ms))).entries[0].recall_handle
    elsewhere = RecallHandle.decode(handle)._replace(broker_name="broker-b").encode()
    for text, code in (("junk", v2.BAD_REQUEST), (elsewhere, v2.TOPIC_NOT_FOUND), (handle, v2.OK)):
        assert (await caller.call("RecallMessage", topic=named("DelayT"), recall_handle=text)).status.code == code


async def test_settings_that_are_sent_without_end_fill_no_memory(caller: Caller) -> None:
    async with Brokers(caller.namesrv, ClientOptions(), None) as brokers:
        routing = ClientActivity(brokers, Sessions(), "127.0.0.1:1", Collector())
        count = 0

        async def commands() -> AsyncIterator[Any]:
            nonlocal count
            while True:
                count += 1
                yield rpc.TelemetryCommand(settings=PRODUCER)

        stream = routing.telemetry(commands(), "c", "127.0.0.1:2", ProxyCaller(), lambda _: None)
        await anext(stream)  # and no more is read

        async def is_full() -> bool:
            return count > 1000

        await eventually(is_full, 60)
        seen = count
        await asyncio.sleep(0.2)
        assert count <= seen + 10
        await asyncio.wait_for(stream.aclose(), 60)


async def test_a_client_that_says_nothing_is_gone_even_with_an_open_stream(caller: Caller) -> None:
    assert caller.proxy is not None
    sessions = caller.proxy._sessions

    async def commands() -> AsyncIterator[Any]:
        yield rpc.TelemetryCommand(settings=PRODUCER)
        await asyncio.Event().wait()

    stream = caller.telemetry(commands())
    assert (await stream.read()).status.code == v2.OK
    sessions.end_silent()
    assert sessions.has(caller.client_id)
    sessions.get_or_create(caller.client_id).last_call_s -= SILENT_S + 1
    sessions.end_silent()
    assert not sessions.has(caller.client_id)

    assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF


async def test_a_proxy_whose_producers_are_gone_is_asked_about_transactions_no_more(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else half of the checks would go to it in vain, where another proxy has producers."""
    monkeypatch.setattr(proxied_brokers, "_OFFLINE_S", 0.0)
    assert caller.proxy is not None
    groups, brokers = caller.broker.state.producers.groups, caller.proxy._brokers
    entry = (await caller.send(caller.message("TranT", message_type=v2.TRANSACTION))).entries[0]
    assert entry.status.code == v2.OK

    async def is_known() -> bool:
        return "TranT" in groups

    await eventually(is_known, 60)
    await brokers.unregister_idle_producers(lambda _: True)
    assert "TranT" in groups
    await brokers.unregister_idle_producers(lambda _: False)
    assert "TranT" not in groups
    assert not brokers.producers


async def test_names_and_settings_have_limits(caller: Caller) -> None:
    addresses = [v2.Address(host="x" * 100, port=1)] * 50
    endpoints = v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=addresses)
    answer = await caller.call("QueryRoute", topic=named("NormalT"), endpoints=endpoints)
    assert answer.status.code == v2.ILLEGAL_ACCESS_POINT
    assert (await caller.call("Heartbeat", client_id="x" * 600)).status.code == v2.CLIENT_ID_REQUIRED
    assert (await caller.ask_for(attempt_id="x" * 300))[0].status.code == v2.BAD_REQUEST
    topics = [named("T" * 120)] * 3000

    async def commands() -> AsyncIterator[Any]:
        yield rpc.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing(topics=topics)))

    assert (await caller.telemetry(commands()).read()).status.code == v2.BAD_REQUEST


async def test_a_receive_of_no_message_waits_and_takes_none(caller: Caller) -> None:
    """As at the original's proxy, which holds it as a poll: it does not spin."""
    await caller.send(caller.message())
    begin = time.monotonic()
    (told, *_) = await caller.ask_for(batch_size=0)
    assert told.status.code == v2.MESSAGE_NOT_FOUND
    assert time.monotonic() - begin > 4
    assert len(await caller.receive()) == 1


async def test_a_filter_of_an_unknown_type_is_one_by_tags(caller: Caller) -> None:
    """As at the original's: clients of later versions are answered."""
    await caller.send(caller.message(tag="b"))
    await caller.send(caller.message(tag="a"))
    found = await caller.receive(filter_expression=v2.FilterExpression(type=99, expression="a"))
    assert [one.system_properties.tag for one in found] == ["a"]


async def test_a_receive_from_a_broker_that_is_not_there_is_one_from_another(caller: Caller) -> None:
    """As at the original's: a client knows of a broker that has gone for up to 30 s."""
    await caller.send(caller.message())
    gone = v2.MessageQueue(topic=named("NormalT"), id=0, broker=v2.Broker(name="gone"))
    assert len(await caller.receive(message_queue=gone)) == 1


@pytest.mark.long
async def test_a_handle_counts_for_the_group_that_has_received_it_alone(caller: Caller) -> None:
    """Another group's acknowledgement is answered with OK, as by the original, and the message comes back."""
    await caller.send(caller.message())
    (one,) = await caller.receive(invisible_s=10)
    assert (await caller.ack(one, group="h")).status.code == v2.OK
    (again,) = await back(caller, 1)
    assert again.system_properties.message_id == one.system_properties.message_id


async def test_a_change_of_a_message_that_is_not_there_is_refused(caller: Caller) -> None:
    """With the code that has the official clients give up: after others they ask without end."""
    await caller.send(caller.message())
    (one,) = await caller.receive()
    parts = one.system_properties.receipt_handle.split(" ")
    for at, number in ((6, "9"), (7, "1000")):
        handle = " ".join([*parts[:at], number, *parts[at + 1 :]])
        told = await caller.call(
            "ChangeInvisibleDuration",
            group=named("g"),
            topic=named("NormalT"),
            receipt_handle=handle,
            invisible_duration=seconds(20),
        )
        assert told.status.code == v2.INVALID_RECEIPT_HANDLE
