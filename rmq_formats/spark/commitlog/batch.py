"""Batch reader of ``rmq_commitlog``: records of a store's CommitLog as rows, and the explanation of the access path.

Spark's own ``explain()`` cannot show a source's access path.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions, commitlog_options, refuse_stream_options
from rmq_formats.spark.options.schemas import table_options
from rmq_formats.storage.store_files import open_store

# Functions import the kernels: Spark starts a process for each step of planning.

if TYPE_CHECKING:
    from rmq_formats.read.plan import ReadPlan, Task
    from rmq_formats.read.stores import BrokerStore
    from rmq_formats.spark.options.brokers import StorePlan

_log = logging.getLogger("rmq_formats.spark")
_NOTABLE_BYTES = 64 << 20  # bodies of smaller logs cost less than a second
Source = tuple[str, dict[str, str]]  # format and options


class TaskPartition(InputPartition):
    """Input partition: one task of a store's plan."""

    def __init__(self, task: "Task", store: "BrokerStore | None" = None) -> None:
        super().__init__(None)
        self.task = task
        self.store = store

    def __repr__(self) -> str:
        return f"TaskPartition({self.task!r}, {self.store!r})"


class MissingPartition(InputPartition):
    """Input partition: the row of a missing store."""

    def __init__(self, store: "BrokerStore", reason: str) -> None:
        super().__init__(None)
        self.store = store
        self.reason = reason


class CommitLogReader(DataSourceReader):
    """Batch reader: plans once in the driver, and reads a task for each partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._columns = schemas.check_read(schemas.COMMITLOG, schema, options)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks up to the logs' ends: actions on the bare frame of a ``load()`` see the same rows."""
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
                self._options.path,
                scanned_bytes >> 20,
            )
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
    """Plan a read of each store.

    Raises:
        StoreError: a store cannot be read with these options, or not together with the others.
        OptionError: the access path does not fit the other options, or offsets are of an absent queue.
    """
    from rmq_formats.read.plan import plan_read  # noqa: PLC0415
    from rmq_formats.spark.options.brokers import check_bounded_queues, plan_store_reads, stores_of  # noqa: PLC0415

    stores = stores_of(options)
    check_bounded_queues(options, stores)
    min_tasks = -(-options.min_partitions // len(stores))

    def plan(store: "BrokerStore") -> "ReadPlan":
        return plan_read(
            open_store(store.path),
            options.read_of(store.broker).query,
            access_path=options.access_path,
            split_bytes=options.split_bytes,
            min_tasks=min_tasks,
            logs=options.read.logs,
        )

    return plan_store_reads(options, stores, plan)


def explain(frame: DataFrame) -> str:
    """Describe each ``rmq_commitlog`` of a DataFrame, a line a store: path, access path, reason, tasks.

    The read is planned again, without filters that Spark pushes down; no record is read. In a session of Spark Connect
    a task plans, since the client may not see the store; there, sources within views are unknown.
    """
    if hasattr(frame, "_jdf"):
        return "\n".join(_lines(_sources(frame)))
    connected: Any = frame  # of another class, with a plan in Python
    sources = list(_sources_of_message(connected._plan.to_proto(connected.sparkSession._client)))
    rows = frame.sparkSession.range(1, numPartitions=1).mapInArrow(partial(_explain, sources), "line string")
    return "\n".join(row.line for row in rows.collect())


def _explain(sources: Sequence[Source], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"line": pa.array(_lines(sources), pa.string())})


def _lines(sources: Sequence[Source]) -> list[str]:
    lines = []
    for name, options in sources:
        if name == "rmq_commitlog":
            read_options = refuse_stream_options(commitlog_options(options))
            lines += [
                f"{name} {store_plan.store}: {store_plan.plan or store_plan.missing}"
                for store_plan in plans_of(read_options)
            ]
        elif name.startswith("rmq_"):
            lines.append(f"{name} {options.get('path') or options.get('paths', '')}: read as it stands")
    return lines


def _sources(frame: DataFrame) -> list[Source]:
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # Python has no plan of a DataFrame
    sources = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            options = leaf.options().asCaseSensitiveMap()
            schema = StructType.fromJson(json.loads(leaf.schema().json()))
            source_options = table_options(schema, {str(key): str(options[key]) for key in options})
            sources.append((str(leaf.table().name()), source_options))
    return sources


def _sources_of_message(message: Any) -> Iterator[Source]:
    """Find the sources in a message of Spark Connect's protocol and in its nested messages."""
    if message.DESCRIPTOR.full_name == "spark.connect.Read.DataSource":
        path = {"path": message.paths[0]} if len(message.paths) == 1 else {}
        yield message.format, {**message.options, **path}
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if isinstance(value, Sequence) or hasattr(value, "add") else [value]:
                yield from _sources_of_message(part)
