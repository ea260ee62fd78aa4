"""Typed table of an export, and its dead letters: tasks decode messages once, and write the files of both tables.

Dead letters are committed first, so that they are never behind the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, schema_of
from rmq_formats.errors import RmqError
from rmq_lakehouse.comments import COMMENTS
from rmq_lakehouse.decode.bodies import ELEMENT, BodyDecoder
from rmq_lakehouse.decode.columns import COMMENT
from rmq_lakehouse.decode.partition_texts import NO_PARTITION_TEXTS, PartitionTexts
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.partitions import parse_partition, source_columns, time_column_type
from rmq_lakehouse.raw_files import ERROR, FilesRunner, PendingTasks, UnreadableMessagesError, commit_task_files
from rmq_lakehouse.selection import BrokerKey
from rmq_lakehouse.spec import METADATA, TypedTopic, check_column_names
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, NeedsWriterError, PendingRange, TableLog
from rmq_lakehouse.typed_files import Destination, TypedFiles, TypedTask, count_typed_files, write_typed_files
from rmq_lakehouse.undecoded import MESSAGE_COLUMNS, REASON, Undecoded, with_undecoded

_METADATA_TYPES: Final = {
    **{field.name: field.type for field in schema_of(METADATA)},
    CLUSTER: pa.string(),
    BROKER_NAME: pa.string(),
    ELEMENT: pa.int32(),
}


@dataclass(frozen=True, slots=True)
class OutputTable:
    """Table whose files tasks write.

    Attributes:
        layout: returns how tasks write the files; may raise NeedsWriterError, as ``committed_offsets`` may.
        committed_offsets: reads the physical offsets of the rows of an attempt that the table has already.
    """

    table: ExactlyOnceTable
    schema: pa.Schema
    layout: Callable[[], Layout]
    committed_offsets: Callable[[CommitAttempt], npt.NDArray[np.int64]]

    def destination(self, attempt: CommitAttempt) -> Destination:
        """Return where tasks write the rows of an attempt, and which of them the table has already."""
        layout = self.layout()  # first: it may show that nobody needs the offsets
        return Destination(layout, self.schema, self.committed_offsets(attempt) if attempt.needs_dedup else None)


@dataclass(frozen=True, slots=True)
class TypedTable:
    """Typed table that tasks write, and the dead letters of its messages; attributes as of ``TypedTask``."""

    runner: FilesRunner
    decoder: BodyDecoder
    metadata: tuple[str, ...]
    time_columns: tuple[str, ...]
    broker: BrokerKey | None
    rows: OutputTable
    dead_letters: OutputTable | None

    def commit_pending(self, records: PendingTasks) -> ExportCounts:
        """Commit the messages that the tables lack: dead letters first.

        Raises:
            NeedsWriterError: tasks cannot write the rows; dead letters may have been committed.
            UnreadableMessagesError: a task cannot read or write.
        """
        table, written = self.rows.table, _WrittenFiles()
        dead_files = self._commit_dead_letters(records, written)
        counts = ExportCounts()

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            nonlocal counts
            (attempt,) = attempts.values()
            files = self._write(records, attempt, self.rows.destination(attempt), None, written)
            counts = count_typed_files(files).with_missing_as_damaged(records.expected_messages(attempt))
            # Dead letters of other ranges may be those of another spec: they are counted at the end of the run.
            added = Undecoded()
            if attempt.pending_range != written.dead_letter_range:
                added = sum((task.undecoded for task in files), added)
            return commit_task_files({0: with_undecoded(attempt, table, added)}, {0: [task.rows for task in files]})

        try:
            result = commit_with_retry(table.path, table.log, [records.start_attempt(table)], write)
        except NeedsWriterError:
            raise NeedsWriterError(dead_files) from None
        counts = counts if result.committed else ExportCounts()
        return replace(counts, files=counts.files + dead_files)

    def _commit_dead_letters(self, records: PendingTasks, written: "_WrittenFiles") -> int:
        """Commit the pending dead letters; return the number of their files.

        Where both tables lack the same messages, one task writes the files of both.
        """
        dead = self.dead_letters
        if dead is None:
            return 0
        start_rows = records.start_attempt(self.rows.table)

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            (attempt,) = attempts.values()
            # Not committed: the attempt shows which rows are pending.
            other = start_rows(self.rows.table.log.begin_transaction())
            has_same_rows = other is not None and other.pending_range == attempt.pending_range
            rows = self.rows.destination(other) if other is not None and has_same_rows else None
            files = self._write(records, attempt, rows, dead.destination(attempt), written)
            result = commit_task_files(attempts, {0: [task.dead_letters for task in files]})
            written.dead_letter_range = attempt.pending_range
            return result

        return commit_with_retry(dead.table.path, dead.table.log, [records.start_attempt(dead.table)], write).files

    def _write(
        self,
        records: PendingTasks,
        attempt: CommitAttempt,
        rows: Destination | None,
        dead_letters: Destination | None,
        written: "_WrittenFiles",
    ) -> list[TypedFiles]:
        """Decode the messages of an attempt, and write the files of both destinations, unless they are written."""
        if not written.are_of(attempt.pending_range, rows, dead_letters):
            try:
                parts, _ = records.tasks(attempt)
            except RmqError as error:
                raise UnreadableMessagesError(str(error)) from error
            columns = messages_to_read(self.time_columns)
            tasks = [
                TypedTask(
                    part, columns, self.decoder, self.metadata, self.time_columns, self.broker, rows, dead_letters
                )
                for part in parts
            ]
            files = write_typed_files(self.runner, tasks)
            written.rows, written.destinations, written.files = attempt.pending_range, (rows, dead_letters), files
        return written.files


@dataclass(slots=True)
class _WrittenFiles:
    """Files of the last attempt, which no version of a table contains yet, for the next attempt with the same rows.

    ``dead_letter_range`` identifies the rows whose dead letters were committed.
    """

    rows: PendingRange | None = None
    destinations: tuple[Destination | None, Destination | None] = None, None
    files: list[TypedFiles] = field(default_factory=list)
    dead_letter_range: PendingRange | None = None

    def are_of(self, rows: PendingRange, table: Destination | None, dead_letters: Destination | None) -> bool:
        """Return whether the files are those that an attempt would write to its destinations."""
        wanted, written = (table, dead_letters), self.destinations
        # Messages without rows are counted only where the table has none of the messages.
        counts_alike = table is None or (
            written[0] is not None and (table.committed is None) == (written[0].committed is None)
        )
        return (
            rows == self.rows
            and counts_alike
            and all(
                new is None or (old is not None and new.is_same(old)) for new, old in zip(wanted, written, strict=True)
            )
        )


def find_partition_texts(
    log: TableLog, topic: TypedTopic, body: pa.StructType, former_columns: Mapping[str, str | None] | None = None
) -> PartitionTexts:
    """Return the columns of a body's texts that become partitions of a Delta table."""
    if log.accepts_any_partition_text:
        return NO_PARTITION_TEXTS
    exists, former = log.exists(), former_columns or {}
    columns = log.partition_columns() if exists else [str(parse_partition(text)) for text in topic.partition_by]
    partitions = {name.lower() for name in columns}
    current_names = {field.name: former.get(field.name, field.name) for field in body if pa.types.is_string(field.type)}
    names = tuple(name for name, current in current_names.items() if current and current.lower() in partitions)
    properties = log.configuration() if exists else topic.properties
    return PartitionTexts(names, has_directories=log.has_partition_directories(properties))


