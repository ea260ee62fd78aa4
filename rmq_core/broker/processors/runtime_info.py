"""Runtime info of a broker (request code 28): figures as text, by the names that mqadmin reads.

Source: ``AdminBrokerProcessor#prepareRuntimeInfo``, ``StoreStatsService#getRuntimeInfo``.
"""

import os
import time
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.broker.timer.schedule import Schedule
from rmq_core.remoting.codes import CURRENT_VERSION, CURRENT_VERSION_NAME

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")  # Java's thread pools, which do not exist here
_POOL_CAPACITY: Final = "0"
_NO_TRANSIENT_BUFFERS: Final = (1 << 31) - 1  # Java's value without a buffer pool
_BY_DAY: Final = (stats.TOPIC_PUT_NUMS, stats.GROUP_GET_NUMS)
_UNITS: Final = "KMGTPE"
_DAY_MS: Final = 86_400_000


def runtime_info(state: BrokerState, schedule: Schedule, started_ms: int) -> dict[str, str]:
    """Return the runtime info by name."""
    store, counted, now_ms = state.store, state.stats, state.clock_ms()
    times, put_mornings, get_mornings = counted.times, *(counted.mornings[name] for name in _BY_DAY)
    found_rates, miss_rates = counted.total_rates(stats.GET_FOUND_TIMES), counted.total_rates(stats.GET_MISS_TIMES)
    put_total, get_total = counted.total(stats.TOPIC_PUT_NUMS), counted.total(stats.GROUP_GET_NUMS)
    put_bytes = counted.total(stats.TOPIC_PUT_SIZE)
    info = {
        "bootTimestamp": str(started_ms),
        "runtime": _duration(now_ms - started_ms),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": CURRENT_VERSION_NAME,
        "putTps": _rates(counted.total_rates(stats.TOPIC_PUT_NUMS)),
        "getFoundTps": _rates(found_rates),
        "getMissTps": _rates(miss_rates),
        "getTotalTps": _rates(tuple(map(sum, zip(found_rates, miss_rates, strict=True)))),
        "getTransferredTps": _rates(counted.total_rates(stats.GROUP_GET_NUMS)),
        "putMessageEntireTimeMax": str(times.put_max_ms),
        "putMessageFailedTimes": str(times.failed_puts),
        "putMessageDistributeTime": times.format_put_ranges(),
        "putLatency99": f"{times.put_percentile_ms(0.99):.2f}",
        "putLatency999": f"{times.put_percentile_ms(0.999):.2f}",
        "getMessageEntireTimeMax": str(times.get_max_ms),
        "dispatchMaxBuffer": "0",
        "startAcceptSendRequestTimeStamp": "0",
        "remainTransientStoreBufferNumbs": str(_NO_TRANSIENT_BUFFERS),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": _POOL_CAPACITY,
        "putMessageTimesTotal": str(put_total),
        "putMessageSizeTotal": str(put_bytes),
        "putMessageAverageSize": str(put_bytes / max(put_total, 1)),
        "msgPutTotalYesterdayMorning": str(put_mornings[0]),
        "msgPutTotalTodayMorning": str(put_mornings[1]),
        "msgPutTotalTodayNow": str(put_total),
        "msgGetTotalYesterdayMorning": str(get_mornings[0]),
        "msgGetTotalTodayMorning": str(get_mornings[1]),
        "msgGetTotalTodayNow": str(get_total),
        "dispatchBehindBytes": str(store.max_physical_offset - store.dispatched_offset),
        "remainHowManyDataToFlush": _readable(store.max_physical_offset - store.flushed_offset),
        "pageCacheLockTimeMills": str(state.page_cache.busy_ms),
        "earliestMessageTimeStamp": str(store.earliest_store_timestamp_ms() or -1),
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": str(counted.total_rate(stats.TIMER_ENQUEUE_NUMS)),
        "timerDequeueTps": str(counted.total_rate(stats.TIMER_DEQUEUE_NUMS)),
    }
    for pool in _POOLS:
        info[f"{pool}ThreadPoolQueueSize"] = "0"
        info[f"{pool}ThreadPoolQueueCapacity"] = _POOL_CAPACITY
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level in range(1, schedule.level_count + 1):
        offset, end = schedule.offsets.get(level, 0), store.max_offset(SCHEDULE_TOPIC, level - 1)
        if offset or end:
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return info | _disk(store.config.root, store.config.commitlog_path)


def _disk(root: str, commitlog_path: str) -> dict[str, str]:
    disk = os.statvfs(root)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    ratio = str(round(1 - free / total, 4)) if total else "-1.0"
    return {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{commitlog_path}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_readable(total)}, Free : {_readable(free)}.",
    }


def _rates(rates: tuple[float, ...]) -> str:
    """Format the rates of the last ten seconds, minute and ten minutes."""
    return " ".join(map(str, rates))


def _readable(size_bytes: int) -> str:
    """Format a size as Java's ``MixAll#humanReadableByteCount``: 512 B, 7.3 KiB, 252.0 GiB."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} B"
    exponent = min((size_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{size_bytes / (1 << 10 * exponent):.1f} {_UNITS[exponent - 1]}iB"


def _duration(spent_ms: int) -> str:
    days, rest_ms = divmod(spent_ms, _DAY_MS)
    clock = time.gmtime(rest_ms // 1000)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"
