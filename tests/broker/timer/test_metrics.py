"""How many messages wait, by topic: after kills, too."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.broker.timer.metrics import TimerCounts, TimerMetrics
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.store.config import StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.timer import BLANK, TIMER_UNIT_BYTES
from tests.broker.conftest import Asker, Clock, eventually
from tests.broker.timer.test_crash import picture
from tests.broker.timer.test_delivery import DAY_MS, SECOND_MS, pulled, taken_in
from tests.broker.timer.test_recall import recall, sent


@pytest.fixture
def config() -> BrokerConfig:
    """Files of seven units, and checkpoints in between."""
    return BrokerConfig(
        listen_port=0,
        timer_log_file_bytes=7 * TIMER_UNIT_BYTES + BLANK.size,
        timer_flush_interval_ms=20,
        recall_message_enable=True,
    )


async def counts(asker: Asker) -> dict[str, int]:
    """What the broker says, of topics of which some wait."""
    answer = await asker.ask(RequestCode.GET_TIMER_METRICS)
    found = decode_body(answer.body, TimerCounts).timing_count
    return {topic: one.count for topic, one in found.items() if one.count}


async def become(asker: Asker, expected: dict[str, int]) -> None:
    """Wait until the counts are these."""

    async def are() -> bool:
        return await counts(asker) == expected

    await eventually(are, 60)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_kill_leaves_the_right_counts(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path, is_lost: bool
) -> None:
    """Whatever the file of counts has: it is written when it is, and not with the others."""
    for number in range(20):
        await sent(asker, "T" if number % 4 else "U", f"U{number}", 600 if number % 2 else 10)
    await recall(asker, await sent(asker, "T", "R"))
    await taken_in(asker, 22)
    clock.ahead_ms += 60 * SECOND_MS
    await pulled(asker, "U", 5)
    await pulled(asker, "T", 5)
    root = tmp_path / "left"
    await asyncio.to_thread(picture, Path(store_config.root), root)
    file = root / "config" / "timermetrics"
    file.unlink(missing_ok=True)
    if not is_lost:
        file.write_text('{"dataVersion":{},"timingCount":{"T":{"count":99},"U":{"count":7},"V":{"count":3}}}')
    left = replace(store_config, root=str(root), commitlog_path=str(root / "commitlog"))
    later = Clock()
    later.ahead_ms = clock.ahead_ms
    async with Broker(config, left, later) as broker, RemotingClient({}) as client:
        there = Asker(broker, client, {})
        await become(there, {"T": 10})  # what was delivered, and is not noted so, is gone through once more
        later.ahead_ms += 700 * SECOND_MS
        await pulled(there, "T", 15)
        await become(there, {})


async def test_a_message_that_is_recalled_on_the_way_counts_no_more(asker: Asker, clock: Clock) -> None:
    await recall(asker, await sent(asker, "T", "U1", 3 * 86_400 - 5))
    await sent(asker, "T", "U2", 3 * 86_400 - 5)
    await taken_in(asker, 3)
    assert await counts(asker) == {"T": 1}
    clock.ahead_ms += 2 * DAY_MS + 60 * SECOND_MS
    await taken_in(asker, 6)
    assert await counts(asker) == {"T": 1}
    clock.ahead_ms += DAY_MS
    assert [one.body for one in await pulled(asker, "T")] == [b"U2"]
    assert await counts(asker) == {}


def test_topics_of_the_same_hash_keep_their_counts(tmp_path: Path) -> None:
    assert java_string_hash("Aa") == java_string_hash("BB")
    metrics = TimerMetrics(TableFiles(str(tmp_path), Disk(), Threads()), lambda: 1)
    metrics.add("Aa", 5)
    metrics.revise(["BB", "C"], {java_string_hash("Aa"): 9, java_string_hash("C"): 2})
    assert {topic: one.count for topic, one in metrics.body().timing_count.items()} == {"Aa": 5, "C": 2}
