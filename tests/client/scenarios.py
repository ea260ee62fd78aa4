"""What producers and consumers do at a broker, whoever made it: a module that takes these tests has ``namesrv``.

The broker creates topics by itself, all its delay levels are a second, it filters by SQL92 and has light queues.
"""

import asyncio
import dataclasses
import re
import time
from struct import pack
from typing import Any
from uuid import uuid4

import pytest

from rmq_core.client import (
    Admin,
    BrokerError,
    Message,
    MessageQueue,
    NoRouteError,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendFailedError,
    SendResult,
    SendStatus,
    StartPosition,
    TransactionProducer,
    TransactionState,
)
from rmq_core.client.producer.producer import by_hash
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.loop import run
from rmq_formats.codecs.compression import Compression

BROKER = "client-a"
SETTINGS = f"brokerName={BROKER}\nmessageDelayLevel={' '.join(['1s'] * 18)}\nenablePropertyFilter=true\n"
SETTINGS += "transactionTimeOut=1000\ntransactionCheckInterval=1000\nenableLmq=true\nenableMultiDispatch=true\n"


def fresh(name: str) -> str:
    """A topic or group that no other test has."""
    return f"{name}_{uuid4().hex[:12]}"


async def gather_messages(consumer: PullConsumer, count: int, seconds: float = 20) -> list[ReceivedMessage]:
    """So many messages of a consumer."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            found += await consumer.poll(1)
    return found


async def known(namesrv: str, topic: str) -> None:
    """Wait until the name server has heard of a topic that was just made."""
    async with PullConsumer(namesrv, "routes") as consumer, asyncio.timeout(40):
        while True:
            try:
                await consumer.queues(topic)
                return
            except NoRouteError:
                await asyncio.sleep(0.05)


async def read_all(
    namesrv: str, topic: str, count: int, tags: str = "*", sql: str | None = None
) -> list[ReceivedMessage]:
    """So many messages of a topic, from its beginning; it may be made some time later."""
    await known(namesrv, topic)
    async with PullConsumer(namesrv, fresh("reader")) as consumer:
        consumer.assign(await consumer.queues(topic), tags, sql=sql)
        await consumer.seek_to_begin()
        return await gather_messages(consumer, count)


def test_what_is_sent_is_pulled(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Sent")
        async with Producer(namesrv, "senders") as producer:
            sent = await producer.send(
                Message(topic, b"body", tags="TagA", keys=["k1", "k2"], properties={"color": "red"}, flag=7)
            )
            assert sent.status is SendStatus.SEND_OK
        (got,) = await read_all(namesrv, topic, 1)
        assert (got.topic, got.body, got.tags, got.keys, got.flag) == (topic, b"body", "TagA", ["k1", "k2"], 7)
        assert got.properties["color"] == "red"
        assert (got.msg_id, got.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
        assert (got.queue, got.queue_offset) == (sent.queue, sent.queue_offset)

    run(main())


@pytest.mark.parametrize("given", ["", "TAGS\x01A\x02", "UNIQ_KEY\x01\x02", "DELAY\x011\x02", "WAIT\x01false\x02"])
def test_a_broker_gives_a_unique_key_to_a_message_that_has_none(namesrv: str, given: str) -> None:
    async def main() -> None:
        topic = fresh("Keyless")
        sent = await send_raw(namesrv, topic, b"body", given)
        assert sent.code == 0
        (got,) = await read_all(namesrv, topic, 1)
        assert re.fullmatch("(?:[0-9A-F]{24})?[0-9A-F]{32}", got.properties["UNIQ_KEY"])  # Java's may have IPv6
        assert sent.ext_fields["transactionId"] == got.properties["UNIQ_KEY"]

    run(main())


def test_a_broker_gives_no_unique_key_to_the_messages_of_a_batch(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Keyless")
        inner = [pack(">5i", 23, 0, 0, 0, 1) + body + pack(">h", 0) for body in (b"1", b"2")]
        sent = await send_raw(namesrv, topic, b"".join(inner), "", batch="true")
        assert (sent.code, sent.ext_fields.get("transactionId")) == (0, None)
        got = await read_all(namesrv, topic, 2)
        assert [(one.body, "UNIQ_KEY" in one.properties) for one in got] == [(b"1", False), (b"2", False)]

    run(main())


async def send_raw(namesrv: str, topic: str, body: bytes, properties: str, batch: str = "false") -> RemotingCommand:
    """Send what a producer would not."""
    fields = {
        "producerGroup": "raw", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": properties, "batch": batch,
    }  # fmt: skip
    async with Admin(namesrv) as admin, RemotingClient() as client:
        ((_, addresses),) = [(one.broker_name, one.broker_addrs) for one in (await admin.route("TBW102")).broker_datas]
        return await client.invoke(addresses[0], request(RequestCode.SEND_MESSAGE, fields, body))


class Seen:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.messages += messages

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def until(self, count: int, seconds: float = 30) -> list[bytes]:
        """The bodies, when there are so many."""
        async with asyncio.timeout(seconds):
            while len(self.messages) < count:
                await asyncio.sleep(0.02)
        return self.bodies


async def send_all(namesrv: str, topic: str, bodies: list[bytes], **fields: Any) -> list[SendResult]:
    async with Producer(namesrv, "senders") as producer:
        sent = [await producer.send(Message(topic, body, **fields)) for body in bodies]
    await known(namesrv, topic)
    return sent


FIRST = PushOptions(start=StartPosition.FIRST, rebalance_interval_s=2)


def replaced(options: PushOptions, **changes: Any) -> PushOptions:
    return dataclasses.replace(options, **changes)


def bodies_of(count: int) -> list[bytes]:
    return [b"body %04d" % number for number in range(count)]


def test_a_message_is_delivered_if_its_transaction_succeeds_and_brokers_ask(namesrv: str) -> None:
    commit, rollback, unknown = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN

    async def main() -> None:
        topic, seen = fresh("Tx"), Seen()
        later: dict[str, TransactionState] = {}

        def execute(message: Message, transaction_id: str) -> TransactionState:
            at_once, then = message.body.decode().split()
            later[transaction_id] = TransactionState[then]
            return TransactionState[at_once]

        def check(message: ReceivedMessage) -> TransactionState:
            return later[message.msg_id]

        async with TransactionProducer(namesrv, fresh("txpg"), check) as producer:
            for at_once, then in ((commit, commit), (rollback, rollback), (unknown, commit), (unknown, rollback)):
                message = Message(topic, f"{at_once.name} {then.name}".encode())
                done = await producer.send_in_transaction(message, execute)
                assert (done.state, done.is_ended) == (at_once, True)
            consumer = PushConsumer(namesrv, fresh("group"), seen, FIRST)
            consumer.subscribe(topic)
            async with consumer:
                async with asyncio.timeout(60):
                    while b"UNKNOWN COMMIT" not in seen.bodies:
                        await asyncio.sleep(0.02)
                # Each at least once: the original may ask about one that it has not noted as ended yet.
                assert set(seen.bodies) == {b"COMMIT COMMIT", b"UNKNOWN COMMIT"}

    run(main())


@pytest.mark.parametrize("codec", list(Compression))
def test_large_bodies_come_back_as_they_were(namesrv: str, codec: Compression) -> None:
    async def main() -> None:
        topic, body = fresh("Large"), bytes(range(256)) * 400
        async with Producer(namesrv, "senders", ProducerOptions(compression=codec)) as producer:
            await producer.send(Message(topic, body))
        (got,) = await read_all(namesrv, topic, 1)
        assert got.body == body
        assert got.size < len(body)
        assert Compression.of_sys_flag(got.sys_flag) is codec

    run(main())


def test_a_batch_is_stored_in_one_queue_in_its_order(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Batch")
        async with Producer(namesrv, "senders") as producer:
            messages = [
                Message(topic, body, tags="T", properties={"n": str(n)}) for n, body in enumerate(bodies_of(50))
            ]
            sent = await producer.send_batch(messages)
        got = await read_all(namesrv, topic, 50)
        assert [message.body for message in got] == bodies_of(50)
        assert [message.properties["n"] for message in got] == [str(n) for n in range(50)]
        assert {message.queue for message in got} == {sent.queue}
        assert ",".join(message.offset_msg_id for message in got) == sent.offset_msg_id
        assert sent.msg_id.count(",") == 49

    run(main())


def test_one_way_messages_arrive(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Oneway")
        async with Producer(namesrv, "senders") as producer:
            for body in bodies_of(20):
                await producer.send_oneway(Message(topic, body))
            assert {message.body for message in await read_all(namesrv, topic, 20)} == set(bodies_of(20))

    run(main())


def test_queues_are_taken_in_turn_or_as_a_selector_says(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Turn")
        async with Producer(namesrv, "senders") as producer:
            in_turn = [(await producer.send(Message(topic, b"x"))).queue.queue_id for _ in range(8)]
            first = in_turn[0]
            assert in_turn == [(first + step) % 4 for step in range(8)]
            same = {(await producer.send(Message(topic, b"x"), selector=by_hash, argument="a")).queue for _ in range(3)}
            assert [queue.queue_id for queue in same] == [97 % 4]  # "a".hashCode() in Java
            given = (await producer.queues(topic))[2]
            assert (await producer.send(Message(topic, b"x"), queue=given)).queue == given

    run(main())


def test_tags_and_sql_select(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Tagged")
        async with Producer(namesrv, "senders") as producer:
            for tag in ("A", "B", "C", "AaAa", "BBBB"):  # the last two have the same hash
                await producer.send(Message(topic, tag.encode(), tags=tag, properties={"length": str(len(tag))}))
        assert {message.body for message in await read_all(namesrv, topic, 2, "A || AaAa")} == {b"A", b"AaAa"}
        assert {message.body for message in await read_all(namesrv, topic, 2, sql="length > 1")} == {b"AaAa", b"BBBB"}
        seen = Seen()
        consumer = PushConsumer(namesrv, fresh("group"), seen, FIRST)
        consumer.subscribe(topic, "B||BBBB")
        async with consumer:
            assert sorted(await seen.until(2)) == [b"B", b"BBBB"]

    run(main())


def test_positions_are_the_end_the_beginning_or_a_time(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Positions")
        await send_all(namesrv, topic, bodies_of(8))
        await asyncio.sleep(0.05)
        moment_ms = time.time_ns() // 1_000_000
        await asyncio.sleep(0.05)
        await send_all(namesrv, topic, [b"later"] * 4)
        async with PullConsumer(namesrv, fresh("reader")) as consumer:
            consumer.assign(await consumer.queues(topic))
            await consumer.seek_to_time(moment_ms)
            assert [message.body for message in await gather_messages(consumer, 4)] == [b"later"] * 4
            await consumer.seek_to_begin()
            assert len(await gather_messages(consumer, 12)) == 12
            (queue, *_) = consumer.assignment
            consumer.seek(queue, 1)
            assert [message.queue_offset for message in await gather_messages(consumer, 2)] == [1, 2]
            await consumer.seek_to_end()
            assert await consumer.poll(0.3) == []
            await send_all(namesrv, topic, [b"last"])
            assert [message.body for message in await gather_messages(consumer, 1)] == [b"last"]
            consumer.seek(queue, 1 << 40)  # beyond the end: the broker says where that is
            assert await consumer.poll(0.3) == []
            assert consumer.position(queue) == await consumer.offsets.max(queue)

    run(main())


def test_refusals_carry_the_brokers_code_and_remark(namesrv: str) -> None:
    async def main() -> None:
        async with Producer(namesrv, "senders", ProducerOptions(retries=1)) as producer:
            with pytest.raises(SendFailedError) as refused:
                await producer.send(Message("SELF_TEST_TOPIC", b"x"))
            assert refused.value.code == 16
            assert "SELF_TEST_TOPIC" in refused.value.remark
            assert refused.value.brokers == [BROKER, BROKER]
            queue = MessageQueue(topic=fresh("Queue"), broker_name=BROKER, queue_id=99)
            with pytest.raises(BrokerError) as illegal:
                await producer.send(Message(queue.topic, b"x"), queue=queue)
            assert illegal.value.code in {1, 13, 29}
            with pytest.raises(NoRouteError):
                await producer.send(
                    Message(queue.topic, b"x"), queue=MessageQueue(topic=queue.topic, broker_name="none", queue_id=0)
                )
        async with PullConsumer(namesrv, fresh("reader")) as consumer:
            with pytest.raises(NoRouteError) as unknown:
                await consumer.queues(fresh("none"))
            assert unknown.value.code == 17
            topic = fresh("NoQueue")
            await send_all(namesrv, topic, [b"x"])
            consumer.assign([MessageQueue(topic=topic, broker_name=BROKER, queue_id=99)])
            consumer.seek(consumer.assignment[0], 0)
            with pytest.raises(BrokerError) as illegal:
                await consumer.poll(10)
            assert illegal.value.code in {1, 29}
            assert "queueId[99] is illegal" in illegal.value.remark

    run(main())


def test_an_admin_makes_topics_and_groups_and_finds_messages(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Managed"), fresh("group")
        async with Admin(namesrv) as admin:
            assert set((await admin.cluster()).broker_addr_table) == {BROKER}
            await admin.create_topic(topic, queues=3)
            await known(namesrv, topic)
            assert topic in await admin.topics()
            queues = await admin.queues(topic)
            assert [queue.queue_id for queue in queues] == [0, 1, 2]
            async with Producer(namesrv, "senders") as producer:
                sent = [
                    await producer.send(Message(topic, body, keys=["k", "l"]), queue=queues[0]) for body in bodies_of(3)
                ]
            assert await admin.topic_stats(topic) == {queues[0]: (0, 3), queues[1]: (0, 0), queues[2]: (0, 0)}
            assert (await admin.view_message(sent[1].offset_msg_id)).body == bodies_of(3)[1]
            at_two = await admin.message_at(queues[0], 2)
            assert at_two is not None
            assert at_two.msg_id == sent[2].msg_id
            assert await admin.message_at(queues[0], 3) is None
            async with asyncio.timeout(60):  # the index is made some time after a message is stored
                while len(await admin.query_by_key(topic, "l")) < 3:
                    await asyncio.sleep(0.05)
            assert [one.body for one in await admin.query_by_key(topic, "k")] == bodies_of(3)
            assert [one.body for one in await admin.query_by_uniq_key(topic, sent[0].msg_id)] == bodies_of(1)
            assert await admin.query_by_key(topic, "none") == []
            await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=3))
            await admin.offsets.commit(queues[0], group, 1)
            assert (await admin.consume_stats(group, topic))[queues[0]] == (1, 3)
            with pytest.raises(BrokerError) as offline:
                await admin.consumer_connections(group)
            assert offline.value.code == 206
            assert (await admin.reset_offsets(group, topic, -1))[queues[0]] == 3
            assert await admin.offsets.committed(queues[0], group) == 3
            await admin.delete_group(group, clean_offsets=True)
            await admin.delete_topic(topic)
            with pytest.raises(NoRouteError):
                await admin.route(topic)
            with pytest.raises(BrokerError):
                await admin.view_message(sent[0].offset_msg_id[:16] + "0000000000FFFFFF")

    run(main())
