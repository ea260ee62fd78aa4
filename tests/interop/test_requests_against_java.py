"""Requests and replies between Java's client and ours, at our broker."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_core.client import (
    Admin,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartPosition,
    reply_to,
)
from rmq_core.remoting.loop import run
from tests.interop import peer
from tests.support.processes.broker_processes import configured

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("requests_against_java")]

COUNT = 5
PATIENCE_S = 120  # a machine may be busy


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    peer.build()
    directory = tmp_path_factory.mktemp("requests")
    with configured(directory, "") as running:
        yield running.namesrv


async def java(namesrv: str, mode: str, topic: str) -> list[dict[str, Any]]:
    """What the program tells, see ``RequestReply.java``."""
    options = str(COUNT), str(PATIENCE_S * 1000)
    output = await asyncio.to_thread(
        peer.run, "requests", namesrv, mode, topic, *options, java_options=peer.QUICK_START
    )
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


async def made(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=2)


@pytest.mark.long
def test_our_client_answers_what_java_s_asks(namesrv: str) -> None:
    async def main() -> list[dict[str, Any]]:
        await made(namesrv, "JavaAsks")
        async with Producer(namesrv, "answerers") as producer:

            async def answer(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    await producer.send(reply_to(message, b"re: " + message.body))

            consumer = PushConsumer(namesrv, "oracle", answer, PushOptions(start=StartPosition.FIRST))
            consumer.subscribe("JavaAsks")
            async with consumer:
                return await java(namesrv, "ask", "JavaAsks")

    assert run(main()) == [
        {"asked": number, "reply": f"re: question {number}", "topic": "DefaultCluster_REPLY_TOPIC"}
        for number in range(COUNT)
    ]


def test_java_s_client_answers_what_ours_asks(namesrv: str) -> None:
    async def main() -> tuple[list[bytes], list[dict[str, Any]]]:
        await made(namesrv, "JavaAnswers")
        async with Producer(namesrv, "askers") as producer:
            answering = asyncio.create_task(java(namesrv, "answer", "JavaAnswers"))
            asked = [Message("JavaAnswers", b"%d" % number) for number in range(COUNT)]
            replies = await asyncio.gather(*(producer.request(one, timeout_s=PATIENCE_S) for one in asked))
            return [reply.body for reply in replies], await answering

    bodies, told = run(main())
    assert bodies == [b"re: %d" % number for number in range(COUNT)]
    assert told == [{"answered": "SEND_OK"}] * COUNT
