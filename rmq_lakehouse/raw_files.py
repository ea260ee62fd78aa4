"""Raw export without Spark's row format: each task scans a split of the log and writes Parquet files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.errors import RmqError, StoreError
from rmq_formats.read.plan import Task
from rmq_formats.read.query import ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.spark.options.brokers import interleave_tasks
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_files, with_high_watermark
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.files import TableFileStore
from rmq_lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_lakehouse.partitions import TIME_COLUMNS, time_column
from rmq_lakehouse.selection import BrokerKey, ExcludedTopics
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, StartAttempt
from rmq_offline.tasks.runner import Runner

ERROR: Final = "record_error"
Written = TypeVar("Written")
_MAX_CONCURRENT_CHECKS: Final = 16  # requests in flight, where files are objects


class UnreadableMessagesError(StoreError):
    """The messages of one store or broker cannot be read, or not be written to files; those of others can."""


class TaskRows(Protocol):
    """Rows of one task, read by the task itself."""

    def batches(self, columns: Sequence[str], *, by_topic: bool = False) -> Iterator[pa.RecordBatch]:
        """Read the rows; ``by_topic`` allows batches of one topic each, so that only rows of a topic retain order."""


class PendingTasks(Protocol):
    """Messages that an export has to commit, which tasks read."""

    def start_attempt(self, table: ExactlyOnceTable) -> StartAttempt:
        """Return the function that starts an attempt to commit the rows that the table lacks."""

    def tasks(self, attempt: CommitAttempt) -> tuple[Sequence[TaskRows], int]:
        """Plan the rows of an attempt as tasks; also return the bytes that the tasks read."""

    def expected_messages(self, attempt: CommitAttempt) -> int | None:
        """Return the number of messages of an attempt, if it is known before they are read; else None."""


class FilesRunner(Runner, Protocol):
    """Runner of tasks that write files."""

    def check_shared(self, option: str, directory: str) -> None:
        """Check that tasks see what this process writes into a directory. Raises OptionError."""


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of a split of a store's log."""

    store: str
    read: ReadOptions
    task: Task

    def batches(self, columns: Sequence[str], *, by_topic: bool = False) -> Iterator[pa.RecordBatch]:
        yield from read_task(self.store, self.task, replace(self.read, columns=tuple(columns), by_topic=by_topic))


@dataclass(frozen=True, slots=True)
class RawTask:
    """Task that reads ``columns`` of a source, and writes files of ``schema``, days and hours among its columns."""

    rows: TaskRows
    columns: tuple[str, ...]
    schema: pa.Schema
    broker: BrokerKey | None
    excluded_topics: ExcludedTopics | None
    layout: Layout


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Files and counts of one task.

    Attributes:
        bytes: bytes of the messages in the log.
        damaged: number of damaged ranges and bodies.
        last_offset: the largest physical offset; None if there are no rows.
    """

    files: tuple[WrittenFile, ...]
    bytes: int
    damaged: int
    last_offset: int | None = None


def write_files(runner: FilesRunner, tasks: Sequence[RawTask], layout: Layout) -> list[TaskFiles]:
    """Run tasks that write files; no version of the table has these files yet. Raises StoreError."""
    runner.check_shared("--table", layout.table)
    written = runner.map(write_raw_task, tasks)
    check_visible([file for task in written for file in task.files], layout.file_store)
    return written


def write_files_of_brokers(
    runner: FilesRunner, tasks: Sequence[Sequence[RawTask]], layout: Layout
) -> list[list[TaskFiles] | RmqError]:
    """Run the tasks of several brokers as one job; a failed task fails its own broker, and deletes its files."""
    numbered = [[(number, task) for task in broker_tasks] for number, broker_tasks in enumerate(tasks)]
    interleaved = interleave_tasks(numbered)
    runner.check_shared("--table", layout.table)
    done: list[list[TaskFiles]] = [[] for _ in tasks]
    failed: dict[int, RmqError] = {}
    for number, written in runner.map(_attempt, interleaved):
        if isinstance(written, TaskFiles):
            done[number].append(written)
        else:
            failed.setdefault(number, written)
    check_visible([file for broker_tasks in done for task in broker_tasks for file in task.files], layout.file_store)
    delete_files([file for number in failed for task in done[number] for file in task.files], layout.file_store)
    return [failed.get(number, broker_tasks) for number, broker_tasks in enumerate(done)]


def _attempt(task: tuple[int, RawTask]) -> tuple[int, TaskFiles | RmqError]:
    """Run a task; return an error of its broker, so that the tasks of the other brokers go on."""
    number, files_task = task
    return number, attempt_task(write_raw_task, files_task)


def attempt_task(write: Callable[[Any], Written], task: Any) -> Written | StoreError:
    """Run a ``RawTask`` or ``TypedTask``; return its error, so that the other tasks end first."""
    try:
        return write(task)
    except RmqError as error:
        return StoreError(str(error))
    except OSError as error:
        return StoreError(f"{error.filename or task.rows}: {error.strerror or error}")


def delete_files(files: Sequence[WrittenFile], file_store: TableFileStore) -> None:
    """Delete files that no version of a table contains; those that cannot be deleted stay."""
    for file in files:
        with suppress(OSError):
            file_store.delete(file.path)


def check_visible(files: Sequence[WrittenFile], file_store: TableFileStore) -> None:
    """Check that the driver sees the files of tasks: an executor may lack the table's mount. Raises StoreError."""
    with ThreadPoolExecutor(_MAX_CONCURRENT_CHECKS) as pool:
        list(pool.map(partial(_check_visible, file_store), files))


