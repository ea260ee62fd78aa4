"""Our producer and consumers at the real Java broker, with our name server between them."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TypeVar
from uuid import uuid4

import pytest

from rmq_core.client import (
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendStatus,
)
from rmq_core.remoting.loop import run
from tests.interop import peer
from tests.interop.test_namesrv_against_java import (
    QUICK_START,
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

BROKER = "client-a"
_T = TypeVar("_T")
LEVELS = " ".join(["1s"] * 18)


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
            f"{SMALL_FILES}brokerName={BROKER}\nnamesrvAddr={address}\nlistenPort={free_port()}\n"
            f"haListenPort={free_port()}\nmessageDelayLevel={LEVELS}\nenablePropertyFilter=true\n"
        )
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf), options=QUICK_START))
        wait_for(lambda: brokers(address) == {BROKER})
        wait_for(lambda: ask(address, 105, {"topic": "TBW102"}).code == 0)
        yield address


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


async def read_all(
    namesrv: str, topic: str, count: int, tags: str = "*", sql: str | None = None
) -> list[ReceivedMessage]:
    """So many messages of a topic, from its beginning."""
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
