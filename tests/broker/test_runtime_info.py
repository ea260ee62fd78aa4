"""Runtime info (28) and the broker's statistics (315), with the keys and the meaning that the original's have."""

import re
from typing import Final

import pytest

from rmq_core.broker.processors.broker_admin import _readable
from rmq_core.broker.tables.stats import GROUP_GET_NUMS, TOPIC_PUT_NUMS, Stats, StoreTimes
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import KVTable
from rmq_core.remoting.bodies.stats import BrokerStats
from rmq_core.remoting.codes import RequestCode
from tests.broker.conftest import Asker, Clock

# Of a broker 5.3.3 that had three delayed messages; 5.5.1 has the same but for brokerVersion.
JAVA_KEYS: Final = """
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersion brokerVersionDesc
commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes
dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps
litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize putMessageDistributeTime
putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime scheduleMessageOffset_1 scheduleMessageOffset_2 scheduleMessageOffset_3
sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
""".split()  # noqa: SIM905 # as they were captured


async def runtime(asker: Asker) -> dict[str, str]:
    return decode_body((await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KVTable).table


async def broker_stats(asker: Asker, name: str) -> BrokerStats:
    fields: dict[str, object] = {"statsName": name, "statsKey": "DefaultCluster"}
    return decode_body((await asker.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)).body, BrokerStats)


async def test_the_keys_are_java_s(asker: Asker) -> None:
    for level in (1, 2, 3):
        await asker.send("T", properties={"DELAY": str(level), "UNIQ_KEY": "A"})
    info = await runtime(asker)
    path = asker.broker.store.config.commitlog_path
    assert set(info) == {*JAVA_KEYS, f"commitLogDiskRatio_{path}"}
    assert re.fullmatch(r"Total : [0-9.]+ [KMGTP]iB, Free : [0-9.]+ [KMGTP]iB\.", info["commitLogDirCapacity"])
    assert re.fullmatch(r"[0-9.]+ (?:B|[KMG]iB)", info["remainHowManyDataToFlush"])


async def test_rates_have_three_numbers_and_puts_thirteen_ranges(asker: Asker) -> None:
    info = await runtime(asker)
    for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(rate) for rate in info[name].split(" ")]) == 3, name
    ranges = info["putMessageDistributeTime"].split()
    assert len(ranges) == 13
    assert (ranges[0], ranges[-1]) == ("[<=0ms]:0", "[10s~]:0")


async def test_gets_with_and_without_messages_are_told_apart(asker: Asker, clock: Clock) -> None:
    await asker.send("T")
    await asker.pull("T")
    await asker.pull("T", 1)
    clock.ahead_ms += 2_000
    info = await runtime(asker)
    found, missed, total = (float(info[name].split(" ")[0]) for name in ("getFoundTps", "getMissTps", "getTotalTps"))
    assert found > 0
    assert missed > 0
    assert total == pytest.approx(found + missed, rel=0.2)


async def test_the_cluster_has_the_sums_of_its_topics(asker: Asker) -> None:
    assert (await broker_stats(asker, "BROKER_PUT_NUMS")).stats_day.sum == 0
    for topic in ("T", "T", "U", "TBW102"):
        await asker.send(topic)
    await asker.pull("T")
    assert (await broker_stats(asker, "BROKER_PUT_NUMS")).stats_minute.sum == 3
    assert (await broker_stats(asker, "BROKER_GET_NUMS")).stats_minute.sum == 2
    assert (await asker.ask(315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "Other"})).code == 1
    assert (await asker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "DefaultCluster"})).code == 1


def test_puts_are_counted_by_range_for_a_minute() -> None:
    now = [0.0]
    times = StoreTimes(lambda: int(now[0] * 1000), lambda: now[0])
    for took_ms in (0, 0.9, 1, 9, 10, 49, 99, 100, 500, 1000, 9999, 10_000, 60_000):
        times.end_put(now[0] - took_ms / 1000)
    assert "[<=0ms]:0 " in times.format_put_ranges()
    now[0] = 60.0
    times.end_minute()
    assert times.format_put_ranges() == (
        "[<=0ms]:2 [0~10ms]:2 [10~50ms]:2 [50~100ms]:1 [100~200ms]:1 [200~500ms]:0 [500ms~1s]:1 [1~2s]:1 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:2 "
    )
    assert times.put_max_ms == 60_000
    now[0] = 120.0
    times.end_minute()
    assert "[<=0ms]:0 " in times.format_put_ranges()
    assert times.put_percentile_ms(0.99) == 0


def test_a_percentile_lies_within_the_bucket_of_its_put() -> None:
    now = [0.0]
    times = StoreTimes(lambda: int(now[0] * 1000), lambda: now[0])
    for _ in range(98):
        times.end_put(now[0])
    for took_ms in (30, 700):
        times.end_put(now[0] - took_ms / 1000)
    now[0] = 60.0
    times.end_minute()
    assert times.put_percentile_ms(0.5) <= 1
    assert 28 <= times.put_percentile_ms(0.99) <= 30
    assert 600 <= times.put_percentile_ms(1.0) <= 700


def test_totals_of_midnight_are_kept_for_two_days() -> None:
    now_ms = [1_700_000_000_000]
    counted = Stats(lambda: now_ms[0])
    counted.count(TOPIC_PUT_NUMS, "T", 5)
    for _ in range(2):
        counted.sample()
        now_ms[0] += 86_400_000
        counted.count(TOPIC_PUT_NUMS, "T", 2)
    counted.sample()
    assert counted.mornings == {TOPIC_PUT_NUMS: (7, 9), GROUP_GET_NUMS: (0, 0)}


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (7524, "7.3 KiB"), (252 << 30, "252.0 GiB")],
)
def test_sizes_are_written_as_java_writes_them(size_bytes: int, expected: str) -> None:
    assert _readable(size_bytes) == expected