def _check_visible(file_store: TableFileStore, file: WrittenFile) -> None:
    try:
        size = file_store.size(file.path)
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise StoreError(f"{file.path}: written by a task, but not visible to the driver ({reason})") from error
    if size != file.bytes:
        raise StoreError(f"{file.path}: written by a task with {file.bytes} bytes, but the driver sees {size}")


def write_raw_task(task: RawTask) -> TaskFiles:
    """Write the rows of one task."""
    files = PartitionedFiles(task.layout, task.schema)
    bytes_ = damaged = 0
    last_offset: int | None = None
    try:
        # A batch of one partition needs no copy of its bodies.
        for batch in task.rows.batches(task.columns, by_topic="topic" in task.layout.partitions):
            excluded = task.excluded_topics
            included = (
                batch if excluded is None else matching_rows(batch, excluded.included_mask(batch.column("topic")))
            )
            sound = matching_rows(included, pc.is_null(included.column(ERROR)))
            damaged += included.num_rows - sound.num_rows
            bytes_ += pc.sum(sound.column("size")).as_py() or 0
            offsets = last_offset, pc.max(sound.column("physical_offset")).as_py()
            last_offset = max((offset for offset in offsets if offset is not None), default=None)
            files.write(_with_added_columns(sound, task))
        return TaskFiles(tuple(files.close()), bytes_, damaged, last_offset)
    except BaseException:
        files.abort()
        raise


def matching_rows(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows of a mask; a mask of all rows copies no bodies, as a filter would."""
    return rows if mask.true_count == len(mask) else rows.filter(mask)


def _with_added_columns(rows: pa.RecordBatch, task: RawTask) -> pa.RecordBatch:
    """Add the broker and the days and hours of times, and drop columns that a sound row has not."""
    times = {name: time_column(name, rows) for name in task.schema.names if name in TIME_COLUMNS}
    messages = with_broker(rows, task.broker)
    arrays = [times[name] if name in times else messages.column(name) for name in task.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=task.schema)


def with_broker(messages: pa.RecordBatch, broker: BrokerKey | None) -> pa.RecordBatch:
    """Add the columns of cluster and broker to the messages of a broker; None leaves them as they are."""
    if broker is None:
        return messages
    values = {
        name: pa.repeat(pa.scalar(text, pa.string()), messages.num_rows)
        for name, text in ((CLUSTER, broker.cluster), (BROKER_NAME, broker.name))
    }
    return pa.RecordBatch.from_arrays([*messages.columns, *values.values()], [*messages.schema.names, *values])


def write_and_commit(
    runner: FilesRunner, attempt: CommitAttempt, tasks: Sequence[RawTask], layout: Layout
) -> tuple[CommitResult, ExportCounts]:
    """Write the files of an attempt in tasks, and commit the files. Raises as ``write_files``."""
    written = write_files(runner, tasks, layout)
    return commit_task_files({0: attempt}, {0: written}), count_files(written)


def commit_task_files(
    attempts: Mapping[int, CommitAttempt], written_files: Mapping[int, Sequence[TaskFiles]]
) -> CommitResult:
    """Commit the files of the tasks of several attempts."""
    files = [file for tasks in written_files.values() for task in tasks for file in task.files]
    committing = [with_high_watermark(attempts[number], _last_offset(tasks)) for number, tasks in written_files.items()]
    return commit_files(committing, files)


def _last_offset(written: Sequence[TaskFiles]) -> int | None:
    return max((task.last_offset for task in written if task.last_offset is not None), default=None)


def count_files(written: Sequence[TaskFiles]) -> ExportCounts:
    """Count the rows and files of tasks."""
    files = [file for task in written for file in task.files]
    bytes_, damaged = sum(task.bytes for task in written), sum(task.damaged for task in written)
    return ExportCounts(sum(file.rows for file in files), bytes_, damaged, files=len(files))
