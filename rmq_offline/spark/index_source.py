"""Data source ``rmq_index``: the entries of a store's IndexFiles as rows."""

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions, index_options
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_formats.storage.store_files import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.derived import EntryRange
    from rmq_formats.read.stores import BrokerStore


class IndexSource(DataSource):
    """Data source and sink of IndexFile entries: ``spark.read.format("rmq_index").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rmq_index"

    def schema(self) -> StructType:
        full = schemas.of_read(schemas.INDEX, index_options(get_source_options(self._given)))
        return with_options(full, self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        return IndexReader(index_options(table_options(schema, self._given)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmq_offline.spark.writers import derived_writer  # noqa: PLC0415

        return derived_writer("index", self._given, schema, overwrite)


class EntryPartition(InputPartition):
    """Input partition: a range of a store's entries."""

    def __init__(self, entries: "EntryRange", store: "BrokerStore") -> None:
        super().__init__(None)
        self.entries = entries
        self.store = store


class IndexReader(DataSourceReader):
    """Batch reader: plans once, in the driver, and reads one range of entries a partition.

    The plan freezes the ends of the files.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schemas.check_read(schemas.INDEX, schema, options)

    def partitions(self) -> list[InputPartition]:
        from rmq_formats.read.derived import plan_entries  # noqa: PLC0415 # kernels, see ``commitlog.batch``
        from rmq_formats.spark.options.brokers import interleave_tasks, plan_store_reads, stores_of  # noqa: PLC0415

        options = self._options
        stores = stores_of(options)
        min_tasks = -(-options.min_partitions // len(stores))

        def plan(store: "BrokerStore") -> "list[EntryRange]":
            return plan_entries(open_store(store.path), options.split_bytes, min_tasks)

        plans = plan_store_reads(options, stores, plan)
        return interleave_tasks(
            [EntryPartition(entries, store_plan.store) for entries in store_plan.plan or ()] for store_plan in plans
        )

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, EntryPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.read.derived import read_entry_range  # noqa: PLC0415
        from rmq_formats.spark.options.brokers import store_columns, with_broker  # noqa: PLC0415

        store, columns = partition.store, store_columns(self._columns, "entry")
        yield from with_broker(read_entry_range(store.path, partition.entries, columns), store, self._columns)
