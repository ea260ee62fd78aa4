"""What groups with pull consumers do at a broker, whoever made it: a module that takes these tests has ``namesrv``.

The broker is as for ``tests.client.scenarios``.
"""

import asyncio
from struct import pack

import pytest

from rmq_core.client import (
    Admin,
    BrokerError,
    Message,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    StartPosition,
)
from rmq_core.remoting.bodies.codec import parse_queue_key
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.loop import run
from tests.client.consumer_scenarios import topic_queues
from tests.client.scenarios import FIRST, Seen, bodies_of, fresh, gather_messages, known, send_all, send_raw


@pytest.mark.long
def test_a_broker_knows_a_pull_consumer_and_forgets_it_when_it_ends(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Reading"), fresh("group")
        await send_all(namesrv, topic, [b"x"])
        async with Admin(namesrv) as admin:
            async with PullConsumer(namesrv, group) as consumer:
                consumer.assign(await consumer.queues(topic))
                async with asyncio.timeout(60):  # the broker learns of it with its heartbeat
                    while not await clients_of(admin, group):
                        await consumer.poll(0.1)
                connections = await admin.consumer_connections(group)
                assert [one.language for one in connections.connection_set] == ["PYTHON"]
                assert connections.subscription_table.keys() >= {topic}
            async with asyncio.timeout(60):
                while await clients_of(admin, group):
                    await asyncio.sleep(0.05)

    run(main())


def test_a_pull_consumer_that_subscribes_tells_what_it_runs(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Told"), fresh("group")
        await send_all(namesrv, topic, bodies_of(8))
        options = PullOptions(start=StartPosition.FIRST, auto_commit=False)
        async with Admin(namesrv) as admin, PullConsumer(namesrv, group, options) as consumer:
            consumer.subscribe(topic, "*")
            await gather_messages(consumer, 8)
            committed = consumer.assignment[0]
            await consumer.commit({committed: 1})
            async with asyncio.timeout(20):
                while not await clients_of(admin, group):
                    await asyncio.sleep(0.05)
            address = (await admin.masters())[0]
            info = await admin.brokers.running_info(address, group, consumer.client_id)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
            assert [one.topic for one in info.subscription_set] == [topic]
            queues = {parse_queue_key(key): one for key, one in info.mq_table.items()}
            assert queues.keys() == set(consumer.assignment)
            # A broker tells 0 of a queue without an offset that begins at 0, and is in memory.
            assert [one.commit_offset for queue, one in queues.items()] == [int(queue == committed) for queue in queues]
            assert all(one.last_pull_timestamp > 0 and not one.droped for one in queues.values())

    run(main())


async def clients_of(admin: Admin, group: str) -> list[str]:
    """The clients of a group; none if no broker knows it."""
    try:
        connections = await admin.consumer_connections(group)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return []
    return [one.client_id for one in connections.connection_set]


def test_pull_consumers_of_a_group_share_the_queues_and_one_takes_over(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("SharedPull"), fresh("group")
        await send_all(namesrv, topic, [b"first"])
        options = PullOptions(start=StartPosition.FIRST, rebalance_interval_s=2)
        first, second = (PullConsumer(namesrv, group, options) for _ in range(2))
        for consumer in (first, second):
            consumer.subscribe(topic)
        async with first:
            assert [message.body for message in await gather_messages(first, 1)] == [b"first"]
            async with second:
                await until_shared(first, second)
                assert not set(first.assignment) & set(second.assignment)
                await send_all(namesrv, topic, bodies_of(40))
                got: list[set[bytes]] = [set(), set()]
                async with asyncio.timeout(60):
                    # What was not committed yet when its queue moved comes twice, as in Java.
                    while not got[0] | got[1] >= set(bodies_of(40)):
                        for bodies, one in zip(got, (first, second), strict=True):
                            bodies |= {message.body for message in await one.poll(0.1)}
                assert all(got)
                assert await second.poll(0) == []  # what was returned before is consumed, and committed at the end
            async with asyncio.timeout(60):
                while len(first.assignment) < 4:
                    await asyncio.sleep(0.05)
            await send_all(namesrv, topic, [b"last"])
            assert [message.body for message in await gather_messages(first, 1)] == [b"last"]

    run(main())


async def until_shared(first: PullConsumer, second: PullConsumer) -> None:
    async with asyncio.timeout(60):
        while not len(first.assignment) == len(second.assignment) == 2:
            await asyncio.sleep(0.05)


def test_a_push_and_a_pull_consumer_share_the_queues_of_their_group(namesrv: str) -> None:
    async def main() -> None:
        topic, group, seen = fresh("Mixed"), fresh("group"), Seen()
        await send_all(namesrv, topic, [b"first"])
        push = PushConsumer(namesrv, group, seen, FIRST)
        pull = PullConsumer(namesrv, group, PullOptions(start=StartPosition.FIRST, rebalance_interval_s=2))
        push.subscribe(topic)
        pull.subscribe(topic)
        async with push:
            await seen.until(1)
            async with pull, asyncio.timeout(60):
                while not len(pull.assignment) == len(topic_queues(push, topic)) == 2:
                    await asyncio.sleep(0.05)
                await send_all(namesrv, topic, bodies_of(40))
                pulled: set[bytes] = set()
                while not {*pulled, *seen.bodies} >= set(bodies_of(40)):
                    pulled |= {message.body for message in await pull.poll(0.1)}
                assert len(pulled) >= 20

    run(main())


def test_a_subscribed_pull_consumer_seeks_pauses_and_commits(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Seeking"), fresh("group")
        missing = fresh("Missing")
        await send_all(namesrv, topic, bodies_of(8))
        options = PullOptions(start=StartPosition.FIRST, auto_commit=False, rebalance_interval_s=0.5)
        consumer = PullConsumer(namesrv, group, options)
        for one in (topic, missing):
            consumer.subscribe(one)
        async with consumer:
            assert len(await gather_messages(consumer, 8)) == 8
            queue, paused, *_ = consumer.assignment
            consumer.seek(queue, 1)
            consumer.seek(paused, 1)
            consumer.pause(paused)
            assert [(one.queue, one.queue_offset) for one in await gather_messages(consumer, 1)] == [(queue, 1)]
            assert await consumer.poll(0.3) == []
            consumer.resume(paused)
            assert [(one.queue, one.queue_offset) for one in await gather_messages(consumer, 1)] == [(paused, 1)]
            await consumer.commit({queue: 1})
            assert await consumer.committed(queue) == 1
            assert await consumer.committed(paused) in {None, 0}
            await consumer.commit()
            assert [await consumer.committed(one) for one in consumer.assignment] == [2] * 4
            await send_all(namesrv, missing, [b"made later"])
            assert [one.body for one in await gather_messages(consumer, 1)] == [b"made later"]
            consumer.unsubscribe(missing)
            async with asyncio.timeout(60):
                while {one.topic for one in consumer.assignment} != {topic}:
                    await asyncio.sleep(0.02)

    run(main())


def test_what_poll_has_returned_is_committed_when_it_is_called_again(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Polled"), fresh("group")
        await send_all(namesrv, topic, bodies_of(4))
        options = PullOptions(start=StartPosition.FIRST, persist_interval_s=0.1, rebalance_interval_s=2)
        consumer = PullConsumer(namesrv, group, options)
        consumer.subscribe(topic)
        async with Admin(namesrv) as admin, consumer:
            (message, *_) = await gather_messages(consumer, 1)
            await asyncio.sleep(0.5)
            assert await admin.offsets.committed(message.queue, group) in {None, 0}
            await consumer.poll(0)
            async with asyncio.timeout(60):
                while not await admin.offsets.committed(message.queue, group):
                    await asyncio.sleep(0.02)

    run(main())


def test_a_light_queue_is_read_by_its_places_and_goes_on_where_its_group_was(namesrv: str) -> None:
    async def main() -> None:
        topic, light, group = fresh("Light"), f"%LMQ%{fresh('device')}", f"%LMQ%{fresh('group')}"
        async with Producer(namesrv, "senders") as producer:
            for number in range(6):
                names = [light] if number % 2 else [f"{light}x", light]
                await producer.send(Message(topic, b"%d" % number, light_queues=names))
                await producer.send(Message(topic, b"of the topic alone"))
        await known(namesrv, topic)
        options = PullOptions(start=StartPosition.FIRST, auto_commit=False)
        async with PullConsumer(namesrv, group, options) as consumer:
            queues = await consumer.light_queues(light, topic)
            assert [one.queue_id for one in queues] == [0]
            consumer.assign(queues)
            got = await gather_messages(consumer, 6)
            assert [(one.body, one.queue_offset) for one in got] == [(b"%d" % number, number) for number in range(6)]
            assert {(one.topic, one.queue) for one in got} == {(topic, queues[0])}
            assert await consumer.offsets.max(queues[0]) == 6
            await consumer.commit({queues[0]: 4})
        async with PullConsumer(namesrv, group, options) as consumer:
            consumer.assign(await consumer.light_queues(light, topic))
            assert [one.queue_offset for one in await gather_messages(consumer, 2)] == [4, 5]

    run(main())


def test_inner_batches_are_taken_apart_from_the_message_on_that_is_asked_for(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Batches")
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues=1, attributes="+queue.type=BatchCQ")
        await known(namesrv, topic)
        batch = b"".join(pack(">iiiii", 23, 0, 0, number, 1) + b"%d" % number + pack(">h", 0) for number in range(5))
        for turn in range(3):
            sent = await send_raw(namesrv, topic, batch, "UNIQ_KEY\x01key\x02WAIT\x01true\x02", batch="true")
            assert (sent.code, sent.ext_fields["queueOffset"]) == (0, str(5 * turn))
            assert sent.ext_fields["batchUniqId"] == "key"
        async with PullConsumer(namesrv, fresh("group")) as consumer:
            queues = await consumer.queues(topic)
            consumer.assign(queues)
            consumer.seek(queues[0], 8)
            got = await gather_messages(consumer, 7)
            assert [(one.queue_offset, one.body, one.flag) for one in got] == [
                (place, b"%d" % (place % 5), place % 5) for place in range(8, 15)
            ]
            assert await consumer.offsets.max(queues[0]) == 15
            async with Producer(namesrv) as producer:
                made = await producer.send_batch([Message(topic, b"own", tags=tag) for tag in ("a", "b")])
            own = await gather_messages(consumer, 2)
            assert [(one.queue_offset, one.body, one.tags) for one in own] == [(15, b"own", "a"), (16, b"own", "b")]
            assert (made.queue_offset, "," in made.msg_id, len({made.msg_id, *(one.msg_id for one in own)})) == (
                15, False, 3,
            )  # fmt: skip

    run(main())
