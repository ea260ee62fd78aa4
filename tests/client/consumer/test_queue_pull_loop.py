"""The pull loop of a queue: what it pulls when, where it goes on, and what it waits for."""

import asyncio

import pytest

from rmq_core.client import BrokerError, MessageQueue, ReceivedMessage
from rmq_core.client.consumer.offset_store import RemoteOffsets
from rmq_core.client.consumer.queue_pull_loop import QueuePullLoop
from rmq_core.client.pull.request import Pulled, PullStatus, subscription
from rmq_core.remoting.codes import ResponseCode
from tests.client.conftest import QUEUE, received
from tests.client.consumer.bench import Bench


async def test_a_pull_that_brings_messages_is_followed_by_the_pull_interval() -> None:
    pulls: list[float] = []

    class Bringing:
        async def pull(self, _: MessageQueue, offset: int, *__: object, **___: object) -> Pulled:
            pulls.append(asyncio.get_running_loop().time())
            if len(pulls) == 1:  # what brings nothing is followed at once
                return Pulled(PullStatus.NO_MATCHED_MESSAGE, 1, 0, 9, [])
            return Pulled(PullStatus.FOUND, offset + 1, 0, 9, [received(offset)])

    may_pull = asyncio.Event()
    may_pull.set()
    async with Bench(lambda _: None, pull_interval_s=0.2) as bench:
        work = QueuePullLoop(
            QUEUE, subscription("T"), Bringing(), bench.offsets, bench.consuming, bench.options, may_pull
        )  # type: ignore[arg-type]
        work.start(0)
        await bench.until(4)
        await work.stop()
    assert pulls[2] - pulls[1] >= 0.19
    assert pulls[3] - pulls[2] >= 0.19


class Endless:
    """A queue without an end; pulls bring ten messages.

    Attributes:
        next_offset: of the next pull.
        answers: what the next pulls are answered with instead: a result, or an error.
    """

    def __init__(self, *answers: Pulled | BrokerError) -> None:
        self.next_offset = 0
        self.answers = list(answers)
        self.begun: list[int] = []

    async def pull(self, _: MessageQueue, offset: int, *__: object, **___: object) -> Pulled:
        await asyncio.sleep(0)
        self.begun.append(offset)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, BrokerError):
                raise answer
            return answer
        self.next_offset = offset + 10
        return Pulled(PullStatus.FOUND, offset + 10, 0, 1 << 40, list(map(received, range(offset, offset + 10))))


def endless_work(bench: Bench, puller: Endless) -> QueuePullLoop:
    may_pull = asyncio.Event()
    may_pull.set()
    wanted = subscription("T")
    return QueuePullLoop(QUEUE, wanted, puller, bench.offsets, bench.consuming, bench.options, may_pull)  # type: ignore[arg-type]


async def test_the_window_of_parallel_calls_slides_when_its_first_message_is_consumed() -> None:
    gates = {0: asyncio.Event(), 100: asyncio.Event()}

    async def listener(messages: list[ReceivedMessage]) -> None:
        if messages[0].queue_offset in gates:
            await gates[messages[0].queue_offset].wait()

    async with Bench(listener, max_span=50, concurrency=4) as bench:
        puller = Endless()
        work = endless_work(bench, puller)
        work.start(0)
        for stuck in (0, 100):
            async with asyncio.timeout(60):
                while len(work.messages) != 1 or puller.next_offset < stuck + 60:  # all of the window but its first
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert (puller.next_offset, bench.offsets.get(QUEUE)) == (stuck + 60, stuck)
            if stuck == 0:
                gates[0].set()
        gates[100].set()
        async with asyncio.timeout(60):
            while puller.next_offset < 300:
                await asyncio.sleep(0.005)
        await work.stop()


async def test_a_broker_that_has_too_much_to_do_is_asked_again_soon() -> None:
    async with Bench(lambda _: None) as bench:
        puller = Endless(BrokerError("127.0.0.1:1", ResponseCode.FLOW_CONTROL, "wait"))
        work = endless_work(bench, puller)
        work.start(0)
        async with asyncio.timeout(2.9):  # other errors have it wait for 3 s
            while puller.next_offset < 10:
                await asyncio.sleep(0.005)
        await work.stop()
    assert puller.begun[:2] == [0, 0]


@pytest.mark.parametrize("in_order", [False, True])
async def test_an_offset_that_is_out_of_range_is_corrected_and_the_correction_committed(in_order: bool) -> None:
    committed: list[int] = []

    class Brokers:
        async def commit(self, _: MessageQueue, __: str, offset: int) -> None:
            committed.append(offset)

    seen: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        seen.extend(message.queue_offset for message in messages)

    async with Bench(listener, Brokers(), in_order=in_order, pull_interval_s=60) as bench:
        puller = Endless(Pulled(PullStatus.OFFSET_ILLEGAL, 50, 50, 99, []))
        work = endless_work(bench, puller)
        work.start(7)
        await bench.until(60)
        await work.stop()
    assert (puller.begun, committed) == ([7, 50], [50])
    assert sorted(seen) == list(range(50, 60))


class Resting:
    """Neither pulls nor commits."""

    async def pull(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def commit(self, *_: object) -> None:
        """Commit nowhere."""


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_in_order_a_reset_waits_for_the_running_call_whose_result_does_not_count(is_revoked: bool) -> None:
    gate, calls, may_pull = asyncio.Event(), 0, asyncio.Event()
    may_pull.set()

    async def listener(_: list[ReceivedMessage]) -> None:
        nonlocal calls
        calls += 1
        await gate.wait()

    async with Bench(listener, in_order=True, close_timeout_s=0.01) as bench:
        offsets = RemoteOffsets("g", Resting())  # type: ignore[arg-type]
        work = QueuePullLoop(QUEUE, subscription("T"), Resting(), offsets, bench.consuming, bench.options, may_pull)  # type: ignore[arg-type]
        work.start(0)
        first = work.messages
        first.put([received(0), received(1)])
        await asyncio.sleep(0.01)
        resets = [asyncio.create_task(work.restart_at(offset)) for offset in (7, 8)]
        work.is_revoked = is_revoked
        await asyncio.sleep(0.05)
        assert (calls, work.messages is first) == (1, True)
        gate.set()
        await asyncio.gather(*resets)
        assert (calls, work.messages is first, offsets.get(QUEUE)) == (1, is_revoked, 8)
        await work.stop()
