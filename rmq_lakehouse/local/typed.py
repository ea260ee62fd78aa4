"""Typed table of a topic on one machine: bodies as columns, one row a message, and the dead letters."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_formats.arrow.schema import schema_of
from rmq_formats.errors import OptionError
from rmq_lakehouse.comments import COMMENTS
from rmq_lakehouse.decode.bodies import ELEMENT, BodyDecoder
from rmq_lakehouse.decode.columns import COMMENT, column_types, select_columns
from rmq_lakehouse.decode.json_schema import UnknownSchemaError
from rmq_lakehouse.decode.topics import build_decoder, schema_columns
from rmq_lakehouse.delta.features import demanding_property
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.exports import ExportCounts, ExportTables
from rmq_lakehouse.local.raw import LocalRunner, committed_offsets
from rmq_lakehouse.local.table_log import LocalTableLog, NeedsSparkError, OpenLocalTable
from rmq_lakehouse.local.typed_files import (
    Destination,
    TypedFiles,
    TypedTask,
    count_typed_files,
    undecoded_of,
    write_typed_files,
)
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.partitions import TIME_COLUMNS, parse_partition, source_columns, time_column_type
from rmq_lakehouse.raw_files import ERROR, commit_task_files
from rmq_lakehouse.records import PendingRecords
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spec import METADATA, TypedTopic, check_column_names, table_comment, table_properties
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, TableSpec
from rmq_lakehouse.undecoded import (
    DEAD_LETTER_TABLE,
    MESSAGE_COLUMNS,
    REASON,
    Undecoded,
    resolve_undecoded,
    with_undecoded,
)

_OFFSET: Final = "physical_offset"
_ZONE: Final = "UTC"  # of times without one, as in the session of the job
_STATS: Final = (_OFFSET, "store_timestamp", "queue_id", "queue_offset")
_CODEC: Final = "snappy"  # as in a session of Spark
# Types whose text in a table's log is Spark's.
_PARTITION_TYPES: Final = frozenset({pa.string(), pa.int32(), pa.int64(), pa.date32()})
_NONE: Final = np.empty(0, np.int64)

Span = tuple[int, int]
"""Physical offsets where an attempt begins and ends."""


def check_topic(topic: TypedTopic, table_format: str) -> None:
    """Refuse a topic that only Spark can export. Raises NeedsSparkError or OptionError."""
    features = {
        "key": bool(topic.key),
        "cluster_by": bool(topic.cluster_by),
    }
    for name, is_used in features.items():
        if is_used:
            raise NeedsSparkError(f"topic {topic.topic!r}: {name} is for the job")
    columns = pa.schema(list(build_local_decoder(topic).value_type))
    _check_types(topic, columns)
    _check_partitions(topic, columns)
    if table_format == "delta":
        demanding = demanding_property(topic.properties)
        if demanding is not None:
            value = topic.properties.get(demanding)
            raise NeedsSparkError(f"topic {topic.topic!r}: property {demanding} = {value} is for the job")


def _check_types(topic: TypedTopic, columns: pa.Schema) -> None:
    """Refuse types that the writers have not: of nothing but null, structs without members or with one twice."""
    for path, kind in column_types(columns):
        names = [field.name.lower() for field in kind] if pa.types.is_struct(kind) else [path]
        if pa.types.is_null(kind) or len(set(names)) < max(len(names), 1):
            raise NeedsSparkError(f"topic {topic.topic!r}: column {path} is {kind}, which is for the job")


def _check_partitions(topic: TypedTopic, columns: pa.Schema) -> None:
    """Refuse transforms, and columns whose text in a table's log is not certainly Spark's."""
    metadata = {topic.metadata_prefix + field.name: field.type for field in schema_of(METADATA)}
    kinds = metadata | dict.fromkeys(TIME_COLUMNS, pa.date32()) | {field.name: field.type for field in columns}
    for text in topic.partition_by:
        partition = parse_partition(text)
        if partition.column not in kinds:
            raise OptionError(f"unknown column {partition.column!r}; there are {', '.join(kinds)}")
        if partition.transform != "identity" or kinds[partition.column] not in _PARTITION_TYPES:
            raise NeedsSparkError(f"topic {topic.topic!r}: partition_by {text} is for the job")


def build_local_decoder(topic: TypedTopic) -> BodyDecoder:
    """Build the decoder of a topic's bodies; its fields have the comments of the schema.

    Raises:
        NeedsSparkError: only Spark's parser may know the schema.
        OptionError: the schema cannot be used.
    """
    try:
        columns = schema_columns(topic)
        return build_decoder(topic, columns, select_columns(topic.topic, columns, topic.columns), _ZONE)
    except UnknownSchemaError as error:
        raise NeedsSparkError(f"topic {topic.topic!r}: {error} is for the job") from error
    except ValueError as error:
        raise OptionError(f"topic {topic.topic!r}: its {topic.format} schema cannot be used: {error}") from error


class LocalTypedExport(ExportTables):
    """Export of one topic to its typed table, and of undecodable messages to the dead letters. Raises OptionError.

    Args:
        topic: of the spec, which ``check_topic`` has accepted.
        selection: the bounds; of all topics.
        dead_letters: path of their table; None leaves them out.
    """

    def __init__(
        self,
        topic: TypedTopic,
        selection: ExportSelection,
        dead_letters: str | None,
        open_table: OpenLocalTable,
        runner: LocalRunner,
    ) -> None:
        self.name, self.selection, self._runner = topic.topic, selection.of_topic(topic.topic), runner
        self._decoder = build_local_decoder(topic)
        self._metadata = (*METADATA, *((ELEMENT,) if topic.explode else ()))
        body_names = [field.name for field in self._decoder.value_type]
        partitions = tuple(str(parse_partition(text)) for text in topic.partition_by)
        self._time_columns = tuple(name for name in partitions if name in TIME_COLUMNS and name not in body_names)
        self._schema = self._table_columns(topic)
        self._spec = TableSpec(
            partitions, properties=table_properties(topic), initial_properties=tuple(topic.properties.items()),
            comment=table_comment(topic),
        )  # fmt: skip
        prefix = topic.metadata_prefix
        self._stats = tuple(prefix + name for name in _STATS if prefix + name not in partitions)
        self._log = open_table(topic.table)
        self._table = ExactlyOnceTable(topic.table, self._log, self.selection, self._spec, prefix + _OFFSET)
        self.tables = {topic.table: f"{prefix}store_timestamp"}
        times = [name for name in source_columns(self._time_columns) if name not in METADATA]
        self._source = (*METADATA, *times, "size", "body", ERROR)
        self._dead_log: LocalTableLog | None = None
        self._dead_letters: ExactlyOnceTable | None = None
        if dead_letters is not None:
            self._dead_log = open_table(dead_letters)
            self._dead_letters = ExactlyOnceTable(dead_letters, self._dead_log, self.selection, DEAD_LETTER_TABLE)
            self.tables[dead_letters] = "store_timestamp"

    def _table_columns(self, topic: TypedTopic) -> pa.Schema:
        """Return the columns of the table, with their comments. Raises OptionError: a name that comes twice."""
        elements = [pa.field(ELEMENT, pa.int32())] if topic.explode else []
        metadata = [
            field.with_name(topic.metadata_prefix + field.name).with_metadata({COMMENT: COMMENTS[field.name]})
            for field in (*schema_of(METADATA), *elements)
        ]
        body = list(self._decoder.value_type)
        check_column_names(topic, (field.name for field in metadata), (field.name for field in body))
        times = [
            pa.field(name, time_column_type(name), metadata={COMMENT: COMMENTS[name]}) for name in self._time_columns
        ]
        return pa.schema([*metadata, *body, *times])

    def check(self) -> None:
        """Refuse tables of another store or topic, or that need Spark. Raises RmqError."""
        self._log.check_writable()
        mismatch = self._log.type_mismatch(self._schema) if self._log.exists() else None
        if mismatch is not None:
            raise NeedsSparkError(f"{self._table.path}: {mismatch}")
        self._table.check(self._schema)
        if self._dead_letters is not None and self._dead_log is not None:
            self._dead_log.check_writable()
            self._dead_letters.check(_dead_letter_columns())

    def prepare(self) -> None:
        """Create the tables, and add new columns of the schema."""
        self._table.prepare(self._schema)
        if self._dead_letters is not None:
            self._dead_letters.prepare(_dead_letter_columns())

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        return [self._table] if self._dead_letters is None else [self._table, self._dead_letters]

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        """Return how many messages are undecoded at the end of a run; see ``undecoded.resolve_undecoded``."""
        return resolve_undecoded(self._table, self._dead_letters, self.name, accepted)

    def source_options(self) -> dict[str, str]:
        """Return the options for the columns used; bodies are inflated, as they were sent."""
        return {"columns": ",".join(self._source), "decompress": "true"}

    def commit_pending(self, records: PendingRecords) -> ExportCounts:
        """Commit the messages that the tables lack: dead letters first."""
        dead_files, decoded = self._commit_dead_letters(records)
        counts = ExportCounts()

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            nonlocal counts
            attempt = attempts[0]
            written = decoded.pop((attempt.begin, attempt.end), None)
            if written is None or attempt.needs_dedup:
                written = self._write(records, attempt, self._rows_of(attempt), None)
            counts = count_typed_files(written)
            return commit_task_files({0: self._with_undecoded(attempt, written)}, {0: [task.rows for task in written]})

        result = commit_with_retry(self._table.path, self._log, [records.start_attempt(self._table)], write)
        counts = counts if result.committed else ExportCounts()
        return replace(counts, files=counts.files + dead_files)

    def _commit_dead_letters(self, records: PendingRecords) -> tuple[int, dict[Span, list[TypedFiles]]]:
        """Commit the pending dead letters; return the number of their files, and the rows decoded with them.

        Where both tables lack the same messages, one task writes the files of both.
        """
        table, decoded = self._dead_letters, dict[Span, list[TypedFiles]]()
        if table is None:
            return 0, decoded
        has_same_progress = not table.is_backfill and table.resume_offset() == self._table.resume_offset()

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            attempt = attempts[0]
            rows = Destination(self._layout(), self._schema, _NONE) if has_same_progress else None
            written = self._write(records, attempt, rows, self._dead_letters_of(attempt))
            decoded.clear()
            if has_same_progress:
                decoded[attempt.begin, attempt.end] = written
            return commit_task_files(attempts, {0: [task.dead_letters for task in written]})

        result = commit_with_retry(table.path, table.log, [records.start_attempt(table)], write)
        return result.files, decoded

    def _layout(self) -> Layout:
        return self._log.layout(replace(self._spec, stats=self._stats), _CODEC)

    def _rows_of(self, attempt: CommitAttempt) -> Destination:
        """Return the typed table with the messages of an attempt that it has already."""
        committed = committed_offsets(self._table, self._log, attempt) if attempt.needs_dedup else _NONE
        return Destination(self._layout(), self._schema, committed)

    def _dead_letters_of(self, attempt: CommitAttempt) -> Destination:
        """Return the dead-letter table with the messages of an attempt that it has already."""
        table, log = self._dead_letters, self._dead_log
        assert table is not None  # there is no attempt without the table
        assert log is not None
        committed = committed_offsets(table, log, attempt) if attempt.needs_dedup else _NONE
        layout = log.layout(replace(DEAD_LETTER_TABLE, stats=_STATS), _CODEC)
        return Destination(layout, _dead_letter_columns(), committed)

    def _write(
        self,
        records: PendingRecords,
        attempt: CommitAttempt,
        rows: Destination | None,
        dead_letters: Destination | None,
    ) -> list[TypedFiles]:
        """Decode the messages of an attempt, and write the files of both destinations."""
        parts, _ = records.tasks(attempt)
        tasks = [
            TypedTask(part, self._source, self._decoder, self._metadata, self._time_columns, rows, dead_letters)
            for part in parts
        ]
        return write_typed_files(self._runner, tasks)

    def _with_undecoded(self, attempt: CommitAttempt, written: Sequence[TypedFiles]) -> CommitAttempt:
        """Add the undecoded messages after the attempt to it: none if the dead letters contain them."""
        if self._dead_letters is not None:
            return replace(attempt, undecoded_versions=Undecoded().versions(self._table.app_id))
        return with_undecoded(attempt, self._table, undecoded_of(written))


def _dead_letter_columns() -> pa.Schema:
    fields = [*schema_of(MESSAGE_COLUMNS), pa.field(REASON, pa.string())]
    return pa.schema([field.with_metadata({COMMENT: COMMENTS[field.name]}) for field in fields])
