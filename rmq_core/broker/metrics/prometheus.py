"""A broker's Prometheus metrics, computed at each scrape: those of rocketmq-exporter, and the lag of consumer groups.

Only groups with members have gauges of lag, for each subscribed topic. With a filter, only messages that may match
count (``estimateAccumulation``).

Source: ``RMQMetricsCollector``, ``MetricsCollectTask`` of apache/rocketmq-exporter; of lag ``ConsumerLagCalculator``,
``BrokerMetricsManager#initLagAndDlqMetrics``, with the names of a broker 5.3.3 with ``metricsExporterType=PROM``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import EVERYTHING, Filter, compile_subscription, is_tag_type
from rmq_core.remoting.codes import CURRENT_VERSION, CURRENT_VERSION_NAME
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.queue import estimate_count

_CLUSTERING: Final = "1"  # ordinal of MessageModel.CLUSTERING in Java's enum
_BROKER: Final = ("cluster", "brokerIP", "broker")
_RUNTIME: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
_TOPIC: Final = ("cluster", "broker", "topic")
_GROUP: Final = ("cluster", "broker", "group")
_TOPIC_GROUP: Final = ("cluster", "broker", "topic", "group")
_DIFF: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_COUNT: Final = ("caddr", "localaddr", "group")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_LAG_LABELS: Final = ("cluster", "consumer_group", "is_retry", "is_system", "node_id", "node_type", "topic")
_SYSTEM_GROUP_PREFIX: Final = names.SYSTEM_GROUP_PREFIX.lower()


@dataclass(frozen=True, slots=True)
class Family:
    """Prometheus metric with its samples: the values of the labels and of the metric."""

    name: str
    about: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]

    @property
    def text(self) -> str:
        lines = [f"# HELP {self.name} {self.about}\n# TYPE {self.name} gauge\n"]
        for values, number in self.samples:
            labels = ",".join(f'{n}="{v.translate(_ESCAPES)}"' for n, v in zip(self.labels, values, strict=True))
            lines.append(f"{self.name}{{{labels}}} {number}\n")
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class _GroupLag:
    """Lag of a group in a topic: number of messages, sum of the group's offsets, age of the oldest message in ms."""

    topic: str
    group: str
    lag_count: int
    offset: int
    age_ms: int


def metric_families(state: BrokerState, started_ms: int) -> Iterator[Family]:
    """Yield all metrics one by one, so that the event loop can run between two of them."""
    yield from _broker_families(state)
    yield from _runtime_families(state, started_ms)
    yield from _topic_families(state)
    yield from _consumer_families(state)
    yield from _client_families(state)


def _broker_families(state: BrokerState) -> Iterator[Family]:
    labels = state.config.broker_cluster_name, state.address, state.config.broker_name
    counters = state.stats
    put_rate, get_rate = counters.total_rate(stats.TOPIC_PUT_NUMS), counters.total_rate(stats.GROUP_GET_NUMS)
    yield Family("rocketmq_broker_tps", "Messages a second that were put.", _BROKER, [(labels, put_rate)])
    yield Family("rocketmq_broker_qps", "Messages a second that were got.", _BROKER, [(labels, get_rate)])


def _runtime_families(state: BrokerState, started_ms: int) -> Iterator[Family]:
    store, counters, config = state.store, state.stats, state.config
    labels = (
        config.broker_cluster_name, state.address, config.broker_name, CURRENT_VERSION_NAME, str(started_ms),
        str(CURRENT_VERSION),
    )  # fmt: skip
    put_total, put_bytes = counters.total(stats.TOPIC_PUT_NUMS), counters.total(stats.TOPIC_PUT_SIZE)
    values: dict[str, tuple[float, str]] = {
        "msg_put_total_today_now": (put_total, "Messages that were put since the start."),
        "msg_gettotal_today_now": (counters.total(stats.GROUP_GET_NUMS), "Messages that were got since the start."),
        "putmessage_times_total": (put_total, "Messages that were put since the start."),
        "put_message_size_total": (put_bytes, "Bytes that were put."),
        "put_message_average_size": (put_bytes / max(put_total, 1), "Average bytes a message."),
        "dispatch_behind_bytes": (store.max_physical_offset - store.dispatched_offset, "Bytes not dispatched."),
        "remain_howmanydata_toflush": (store.max_physical_offset - store.flushed_offset, "Bytes not flushed."),
        "commitlog_minoffset": (store.min_physical_offset, "The CommitLog's first physical offset."),
        "commitlog_maxoffset": (store.max_physical_offset, "The CommitLog's end, a physical offset."),
        "earliest_message_timestamp": (store.earliest_store_timestamp_ms() or -1, "The oldest store timestamp, ms."),
        "put_tps60": (counters.total_rate(stats.TOPIC_PUT_NUMS), "Messages a second that were put, last minute."),
        "getfound_tps60": (counters.total_rate(stats.GROUP_GET_NUMS), "Messages a second that were got, last minute."),
    }
    for name, (value, about) in values.items():
        yield Family(f"rocketmq_brokeruntime_{name}", about, _RUNTIME, [(labels, value)])


