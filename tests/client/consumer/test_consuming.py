"""Consuming: what is committed, what is sent back, what holds up what."""

import asyncio
from typing import Any

import pytest

from rmq_core.client import Later, Message, PushOptions, ReceivedMessage
from rmq_core.client.consumer import consume_message
from rmq_core.client.consumer.consume_message import ProcessQueue
from rmq_core.client.consumer.rebalance import ConsumerQueueLocks
from rmq_core.client.consumer.send_back import SendBack
from rmq_core.client.errors import NoRouteError
from rmq_core.client.producer.tracer import Tracer, traced
from rmq_core.client.routes import Route
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.errors import OptionError
from tests.client.conftest import QUEUE, received
from tests.client.consumer.bench import Bench


async def test_an_offset_is_committed_when_all_before_it_are_consumed() -> None:
    gates = {offset: asyncio.Event() for offset in range(5)}

    async def listener(messages: list[ReceivedMessage]) -> None:
        await gates[messages[0].queue_offset].wait()

    async with Bench(listener) as bench:
        bench.put(0, 1, 2, 3, 4)
        for offset in (1, 2):
            gates[offset].set()
        await bench.until(0)
        gates[0].set()
        await bench.until(3)
        gates[4].set()
        gates[3].set()
        await bench.until(5)
        assert (len(bench.queue), bench.queue.cached_bytes) == (0, 0)


async def test_gaps_of_filtered_messages_do_not_hold_up() -> None:
    async with Bench(lambda _: None) as bench:
        bench.put(3, 7, 20)
        await bench.until(21)


async def test_what_fails_is_sent_back_and_does_not_hold_up() -> None:
    def listener(messages: list[ReceivedMessage]) -> Later | None:
        if messages[0].queue_offset == 1:
            raise ValueError("no")
        return Later(delay_level=5) if messages[0].queue_offset == 2 else None

    async with Bench(listener) as bench:
        bench.put(0, 1, 2, 3)
        await bench.until(4)
    assert sorted(bench.backs.sent) == [(1, 0), (2, 5)]


