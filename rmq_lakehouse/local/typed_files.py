"""Tasks of a typed export on one machine: decode bodies, and write the files of the table and of the dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_lakehouse.decode.bodies import DECODED, ELEMENT, BodyDecoder
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.parquet import Layout, PartitionedFiles
from rmq_lakehouse.partitions import time_column
from rmq_lakehouse.raw_files import ERROR, TaskFiles, TaskRows, check_visible
from rmq_lakehouse.undecoded import REASON, Undecoded
from rmq_offline.tasks.runner import Runner

_OFFSET: Final = "physical_offset"


@dataclass(frozen=True, slots=True)
class Destination:
    """Table to write files of.

    Attributes:
        committed: physical offsets of the task's messages that the table has already.
    """

    layout: Layout
    schema: pa.Schema
    committed: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TypedTask:
    """Task that decodes messages.

    Attributes:
        metadata: columns of the messages that the table has, in its order.
        time_columns: columns of days and hours to add.
        table: the typed table; None writes no rows.
        dead_letters: the dead-letter table; None writes no dead letters.
    """

    rows: TaskRows
    columns: tuple[str, ...]
    decoder: BodyDecoder
    metadata: tuple[str, ...]
    time_columns: tuple[str, ...]
    table: Destination | None
    dead_letters: Destination | None


@dataclass(frozen=True, slots=True)
class TypedFiles:
    """Files and counts of one task.

    Attributes:
        undecoded: sound messages whose body did not decode.
        messages: messages of the rows; of exploded bodies all that decode, for some have no row.
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
        if self._destination is None or not len(self._destination.committed):
            return condition
        committed = pa.array(self._destination.committed, pa.int64())
        return pc.and_(condition, pc.invert(pc.is_in(messages.column(_OFFSET), committed)))

    def write(self, messages: pa.RecordBatch, columns: Sequence[pa.Array]) -> None:
        """Write the rows of some messages; ``columns`` are those of the table."""
        if self._files is None or self._destination is None:
            return
        offsets = self._last_offset, pc.max(messages.column(_OFFSET)).as_py()
        self._last_offset = max((offset for offset in offsets if offset is not None), default=None)
        self._files.write(pa.RecordBatch.from_arrays(list(columns), schema=self._destination.schema))

    def close(self, bytes_: int = 0, damaged: int = 0) -> TaskFiles:
        files = () if self._files is None else tuple(self._files.close())
        return TaskFiles(files, bytes_, damaged, self._last_offset)

    def abort(self) -> None:
        if self._files is not None:
            self._files.abort()


def write_typed_files(runner: Runner, tasks: Sequence[TypedTask]) -> list[TypedFiles]:
    """Run the tasks. No reader sees the files before a table's log names them."""
    written = runner.map(write_typed_task, tasks)
    for task, files in zip(tasks, written, strict=True):
        for destination, of_task in ((task.table, files.rows), (task.dead_letters, files.dead_letters)):
            if destination is not None:
                check_visible(of_task.files, destination.layout.file_store)
    return written


def write_typed_task(task: TypedTask) -> TypedFiles:
    """Decode the messages of one task, and write their rows and the dead letters."""
    rows, dead_letters = _Writer(task.table), _Writer(task.dead_letters)
    bytes_ = damaged = undecoded = count = 0
    first: int | None = None
    try:
        for messages in task.decoder.decode_batches(task.rows.batches(task.columns)):
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
            undecoded += is_undecoded.true_count
            offsets = first, pc.min(messages.column(_OFFSET).filter(is_undecoded)).as_py()
            first = min((offset for offset in offsets if offset is not None), default=None)
            pending = rows.pending(messages, pc.and_(is_sound, is_row))
            count += (is_sound_message if task.decoder.explode else pending).true_count
            rows.write(*_typed_rows(task, messages.filter(pending), result.field("value").filter(pending)))
            pending = dead_letters.pending(messages, is_dead)
            dead_letters.write(*_dead_rows(task, messages.filter(pending), reasons.filter(pending)))
        return TypedFiles(rows.close(bytes_, damaged), dead_letters.close(), Undecoded(undecoded, first or 0), count)
    except BaseException:
        rows.abort()
        dead_letters.abort()
        raise


def _typed_rows(
    task: TypedTask, messages: pa.RecordBatch, values: pa.StructArray
) -> tuple[pa.RecordBatch, list[pa.Array]]:
    times = [time_column(name, messages) for name in task.time_columns]
    return messages, [*(messages.column(name) for name in task.metadata), *values.flatten(), *times]


def _dead_rows(task: TypedTask, messages: pa.RecordBatch, reasons: pa.Array) -> tuple[pa.RecordBatch, list[pa.Array]]:
    names = [] if task.dead_letters is None else [name for name in task.dead_letters.schema.names if name != REASON]
    return messages, [*(messages.column(name) for name in names), reasons]


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


def undecoded_of(written: Sequence[TypedFiles]) -> Undecoded:
    """Add up the undecoded messages of tasks."""
    parts = [task.undecoded for task in written if task.undecoded.count]
    return Undecoded(sum(part.count for part in parts), min((part.first for part in parts), default=0))
