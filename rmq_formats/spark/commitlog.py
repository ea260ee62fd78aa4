"""The data source ``rmq_commitlog``: records of a store's CommitLog as rows."""

import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmq_formats.spark import schemas
from rmq_formats.spark.options import SourceOptions, batch_only, commitlog_options, stream_only

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.access.plan import Plan, Task

# Kernels are imported where they are first needed: Spark makes a process of its own for each step of planning.

_log = logging.getLogger("rmq_formats.spark")


class CommitLogSource(DataSource):
    """``spark.read.format("rmq_commitlog").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @cached_property
    def _options(self) -> SourceOptions:
        """What a read was given; a write has options of its own."""
        return commitlog_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rmq_commitlog"

    def schema(self) -> StructType:
        """The columns, or those of the option ``columns``."""
        return schemas.project(schemas.COMMITLOG, self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of a batch; one that takes filters only where the option ``pushdown`` asks for it."""
        options = batch_only(self._options)
        if options.pushdown:
            from rmq_formats.spark.pushdown import PushdownCommitLogReader  # noqa: PLC0415

            return PushdownCommitLogReader(options, schema)
        return CommitLogReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        """A reader that follows the log."""
        from rmq_formats.spark.commitlog_stream import CommitLogStreamReader  # noqa: PLC0415 # it imports this module

        return CommitLogStreamReader(stream_only(self._options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that begins, or continues, a store."""
        from rmq_formats.spark.commitlog_write import CommitLogWriter  # noqa: PLC0415

        return CommitLogWriter(self._given, schema, overwrite)


class TaskPartition(InputPartition):
    """One task of a plan."""

    def __init__(self, task: "Task") -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        return f"TaskPartition({self.task!r})"


class CommitLogReader(DataSourceReader):
    """Plans once, on the driver's side, and reads one task a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns = schemas.check_asked(schemas.COMMITLOG, schema, options.columns)
        self._options = replace(options, read=replace(options.read, columns=columns))

    def partitions(self) -> list[InputPartition]:
        """The tasks. They freeze the log's end, so that all actions on one ``load()`` see the same rows."""
        plan = plan_of(self._options)
        _log.info("%s: %s", self._options.path, plan)
        return [TaskPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Arrow batches of one task."""
        if not isinstance(partition, TaskPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.access.read import read_task  # noqa: PLC0415

        yield from read_task(self._options.path, partition.task, self._options.read)


def plan_of(options: SourceOptions) -> "Plan":
    """How a read with these options finds its records.

    Raises:
        StoreError: the store cannot be read as asked.
        OptionError: the access path does not fit the other options.
    """
    from rmq_formats.access.plan import plan_read  # noqa: PLC0415
    from rmq_formats.segment import open_storage  # noqa: PLC0415

    storage, root = open_storage(options.path)
    return plan_read(
        storage,
        root,
        options.query,
        access_path=options.access_path,
        split_bytes=options.split_bytes,
        min_tasks=options.min_partitions,
    )
