"""A backlog: what a group has not consumed is told, waits in many files of the log, and comes whole and in order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.client import Admin, Message, Producer, PushConsumer, PushOptions, StartPosition
from rmq_core.remoting.loop import run
from tests.client.scenarios import Seen
from tests.support.processes.broker_processes import Standalone, configured

SETTINGS = "brokerName=ours\nmappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\n"
BATCHES, BATCH = 50, 100


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Standalone]:
    with configured(tmp_path, SETTINGS) as running:
        yield running


def test_a_group_that_comes_late_gets_its_whole_backlog_in_order(running: Standalone, tmp_path: Path) -> None:
    async def main() -> None:
        options = PushOptions(start=StartPosition.FIRST, in_order=True, consume_batch_size=32)
        async with Admin(running.namesrv) as admin, Producer(running.namesrv, "senders") as producer:
            await admin.create_topic("Backlog", queues=2)

            async def lag() -> int:
                stats = await admin.consume_stats("late", "Backlog")
                return sum(end - consumed for consumed, end in stats.values())

            async def consume(count: int) -> Seen:
                seen = Seen()
                consumer = PushConsumer(running.namesrv, "late", seen, options)
                consumer.subscribe("Backlog")
                async with consumer:
                    await seen.until(count, 60)
                return seen

            for queue in await producer.queues("Backlog"):
                await producer.send(Message("Backlog", b"before"), queue=queue)
            await consume(2)
            assert await lag() == 0
            for batch in range(BATCHES):
                bodies = [b"%06d" % number * 170 for number in range(batch * BATCH, (batch + 1) * BATCH)]
                await producer.send_batch([Message("Backlog", body) for body in bodies])
            assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 5
            assert await lag() == BATCHES * BATCH
            seen = await consume(BATCHES * BATCH)
            assert await lag() == 0
        numbers: dict[int, list[int]] = {0: [], 1: []}
        for message in seen.messages:
            numbers[message.queue_id].append(int(message.body[:6]))
        assert sorted(numbers[0] + numbers[1]) == list(range(BATCHES * BATCH))
        assert all(numbers[queue_id] == sorted(numbers[queue_id]) for queue_id in numbers)

    run(main())
