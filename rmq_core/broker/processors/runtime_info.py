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

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")  # Java's thread pools: nothing waits for them here
_POOL_CAPACITY: Final = "0"
_DAY_MS: Final = 86_400_000


def runtime_info(state: BrokerState, schedule: Schedule, started_ms: int) -> dict[str, str]:
    """The table of runtime info, by name.

    Args:
        state: of the broker.
        schedule: its delayed messages.
        started_ms: when the broker started, ms since 1970.
    """
    store, counted, now_ms = state.store, state.stats, state.clock_ms()
    put_rate, get_rate = counted.total_rate(stats.TOPIC_PUT_NUMS), counted.total_rate(stats.GROUP_GET_NUMS)
    put_total, get_total = counted.total(stats.TOPIC_PUT_NUMS), counted.total(stats.GROUP_GET_NUMS)
    put_bytes = counted.total(stats.TOPIC_PUT_SIZE)
    found = {
        "bootTimestamp": str(started_ms),
        "runtime": _duration(now_ms - started_ms),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": CURRENT_VERSION_NAME,
        "putTps": _rates(put_rate),
        "getFoundTps": _rates(get_rate),
        "getMissTps": _rates(0.0),
        "getTotalTps": _rates(get_rate),
        "getTransferredTps": _rates(get_rate),
        "putMessageTimesTotal": str(put_total),
        "putMessageSizeTotal": str(put_bytes),
        "putMessageAverageSize": str(put_bytes / max(put_total, 1)),
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(put_total),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(get_total),
        "dispatchBehindBytes": str(store.max_physical_offset - store.dispatched_offset),
        "remainHowManyDataToFlush": f"{store.max_physical_offset - store.flushed_offset} B",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(store.earliest_store_timestamp_ms() or -1),
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }
    for pool in _POOLS:
        found[f"{pool}ThreadPoolQueueSize"] = "0"
        found[f"{pool}ThreadPoolQueueCapacity"] = _POOL_CAPACITY
        found[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, offset in sorted(schedule.offsets.items()):
        found[f"scheduleMessageOffset_{level}"] = f"{offset},{store.max_offset(SCHEDULE_TOPIC, level - 1)}"
    return found | _disk(store.config.root)


def _disk(root: str) -> dict[str, str]:
    disk = os.statvfs(root)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    ratio = str(round(1 - free / total, 4)) if total else "-1.0"
    return {
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {total / (1 << 30):.1f} GiB, Free : {free / (1 << 30):.1f} GiB.",
    }


def _rates(rate: float) -> str:
    """A rate in the place of those of the last 10 s, minute and ten minutes, as there is only one here."""
    return f"{rate} {rate} {rate}"


def _duration(spent_ms: int) -> str:
    days, rest_ms = divmod(spent_ms, _DAY_MS)
    clock = time.gmtime(rest_ms // 1000)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"
