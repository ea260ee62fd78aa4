"""Data source ``rmq_commitlog``: records of a store's CommitLog as rows."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.plan import ReadPlan, Task

# Kernels are imported where they are first needed: Spark makes a process of its own for each step of planning.

_log = logging.getLogger("rmq_formats.spark")


class TaskPartition(InputPartition):
    """Input partition: one task of a plan."""

    def __init__(self, task: "Task") -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        return f"TaskPartition({self.task!r})"


class CommitLogReader(DataSourceReader):
    """Batch reader: plans once, in the driver, and reads one task a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns = schemas.check_asked(schemas.COMMITLOG, schema, options.columns)
        self._options = replace(options, read=replace(options.read, columns=columns))

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, which freeze the log's end, so that all actions on one ``load()`` see the same rows."""
        plan = plan_of(self._options)
        _log.info("%s: %s", self._options.path, plan)
        return [TaskPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one task as Arrow batches."""
        if not isinstance(partition, TaskPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.read.task import read_task  # noqa: PLC0415

        yield from read_task(self._options.path, partition.task, self._options.read)


def plan_of(options: SourceOptions) -> "ReadPlan":
    """Plan a read with these options.

    Raises:
        StoreError: the store cannot be read as asked.
        OptionError: the access path does not fit the other options.
    """
    from rmq_formats.read.plan import plan_read  # noqa: PLC0415
    from rmq_formats.storage.segments import open_storage  # noqa: PLC0415

    storage, root = open_storage(options.path)
    return plan_read(
        storage,
        root,
        options.query,
        access_path=options.access_path,
        split_bytes=options.split_bytes,
        min_tasks=options.min_partitions,
    )
