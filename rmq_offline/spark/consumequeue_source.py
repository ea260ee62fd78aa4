"""Data source ``rmq_consumequeue``: the units of a store's ConsumeQueues as rows."""

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions, consumequeue_options, refuse_stream_options
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_formats.storage.store_files import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.derived import UnitRange
    from rmq_formats.read.stores import BrokerStore


class ConsumeQueueSource(DataSource):
    """Data source and sink of ConsumeQueue units: ``spark.read.format("rmq_consumequeue").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rmq_consumequeue"

    def schema(self) -> StructType:
        full = schemas.of_read(schemas.CONSUMEQUEUE, consumequeue_options(get_source_options(self._given)))
        return with_options(full, self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = consumequeue_options(table_options(schema, self._given))
        return ConsumeQueueReader(refuse_stream_options(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmq_offline.spark.writers import derived_writer  # noqa: PLC0415

        return derived_writer("consumequeue", self._given, schema, overwrite)


class UnitPartition(InputPartition):
    """Input partition: some ranges of a store's units."""

    def __init__(self, ranges: "tuple[UnitRange, ...]", store: "BrokerStore") -> None:
        super().__init__(None)
        self.ranges = ranges
        self.store = store


class ConsumeQueueReader(DataSourceReader):
    """Batch reader: plans once, in the driver, and reads some ranges of units a partition.

    The plan freezes the ends of the files.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schemas.check_read(schemas.CONSUMEQUEUE, schema, options)

    def partitions(self) -> list[InputPartition]:
        from rmq_formats.read.derived import plan_units  # noqa: PLC0415 # kernels, see ``commitlog.batch``
        from rmq_formats.spark.options.brokers import (  # noqa: PLC0415
            check_bounded_queues,
            interleave_tasks,
            plan_store_reads,
            stores_of,
        )

        options = self._options
        stores = stores_of(options)
        check_bounded_queues(options, stores)
        min_tasks = -(-options.min_partitions // len(stores))

        def plan(store: "BrokerStore") -> "list[tuple[UnitRange, ...]]":
            files = open_store(store.path)
            return plan_units(files, options.read_of(store.broker).query, options.split_bytes, min_tasks)

        plans = plan_store_reads(options, stores, plan)
        return interleave_tasks(
            [UnitPartition(ranges, store_plan.store) for ranges in store_plan.plan or ()] for store_plan in plans
        )

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, UnitPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.read.derived import read_unit_ranges  # noqa: PLC0415
        from rmq_formats.spark.options.brokers import store_columns, with_broker  # noqa: PLC0415

        store, columns = partition.store, store_columns(self._columns, "queue_offset")
        units = read_unit_ranges(store.path, partition.ranges, columns, self._options.read.mode)
        yield from with_broker(units, store, self._columns)