def messages_to_read(time_columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that an export reads of messages, for its table and for the dead letters."""
    times = [name for name in source_columns(time_columns) if name not in METADATA]
    return (*METADATA, *times, "size", "body", ERROR)


def typed_columns(
    topic: TypedTopic, metadata: Sequence[str], body: pa.StructType, time_columns: Sequence[str]
) -> pa.Schema:
    """Return the columns of a typed table, with their comments. Raises OptionError: a name that comes twice."""
    fields = [
        pa.field(topic.metadata_prefix + name, _METADATA_TYPES[name], metadata={COMMENT: COMMENTS[name]})
        for name in metadata
    ]
    check_column_names(topic, (field.name for field in fields), (field.name for field in body), time_columns)
    times = [pa.field(name, time_column_type(name), metadata={COMMENT: COMMENTS[name]}) for name in time_columns]
    return pa.schema([*fields, *body, *times])


def dead_letter_columns(broker: BrokerKey | None = None) -> pa.Schema:
    """Return the columns of a dead-letter table, with their comments."""
    brokers = [] if broker is None else [pa.field(name, pa.string()) for name in (CLUSTER, BROKER_NAME)]
    fields = [*schema_of(MESSAGE_COLUMNS), pa.field(REASON, pa.string()), *brokers]
    return pa.schema([field.with_metadata({COMMENT: COMMENTS[field.name]}) for field in fields])
