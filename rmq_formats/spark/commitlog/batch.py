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
from rmq_formats.storage.store_files import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.plan import ReadPlan, Task
    from rmq_formats.read.stores import BrokerStore
    from rmq_formats.spark.options.brokers import StorePlan

# Kernels are imported where they are first needed: Spark makes a process of its own for each step of planning.

_log = logging.getLogger("rmq_formats.spark")
_NOTABLE_BYTES = 64 << 20  # reading bodies of smaller logs costs less than a second


class TaskPartition(InputPartition):
    """Input partition: one task of a store's plan."""

    def __init__(self, task: "Task", store: "BrokerStore | None" = None) -> None:
        super().__init__(None)
        self.task = task
        self.store = store

    def __repr__(self) -> str:
        return f"TaskPartition({self.task!r}, {self.store!r})"


class MissingPartition(InputPartition):
    """Input partition: the row of a store that is not there."""

    def __init__(self, store: "BrokerStore", reason: str) -> None:
        super().__init__(None)
        self.store = store
        self.reason = reason


class CommitLogReader(DataSourceReader):
    """Batch reader: plans once, in the driver, and reads one task a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._columns = schemas.check_read(schemas.COMMITLOG, schema, options)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, which freeze the logs' ends, so that all actions on one ``load()`` see the same rows."""
        from rmq_formats.spark.options.brokers import interleave_tasks  # noqa: PLC0415

        plans = plans_of(self._options)
        tasks: list[list[InputPartition]] = []
        for store_plan in plans:
            _log.info("%s: %s", store_plan.store, store_plan.plan or store_plan.missing)
            if store_plan.plan is None:
                tasks.append([MissingPartition(store_plan.store, store_plan.missing or "")])
            else:
                tasks.append([TaskPartition(task, store_plan.store) for task in store_plan.plan.tasks])
        scanned_bytes = sum(store_plan.plan.scanned_bytes for store_plan in plans if store_plan.plan is not None)
        if self._options.columns is None and "body" in self._columns and scanned_bytes >= _NOTABLE_BYTES:
            _log.warning(
                "%s: bodies are read, of %d MiB of log. If the query needs none, give option columns without body, "
                "or the view message_headers; option columns with body ends this warning",
                self._options.path, scanned_bytes >> 20,
            )  # fmt: skip
        return interleave_tasks(tasks)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one task as Arrow batches."""
        if not isinstance(partition, TaskPartition | MissingPartition) or partition.store is None:
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.arrow.schema import COMMITLOG  # noqa: PLC0415
        from rmq_formats.read.task import read_task  # noqa: PLC0415
        from rmq_formats.spark.options.brokers import missing_batch, store_columns, with_broker  # noqa: PLC0415

        store, columns = partition.store, store_columns(self._columns, "physical_offset")
        read = replace(self._options.read_of(store.broker), columns=columns)
        if isinstance(partition, MissingPartition):
            batches = missing_batch(partition.reason, columns, read.mode, COMMITLOG)
        else:
            batches = read_task(store.path, partition.task, read)
        yield from with_broker(batches, store, self._columns)


def plans_of(options: SourceOptions) -> "list[StorePlan[ReadPlan]]":
    """Plan a read with these options, a plan for each store.

    Raises:
        StoreError: a store cannot be read as asked, or the stores not together.
        OptionError: the access path does not fit the other options, or offsets are of a queue that is not there.
    """
    from rmq_formats.read.plan import plan_read  # noqa: PLC0415
    from rmq_formats.spark.options.brokers import (  # noqa: PLC0415
        check_bounded_queues,
        plan_store_reads,
        stores_of,
    )

    stores = stores_of(options)
    check_bounded_queues(options, stores)
    min_tasks = -(-options.min_partitions // len(stores))

    def plan(store: "BrokerStore") -> "ReadPlan":
        files = open_store(store.path)
        return plan_read(
            files,
            options.read_of(store.broker).query,
            access_path=options.access_path,
            split_bytes=options.split_bytes,
            min_tasks=min_tasks,
            logs=options.read.logs,
        )

    return plan_store_reads(options, stores, plan)
