"""Broker administration: settings, statistics, runtime info, cleaning, timer messages.

Request codes 25, 26, 28, 60, 61, 306, 315, 316, 329, 907, 908. Source: ``AdminBrokerProcessor``, ``StoreStatsService``.
"""

import logging
import os
import time
from dataclasses import replace
from typing import Final

from rmq_core.broker.config import store_properties
from rmq_core.broker.ignored_keys import FIXED_VALUES
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.broker.timer.schedule import Schedule
from rmq_core.broker.timer.service import Timers
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import DataVersion
from rmq_core.remoting.bodies.routes import KVTable
from rmq_core.remoting.codes import CURRENT_VERSION, CURRENT_VERSION_NAME, RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import ViewStats
from rmq_core.remoting.settings import as_properties, changed_settings
from rmq_formats.codecs.java_properties import format_properties, parse_properties
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import DecodeError, OptionError

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")  # Java's thread pools, which do not exist here
_POOL_CAPACITY: Final = "0"
_NO_TRANSIENT_BUFFERS: Final = (1 << 31) - 1  # Java's value without a buffer pool
_BY_DAY: Final = (stats.TOPIC_PUT_NUMS, stats.GROUP_GET_NUMS)
_SIZE_UNITS: Final = "KMGTPE"
_DAY_MS: Final = 86_400_000
log = logging.getLogger("rmq.broker.admin")


def runtime_info(state: BrokerState, schedule: Schedule, timers: Timers | None, started_ms: int) -> dict[str, str]:
    """Return the runtime info by name; ``timers`` is None if timer messages are switched off."""
    store, counters, now_ms = state.store, state.stats, state.clock_ms()
    times, put_mornings, get_mornings = counters.times, *(counters.mornings[name] for name in _BY_DAY)
    found_rates, miss_rates = counters.total_rates(stats.GET_FOUND_TIMES), counters.total_rates(stats.GET_MISS_TIMES)
    put_total, get_total = counters.total(stats.TOPIC_PUT_NUMS), counters.total(stats.GROUP_GET_NUMS)
    put_bytes = counters.total(stats.TOPIC_PUT_SIZE)
    info = {
        "bootTimestamp": str(started_ms),
        "runtime": _duration(now_ms - started_ms),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": CURRENT_VERSION_NAME,
        "putTps": _rates(counters.total_rates(stats.TOPIC_PUT_NUMS)),
        "getFoundTps": _rates(found_rates),
        "getMissTps": _rates(miss_rates),
        "getTotalTps": _rates(tuple(map(sum, zip(found_rates, miss_rates, strict=True)))),
        "getTransferredTps": _rates(counters.total_rates(stats.GROUP_GET_NUMS)),
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
        **_timer_info(state, timers),
        "timerEnqueueTps": str(counters.total_rate(stats.TIMER_ENQUEUE_NUMS)),
        "timerDequeueTps": str(counters.total_rate(stats.TIMER_DEQUEUE_NUMS)),
    }
    for pool in _POOLS:
        info[f"{pool}ThreadPoolQueueSize"] = "0"
        info[f"{pool}ThreadPoolQueueCapacity"] = _POOL_CAPACITY
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level in range(1, len(schedule.delays_ms) + 1):
        offset, end = schedule.offsets.get(level, 0), store.max_offset(SCHEDULE_TOPIC, level - 1)
        if offset or end:
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return info | _disk(store.config.root, store.config.commitlog_path)


