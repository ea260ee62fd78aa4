"""Lands raw rows without Spark's row format: each task scans a split of the log, writes Parquet files directly."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from rmq_formats.arrow.schema import schema_of
from rmq_formats.errors import RmqError, StoreError
from rmq_formats.lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_formats.lakehouse.places import Place
from rmq_formats.lakehouse.selection import Broker, LeftOut
from rmq_formats.read.plan import Task
from rmq_formats.read.query import ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.spark.options.brokers import mixed
from rmq_formats.spark.options.schemas import BROKER_NAME, CLUSTER
from rmq_formats.spark.runner import SparkRunner

DATE = "date"
ERROR = "record_error"
_LOOKS_AT_ONCE: Final = 16  # requests in flight, where files are objects


class TaskRows(Protocol):
    """Rows of one task, which reads them where it runs."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the rows."""
        ...


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of a split of a store's log.

    Attributes:
        store: root of the store.
        read: which rows.
        task: the split.
    """

    store: str
    read: ReadOptions
    task: Task

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See ``TaskRows``."""
        yield from read_task(self.store, self.task, replace(self.read, columns=tuple(columns)))


@dataclass(frozen=True, slots=True)
class FilesTask:
    """Task that writes files.

    Attributes:
        rows: what it reads.
        columns: of the rows, as their source has them.
        broker: whose rows they are, where the table has those of several.
        left_out: topics that are not landed.
        layout: of the files.
    """

    rows: TaskRows
    columns: tuple[str, ...]
    broker: Broker | None
    left_out: LeftOut | None
    layout: Layout


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Files and counts of one task.

    Attributes:
        files: in the order in which they were closed.
        bytes: of the messages, in the log.
        damaged: stretches and bodies that are no message.
        newest: the largest physical offset; None if there are no rows.
    """

    files: tuple[WrittenFile, ...]
    bytes: int
    damaged: int
    newest: int | None = None


def write_files(spark: SparkSession, tasks: Sequence[FilesTask], layout: Layout) -> list[TaskFiles]:
    """Run the tasks that write files of this layout; nobody sees these before the table's log names them.

    Raises:
        StoreError: a file that cannot be read or written, or was written where the driver does not see it.
    """
    runner = SparkRunner(spark)
    runner.check_shared("--table", layout.table)
    written = runner.map(write_task, tasks)
    check_seen([file for task in written for file in task.files], layout.place)
    return written


def write_files_of_brokers(
    spark: SparkSession, tasks: Sequence[Sequence[FilesTask]], layout: Layout
) -> list[list[TaskFiles] | RmqError]:
    """Run the tasks of several brokers as one job, in turns; one that fails spoils its own broker's rows alone.

    Args:
        spark: the session.
        tasks: of each broker.
        layout: of the files of all.

    Returns:
        For each broker what its tasks wrote, or the error of one of them; its files are deleted then.
    """
    numbered = [[(number, task) for task in own] for number, own in enumerate(tasks)]
    turns = mixed(numbered)
    runner = SparkRunner(spark)
    runner.check_shared("--table", layout.table)
    done: list[list[TaskFiles]] = [[] for _ in tasks]
    failed: dict[int, RmqError] = {}
    for number, written in runner.map(_attempt, turns):
        if isinstance(written, TaskFiles):
            done[number].append(written)
        else:
            failed.setdefault(number, written)
    check_seen([file for own in done for task in own for file in task.files], layout.place)
    for file in (file for number in failed for task in done[number] for file in task.files):
        with suppress(OSError):  # the files left belong to no version
            layout.place.delete(file.path)
    return [failed.get(number, own) for number, own in enumerate(done)]


def _attempt(task: tuple[int, FilesTask]) -> tuple[int, TaskFiles | RmqError]:
    """Run a task; what is wrong with its broker is a result, so that the others' tasks go on."""
    number, own = task
    try:
        return number, write_task(own)
    except RmqError as error:
        return number, StoreError(str(error))
    except OSError as error:
        return number, StoreError(f"{error.filename or own.rows}: {error.strerror or error}")


def check_seen(files: Sequence[WrittenFile], place: Place) -> None:
    """Check that files are where the table's log will look for them: an executor may lack the table's mount.

    Raises:
        StoreError: naming one that is not there, or has another size.
    """
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        list(pool.map(partial(_check_seen, place), files))


def _check_seen(place: Place, file: WrittenFile) -> None:
    try:
        size = place.size(file.path)
    except OSError as error:
        said = error.strerror or str(error).partition("\n")[0]
        raise StoreError(f"{file.path}: written by a task, but not visible to the driver ({said})") from error
    if size != file.bytes:
        raise StoreError(f"{file.path}: written by a task with {file.bytes} bytes, but the driver sees {size}")


def write_task(task: FilesTask) -> TaskFiles:
    """Write the rows of one task."""
    schema = _file_schema(task)
    files = PartitionedFiles(task.layout, schema)
    bytes_ = damaged = 0
    newest: int | None = None
    try:
        for batch in task.rows.batches(task.columns):
            wanted = _wanted(batch, task.left_out)
            sound = wanted.filter(pc.is_null(wanted.column(ERROR)))
            damaged += wanted.num_rows - sound.num_rows
            bytes_ += pc.sum(sound.column("size")).as_py() or 0
            newest = max(filter(None.__ne__, (newest, pc.max(sound.column("physical_offset")).as_py())), default=None)
            files.write(_completed(sound, schema, task.broker))
        return TaskFiles(tuple(files.close()), bytes_, damaged, newest)
    except BaseException:
        files.abort()
        raise


def _file_schema(task: FilesTask) -> pa.Schema:
    kept = [field for field in schema_of(task.columns) if field.name != ERROR]
    told = [] if task.broker is None else [pa.field(name, pa.string()) for name in (CLUSTER, BROKER_NAME)]
    return pa.schema([*kept, *told, pa.field(DATE, pa.date32())])


def _wanted(batch: pa.RecordBatch, left_out: LeftOut | None) -> pa.RecordBatch:
    return batch if left_out is None else batch.filter(left_out.keeps_arrow(batch.column("topic")))


def _completed(rows: pa.RecordBatch, schema: pa.Schema, broker: Broker | None) -> pa.RecordBatch:
    """Add the broker and the day of the store time, and drop columns that a sound row has not."""
    own = {DATE: rows.column("store_timestamp").cast(pa.date32())}
    if broker is not None:
        told = {CLUSTER: broker.cluster, BROKER_NAME: broker.name}
        own |= {name: pa.repeat(pa.scalar(text, pa.string()), rows.num_rows) for name, text in told.items()}
    arrays = [own[name] if name in own else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