@pytest.mark.parametrize("in_order", [False, True])
async def test_a_call_whose_own_task_was_cancelled_has_failed_and_others_follow(in_order: bool) -> None:
    calls = 0

    async def listener(messages: list[ReceivedMessage]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner

    async with Bench(listener, in_order=in_order, concurrency=1, suspend_queue_s=0) as bench:
        bench.put(0, 1)
        await bench.until(2)
    assert bench.backs.sent == ([] if in_order else [(0, 0)])
    assert calls == (3 if in_order else 2)


async def test_of_a_batch_only_what_is_not_done_is_sent_back() -> None:
    async with Bench(lambda _: Later(done=2), consume_batch_size=4) as bench:
        bench.put(0, 1, 2, 3)
        await bench.until(4)
    assert bench.backs.sent == [(2, 0), (3, 0)]


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
async def test_a_listener_may_empty_its_list(in_order: bool, is_traced: bool) -> None:
    def listener(messages: list[ReceivedMessage]) -> None:
        while messages:
            if messages.pop(0).queue_offset == 3 and not failures:
                failures.append(3)
                raise ValueError("no")

    async def send(_: Message) -> None:
        pass

    failures: list[int] = []
    called = traced(listener, "g", Tracer("T", send, now_ms), 60) if is_traced else listener
    async with Bench(called, in_order=in_order, concurrency=1, consume_batch_size=4, suspend_queue_s=0) as bench:
        bench.put(*range(8))
        await bench.until(8)
    assert failures == [3]


async def test_what_cannot_be_sent_back_is_consumed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_core.client.consumer.consume_message._RETRY_S", 0.05)
    calls: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> Later | None:
        calls.append(messages[0].reconsume_times)
        return Later() if len(calls) < 3 else None

    async with Bench(listener) as bench:
        bench.backs.fails = True
        bench.put(0)
        await bench.until(1)
    assert calls == [0, 1, 2]


async def test_what_takes_too_long_is_sent_back_and_its_queue_goes_on() -> None:
    async def listener(messages: list[ReceivedMessage]) -> None:
        if messages[0].queue_offset == 0:
            await asyncio.Event().wait()

    async with Bench(listener, consume_timeout_s=0.1, close_timeout_s=0.0) as bench:
        bench.put(0, 1)
        await bench.until(2)
    assert bench.backs.sent == [(0, 3)]


async def test_results_of_a_dropped_queue_do_not_count() -> None:
    gate = asyncio.Event()

    async def listener(_: list[ReceivedMessage]) -> Later:
        await gate.wait()
        return Later()

    async with Bench(listener) as bench:
        bench.put(0)
        await asyncio.sleep(0.01)
        bench.queue.is_dropped = True
        gate.set()
        await asyncio.sleep(0.05)
    assert bench.offsets.get(QUEUE) is None
    assert bench.backs.sent == []


async def test_no_more_calls_run_at_a_time_than_are_allowed() -> None:
    running = most = 0

    async def listener(_: list[ReceivedMessage]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    async with Bench(listener, concurrency=3) as bench:
        bench.put(*range(30))
        await bench.until(30)
    assert most == 3


async def test_closing_waits_for_running_calls_and_counts_them() -> None:
    async def listener(_: list[ReceivedMessage]) -> None:
        await asyncio.sleep(0.1)

    for in_order in (False, True):
        async with Bench(listener, in_order=in_order, concurrency=1) as bench:
            bench.put(0, 1, 2)
            await asyncio.sleep(0.02)
        assert bench.offsets.get(QUEUE) == 1


async def test_in_order_a_failure_comes_again_before_what_follows() -> None:
    seen: list[tuple[int, int]] = []

    def listener(messages: list[ReceivedMessage]) -> Later | None:
        (message,) = messages
        seen.append((message.queue_offset, message.reconsume_times))
        return Later(suspend_s=0) if message.queue_offset == 1 and message.reconsume_times < 2 else None

    async with Bench(listener, in_order=True) as bench:
        bench.put(0, 1, 2)
        await bench.until(3)
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


async def test_in_order_what_has_failed_too_often_is_given_up() -> None:
    async with Bench(lambda _: Later(suspend_s=0), in_order=True, max_reconsume_times=1, consume_batch_size=2) as bench:
        bench.put(0, 1, 2)
        await bench.until(3)
    assert bench.backs.anew == [0, 1, 2]


async def test_in_order_nothing_is_consumed_without_the_lock() -> None:
    async with Bench(lambda _: None, in_order=True) as bench:
        bench.locked = False
        bench.put(0)
        await asyncio.sleep(0.05)
        assert bench.offsets.get(QUEUE) is None
        bench.locked = True
        await bench.until(1)


@pytest.mark.parametrize(
    ("offsets", "size", "options", "in_order"),
    [
        (range(11), 10, {"max_cached_messages": 10}, False),
        (range(2), 60, {"max_cached_bytes": 100}, False),
        ([0, 51], 1, {"max_span": 50}, False),
        (range(11), 10, {"max_cached_messages": 10}, True),
    ],
)
async def test_nothing_more_is_pulled_above_the_limits(
    offsets: range, size: int, options: dict[str, int], in_order: bool
) -> None:
    queue = ProcessQueue(PushOptions(**options), in_order=in_order)  # type: ignore[arg-type]
    messages = [received(offset, size=size) for offset in offsets]
    queue.put(messages[:-1])
    assert queue.has_room
    queue.put(messages[-1:])
    assert not queue.has_room
    waiting = asyncio.ensure_future(queue.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.remove_consumed(messages[:1])
    await asyncio.wait_for(waiting, 60)


def test_in_order_the_span_does_not_count() -> None:
    queue = ProcessQueue(PushOptions(max_span=50), in_order=True)
    queue.put([received(0), received(1000)])
    assert (queue.span, queue.bounds, queue.has_room) == (1000, (0, 1000), True)


@pytest.mark.parametrize(
    "options", [{"pull_batch_size": 0}, {"max_span": 0}, {"concurrency": 0}, {"consume_batch_size": 0},
                {"suspend_timeout_s": 30.0}, {"pull_interval_s": -0.1}, {"pull_interval_s": 66}]
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        PushOptions(**options)


@pytest.mark.parametrize("in_order", [False, True])
async def test_an_error_that_nobody_expects_stops_no_worker(
    in_order: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consume_message, "_RETRY_S", 0.01)
    calls: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> Later | None:
        calls.append(messages[0].queue_offset)
        return Later() if len(calls) == 1 else None

    async with Bench(listener, in_order=in_order, concurrency=1, max_reconsume_times=0) as bench:

        async def fail(*_: object) -> None:
            raise ZeroDivisionError

        bench.backs.send = bench.backs.send_copy = fail  # type: ignore[method-assign]
        bench.put(0, 1)
        await bench.until(2)
    assert sorted(calls) == [0, 0, 1]
    assert "ZeroDivisionError" in caplog.text


async def test_a_copy_goes_to_no_topic_without_a_queue_that_can_be_written_to() -> None:
    class Masterless:
        async def route(self, _: str) -> Route:
            return Route((), (QUEUE,), {"a": {1: "127.0.0.1:1"}})

    send_back = SendBack(Masterless(), "g", 16, now_ms)  # type: ignore[arg-type]
    with pytest.raises(NoRouteError, match="%RETRY%g: no queue of this topic can be written to"):
        await send_back.send_copy(received(0))


async def test_in_order_a_reset_beside_a_send_to_the_dead_letters_counts() -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def send_copy(_: ReceivedMessage) -> None:
        entered.set()
        await gate.wait()

    async with Bench(lambda _: Later(), in_order=True, max_reconsume_times=0) as bench:
        bench.backs.send_copy = send_copy  # type: ignore[method-assign]
        bench.put(100)
        await entered.wait()
        bench.queue.is_dropped = True  # as QueuePullLoop.restart_at
        bench.offsets.update(QUEUE, 5, only_up=False)
        gate.set()
        await bench.consuming.stop_queue(bench.queue)
        assert bench.offsets.get(QUEUE) == 5


async def test_locks_that_cannot_be_decoded_are_asked_for_again() -> None:
    class Garbled:
        client_id = "me"

        def address(self, _: str) -> str:
            return "127.0.0.1:1"

        async def request(self, *_: object) -> RemotingCommand:
            return RemotingCommand(0, body=b"<html>")

    locks = ConsumerQueueLocks(Garbled(), "g")  # type: ignore[arg-type]
    assert await locks.lock([QUEUE]) == set()
    await locks.unlock([QUEUE])
