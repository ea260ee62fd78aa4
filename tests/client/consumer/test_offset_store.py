"""The file with offsets of a broadcasting consumer, and the commits of one in a cluster."""

import asyncio
from pathlib import Path

import pytest

from rmq_core.client import MessageQueue
from rmq_core.client.consumer.offset_store import LocalOffsets, RemoteOffsets
from rmq_core.client.pull.request import QueueOffsets
from rmq_core.remoting.errors import RequestTimeoutError
from rmq_formats.errors import StoreError

ONE, TWO = (MessageQueue(topic="TopicTest", broker_name="broker-a", queue_id=number) for number in (3, 0))
# As LocalFileOffsetStore of the original writes it.
JAVAS = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"TopicTest"
\t\t}:7,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"TopicTest"
\t\t}:12
\t}
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "client" / "group" / "offsets.json"


async def test_offsets_come_back(path: Path) -> None:
    offsets = LocalOffsets(path)
    assert await offsets.read(ONE) is None
    offsets.update(ONE, 5)
    offsets.update(TWO, 6)
    await offsets.persist([ONE])
    again = LocalOffsets(path)
    assert (await again.read(ONE), await again.read(TWO)) == (5, None)
    assert again.get(ONE) == 5


async def test_a_file_of_javas_is_read_and_its_other_queues_stay(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(JAVAS)
    offsets = LocalOffsets(path)
    assert (await offsets.read(ONE), await offsets.read(TWO)) == (7, 12)
    offsets.update(ONE, 8)
    await offsets.persist([ONE])
    assert (await LocalOffsets(path).read(ONE), await LocalOffsets(path).read(TWO)) == (8, 12)
    assert path.with_name("offsets.json.bak").read_text() == JAVAS
    assert path.read_text() == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:8,'
        '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:12}}'
    )


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}', b"\xff"])
async def test_the_state_before_counts_where_the_file_is_damaged(path: Path, damaged: bytes) -> None:
    offsets = LocalOffsets(path)
    for offset in (5, 6):
        offsets.update(ONE, offset)
        await offsets.persist([ONE])
    path.write_bytes(damaged)
    assert await LocalOffsets(path).read(ONE) == 5


async def test_it_is_an_error_if_both_are_damaged(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(StoreError, match="cannot be read as offsets"):
        await LocalOffsets(path).read(ONE)


def test_only_higher_offsets_count_unless_told_otherwise(path: Path) -> None:
    offsets = LocalOffsets(path)
    offsets.update(ONE, 5)
    offsets.update(ONE, 3)
    assert offsets.get(ONE) == 5
    offsets.update(ONE, 3, only_up=False)
    assert offsets.get(ONE) == 3
    offsets.evict(ONE)
    assert offsets.get(ONE) is None


class OneAtATime(QueueOffsets):
    """Brokers that take one commit at a time, as Java's: of two first ones of a group and topic it keeps one."""

    def __init__(self) -> None:
        self.taken: list[MessageQueue] = []
        self._is_busy = False

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:  # noqa: ARG002
        assert not self._is_busy
        self._is_busy = True
        await asyncio.sleep(0)
        self._is_busy = False
        self.taken.append(queue)


async def test_a_consumer_commits_one_offset_after_the_other() -> None:
    brokers = OneAtATime()
    offsets = RemoteOffsets("group", brokers)
    for queue in (ONE, TWO):
        offsets.update(queue, 1)
    await asyncio.gather(offsets.persist([ONE]), offsets.persist([TWO]))
    assert brokers.taken == [ONE, TWO]


class OneHangs(QueueOffsets):
    """Brokers of which the first does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hangs = asyncio.Event()

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:  # noqa: ARG002
        self.asked.append(f"{queue.broker_name}{queue.queue_id}")
        if queue.broker_name == "a":
            await self.hangs.wait()
            raise RequestTimeoutError("a:10911", "no answer within 3 s")


async def test_a_broker_that_hangs_delays_no_commits_at_others_and_is_asked_once() -> None:
    brokers = OneHangs()
    offsets = RemoteOffsets("group", brokers)
    queues = [MessageQueue(topic="T", broker_name=name, queue_id=number) for name in "ab" for number in range(3)]
    for queue in queues:
        offsets.update(queue, 1)
    persisting = asyncio.ensure_future(offsets.persist(queues))
    async with asyncio.timeout(60):
        while len(brokers.asked) < 4:
            await asyncio.sleep(0)
        brokers.hangs.set()
        await persisting
    assert sorted(brokers.asked) == ["a0", "b0", "b1", "b2"]
