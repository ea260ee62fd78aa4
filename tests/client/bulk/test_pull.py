"""Bulk reading: several pulls at a time, in the order of the queue, whatever the broker gives at once."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from rmq_core.client import BrokerError
from rmq_core.client.bulk.pull import BulkPulled, BulkReader
from rmq_core.client.pull.request import PullStatus
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand
from tests.client.conftest import QUEUE, FakeCluster


def queue_of(length: int, at_once: Callable[[int], int], first: int = 0) -> Callable[..., RemotingCommand]:
    """A broker's answers: a record is its offset and a space; ``at_once(offset)`` are given from an offset on."""

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = command.ext_fields
        offset, wanted = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        bounds = {"suggestWhichBrokerId": "0", "minOffset": str(first), "maxOffset": str(length)}
        if offset < first:
            return command.response(int(PullStatus.OFFSET_ILLEGAL.value), "", bounds | {"nextBeginOffset": str(first)})
        end = min(offset + min(wanted, at_once(offset)), length)
        if end <= offset:
            return command.response(PullStatus.NO_NEW_MESSAGE.value, "", bounds | {"nextBeginOffset": str(offset)})
        body = b"".join(b"%d " % number for number in range(offset, end))
        return command.response(0, "FOUND", bounds | {"nextBeginOffset": str(end)}, body)

    return answer


async def read(fakes: FakeCluster, begin: int, end: int) -> list[BulkPulled]:
    async with BulkReader(fakes.namesrv) as reader:
        return [pulled async for answers in reader.read(QUEUE, begin, end) for pulled in answers]


def offsets(pulled: list[BulkPulled]) -> list[int]:
    return [int(word) for one in pulled for word in bytes(one.records).split()]


@pytest.mark.parametrize(
    "at_once",
    [lambda _: 32, lambda _: 1, lambda _: 5000, lambda offset: 1 + offset % 7, lambda offset: 32 >> (offset // 200)],
)
async def test_each_message_comes_once_and_in_order(fakes: FakeCluster, at_once: Callable[[int], int]) -> None:
    fakes.brokers["a"].answer = queue_of(700, lambda offset: max(1, at_once(offset)))
    assert offsets(await read(fakes, 3, 690)) == list(range(3, 690))


async def test_many_messages_take_few_rounds(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = queue_of(32 * 64, lambda _: 32)
    assert offsets(await read(fakes, 0, 32 * 64)) == list(range(32 * 64))
    assert len(fakes.brokers["a"].requests) <= 64 + 2  # nothing to speak of is pulled twice


async def test_the_next_messages_are_on_their_way_while_the_caller_decodes(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = queue_of(32 * 64, lambda _: 32)
    async with BulkReader(fakes.namesrv) as reader:
        answers = reader.read(QUEUE, 0, 32 * 64)
        given = len(await anext(answers)) + len(await anext(answers))
        await asyncio.sleep(0.1)
        assert len(fakes.brokers["a"].requests) > given
        await answers.aclose()


async def test_a_read_that_is_given_up_logs_nothing(fakes: FakeCluster) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    fakes.brokers["a"].answer = queue_of(32 * 64, lambda _: 32)
    async with BulkReader(fakes.namesrv) as reader:
        answers = reader.read(QUEUE, 0, 32 * 64)
        await anext(answers)
        await anext(answers)
        await answers.aclose()
    del answers
    gc.collect()
    await asyncio.sleep(0)
    assert errors == []


async def test_after_large_messages_small_ones_are_pulled_together_again(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = queue_of(4000, lambda offset: 1 if offset < 100 else 32)
    assert offsets(await read(fakes, 0, 4000)) == list(range(4000))
    assert len(fakes.brokers["a"].requests) <= 100 + 3900 // 32 + 60


async def test_messages_that_are_gone_are_told(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = queue_of(100, lambda _: 32, first=40)
    pulled = await read(fakes, 10, 60)
    assert (pulled[0].status, pulled[0].next_offset) == (PullStatus.OFFSET_ILLEGAL, 40)
    assert offsets(pulled) == list(range(40, 60))


async def test_a_queue_that_has_become_shorter_is_an_error(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = queue_of(20, lambda _: 32)
    with pytest.raises(TransportError, match="ends at 20"):
        await read(fakes, 0, 30)


async def test_a_refusal_is_raised(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = lambda command, _: command.response(16, "not for you")
    with pytest.raises(BrokerError, match="not for you"):
        await asyncio.wait_for(read(fakes, 0, 30), 30)
