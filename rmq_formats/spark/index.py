"""The data source ``rmq_index``: the entries of a store's IndexFiles as rows."""

from collections.abc import Iterator, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.spark import schemas
from rmq_formats.spark.options import SourceOptions, index_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.access.derived import EntryRange


class IndexSource(DataSource):
    """``spark.read.format("rmq_index").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @cached_property
    def _options(self) -> SourceOptions:
        """What a read was given; a write has options of its own."""
        return index_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rmq_index"

    def schema(self) -> StructType:
        """The columns, or those of the option ``columns``."""
        return schemas.project(schemas.INDEX, self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of a batch."""
        return IndexReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of keys."""
        from rmq_formats.spark.derived_write import index_writer  # noqa: PLC0415

        return index_writer(self._given, schema, overwrite)


class EntryPartition(InputPartition):
    """A range of entries."""

    def __init__(self, entries: "EntryRange") -> None:
        super().__init__(None)
        self.entries = entries


class IndexReader(DataSourceReader):
    """Plans once, on the driver's side, and reads one range of entries a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schemas.check_asked(schemas.INDEX, schema, options.columns)

    def partitions(self) -> list[InputPartition]:
        """Ranges of entries; their ends are frozen here."""
        from rmq_formats.access.derived import plan_entries  # noqa: PLC0415 # kernels, see ``commitlog``
        from rmq_formats.segment import open_storage  # noqa: PLC0415

        options = self._options
        storage, root = open_storage(options.path)
        return [EntryPartition(own) for own in plan_entries(storage, root, options.split_bytes, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Arrow batches of one partition."""
        if not isinstance(partition, EntryPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.access.derived import read_entry_range  # noqa: PLC0415

        yield from read_entry_range(self._options.path, partition.entries, self._columns)