def _topic_families(state: BrokerState) -> Iterator[Family]:
    broker_labels = state.config.broker_cluster_name, state.config.broker_name
    ends: dict[str, list[tuple[tuple[str, ...], float]]] = {"": [], names.RETRY_PREFIX: [], names.DLQ_PREFIX: []}
    for topic, config in state.topics.table.items():
        prefix = next((start for start in (names.RETRY_PREFIX, names.DLQ_PREFIX) if topic.startswith(start)), "")
        queues = range(max(config.read_queue_nums, config.write_queue_nums))
        end = sum(state.store.max_offset(topic, queue_id) for queue_id in queues)
        name = topic.removeprefix(prefix) if prefix == names.DLQ_PREFIX else topic
        ends[prefix].append(((*broker_labels, name), end))
    yield Family("rocketmq_producer_offset", "Messages that a topic has ever had.", _TOPIC, ends[""])
    yield Family("rocketmq_topic_retry_offset", "Messages that a retry topic had.", _TOPIC, ends[names.RETRY_PREFIX])
    yield Family("rocketmq_topic_dlq_offset", "Messages that a DLQ topic had.", _GROUP, ends[names.DLQ_PREFIX])
    put_rates, byte_rates = _rates(state, stats.TOPIC_PUT_NUMS), _rates(state, stats.TOPIC_PUT_SIZE)
    yield Family("rocketmq_producer_tps", "Messages a second that were put into a topic.", _TOPIC, put_rates)
    yield Family("rocketmq_producer_message_size", "Bytes a second that were put into a topic.", _TOPIC, byte_rates)


