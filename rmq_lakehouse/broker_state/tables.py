"""The tables themselves, out of stores and out of running brokers, as Arrow batches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmq_formats import pending_timers
from rmq_formats.arrow.schema import GROUPS, TOPICS
from rmq_formats.codecs.subscription_groups_json import StoredGroupConfig
from rmq_formats.codecs.topics_json import StoredTopicConfig
from rmq_formats.read import lag
from rmq_formats.read.broker_config import stored_groups, stored_topics
from rmq_formats.storage.store_files import open_store
from rmq_lakehouse.broker_state.options import MetadataOptions

if TYPE_CHECKING:
    from rmq_lakehouse.live.administration import ClusterTables, Master


@dataclass(frozen=True, slots=True)
class Table:
    """Functions that read a table.

    Attributes:
        plan: makes the tasks of a store, by its path.
        read_task: reads a task, with all columns but the broker's.
        read_master: reads the same columns from a master of a cluster; None where only stores have the table.
    """

    plan: Callable[[str, MetadataOptions], list[Any]]
    read_task: Callable[[str, Any, MetadataOptions], pa.RecordBatch]
    read_master: "Callable[[ClusterTables, Master, MetadataOptions], pa.RecordBatch] | None" = None


def _plan_offsets(path: str, options: MetadataOptions) -> list[Any]:
    return list(lag.plan_lag(open_store(path), options.groups, options.query))


def _offsets_of_master(tables: "ClusterTables", master: "Master", options: MetadataOptions) -> pa.RecordBatch:
    progress = tables.progress(master, options.wants_group, options.query.wants_topic)
    return lag.lag_batch(sorted(progress, key=lambda pair: (*pair[0].queue, pair[0].group)))


def _plan_one_task(_path: str, _options: MetadataOptions) -> list[None]:
    """Plan a table that is a small file of the store: one task, without parameters."""
    return [None]


def _topics(configs: Mapping[str, Any], options: MetadataOptions) -> pa.RecordBatch:
    rows = (config for topic, config in configs.items() if options.query.wants_topic(topic))
    return _batch(rows, TOPICS, {"topic": "topic_name"})


def _groups(configs: Mapping[str, Any], options: MetadataOptions) -> pa.RecordBatch:
    rows = (config for group, config in configs.items() if options.wants_group(group))
    return _batch(rows, GROUPS, {"group": "group_name"})


def _batch(
    configs: "Iterable[StoredTopicConfig | StoredGroupConfig]", schema: pa.Schema, members: Mapping[str, str]
) -> pa.RecordBatch:
    """Make a batch of configs; ``members`` has the names of their members by column, where the two differ."""
    config_schema = pa.schema(list(schema)[2:])
    rows = list(configs)
    columns = {}
    for name in config_schema.names:
        values = [getattr(config, members.get(name, name)) for config in rows]
        columns[name] = [list(attributes.items()) for attributes in values] if name == "attributes" else values
    return pa.RecordBatch.from_pydict(columns, schema=config_schema)


def _timers(path: str) -> pa.RecordBatch:
    batches = pending_timers.pending_timers(path).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=pending_timers.PENDING)


TABLES: Final = {
    "rmq_offsets": Table(_plan_offsets, lambda path, task, _: lag.read_lag(path, task), _offsets_of_master),
    "rmq_topics": Table(
        _plan_one_task,
        lambda path, _, options: _topics(stored_topics(open_store(path)) or {}, options),
        lambda tables, master, options: _topics(tables.topics(master), options),
    ),
    "rmq_groups": Table(
        _plan_one_task,
        lambda path, _, options: _groups(stored_groups(open_store(path)), options),
        lambda tables, master, options: _groups(tables.groups(master), options),
    ),
    "rmq_timers": Table(_plan_one_task, lambda path, *_: _timers(path)),
}
"""By the name of the source."""
