"""Data source ``rmq_consumequeue``: the units of a store's ConsumeQueues as rows."""

from collections.abc import Iterator, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions, batch_only, consumequeue_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.derived import UnitRange


class ConsumeQueueSource(DataSource):
    """Data source and sink of ConsumeQueue units: ``spark.read.format("rmq_consumequeue").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @cached_property
    def _options(self) -> SourceOptions:
        """Options of the read; a write has options of its own."""
        return consumequeue_options(self._given)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rmq_consumequeue"

    def schema(self) -> StructType:
        """Return the schema: all columns, or those of the option ``columns``."""
        return schemas.project(schemas.CONSUMEQUEUE, self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the batch reader."""
        return ConsumeQueueReader(batch_only(self._options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the batch writer of units."""
        from rmq_formats.spark.derived.write import consumequeue_writer  # noqa: PLC0415

        return consumequeue_writer(self._given, schema, overwrite)


class UnitPartition(InputPartition):
    """Input partition: some ranges of units."""

    def __init__(self, ranges: "tuple[UnitRange, ...]") -> None:
        super().__init__(None)
        self.ranges = ranges


class ConsumeQueueReader(DataSourceReader):
    """Batch reader: plans once, in the driver, and reads some ranges of units a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schemas.check_asked(schemas.CONSUMEQUEUE, schema, options.columns)

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges of units; their ends are frozen here."""
        from rmq_formats.read.derived import plan_units  # noqa: PLC0415 # kernels, see ``commitlog.batch``
        from rmq_formats.storage.segments import open_storage  # noqa: PLC0415

        options = self._options
        storage, root = open_storage(options.path)
        tasks = plan_units(storage, root, options.query, options.split_bytes, options.min_partitions)
        return [UnitPartition(ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one partition as Arrow batches."""
        if not isinstance(partition, UnitPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.read.derived import read_unit_ranges  # noqa: PLC0415

        yield from read_unit_ranges(self._options.path, partition.ranges, self._columns, self._options.read.mode)
