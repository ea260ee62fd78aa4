"""Order, resets and requests at our broker: what ``scenarios.py`` does not try."""

import asyncio
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.client import (
    Admin,
    Message,
    MessageError,
    MessageQueue,
    NoReplyError,
    NoRouteError,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartPosition,
    reply_to,
)
from rmq_core.client.producer.producer import by_hash
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.loop import run
from tests.broker.conftest import small_store
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import Standalone, configured, standalone

pytestmark = [pytest.mark.xdist_group("order")]
SETTINGS = "brokerName=ours\nmappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\nflushDiskType=SYNC_FLUSH\n"
FIRST = PushOptions(start=StartPosition.FIRST, persist_interval_s=0.2)
PATIENCE_S = 90
PAGE = Path(__file__).parents[2] / "docs" / "order.md"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with configured(tmp_path_factory.mktemp("order"), SETTINGS) as running:
        yield running


class Heard:
    """A listener that keeps the bodies it is called with."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.bodies += [message.body for message in messages]

    async def until(self, *bodies: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sorted(self.bodies) != sorted(bodies):
                await asyncio.sleep(0.02)


def test_a_strictly_ordered_topic_keeps_its_queues_when_a_broker_is_gone(running: Standalone) -> None:
    async def main() -> None:
        async with Admin(running.namesrv) as admin, Producer(running.namesrv, "pg") as producer:
            await admin.create_topic("Strict", queues=4, order=True)
            assert await admin.keep_in_order("Strict", {"ours": 2, "gone": 2}) == "ours:2;gone:2"
            queues = await producer.queues("Strict")
            assert sorted((queue.broker_name, queue.queue_id) for queue in queues) == [
                ("gone", 0), ("gone", 1), ("ours", 0), ("ours", 1),
            ]  # fmt: skip
            places: set[str] = set()
            for order in range(16):  # one key, one queue: a message goes there or nowhere
                try:
                    sent = await producer.send(Message("Strict", b"x"), selector=by_hash, argument=f"order-{order}")
                except NoRouteError as error:
                    places.add(error.name)
                else:
                    places.add(sent.queue.broker_name)
            assert places == {"ours", "gone"}

    run(main())


@pytest.mark.long
def test_an_ordered_consumer_goes_on_in_order_after_kills_of_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        conf = tmp_path / "broker.conf"
        conf.write_text(SETTINGS)
        got: dict[int, list[int]] = {}

        async def listener(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                got.setdefault(message.queue_id, []).append(int(message.body))

        async def send_until_stored(producer: Producer, number: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await producer.send(Message("Kills", b"%d" % number), selector=by_hash, argument=number % 4)
                        return
                    except RemotingError:
                        await asyncio.sleep(0.05)

        async def until_got(numbers: set[int]) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while {number for queue in got.values() for number in queue} != numbers:
                    await asyncio.sleep(0.02)

        with standalone(tmp_path / "store", "-c", str(conf), log=tmp_path / "log") as first:
            addresses = ["--listen", first.namesrv, "--broker-listen", first.broker]
            options = replace(FIRST, in_order=True, lock_interval_s=0.5, rebalance_interval_s=1)
            consumer = PushConsumer(first.namesrv, "cg", listener, options)
            consumer.subscribe("Kills")
            async with Producer(first.namesrv, "pg") as producer:
                await send_until_stored(producer, 0)
                async with consumer:
                    for number in range(1, 40):
                        await send_until_stored(producer, number)
                    await until_got(set(range(40)))
                    first.process.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(first.process.wait)
                    with standalone(tmp_path / "store", *addresses, "-c", str(conf), log=tmp_path / "log"):
                        for number in range(40, 80):
                            await send_until_stored(producer, number)
                        await until_got(set(range(80)))
        for numbers in got.values():
            # What came before the kill and was not committed comes again; nothing is left out, and nothing overtakes.
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts)

    run(main())


class Slow:
    """A listener whose call takes as long as the test wants, in a thread, which no cancellation ends."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = threading.Event()

    async def __call__(self, _: list[ReceivedMessage]) -> None:
        self.calls += 1
        await asyncio.to_thread(self.may_end.wait, PATIENCE_S)

    def __enter__(self) -> "Slow":
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end.set()

    async def until_called(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.calls:
                await asyncio.sleep(0.02)


def test_a_queue_moves_only_when_its_running_call_has_ended(running: Standalone) -> None:
    async def main() -> None:
        options = replace(FIRST, in_order=True, close_timeout_s=0.1, rebalance_interval_s=1)
        slow, heard = Slow(), Heard()
        # A queue goes to the member with the lesser client id: to the one that joins later.
        first = PushConsumer(running.namesrv, "slow", slow, replace(options, instance_name="b"))
        second = PushConsumer(running.namesrv, "slow", heard, replace(options, instance_name="a"))
        for consumer in (first, second):
            consumer.subscribe("Slow")
        async with Admin(running.namesrv) as admin, Producer(running.namesrv, "pg") as producer:
            await admin.create_topic("Slow", queues=1)
            (queue,) = await producer.queues("Slow")
            await producer.send(Message("Slow", b"takes long"))
            async with first, asyncio.timeout(PATIENCE_S):
                with slow:
                    await slow.until_called()
                    async with second:
                        await asyncio.sleep(3)  # several rounds of both
                        assert (heard.bodies, queue in second.assignment) == ([], False)
                        await producer.send(Message("Slow", b"next"))
                        slow.may_end.set()
                        await heard.until(b"next")  # what was consumed is committed, and does not come again
                        assert (slow.calls, queue in first.assignment) == (1, False)

    run(main())


def test_a_call_that_outlives_its_consumer_keeps_the_queue_locked(running: Standalone) -> None:
    async def main() -> None:
        options = replace(FIRST, in_order=True, close_timeout_s=0.1)
        slow = Slow()
        first, second = (PushConsumer(running.namesrv, "outlived", one, options) for one in (slow, Heard()))
        for consumer in (first, second):
            consumer.subscribe("Outlived")
        async with Admin(running.namesrv) as admin, Producer(running.namesrv, "pg") as producer:
            await admin.create_topic("Outlived", queues=1)
            await producer.send(Message("Outlived", b"takes long"))
            with slow:
                async with first:
                    await slow.until_called()
                async with second:
                    await asyncio.sleep(2)
                    assert "Outlived" not in {queue.topic for queue in second.assignment}

    run(main())


@pytest.mark.parametrize("is_online", [True, False])
def test_a_group_is_put_back_to_a_time(running: Standalone, is_online: bool) -> None:
    async def main() -> None:
        topic, group = f"Reset{is_online}", f"reset{is_online}"
        async with Admin(running.namesrv) as admin, Producer(running.namesrv, "pg") as producer:
            await admin.create_topic(topic, queues=1)
            await producer.send(Message(topic, b"old"))
            await asyncio.sleep(0.05)
            between_ms = time.time_ns() // 1_000_000
            await asyncio.sleep(0.05)
            await producer.send(Message(topic, b"new"))
            heard = Heard()
            consumer = PushConsumer(running.namesrv, group, heard, FIRST)
            consumer.subscribe(topic)
            async with consumer:
                await heard.until(b"old", b"new")
                if is_online:
                    await admin.reset_offsets(group, topic, between_ms)
                    await heard.until(b"old", b"new", b"new")
            if not is_online:
                assert list((await admin.reset_offsets(group, topic, between_ms)).values()) == [1]
                again = Heard()
                consumer = PushConsumer(running.namesrv, group, again, FIRST)
                consumer.subscribe(topic)
                async with consumer:
                    await again.until(b"new")

    run(main())


def test_a_request_is_answered(running: Standalone) -> None:
    async def main() -> None:
        async with Producer(running.namesrv, "askers") as asker, Producer(running.namesrv, "answerers") as answerer:

            async def answer(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    if message.body != b"silence":
                        sent = await answerer.send(reply_to(message, b"re: " + message.body * 2000))
                        assert sent.queue.topic == "DefaultCluster_REPLY_TOPIC"

            async with Admin(running.namesrv) as admin:
                await admin.create_topic("Questions", queues=1)
            consumer = PushConsumer(running.namesrv, "oracle", answer, FIRST)
            consumer.subscribe("Questions")
            async with consumer:
                asked = [Message("Questions", b"%d" % number, tags="T") for number in range(3)]
                replies = await asyncio.gather(*(asker.request(one, timeout_s=PATIENCE_S) for one in asked))
                assert [reply.body for reply in replies] == [b"re: " + one.body * 2000 for one in asked]
                assert {reply.topic for reply in replies} == {"DefaultCluster_REPLY_TOPIC"}
                with pytest.raises(NoReplyError, match=r"Questions: sent, and no reply in 0\.5 s") as caught:
                    await asker.request(Message("Questions", b"silence"), timeout_s=0.5)
                assert caught.value.code == 10006

    run(main())


async def test_a_reply_may_go_to_any_broker_of_the_cluster(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)))
        for name in ("a", "b"):
            config = BrokerConfig(listen_port=0, namesrv_addr=names.address, broker_name=name)
            await stack.enter_async_context(Broker(config, small_store(tmp_path / name)))
            if name == "a":  # the topic is there alone
                admin = await stack.enter_async_context(Admin(names.address))
                await admin.create_topic("Questions", queues=1)
        assert {queue.broker_name for queue in await admin.queues("Questions")} == {"a"}
        asker = await stack.enter_async_context(Producer(names.address, "askers"))
        answerer = await stack.enter_async_context(Producer(names.address, "answerers"))

        async def answer(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                reply = reply_to(message, b"yes")
                await answerer.send(reply, queue=MessageQueue(topic=reply.topic, broker_name="b", queue_id=0))

        consumer = PushConsumer(names.address, "oracle", answer, FIRST)
        consumer.subscribe("Questions")
        await stack.enter_async_context(consumer)
        replied = await asker.request(Message("Questions", b"?"), timeout_s=PATIENCE_S)
        assert replied.body == b"yes"


@pytest.mark.long
def test_the_programs_of_the_page_run(running: Standalone) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    outputs = []
    for program in programs:
        assert program.count("127.0.0.1:9876") == 1
        done = warm_processes.run(
            [sys.executable, "-c", program.replace("127.0.0.1:9876", running.namesrv)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    answered, prior = outputs
    assert answered == "b'12.50' DefaultCluster_REPLY_TOPIC\n"
    first, *others = prior.splitlines()
    assert (first, sorted(others)) == ("urgent job", ["job 0", "job 1", "job 2"])


def test_nobody_can_reply_to_what_is_no_request() -> None:
    message = ReceivedMessage(None, "T", b"", 0, 0, 0, 0, 0, 0, 0, 0, 0, b"CLUSTER\x01c\x02", bytes(8), bytes(8))  # type: ignore[arg-type] # no queue is looked at
    with pytest.raises(MessageError, match="is no request message"):
        reply_to(message, b"x")
