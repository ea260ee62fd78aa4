"""Lands raw rows without Spark's row format: each task scans a split of the log, writes Parquet files directly."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from rmq_formats.arrow.schema import schema_of
from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_formats.lakehouse.places import Place
from rmq_formats.lakehouse.selection import LeftOut
from rmq_formats.read.plan import Task
from rmq_formats.read.query import ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.spark.runner import SparkRunner

DATE = "date"
ERROR = "record_error"
_LOOKS_AT_ONCE: Final = 16  # requests in flight, where files are objects


@dataclass(frozen=True, slots=True)
class FilesJob:
    """Job description that all tasks get.

    Attributes:
        store: root of the store.
        read: which rows, and which columns of them.
        left_out: topics that are not landed.
        layout: of the files.
    """

    store: str
    read: ReadOptions
    left_out: LeftOut | None
    layout: Layout


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Files and counts of one task.

    Attributes:
        files: in the order in which they were closed.
        bytes: of the messages, in the log.
        damaged: stretches and bodies that are no message.
    """

    files: tuple[WrittenFile, ...]
    bytes: int
    damaged: int


def write_files(spark: SparkSession, job: FilesJob, tasks: tuple[Task, ...]) -> list[TaskFiles]:
    """Run the tasks that write files; nobody sees these before the table's log names them.

    Raises:
        StoreError: a file that cannot be read or written, or was written where the driver does not see it.
    """
    runner = SparkRunner(spark)
    runner.check_shared("--table", job.layout.table)
    written = runner.map(partial(write_task, job), tasks)
    check_seen([file for task in written for file in task.files], job.layout.place)
    return written


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


def write_task(job: FilesJob, task: Task) -> TaskFiles:
    """Write the rows of one task."""
    schema = _file_schema(job)
    files = PartitionedFiles(job.layout, schema)
    bytes_ = damaged = 0
    try:
        for batch in read_task(job.store, task, job.read):
            wanted = _wanted(batch, job.left_out)
            sound = wanted.filter(pc.is_null(wanted.column(ERROR)))
            damaged += wanted.num_rows - sound.num_rows
            bytes_ += pc.sum(sound.column("size")).as_py() or 0
            files.write(_dated(sound, schema))
        return TaskFiles(tuple(files.close()), bytes_, damaged)
    except BaseException:
        files.abort()
        raise


def _file_schema(job: FilesJob) -> pa.Schema:
    kept = [field for field in schema_of(job.read.columns) if field.name != ERROR]
    return pa.schema([*kept, pa.field(DATE, pa.date32())])


def _wanted(batch: pa.RecordBatch, left_out: LeftOut | None) -> pa.RecordBatch:
    return batch if left_out is None else batch.filter(left_out.keeps_arrow(batch.column("topic")))


def _dated(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add the day of the store time, and drop columns that a sound row has not."""
    date = rows.column("store_timestamp").cast(pa.date32())
    return pa.RecordBatch.from_arrays([*(rows.column(name) for name in schema.names[:-1]), date], schema=schema)
