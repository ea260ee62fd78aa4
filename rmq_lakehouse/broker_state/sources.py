"""Data sources of broker state beside messages: consumer offsets, topics, groups, pending timer messages.

``spark.read.format("rmq_offsets").load(STORE)``, or ``.option("namesrv", …).load()``.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.arrow.schema import CONSUMER_OFFSETS, GROUPS, TIMERS, TOPICS
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_lakehouse.broker_state.options import (
    GROUPS_OPTIONS,
    OFFSETS_OPTIONS,
    TIMERS_OPTIONS,
    TOPICS_OPTIONS,
    MetadataOptions,
    metadata_options,
)

if TYPE_CHECKING:
    from rmq_formats.read.stores import BrokerStore
    from rmq_lakehouse.broker_state.tables import Table
    from rmq_lakehouse.live.administration import Master


@dataclass
class StorePartition(InputPartition):
    """Input partition: a task of a store."""

    store: "BrokerStore"
    task: Any


@dataclass
class MasterPartition(InputPartition):
    """Input partition: a master of a cluster."""

    master: "Master"


class MetadataReader(DataSourceReader):
    """Batch reader: plans once, in the driver."""

    def __init__(self, table: "Table", full: StructType, options: MetadataOptions, requested: StructType) -> None:
        self._table = table
        self._options = options
        self._columns = schemas.check_requested_columns(full, requested, options.columns)
        if options.namesrv is not None:
            from rmq_lakehouse.live.client import gather_access  # noqa: PLC0415 # the client, for those who need it

            self._access = gather_access(options.access)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        if options.stores is None:
            from rmq_lakehouse.live.administration import ClusterTables  # noqa: PLC0415

            with ClusterTables(options.namesrv or "", self._access) as tables:
                return [MasterPartition(master) for master in tables.masters()]
        from rmq_formats.spark.options.brokers import interleave_tasks, plan_store_reads, stores_of  # noqa: PLC0415 # kernels

        stores = stores_of(options.stores)
        plans = plan_store_reads(options.stores, stores, lambda store: self._table.plan(store.path, options))
        return interleave_tasks(
            [StorePartition(store_plan.store, task) for task in store_plan.plan or ()] for store_plan in plans
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StorePartition | MasterPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.read.stores import BrokerStore  # noqa: PLC0415
        from rmq_formats.spark.options.brokers import store_columns, with_broker  # noqa: PLC0415

        if isinstance(partition, StorePartition):
            store = partition.store
            batch = self._table.read_task(store.path, partition.task, self._options)
        else:
            store = BrokerStore("", partition.master.cluster, partition.master.broker)
            batch = self._read_master(partition.master)
        columns = store_columns(self._columns, batch.schema.names[0])
        yield from with_broker([batch.select(list(columns))], store, self._columns)

    def _read_master(self, master: "Master") -> pa.RecordBatch:
        from rmq_lakehouse.live.administration import ClusterTables  # noqa: PLC0415

        read = self._table.read_master
        assert read is not None, "the options have a name server only where there is such a function"
        with ClusterTables(self._options.namesrv or "", self._access) as tables:
            return read(tables, master, self._options)


class _MetadataSource(DataSource):
    """Data source of a table; a subclass defines its name, its columns and its options."""

    source_name: str
    columns: pa.Schema
    known_options: tuple[str, ...]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return cls.source_name

    def _options(self, options: Mapping[str, str]) -> MetadataOptions:
        return metadata_options(self.name(), options, self.known_options)

    def schema(self) -> StructType:
        columns = self._options(get_source_options(self._given)).columns
        return with_options(schemas.project(schemas.of_arrow(self.columns), columns), self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rmq_lakehouse.broker_state.tables import TABLES  # noqa: PLC0415 # kernels

        options = self._options(table_options(schema, self._given))
        return MetadataReader(TABLES[self.name()], schemas.of_arrow(self.columns), options, schema)


class OffsetsSource(_MetadataSource):
    """Data source of consumer offsets and lag, a row a group and queue."""

    source_name = "rmq_offsets"
    columns = CONSUMER_OFFSETS
    known_options = OFFSETS_OPTIONS


class TopicsSource(_MetadataSource):
    """Data source of topics, a row a topic and broker."""

    source_name = "rmq_topics"
    columns = TOPICS
    known_options = TOPICS_OPTIONS


class GroupsSource(_MetadataSource):
    """Data source of consumer groups, a row a group and broker."""

    source_name = "rmq_groups"
    columns = GROUPS
    known_options = GROUPS_OPTIONS


class TimersSource(_MetadataSource):
    """Data source of timer messages that are not delivered yet, of stores on local disks."""

    source_name = "rmq_timers"
    columns = TIMERS
    known_options = TIMERS_OPTIONS
