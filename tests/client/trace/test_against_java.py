"""Traces of the original's clients read here, and ours by its mqadmin."""

import asyncio
import os
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from rmq_core.client import Admin, Message, Producer, ProducerOptions, PushConsumer, PushOptions, ReceivedMessage
from rmq_core.client.options import StartPosition
from rmq_core.remoting.loop import run
from rmq_formats.codecs.trace import TRACE_TOPIC, MessageType, TraceRecord, TraceType, decode_trace, encode_trace
from tests.client.trace.test_clients import traces_of
from tests.interop import peer
from tests.interop.test_namesrv_against_java import wait_for
from tests.support.processes.broker_processes import Standalone

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("trace")]
SOURCE = Path(__file__).parent / "Traced.java"


def test_mqadmin_shows_what_our_clients_trace(running: Standalone) -> None:
    async def main() -> str:
        heard = asyncio.Event()
        options = PushOptions(start=StartPosition.FIRST, enable_trace=True)
        consumer = PushConsumer(running.namesrv, "our_cg", lambda _: heard.set(), options)
        consumer.subscribe("Shown")
        async with Producer(running.namesrv, "our_pg", ProducerOptions(enable_trace=True)) as producer:
            sent = await producer.send(Message("Shown", b"hello", tags="TagA", keys="4711"))
            async with consumer, asyncio.timeout(60):
                await heard.wait()
        return sent.msg_id

    msg_id = run(main())
    shown = peer.command("queryMsgTraceById", "-n", running.namesrv, "-i", msg_id)
    lines = [line.split() for line in shown.splitlines() if line.startswith(("Pub ", "Sub "))]
    assert [(line[0], line[1], line[-1]) for line in lines] == [
        ("Pub", "our_pg", "success"), ("Sub", "our_cg", "success"),
    ]  # fmt: skip
    assert lines[0][2] == "127.0.0.1"


@pytest.mark.long
def test_what_the_original_traces_is_read_and_written_the_same(running: Standalone) -> None:
    peer.build()
    jars = Path(os.environ.get("PEER_HOME") or Path.home() / ".cache" / "rocketmq-peer") / "lib/*"
    command = ["java", peer.QUICK_START, "-cp", str(jars), str(SOURCE), running.namesrv, "FromJava"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
        assert java.stdout is not None
        told = (line for line in java.stdout if line.startswith("SENT "))
        ids = [line.removeprefix("SENT ").strip() for line in islice(told, 3)]
        for msg_id, count in zip(ids, (3, 3, 4), strict=True):  # the last one's transaction ends, too
            wait_for(lambda: len(run(traces_of(running.namesrv, msg_id))) >= count)  # noqa: B023 # called at once
        java.communicate(timeout=60)

    async def trace_messages_of(key: str) -> list[ReceivedMessage]:
        async with Admin(running.namesrv) as admin:
            return await admin.query_by_key(TRACE_TOPIC, key)

    sends: list[TraceRecord] = []
    for msg_id in ids:
        for message in run(trace_messages_of(msg_id)):
            assert "".join(map(encode_trace, decode_trace(message.body))).encode() == message.body
        found = run(traces_of(running.namesrv, msg_id))
        sends += [one for one in found if one.trace_type is TraceType.PUB]
        calls = [one for one in found if one.trace_type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)]
        assert {(one.group, one.is_success) for one in calls} == {("java_cg", True)}
        assert len({one.request_id for one in calls}) == 1
        assert len(calls) == 2
    assert [one.message_type for one in sends] == [MessageType.NORMAL, MessageType.DELAY, MessageType.HALF]
    assert [(one.tags, one.keys) for one in sends] == [("TagA", "k1 k2"), (None, None), ("TagT", "k3")]
    (ended,) = [one for one in found if one.trace_type is TraceType.END_TRANSACTION]
    assert (ended.group, ended.transaction_state, ended.keys) == ("java_tg", "COMMIT_MESSAGE", "k3")