def _rates(state: BrokerState, name: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the rates of a counter in the last minute, by key: a topic, or ``topic@group``."""
    broker_labels = state.config.broker_cluster_name, state.config.broker_name
    for key in state.stats.keys(name):
        yield (*broker_labels, *key.split("@", 1)), state.stats.rate(name, key)


def _send_back_counts(state: BrokerState) -> Iterator[tuple[tuple[str, ...], float]]:
    broker_labels = state.config.broker_cluster_name, state.config.broker_name
    for key in state.stats.keys(stats.SNDBCK_PUT_NUMS):
        counter = state.stats.body(stats.SNDBCK_PUT_NUMS, key)
        if counter is not None:
            yield (*broker_labels, *key.split("@", 1)), counter.stats_minute.sum


def _consumer_families(state: BrokerState) -> Iterator[Family]:
    broker_labels = state.config.broker_cluster_name, state.config.broker_name
    lags = list(_group_lags(state))
    for name, about, is_retry in (
        ("rocketmq_group_diff", "Messages that a group is behind.", False),
        ("rocketmq_group_retrydiff", "Messages that a group is behind in its retry topic.", True),
    ):
        samples = [
            ((lag.group, lag.topic, str(len(state.consumers.members(lag.group))), _CLUSTERING), lag.lag_count)
            for lag in lags
            if lag.topic.startswith(names.RETRY_PREFIX) == is_retry
        ]
        yield Family(name, about, _DIFF, samples)
    for name, about, field in (
        ("rocketmq_message_accumulation", "Messages that a group is behind.", "lag_count"),
        ("rocketmq_consumer_offset", "The sum of a group's offsets.", "offset"),
        ("rocketmq_group_get_latency_by_storetime", "Age in ms of a group's next message.", "age_ms"),
    ):
        values = [((*broker_labels, lag.topic, lag.group), getattr(lag, field)) for lag in lags]
        yield Family(name, about, _TOPIC_GROUP, values)
    for name, about, rates in (
        ("rocketmq_consumer_tps", "Messages a second that a group gets.", _rates(state, stats.GROUP_GET_NUMS)),
        ("rocketmq_consumer_message_size", "Bytes a second that a group gets.", _rates(state, stats.GROUP_GET_SIZE)),
        ("rocketmq_send_back_nums", "Messages that a group has sent back, last minute.", _send_back_counts(state)),
    ):
        yield Family(name, about, _TOPIC_GROUP, rates)


def _group_lags(state: BrokerState) -> Iterator[_GroupLag]:
    """Yield the lag of each group in each topic with offsets, without broadcasting groups."""
    for key in state.offsets.table:
        topic, _, group = key.partition("@")
        config, members = state.topics.get(topic), state.consumers.groups.get(group)
        if config is None or (members is not None and members.is_broadcasting):
            continue
        lag_count = total = age_ms = 0
        for queue_id in range(config.read_queue_nums):
            offset, end = max(0, state.offsets.get(topic, group, queue_id)), state.store.max_offset(topic, queue_id)
            lag_count, total = lag_count + end - offset, total + offset
            stored_ms = state.store.store_timestamp_ms(topic, queue_id, offset) if offset < end else None
            age_ms = max(age_ms, state.clock_ms() - stored_ms if stored_ms else 0)
        yield _GroupLag(topic, group, lag_count, total, age_ms)


def _client_families(state: BrokerState) -> Iterator[Family]:
    broker_labels = state.config.broker_cluster_name, state.config.broker_name
    consumers = []
    for name, group in state.consumers.groups.items():
        members = list(group.clients.values())
        addresses = ",".join(client.connection.remote_address for client in members)
        consumers.append(((addresses, ",".join(client.client_id for client in members), name), len(members)))
    yield Family("rocketmq_group_count", "Members of a consumer group.", _COUNT, consumers)
    producers = [((*broker_labels, name), len(members)) for name, members in state.producers.groups.items()]
    yield Family("rocketmq_producer_count", "Members of a producer group.", _GROUP, producers)


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
    labelled_lags = [(labels, lag) async for labels, lag in _labelled_group_lags(state)]
    families = []
    for name, field, about in (
        ("rocketmq_consumer_lag_messages", "total", "Messages that a group has not consumed."),
        ("rocketmq_consumer_lag_latency_milliseconds", "unconsumed_ms", "Age of the oldest of them."),
        ("rocketmq_consumer_inflight_messages", "in_flight", "Messages that a group has pulled only."),
        ("rocketmq_consumer_queueing_latency_milliseconds", "unpulled_ms", "Age of the oldest not pulled."),
        ("rocketmq_consumer_ready_messages", "ready", "Messages that a group has not pulled."),
    ):
        samples = []
        for labels, lag in labelled_lags:
            value = getattr(lag, field)
            if field.endswith("_ms") and value:
                value = max(0, now_ms - value)
            samples.append((labels, value))
        families.append(Family(name, about, _LAG_LABELS, samples))
    return families


async def _labelled_group_lags(state: BrokerState) -> AsyncIterator[tuple[tuple[str, ...], Lag]]:
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
            message_filter, lag = _subscription_filter(state, group, topic), Lag()
            for queue_id in range(settings.write_queue_nums):
                _add_queue(state, lag, (topic, group, queue_id), message_filter)
                await asyncio.sleep(0)
            yield labels, lag


def _subscription_filter(state: BrokerState, group: str, topic: str) -> Filter:
    """Return the filter of a group's subscription, or the filter for all messages without estimates."""
    subscription = state.consumers.subscription(group, topic)
    if subscription is None or not state.config.estimate_accumulation:
        return EVERYTHING
    if is_tag_type(subscription.expression_type):
        return compile_subscription(subscription)
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
    pulled = state.offsets.next_pull_offset(topic, group, queue_id)
    consumed = end if committed == NONE else committed
    lag.total += count(consumed, end)
    lag.unconsumed_ms = oldest_ms(lag.unconsumed_ms, consumed)
    lag.ready += count(end if pulled == NONE else pulled, end)
    next_pull = max(0, pulled)
    lag.in_flight += count(next_pull if committed == NONE else committed, next_pull)
    lag.unpulled_ms = oldest_ms(lag.unpulled_ms, next_pull)
