"""Our producer and consumers at the real Java broker, with our name server between them."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
from rmq_core.client.allocation import Allocation, ConsistentHash, averagely
from rmq_core.remoting.loop import run
from tests.client.consumer_scenarios import *  # noqa: F403 # the tests themselves
from tests.client.pull_scenarios import *  # noqa: F403
from tests.client.scenarios import *  # noqa: F403
from tests.client.scenarios import (
    BROKER,
    FIRST,
    SETTINGS,
    Seen,
    bodies_of,
    fresh,
    gather_messages,
    known,
    replaced,
    send_all,
)
from tests.interop import peer
from tests.interop.test_namesrv_against_java import (
    SMALL_FILES,
    ask,
    brokers,
    free_port,
    java,
    settings,
    wait_for,
)
from tests.namesrv.test_command import running

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("client_against_java")]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our name server's address, with a Java broker registered."""
    peer.build()
    directory = tmp_path_factory.mktemp("client")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        address = stack.enter_context(running("-c", settings(directory / "namesrv")))[1]
        conf = directory / "broker.conf"
        conf.write_text(
            f"{SMALL_FILES}{SETTINGS}namesrvAddr={address}\nlistenPort={free_port()}\nhaListenPort={free_port()}\n"
        )
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf)))
        wait_for(lambda: brokers(address) == {BROKER})
        wait_for(lambda: ask(address, 105, {"topic": "TBW102"}).code == 0)
        yield address


@pytest.mark.long
def test_mqadmin_sees_our_consumer_at_work(namesrv: str) -> None:
    async def main() -> None:
        topic, group = fresh("Admin"), fresh("group")
        (sent, *_) = await send_all(namesrv, topic, bodies_of(8), keys="admin-key")
        seen = Seen()
        consumer = PushConsumer(namesrv, group, seen, replaced(FIRST, persist_interval_s=0.2))
        consumer.subscribe(topic)
        async with consumer:
            await seen.until(8)
            await asyncio.sleep(0.5)
            connection = await mqadmin("consumerConnection", "-n", namesrv, "-g", group)
            assert consumer.client_id in connection
            assert "PYTHON" in connection
            status = await mqadmin("consumerStatus", "-n", namesrv, "-g", group, "-i", consumer.client_id)
            assert "PROP_CONSUMER_START_TIMESTAMP" in status
            assert status.count(topic) > 3
            progress = await mqadmin("consumerProgress", "-n", namesrv, "-g", group)
            assert "Diff Total: 0" in progress
            direct = await mqadmin(
                "queryMsgById",
                "-n",
                namesrv,
                "-i",
                sent.offset_msg_id,
                "-g",
                group,
                "-d",
                consumer.client_id,
                "-t",
                topic,
            )
            assert "CR_SUCCESS" in direct
            assert len(seen.messages) == 9
            await mqadmin("resetOffsetByTime", "-n", namesrv, "-g", group, "-t", topic, "-s", "0")
            await seen.until(17)
        pulling = PullConsumer(namesrv, fresh("group"), PullOptions(start=StartPosition.FIRST))
        pulling.subscribe(topic)
        async with pulling:
            await gather_messages(pulling, 8)
            status = await mqadmin("consumerStatus", "-n", namesrv, "-g", pulling.group, "-i", pulling.client_id)
            assert "CONSUME_ACTIVELY" in status
            assert status.count(topic) > 3
        found = await mqadmin("queryMsgByKey", "-n", namesrv, "-t", topic, "-k", "admin-key")
        assert sent.msg_id in found

    run(main())


async def mqadmin(*arguments: str) -> str:
    return await asyncio.to_thread(peer.command, *arguments)


def test_java_shows_what_we_sent(namesrv: str) -> None:
    async def main() -> None:
        topic = fresh("Shown")
        async with Producer(namesrv, "senders") as producer:
            await producer.send(Message(topic, b"plain", tags="TagA", keys="4711"))
            await producer.send(Message(topic, b"large " * 1000, tags="TagB"))
            await producer.send_batch([Message(topic, b"inner 1"), Message(topic, b"inner 2")])
        shown = await mqadmin("printMsg", "-n", namesrv, "-t", topic, "-d", "true")
        for body in ("BODY: plain", "BODY: large large", "BODY: inner 1", "BODY: inner 2"):
            assert body in shown

    run(main())


@contextmanager
def java_member(*arguments: str) -> Iterator[list[str]]:
    """A consumer of the original's; the lines of what it gets, as they come."""
    home = Path(os.environ.get("PEER_HOME") or Path.home() / ".cache" / "rocketmq-peer")
    source = Path(__file__).parents[1] / "client" / "JavaMember.java"
    process = subprocess.Popen(
        ["java", peer.QUICK_START, "-cp", f"{home}/lib/*", str(source), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines: list[str] = []

    def read_each() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(("GOT ", "STARTED")):
                lines.append(line.strip())

    reader = threading.Thread(target=read_each)
    reader.start()
    try:
        yield lines
    finally:
        process.kill()
        process.wait(timeout=20)
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    ("strategy", "allocation", "in_order"),
    [("averagely", averagely, False), ("hash", ConsistentHash(), False), ("averagely", averagely, True)],
)
@pytest.mark.long
def test_a_group_has_members_of_ours_and_of_javas(
    namesrv: str, strategy: str, allocation: Allocation, in_order: bool
) -> None:
    async def main() -> None:
        topic, group, seen = fresh("Mixed"), fresh("group"), Seen()
        async with Admin(namesrv) as admin, Producer(namesrv, "senders") as producer:
            await admin.create_topic(topic, queues=8)
            await known(namesrv, topic)
            consumer = PushConsumer(namesrv, group, seen, replaced(FIRST, allocation=allocation, in_order=in_order))
            consumer.subscribe(topic)
            order = "orderly" if in_order else "concurrently"
            with java_member(namesrv, group, topic, strategy, order) as lines:
                async with consumer:
                    await both_there(admin, group)
                    await asyncio.sleep(3)  # Java's share is not told: it has its round when it is told of ours
                    ours = {queue.queue_id for queue in consumer.assignment if queue.topic == topic}
                    for body in bodies_of(200):
                        await producer.send(Message(topic, body))
                    async with asyncio.timeout(30):
                        while len(seen.messages) + len(lines) - 1 < 200:
                            await asyncio.sleep(0.1)
                javas = [line.split(" ", 2) for line in lines[1:201]]
                assert sorted([*seen.bodies, *(body.encode() for _, _, body in javas)]) == bodies_of(200)
                assert {message.queue_id for message in seen.messages} == ours
                assert {int(queue_id) for _, queue_id, _ in javas} == set(range(8)) - ours
                if strategy == "averagely":
                    assert len(ours) == 4

    run(main())


async def both_there(admin: Admin, group: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if len((await admin.consumer_connections(group)).connection_set) == 2:
                    return
            except BrokerError:
                pass
            await asyncio.sleep(0.1)
