"""SQL92 filters of consumer groups (``consumerFilter.json``), tested by the bit maps of a Java broker.

A filter is retained for a day after its group has disconnected, as bit maps of messages refer to the filter.

Source: ``ConsumerFilterManager``, ``ConsumerFilterData``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import names
from rmq_core.broker.tables.subscription_filter import SQL92, Filter, is_tag_type, sql_filter
from rmq_core.broker.tables.table_file import TableFile, TableFiles, log
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.configs import BloomBits, FilterTable, GroupFilter, TopicFilters
from rmq_core.store.read import Matches
from rmq_formats.codecs.consumequeue_ext import BloomFilter
from rmq_formats.codecs.layout import PROPERTY_RETRY_TOPIC
from rmq_formats.codecs.properties import raw_property
from rmq_formats.codecs.record_frame import record_properties
from rmq_formats.sql92 import SqlError

_FILE: Final = "consumerFilter.json"
_MAX_FILTERS: Final = 10_000  # each of a group and a topic, which clients name freely
_DEAD_BEFORE_START_MS: Final = 30_000  # ConsumerFilterManager#decode: dead time of loaded filters, before the start


@dataclass(frozen=True, slots=True)
class RegisteredFilter:
    """SQL92 subscription of a group to a topic, as in consumerFilter.json, with the compiled filter."""

    data: GroupFilter
    filter: Filter

    @property
    def is_dead(self) -> bool:
        """True if the group has no members, or does not subscribe to the topic."""
        return self.data.dead_time >= self.data.born_time


class ConsumerFilters:
    """SQL92 subscriptions by topic and group, in ``consumerFilter.json``."""

    def __init__(self, files: TableFiles, config: BrokerConfig, clock_ms: Callable[[], int]) -> None:
        """Load the table; discard a table with other Bloom filter settings."""
        self.bloom = BloomFilter(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        self.topics: dict[str, dict[str, RegisteredFilter]] = {}
        self._file = TableFile(files, _FILE, self._body)
        self._clean_after_ms = config.filter_data_clean_time_span_ms
        self._clock_ms = clock_ms
        self._load(files.load(_FILE, FilterTable))
        self._count = sum(map(len, self.topics.values()))

    def _load(self, table: FilterTable) -> None:
        dead_ms = self._clock_ms() - _DEAD_BEFORE_START_MS
        filters_by_topic: dict[str, dict[str, RegisteredFilter]] = {}
        for topic, topic_filters in table.filter_data_by_topic.items():
            for group, data in topic_filters.group_filter_data.items():
                if not self._has_valid_bits(data.bloom_filter_data):
                    return
                dated = data if data.dead_time else replace_time(data, max(dead_ms, data.born_time))
                registered = self._compile_filter(dated)
                if registered is not None:
                    filters_by_topic.setdefault(topic, {})[group] = registered
        self.topics = filters_by_topic

    def _has_valid_bits(self, bits: BloomBits) -> bool:
        bloom = self.bloom
        if bits.bit_num != bloom.bit_count or len(bits.bit_pos) != bloom.hash_count:
            return False
        return all(0 <= position < bloom.bit_count for position in bits.bit_pos)

    def _compile_filter(self, data: GroupFilter) -> RegisteredFilter | None:
        """Compile a filter; return None if its expression does not compile."""
        try:
            filtering = sql_filter(data.expression, data.expression_type)
        except SqlError as error:
            log.warning(
                "the filter of group %(group)s for topic %(topic)s does not compile: %(error)s",
                {"group": data.consumer_group, "topic": data.topic, "error": error},
            )
            return None
        bits, born_ms = self.bloom.bit_map(data.bloom_filter_data.bit_pos), data.born_time

        def may_match(store_timestamp_ms: int, bit_map: bytes) -> bool:
            if store_timestamp_ms <= born_ms or len(bit_map) != len(bits):
                return True  # the message was dispatched before this filter was registered
            return BloomFilter.may_contain(bit_map, bits)

        return RegisteredFilter(data, replace(filtering, may_match_unit=may_match))

    def get(self, topic: str, group: str) -> RegisteredFilter | None:
        return self.topics.get(topic, {}).get(group)

    def matches_before_retry(self, retry_topic: str) -> Matches:
        """Return a retry topic's filter: those of the original topics. Source: ``ExpressionForRetryMessageFilter``."""
        group = retry_topic.removeprefix(names.RETRY_PREFIX).partition("+")[0]

        def matches(record: memoryview) -> bool:
            properties = record_properties(record)
            if properties is None:
                return False
            topic = raw_property(properties, PROPERTY_RETRY_TOPIC.encode()).decode("utf-8", "replace")
            registered = self.get(topic, group)
            return registered is None or registered.filter.matches is None or registered.filter.matches(record)

        return matches

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Register the expressions of a heartbeat; mark filters of other topics as dead."""
        subscribed = {subscription_data.topic: subscription_data for subscription_data in subscriptions}
        if self._count >= _MAX_FILTERS:  # removing dead filters makes room
            self._remove_dead(self._clock_ms())
            if self._count >= _MAX_FILTERS:
                problem = "SQL92 filters: the limit of %(most)d is reached, no more filters are registered"
                log.warning(problem, {"most": _MAX_FILTERS})
        for subscription_data in subscribed.values():
            if not is_tag_type(subscription_data.expression_type) and subscription_data.sub_string:
                self._put(group, subscription_data)
        for topic, _ in self._filters_of_group(group):
            if topic not in subscribed:
                self._set_dead_time(topic, group, self._clock_ms())

    def unregister(self, group: str) -> None:
        """Mark the filters of a group without members as dead."""
        for topic, registered in self._filters_of_group(group):
            if not registered.is_dead:
                self._set_dead_time(topic, group, self._clock_ms())

    def _filters_of_group(self, group: str) -> list[tuple[str, RegisteredFilter]]:
        return [(topic, groups[group]) for topic, groups in self.topics.items() if group in groups]

    def _put(self, group: str, subscription_data: SubscriptionData) -> None:
        """Register an expression. Source: ``FilterDataMapByTopic#register``."""
        registered = self.get(subscription_data.topic, group)
        if registered is None and self._count >= _MAX_FILTERS:  # pulls with this filter get FILTER_DATA_NOT_EXIST
            return
        if registered is not None and subscription_data.sub_version <= registered.data.client_version:
            if subscription_data.sub_version == registered.data.client_version and registered.is_dead:
                self._set_dead_time(subscription_data.topic, group, 0)
            return
        expression = subscription_data.sub_string, subscription_data.expression_type or SQL92
        if registered is not None and (registered.data.expression, registered.data.expression_type) == expression:
            data = replace_time(registered.data, 0, subscription_data.sub_version)
        else:
            positions = self.bloom.positions(group, subscription_data.topic)
            data = GroupFilter(
                bloom_filter_data=BloomBits(bit_num=self.bloom.bit_count, bit_pos=positions),
                born_time=self._clock_ms(),
                client_version=subscription_data.sub_version,
                consumer_group=group,
                expression=expression[0],
                expression_type=expression[1],
                topic=subscription_data.topic,
            )
        self._store_filter(data)

    def _store_filter(self, data: GroupFilter) -> None:
        registered = self._compile_filter(data)
        self._file.changes += 1
        before = self.get(data.topic, data.consumer_group)
        if registered is not None:
            self.topics.setdefault(data.topic, {})[data.consumer_group] = registered
        elif before is not None:  # pulls of the group get FILTER_DATA_NOT_EXIST
            del self.topics[data.topic][data.consumer_group]
        self._count += (registered is not None) - (before is not None)

    def _set_dead_time(self, topic: str, group: str, time_ms: int) -> None:
        registered = self.topics[topic][group]
        if time_ms == 0 or not registered.is_dead:
            self._store_filter(replace_time(registered.data, time_ms))

    def _body(self) -> FilterTable:
        table = {}
        for topic, groups in self.topics.items():
            filters = {group: registered.data for group, registered in groups.items()}
            table[topic] = TopicFilters(group_filter_data=filters, topic=topic)
        return FilterTable(filter_data_by_topic=table)

    def save(self) -> None:
        """Remove filters that have been dead for too long, and write the file if the table has changed."""
        self._remove_dead(self._clock_ms() - self._clean_after_ms)
        self._file.save()

    def _remove_dead(self, until_ms: int) -> None:
        """Remove filters that have been dead since ``until_ms`` or longer."""
        for topic, groups in list(self.topics.items()):
            for group, registered in list(groups.items()):
                if registered.is_dead and registered.data.dead_time <= until_ms:
                    del groups[group]
                    self._count -= 1
                    self._file.changes += 1
            if not groups:
                del self.topics[topic]


def replace_time(data: GroupFilter, dead_time_ms: int, client_version: int | None = None) -> GroupFilter:
    """Copy a filter with another dead time (0: alive) and optionally another client version."""
    version = data.client_version if client_version is None else client_version
    is_dead = dead_time_ms >= data.born_time
    return structs.replace(data, client_version=version, dead=is_dead, dead_time=dead_time_ms)
