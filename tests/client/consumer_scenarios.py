"""What groups of consumers do at a broker, whoever made it: a module that takes these tests has ``namesrv``.

The broker is as for ``tests.client.scenarios``.
"""

import asyncio
import time
from pathlib import Path

import pytest

from rmq_core.client import (
    Admin,
    Later,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartPosition,
)
from rmq_core.client.options import ConsumerOptions
from rmq_core.client.producer.producer import by_hash
from rmq_core.client.pull.request import QueueOffsets
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.loop import run
from tests.client.scenarios import (
    FIRST,
    Seen,
    bodies_of,
    fresh,
    known,
    read_all,
    replaced,
    send_all,
)


def test_a_push_consumer_gets_all_and_commits_at_the_broker(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Pushed"), fresh("group")
        await send_all(namesrv, topic, bodies_of(100))
        seen = Seen()
        consumer = PushConsumer(namesrv, group, seen, FIRST)
        consumer.subscribe(topic)
        async with consumer:
            assert sorted(await seen.until(100)) == bodies_of(100)
        async with PullConsumer(namesrv, group, PullOptions(auto_commit=False)) as reader:
            queues = await reader.queues(topic)
            reader.assign(queues)
            committed = [await reader.committed(queue) for queue in queues]
            assert committed == [await reader.offsets.max(queue) for queue in queues]
        again = Seen()
        consumer = PushConsumer(namesrv, group, again, FIRST)
        consumer.subscribe(topic)
        async with consumer:
            await send_all(namesrv, topic, [b"new"])
            assert await again.until(1) == [b"new"]

    run(main())


def test_a_push_consumer_waits_for_a_topic_that_does_not_exist_yet(namesrv: str) -> None:
    async def main() -> None:
        there, missing, seen = fresh("There"), fresh("Missing"), Seen()
        await send_all(namesrv, there, [b"there"])
        consumer = PushConsumer(namesrv, fresh("group"), seen, replaced(FIRST, rebalance_interval_s=0.5))
        for topic in (missing, there):
            consumer.subscribe(topic)
        async with consumer:
            assert await seen.until(1) == [b"there"]
            await send_all(namesrv, missing, [b"made later"])
            assert await seen.until(2) == [b"there", b"made later"]

    run(main())


def test_a_push_consumer_may_start_where_no_topic_of_it_exists(namesrv: str) -> None:
    async def main() -> None:
        missing, seen = fresh("Missing"), Seen()
        consumer = PushConsumer(namesrv, fresh("group"), seen, replaced(FIRST, rebalance_interval_s=0.5))
        consumer.subscribe(missing)
        async with consumer:
            await send_all(namesrv, missing, [b"made later"])
            assert await seen.until(1) == [b"made later"]

    run(main())


@pytest.mark.parametrize("set_back_ms", [0, 60_000])
def test_a_subscription_may_change_while_it_is_consumed(namesrv: str, set_back_ms: int) -> None:
    async def main() -> None:
        topic, seen = fresh("Changing"), Seen()
        await send_all(namesrv, topic, [b"1"], tags="A")
        times_ms = [now_ms()]  # the clock stands still, but for a step back
        # The pull that is held now is held for the old subscription.
        options = replaced(FIRST, suspend_timeout_s=1, clock_ms=lambda: times_ms[-1])
        consumer = PushConsumer(namesrv, fresh("group"), seen, options)
        consumer.subscribe(topic, "A")
        async with consumer:
            await seen.until(1)
            times_ms.append(times_ms[0] - set_back_ms)
            consumer.subscribe(topic, "A || B")
            async with Admin(namesrv) as admin, asyncio.timeout(60):
                while (await subscribed(admin, consumer, topic)) != "A || B":
                    await asyncio.sleep(0.05)
            await send_all(namesrv, topic, [b"2"], tags="B")
            assert await seen.until(2) == [b"1", b"2"]

    run(main())


def test_a_subscription_may_change_while_queues_are_assigned(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        topic, seen = fresh("Changing"), Seen()
        await send_all(namesrv, topic, [b"1"], tags="A")
        consumer = PushConsumer(namesrv, fresh("group"), seen, FIRST)
        consumer.subscribe(topic, "A")
        start = QueueOffsets.start

        async def change_before_it_is_assigned(
            self: QueueOffsets, queue: MessageQueue, options: ConsumerOptions
        ) -> int:
            if queue.topic == topic:
                monkeypatch.undo()
                consumer.subscribe(topic, "A || B")
            return await start(self, queue, options)

        monkeypatch.setattr(QueueOffsets, "start", change_before_it_is_assigned)
        async with consumer:
            assert await seen.until(1) == [b"1"]
            async with Admin(namesrv) as admin, asyncio.timeout(60):
                while (await subscribed(admin, consumer, topic)) != "A || B":
                    await asyncio.sleep(0.05)
            sent = [b"%d" % n for n in range(2, 10)]  # for each queue
            await send_all(namesrv, topic, sent, tags="B")
            assert sorted(await seen.until(9)) == [b"1", *sent]

    run(main())


async def subscribed(admin: Admin, consumer: PushConsumer, topic: str) -> str:
    """The tags that the broker knows a group's subscription by."""
    connections = await admin.consumer_connections(consumer.group)
    return connections.subscription_table[topic].sub_string


def test_two_consumers_of_a_group_share_the_queues_and_one_takes_over(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Shared"), fresh("group")
        await send_all(namesrv, topic, [b"first"])
        one, other = Seen(), Seen()
        first, second = (PushConsumer(namesrv, group, seen, FIRST) for seen in (one, other))
        for consumer in (first, second):
            consumer.subscribe(topic)
        async with first:
            await one.until(1)
            async with second:
                async with asyncio.timeout(60):
                    while not (len(topic_queues(first, topic)) == len(topic_queues(second, topic)) == 2):
                        await asyncio.sleep(0.05)
                assert not set(first.assignment) & set(second.assignment)
                await send_all(namesrv, topic, bodies_of(40))
                async with asyncio.timeout(60):
                    while len(one.messages) + len(other.messages) < 41:
                        await asyncio.sleep(0.05)
                # What was not committed yet when its queue moved comes twice, as in Java.
                assert {*one.bodies, *other.bodies} == {*bodies_of(40), b"first"}
                assert other.messages
            async with asyncio.timeout(60):
                while len(topic_queues(first, topic)) < 4:
                    await asyncio.sleep(0.05)

    run(main())


def topic_queues(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == topic]


def test_what_fails_comes_again_and_then_is_a_dead_letter(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Failing"), fresh("group")
        await send_all(namesrv, topic, [b"bad", b"good"], tags="T", keys="K")
        times: list[tuple[bytes, int, str]] = []

        async def listener(messages: list[ReceivedMessage]) -> Later | None:
            (message,) = messages
            times.append((message.body, message.reconsume_times, message.topic))
            if message.body == b"bad":
                raise ValueError("bad")
            return None

        consumer = PushConsumer(namesrv, group, listener, replaced(FIRST, max_reconsume_times=2))
        consumer.subscribe(topic)
        async with consumer:
            (dead,) = await read_all(namesrv, f"%DLQ%{group}", 1)
        assert sorted(times) == [(b"bad", 0, topic), (b"bad", 1, topic), (b"bad", 2, topic), (b"good", 0, topic)]
        assert (dead.body, dead.tags, dead.keys) == (b"bad", "T", ["K"])
        assert dead.properties["RETRY_TOPIC"] == topic

    run(main())


def test_an_ordered_consumer_holds_a_queue_up_until_it_succeeds(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Ordered"), fresh("group")
        async with Producer(namesrv, "senders") as producer:
            for number in range(60):
                key = number % 5
                await producer.send(Message(topic, b"%d %02d" % (key, number)), selector=by_hash, argument=key)
        await known(namesrv, topic)
        seen: list[tuple[int, bytes]] = []
        failed: set[bytes] = set()

        async def listener(messages: list[ReceivedMessage]) -> Later | None:
            (message,) = messages
            await asyncio.sleep(0)
            if message.body.endswith(b"0") and message.body not in failed:
                failed.add(message.body)
                return Later(suspend_s=0.05)
            seen.append((message.queue_id, message.body))
            return None

        consumer = PushConsumer(namesrv, group, listener, replaced(FIRST, in_order=True))
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(30):
            while len(seen) < 60:
                await asyncio.sleep(0.02)
        assert len(failed) == 6
        for key in range(5):
            bodies = [body for _, body in seen if body.startswith(b"%d " % key)]
            assert bodies == sorted(bodies)
            assert len(bodies) == 12

    run(main())


def test_an_ordered_consumer_gives_up_after_some_failures(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("GivenUp"), fresh("group")
        await send_all(namesrv, topic, [b"bad"])
        calls: list[int] = []

        def listener(messages: list[ReceivedMessage]) -> Later:
            calls.append(messages[0].reconsume_times)
            return Later()

        options = replaced(FIRST, in_order=True, max_reconsume_times=2, suspend_queue_s=0.1)
        consumer = PushConsumer(namesrv, group, listener, options)
        consumer.subscribe(topic)
        async with consumer:
            (dead,) = await read_all(namesrv, f"%DLQ%{group}", 1)
        assert calls == [0, 1, 2]
        assert dead.body == b"bad"

    run(main())


def test_broadcasting_gives_each_consumer_all_and_keeps_offsets_in_a_file(namesrv: str, tmp_path: Path) -> None:
    async def main() -> None:
        topic, group = fresh("Broadcast"), fresh("group")
        await send_all(namesrv, topic, bodies_of(10))
        options = replaced(FIRST, model=MessageModel.BROADCASTING, local_offset_dir=tmp_path)
        seen = [Seen(), Seen()]
        consumers = [
            PushConsumer(namesrv, group, one, replaced(options, instance_name=name))
            for one, name in zip(seen, "ab", strict=True)
        ]
        for consumer in consumers:
            consumer.subscribe(topic)
        async with consumers[0], consumers[1]:
            for one in seen:
                assert sorted(await one.until(10)) == bodies_of(10)
        files = list(tmp_path.glob(f"*@[ab]/{group}/offsets.json"))
        assert len(files) == 2
        again = Seen()
        consumer = PushConsumer(namesrv, group, again, replaced(options, instance_name="a"))
        consumer.subscribe(topic)
        async with consumer:
            await send_all(namesrv, topic, [b"new"])
            assert await again.until(1) == [b"new"]

    run(main())


def test_a_push_consumer_begins_where_it_is_told_to(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Starts")
        await send_all(namesrv, topic, [b"old"] * 4)
        await asyncio.sleep(1.1)
        moment_ms = time.time_ns() // 1_000_000
        await send_all(namesrv, topic, [b"new"] * 4)
        # A broker gives a new group offset 0 of a queue whose first message is still in memory, whatever is asked
        # for: so the queues' own answers are compared.
        async with PullConsumer(namesrv, fresh("reader")) as reader:
            queues = await reader.queues(topic)
            for start, expected in ((StartPosition.FIRST, 0), (StartPosition.TIMESTAMP, 1), (StartPosition.LAST, 2)):
                options = PushOptions(start=start, start_timestamp_ms=moment_ms)
                assert [await reader.offsets.start(queue, options) for queue in queues] == [expected] * 4

    run(main())


def test_order_holds_while_queues_move_between_consumers(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Moving"), fresh("group")
        seen: dict[int, list[int]] = {}
        running: set[int] = set()
        pause_s = 0.02

        async def listener(messages: list[ReceivedMessage]) -> None:
            (message,) = messages
            assert message.queue_id not in running, "two calls for a queue at a time"
            running.add(message.queue_id)
            await asyncio.sleep(pause_s)
            running.discard(message.queue_id)
            seen.setdefault(message.queue_id, []).append(int(message.body))

        await send_all(namesrv, topic, [b"%d" % number for number in range(400)])
        options = replaced(FIRST, in_order=True)
        first, second = (PushConsumer(namesrv, group, listener, options) for _ in range(2))
        for consumer in (first, second):
            consumer.subscribe(topic)
        async with first:
            await until_count(seen, 40)
            pause_s = 0.3  # until they move, however long that takes
            async with second:
                async with asyncio.timeout(60):
                    while len(topic_queues(second, topic)) < 2:
                        await asyncio.sleep(0.02)
                pause_s = 0.02
                moved_at = sum(map(len, seen.values()))
                assert moved_at < 300, "the queues were done before they moved"
                await until_count(seen, moved_at + 40)
            await until_count(seen, 400)
        for numbers in seen.values():
            assert numbers == sorted(numbers)
        assert sorted(number for numbers in seen.values() for number in numbers) == list(range(400))

    run(main())


async def until_count(seen: dict[int, list[int]], count: int, seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while sum(map(len, seen.values())) < count:
            await asyncio.sleep(0.02)
