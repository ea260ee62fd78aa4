"""Tasks of a typed export: decode bodies, and write the files of the table and of the dead letters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.errors import StoreError
from rmq_lakehouse.decode.bodies import DECODED, ELEMENT, BodyDecoder
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_lakehouse.partitions import time_column
from rmq_lakehouse.raw_files import (
    ERROR,
    FilesRunner,
    TaskFiles,
    TaskRows,
    UnreadableMessagesError,
    attempt_task,
    check_visible,
    delete_files,
    matching_rows,
    with_broker,
)
from rmq_lakehouse.selection import BrokerKey
from rmq_lakehouse.undecoded import REASON, Undecoded

_OFFSET: Final = "physical_offset"


@dataclass(frozen=True, slots=True)
class Destination:
    """Table to write files of; ``committed`` has physical offsets of its rows, None without rows of the task."""

    layout: Layout
    schema: pa.Schema
    committed: npt.NDArray[np.int64] | None = None

    def is_same(self, other: "Destination") -> bool:
        """Return whether the same files would be written to another destination."""
        own, others = (np.sort([] if table.committed is None else table.committed) for table in (self, other))
        return self.layout == other.layout and self.schema.equals(other.schema) and np.array_equal(own, others)


@dataclass(frozen=True, slots=True)
class TypedTask:
    """Task that decodes messages.

    Attributes:
        metadata: columns of the messages that the table has, in its order.
        time_columns: columns of days and hours to add.
        broker: None in a table of one store.
        table: None writes no rows.
        dead_letters: None writes no dead letters.
    """

    rows: TaskRows
    columns: tuple[str, ...]
    decoder: BodyDecoder
    metadata: tuple[str, ...]
    time_columns: tuple[str, ...]
    broker: BrokerKey | None
    table: Destination | None
    dead_letters: Destination | None


@dataclass(frozen=True, slots=True)
class TypedFiles:
    """Files and counts of one task.

    Attributes:
        undecoded: sound messages whose body did not decode.
        messages: messages whose rows were written, and those without a row if the table has none of the messages.
    """

    rows: TaskFiles
    dead_letters: TaskFiles
    undecoded: Undecoded
    messages: int


class _Writer:
    """Files of one destination, or of none."""

    def __init__(self, destination: Destination | None) -> None:
        self._destination = destination
        self._files = None if destination is None else PartitionedFiles(destination.layout, destination.schema)
        self._last_offset: int | None = None

    def pending(self, messages: pa.RecordBatch, condition: pa.Array) -> pa.Array:
        """Return the mask of the messages that meet a condition, without those of the table."""
        if self._destination is None or self._destination.committed is None:
            return condition
        committed = pa.array(self._destination.committed, pa.int64())
        return pc.and_(condition, pc.invert(pc.is_in(messages.column(_OFFSET), committed)))

    def write(self, columns: Sequence[pa.Array], offsets: pa.Array, is_pending: pa.Array) -> None:
        """Write the rows of the pending messages; ``columns`` and physical ``offsets`` are of all messages."""
        if self._files is None or self._destination is None or not is_pending.true_count:
            return
        rows = pa.RecordBatch.from_arrays(list(columns), schema=self._destination.schema)
        last_offset = pc.max(offsets.filter(is_pending)).as_py()
        self._last_offset = last_offset if self._last_offset is None else max(last_offset, self._last_offset)
        self._files.write(matching_rows(rows, is_pending))

    def close(self, bytes_: int = 0, damaged: int = 0) -> TaskFiles:
        files = () if self._files is None else tuple(self._files.close())
        return TaskFiles(files, bytes_, damaged, self._last_offset)

    def abort(self) -> None:
        if self._files is not None:
            self._files.abort()


def write_typed_files(runner: FilesRunner, tasks: Sequence[TypedTask]) -> list[TypedFiles]:
    """Run tasks that write files; no version of the tables has these files yet.

    Raises:
        UnreadableMessagesError: a task cannot read or write; the files of the others are deleted.
        StoreError: a file was written where the driver does not see it.
    """
    for destination, _ in _files_of_tables(tasks, ()):
        runner.check_shared("--typed", destination.layout.table)
    outcomes = runner.map(partial(attempt_task, write_typed_task), tasks)
    written = [outcome for outcome in outcomes if isinstance(outcome, TypedFiles)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    for destination, files in _files_of_tables(tasks, written):
        if errors:
            delete_files(files, destination.layout.file_store)
        else:
            check_visible(files, destination.layout.file_store)
    if errors:
        raise UnreadableMessagesError(str(errors[0]))
    return written


def _files_of_tables(
    tasks: Sequence[TypedTask], written: Sequence[TypedFiles]
) -> Iterator[tuple[Destination, list[WrittenFile]]]:
    """List the files of both tables; all tasks have the same ones."""
    for task in tasks[:1]:
        if task.table is not None:
            yield task.table, [file for of_task in written for file in of_task.rows.files]
        if task.dead_letters is not None:
            yield task.dead_letters, [file for of_task in written for file in of_task.dead_letters.files]


def write_typed_task(task: TypedTask) -> TypedFiles:
    """Decode the messages of one task, and write their rows and the dead letters."""
    rows, dead_letters = _Writer(task.table), _Writer(task.dead_letters)
    has_none = task.table is None or task.table.committed is None
    bytes_ = damaged = count = 0
    undecoded = Undecoded()
    try:
        for decoded in task.decoder.decode_batches(task.rows.batches(task.columns)):
            messages = with_broker(decoded, task.broker)
            result = messages.column(DECODED)
            no_elements = pa.repeat(pa.scalar(0, pa.int32()), messages.num_rows)
            elements = messages.column(ELEMENT) if task.decoder.explode else no_elements
            # Of an exploded body the first row is the message; an empty array has no other row, none of the table.
            is_message, is_row = pc.less_equal(elements, 0), pc.greater_equal(elements, 0)
            is_damaged = pc.is_valid(messages.column(ERROR))
            reasons = pc.coalesce(messages.column(ERROR), result.field("reason"))
            is_sound, is_dead = pc.is_null(reasons), pc.and_(pc.is_valid(reasons), is_message)
            is_sound_message, is_undecoded = pc.and_(is_sound, is_message), pc.and_not(is_dead, is_damaged)
            bytes_ += pc.sum(messages.column("size").filter(is_sound_message)).as_py() or 0
            damaged += is_damaged.true_count
            offsets = pc.min_max(messages.column(_OFFSET).filter(is_undecoded)).as_py()
            undecoded += Undecoded.of_offsets(is_undecoded.true_count, offsets["min"], offsets["max"])
            is_pending = rows.pending(messages, pc.and_(is_sound, is_row))
            # Of a message without rows the table does not tell whether it was exported before.
            count += pc.and_(is_sound if has_none else is_pending, is_message).true_count
            placed = messages.column(_OFFSET)
            times = [time_column(name, messages) for name in task.time_columns]
            columns = [*(messages.column(name) for name in task.metadata), *result.field("value").flatten(), *times]
            rows.write(columns, placed, is_pending)
            is_pending = dead_letters.pending(messages, is_dead)
            names = [] if task.dead_letters is None else task.dead_letters.schema.names
            columns = [reasons if name == REASON else messages.column(name) for name in names]
            dead_letters.write(columns, placed, is_pending)
        return TypedFiles(rows.close(bytes_, damaged), dead_letters.close(), undecoded, count)
    except BaseException:
        rows.abort()
        dead_letters.abort()
        raise


def count_typed_files(written: Sequence[TypedFiles]) -> ExportCounts:
    """Count the rows and files of the typed table, and what is no row of it."""
    files = [file for task in written for file in task.rows.files]
    return ExportCounts(
        messages=sum(task.messages for task in written),
        bytes=sum(task.rows.bytes for task in written),
        damaged=sum(task.rows.damaged for task in written),
        undecoded=sum(task.undecoded.count for task in written),
        files=len(files),
    )
