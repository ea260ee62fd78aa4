"""Lag of consumer groups: gauges of the broker, with the original's names and labels.

Only groups with members have gauges, for each subscribed topic. With a filter, only messages that may match count
(``estimateAccumulation``).

Source: ``ConsumerLagCalculator``, ``BrokerMetricsManager#initLagAndDlqMetrics``; names and labels as a broker 5.3.3
with ``metricsExporterType=PROM``.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rmq_core.broker.metrics.prometheus import Family
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import EVERYTHING, Filter, filter_of, is_tag_type
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.queue import estimate_count

_LABELS: Final = ("cluster", "consumer_group", "is_retry", "is_system", "node_id", "node_type", "topic")
_SYSTEM_GROUP_PREFIX: Final = names.SYSTEM_GROUP_PREFIX.lower()


@dataclass(slots=True)
class Lag:
    """Lag of a group in all queues of a topic, in messages of its filter.

    Attributes:
        total: from the group's offset to the queues' ends.
        in_flight: pulled, and not consumed.
        ready: not yet pulled.
        unconsumed_ms: store time of the oldest message at the group's offset, ms since 1970; 0 for none.
        unpulled_ms: store time of the oldest message at the offset of the next pull.
    """

    total: int = 0
    in_flight: int = 0
    ready: int = 0
    unconsumed_ms: int = 0
    unpulled_ms: int = 0


async def lag_families(state: BrokerState) -> list[Family]:
    """Return the gauges; requests run between two queues, as a filter may read 20,000 units of a queue."""
    now_ms = state.clock_ms()
    labelled_lags = [(labels, lag) async for labels, lag in _lags(state)]

    def family(name: str, about: str, values: list[int]) -> Family:
        samples = [(labels, value) for (labels, _), value in zip(labelled_lags, values, strict=True)]
        return Family(name, about, _LABELS, samples)

    def ages(times_ms: list[int]) -> list[int]:
        return [max(0, now_ms - time_ms) if time_ms else 0 for time_ms in times_ms]

    lags = [lag for _, lag in labelled_lags]
    return [
        family(
            "rocketmq_consumer_lag_messages", "Messages that a group has not consumed.", [lag.total for lag in lags]
        ),
        family(
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the oldest of them.",
            ages([lag.unconsumed_ms for lag in lags]),
        ),
        family(
            "rocketmq_consumer_inflight_messages",
            "Messages that a group has pulled only.",
            [lag.in_flight for lag in lags],
        ),
        family(
            "rocketmq_consumer_queueing_latency_milliseconds",
            "Age of the oldest not pulled.",
            ages([lag.unpulled_ms for lag in lags]),
        ),
        family(
            "rocketmq_consumer_ready_messages", "Messages that a group has not pulled.", [lag.ready for lag in lags]
        ),
    ]


async def _lags(state: BrokerState) -> AsyncIterator[tuple[tuple[str, ...], Lag]]:
    config = state.config
    for group in list(state.groups.table):
        members = state.consumers.groups.get(group)
        for topic in list(members.subscriptions) if members is not None else ():
            settings = state.topics.table.get(topic)
            if topic.startswith(names.RETRY_PREFIX) or settings is None:
                continue
            if not settings.perm & config.broker_permission & (names.PERM_READ | names.PERM_WRITE):
                continue
            is_system = state.topics.is_system(topic) or group.lower().startswith(_SYSTEM_GROUP_PREFIX)
            labels = (
                config.broker_cluster_name, group, "false", str(is_system).lower(), config.broker_name, "broker", topic,
            )  # fmt: skip
            message_filter, lag = _filter(state, group, topic), Lag()
            for queue_id in range(settings.write_queue_nums):
                _add_queue(state, lag, (topic, group, queue_id), message_filter)
                await asyncio.sleep(0)
            yield labels, lag


def _filter(state: BrokerState, group: str, topic: str) -> Filter:
    """Return the filter of a group's subscription, or the filter for all messages without estimates."""
    members = state.consumers.groups.get(group)
    subscription = None if members is None else members.subscriptions.get(topic)
    if subscription is None or not state.config.estimate_accumulation:
        return EVERYTHING
    if is_tag_type(subscription.expression_type):
        return filter_of(subscription)
    registered = state.filters.get(topic, group)
    return EVERYTHING if registered is None else registered.filter


def _add_queue(state: BrokerState, lag: Lag, queue_key: tuple[str, str, int], message_filter: Filter) -> None:
    topic, group, queue_id = queue_key
    store, queue = state.store, state.store.queue(topic, queue_id)

    def count(begin: int, end: int) -> int:
        counts_all = message_filter.tags_codes is None and message_filter.may_match_unit is None
        if counts_all or isinstance(queue, BatchQueue):  # a unit of several messages
            return max(0, end - begin)
        if queue is None:
            return 0
        return estimate_count(queue, begin, end, message_filter.tags_codes, message_filter.may_match_unit)

    def oldest_ms(before_ms: int, offset: int) -> int:
        stored_ms = store.store_timestamp_ms(topic, queue_id, offset) or 0
        return min(before_ms or stored_ms, stored_ms or before_ms)

    end, committed = store.max_offset(topic, queue_id), state.offsets.get(topic, group, queue_id)
    pulled = state.offsets.pulled(topic, group, queue_id)
    consumed = end if committed == NONE else committed
    lag.total += count(consumed, end)
    lag.unconsumed_ms = oldest_ms(lag.unconsumed_ms, consumed)
    lag.ready += count(end if pulled == NONE else pulled, end)
    next_pull = max(0, pulled)
    lag.in_flight += count(next_pull if committed == NONE else committed, next_pull)
    lag.unpulled_ms = oldest_ms(lag.unpulled_ms, next_pull)
