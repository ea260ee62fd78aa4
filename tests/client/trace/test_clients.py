"""Our producers and consumers trace what they do, at our broker."""

import asyncio
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.client import (
    Admin,
    Later,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartPosition,
    TransactionProducer,
    TransactionState,
)
from rmq_core.client.producer.tracer import Tracer
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.loop import run
from rmq_formats.codecs.trace import TRACE_TOPIC, ContextCode, MessageType, TraceRecord, TraceType, decode_trace
from rmq_formats.errors import RmqError
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import Standalone

pytestmark = [pytest.mark.xdist_group("trace")]
TRACED = ProducerOptions(enable_trace=True)
FIRST = PushOptions(start=StartPosition.FIRST, enable_trace=True)


async def traces_of(namesrv: str, key: str) -> list[TraceRecord]:
    """What is told of a message, by its id or one of its keys, in the order of the log."""
    async with Admin(namesrv) as admin:
        found = await admin.query_by_key(TRACE_TOPIC, key)
    records = [one for message in found for one in decode_trace(message.body)]
    return [one for one in records if key in one.index_keys()]


def test_a_send_is_traced(running: Standalone) -> None:
    async def main() -> None:
        async with Producer(running.namesrv, "pg", TRACED) as producer:
            sent = await producer.send(Message("Sent", b"hello", tags="Paid", keys="k-1 k-2"))
            late = await producer.send(Message("Sent", b"later", delay_level=1))
            await producer.send_batch([Message("Sent", b"%d" % number) for number in range(2)])
        (found,) = await traces_of(running.namesrv, sent.msg_id)
        assert found == replace(found, trace_type=TraceType.PUB, group="pg", topic="Sent", tags="Paid", keys="k-1 k-2")
        assert (found.store_host, found.region_id, found.body_bytes) == (running.broker, "DefaultRegion", 5)
        assert (found.offset_msg_id, found.message_type) == (sent.offset_msg_id, MessageType.NORMAL)
        assert found.is_success
        assert await traces_of(running.namesrv, "k-2") == [found]
        (delayed,) = await traces_of(running.namesrv, late.msg_id)
        assert (delayed.message_type, delayed.tags, delayed.keys) == (MessageType.DELAY, None, None)

    run(main())


def test_sends_are_traced_only_if_asked_for(running: Standalone) -> None:
    async def main() -> None:
        async with Producer(running.namesrv, "pg") as producer:
            sent = await producer.send(Message("Untraced", b"hello"))
        assert await traces_of(running.namesrv, sent.msg_id) == []

    run(main())


@pytest.mark.parametrize("in_order", [False, True])
def test_calls_of_a_listener_are_traced(running: Standalone, in_order: bool) -> None:
    async def main() -> None:
        topic, group = f"Heard{in_order}", f"cg{in_order}"
        heard: list[str] = []

        async def on_messages(messages: list[ReceivedMessage]) -> Later | None:
            (message,) = messages
            heard.append(message.msg_id)
            if message.body == b"fails" and message.reconsume_times == 0:
                raise RuntimeError("as it is meant to")
            if message.body == b"waits" and message.reconsume_times == 0:
                return Later(delay_level=1, suspend_s=0)
            return None

        async with Producer(running.namesrv, "pg") as producer:
            ids = [(await producer.send(Message(topic, body, keys="key"))).msg_id for body in (b"fails", b"waits")]
            options = replace(FIRST, in_order=in_order, suspend_queue_s=0.05)
            consumer = PushConsumer(running.namesrv, group, on_messages, options)
            consumer.subscribe(topic)
            async with consumer:
                async with asyncio.timeout(90):
                    while Counter(heard) != Counter(2 * ids):  # each failed once, and came again
                        await asyncio.sleep(0.05)
        for msg_id, code in zip(ids, (ContextCode.EXCEPTION, ContextCode.FAILED), strict=True):
            found = await traces_of(running.namesrv, msg_id)
            before = [one for one in found if one.trace_type is TraceType.SUB_BEFORE]
            after = [one for one in found if one.trace_type is TraceType.SUB_AFTER]
            assert [one.retry_times for one in before] == [0, 1]
            assert [one.request_id for one in before] == [one.request_id for one in after]
            assert {one.group for one in found} == {group}
            assert {one.keys for one in found} == {"key"}
            assert [(one.context_code, one.is_success) for one in after] == [(code, False), (0, True)]

    run(main())


def test_ends_of_transactions_are_traced(running: Standalone) -> None:
    async def main() -> None:
        producer = TransactionProducer(
            running.namesrv, "tg", lambda _: TransactionState.COMMIT, TRACED, topics=["Transactions"]
        )
        async with producer:
            message = Message("Transactions", b"paid", keys="4711")
            paid = await producer.send_in_transaction(message, lambda *_: TransactionState.COMMIT)
            failed = await producer.send_in_transaction(message, lambda *_: TransactionState.ROLLBACK)
        for result, state in ((paid, "COMMIT_MESSAGE"), (failed, "ROLLBACK_MESSAGE")):
            half, ended = await traces_of(running.namesrv, result.sent.msg_id)
            assert (half.trace_type, half.message_type) == (TraceType.PUB, MessageType.HALF)
            assert (ended.trace_type, ended.transaction_state) == (TraceType.END_TRANSACTION, state)
            assert (ended.transaction_id, ended.keys, ended.topic) == (
                result.sent.transaction_id,
                "4711",
                "Transactions",
            )
            assert (ended.message_type, ended.is_from_check) == (MessageType.COMMIT, False)

    run(main())


def test_traces_that_cannot_be_sent_are_dropped_and_never_wait() -> None:
    async def main() -> None:
        tries: list[Message] = []

        async def refuse(message: Message) -> None:
            tries.append(message)
            raise RmqError("no such topic")

        tracer = Tracer(TRACE_TOPIC, refuse, now_ms)
        tracer.start()
        for number in range(3000):
            tracer.put(TraceRecord(trace_type=TraceType.PUB, msg_id=str(number)))
        await tracer.close()
        assert tracer.dropped_count == 3000 - 2048
        assert sum(len(decode_trace(one.body)) for one in tries) == 2048

    run(main())


def test_the_program_of_the_page_runs(running: Standalone) -> None:
    page = (Path(__file__).parents[3] / "docs" / "trace.md").read_text()
    program, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = warm_processes.run(
        [sys.executable, "-c", program.replace("127.0.0.1:9876", running.namesrv)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "Pub orders Orders 4711 True\n")