def _timer_info(state: BrokerState, timers: Timers | None) -> dict[str, str]:
    if timers is None:
        return dict.fromkeys(("timerReadBehind", "timerOffsetBehind", "timerCongestNum"), "0")
    files = timers.files
    return {
        "timerReadBehind": str(max(state.clock_ms() - files.read_time_ms, 0) // 1000),
        "timerOffsetBehind": str(state.store.max_offset(TIMER_TOPIC, 0) - files.queue_offset),
        "timerCongestNum": str(files.wheel.count_from(files.read_time_ms)),
    }


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
    return " ".join(map(str, rates))


def _readable(size_bytes: int) -> str:
    """Format a size as Java's ``MixAll#humanReadableByteCount``: 512 B, 7.3 KiB, 252.0 GiB."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} B"
    exponent = min((size_bytes.bit_length() - 1) // 10, len(_SIZE_UNITS))
    return f"{size_bytes / (1 << 10 * exponent):.1f} {_SIZE_UNITS[exponent - 1]}iB"


def _duration(spent_ms: int) -> str:
    days, rest_ms = divmod(spent_ms, _DAY_MS)
    clock = time.gmtime(rest_ms // 1000)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"


class BrokerAdmin:
    """Handlers of requests that administer the broker."""

    def __init__(self, state: BrokerState, schedule: Schedule, timers: Timers | None) -> None:
        self._state = state
        self._schedule = schedule
        self._timers = timers
        self._started_ms = state.clock_ms()
        self._version = DataVersion(timestamp=self._started_ms)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.get_runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view_stats,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.GET_BROKER_HA_STATUS: self.get_ha_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_master_flush_offset,
            RequestCode.GET_TIMER_CHECK_POINT: self.get_timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.get_timer_metrics,
        }

    def update_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Change mutable settings until the next start, or none if one is immutable (UPDATE_BROKER_CONFIG, 25)."""
        state = self._state
        try:
            values = changed_settings(state.config, parse_properties(str(request.body, "utf-8")), FIXED_VALUES)
        except (UnicodeDecodeError, DecodeError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from error
        except OptionError as error:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"Can not update config in black list. {error}") from error
        state.config = replace(state.config, **values)  # type: ignore[arg-type] # converted to the fields' types
        self._version = self._version.next(state.clock_ms())
        if "broker_permission" in values:
            state.topics.touch()
        log.info(
            "%(client)s changed the settings %(settings)s",
            {"client": connection.remote_address, "settings": ", ".join(sorted(values))},
        )
        return request.response()

    def get_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        values = as_properties(self._state.config) | store_properties(self._state.store.config)
        ext_fields = {"version": encode_body(self._version).decode()}
        return request.response(ext_fields=ext_fields, body=format_properties(values).encode())

    @staticmethod
    def reset_master_flush_offset(request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Report success (RESET_MASTER_FLUSH_OFFSET, 908): a master has no such offset, and slaves refuse."""
        return request.response()

    def get_runtime_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        table = runtime_info(self._state, self._schedule, self._timers, self._started_ms)
        return request.response(body=encode_body(KVTable(table=table)))

    def view_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, ViewStats)
        state = self._state
        snapshot = state.stats.body(fields.stats_name, fields.stats_key)
        if snapshot is None and fields.stats_key == state.config.broker_cluster_name:
            snapshot = state.stats.broker_body(fields.stats_name, state.topics.is_system)
        if snapshot is None:
            remark = f"The stats <{fields.stats_name}> <{fields.stats_key}> not exist"
            return request.response(int(ResponseCode.SYSTEM_ERROR), remark)
        return request.response(body=encode_body(snapshot))

    def delete_expired(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete expired files now, at any hour (DELETE_EXPIRED_COMMITLOG, 329)."""
        report = self._state.store.clean(self._state.clock_ms(), manually=True)
        log.info(
            "%(client)s had expired files deleted: %(report)s", {"client": connection.remote_address, "report": report}
        )
        return request.response()

    def clean_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete the queues of unknown topics (CLEAN_UNUSED_TOPIC, 316; CLEAN_EXPIRED_CONSUMEQUEUE, 306)."""
        state = self._state
        unused = [
            name
            for name in state.store.topics().keys() - state.topics.pending_names
            if state.topics.get(name) is None and not state.topics.is_system(name)
        ]
        if unused:
            state.store.delete_topics(unused)
            log.info(
                "%(client)s had the queues of %(topics)s deleted",
                {"client": connection.remote_address, "topics": ", ".join(unused)},
            )
        return request.response()

    def get_ha_status(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(self._state.replication.status()))

    def get_timer_checkpoint(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        if self._timers is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return request.response(body=self._timers.files.checkpoint(self._state.clock_ms()).encode())

    def get_timer_metrics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        if self._timers is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return request.response(body=encode_body(self._timers.metrics.body()))
