"""Typed table of a topic on one machine: bodies as columns, one row a message, and the dead letters."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from rmq_formats.arrow.schema import schema_of
from rmq_formats.errors import OptionError
from rmq_lakehouse.decode.bodies import ELEMENT, BodyDecoder
from rmq_lakehouse.decode.columns import column_types, select_columns
from rmq_lakehouse.decode.spark_ddl import UnknownSchemaError
from rmq_lakehouse.decode.topics import build_decoder, schema_columns
from rmq_lakehouse.delta.features import property_requiring_delta_writer
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.exports import ExportCounts, ExportTables
from rmq_lakehouse.local.raw import CODEC, LocalExactlyOnceTable, LocalRunner
from rmq_lakehouse.local.table_log import NeedsSparkError, OpenLocalTable
from rmq_lakehouse.parquet import stats_columns
from rmq_lakehouse.partitions import TIME_COLUMNS, check_columns_exist, parse_partition
from rmq_lakehouse.records import PendingRecords
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spec import METADATA, TypedTopic, table_comment, table_properties
from rmq_lakehouse.table_log import TableSpec
from rmq_lakehouse.typed_table import (
    OutputTable,
    TypedTable,
    dead_letter_columns,
    find_partition_texts,
    messages_to_read,
    typed_columns,
)
from rmq_lakehouse.undecoded import DEAD_LETTER_TABLE, resolve_undecoded

_OFFSET: Final = "physical_offset"
_ZONE: Final = "UTC"  # of times without one, as in the session of the job
# Types whose text in a table's log is Spark's.
_PARTITION_TYPES: Final = frozenset({pa.string(), pa.int32(), pa.int64(), pa.date32()})


def check_topic(topic: TypedTopic, table_format: str) -> None:
    """Refuse a topic that only Spark can export. Raises NeedsSparkError or OptionError."""
    for name in ("key", "cluster_by"):
        if getattr(topic, name):
            raise NeedsSparkError(f"topic {topic.topic!r}: {name} is for the job")
    columns = pa.schema(list(build_local_decoder(topic).value_type))
    for path, kind in column_types(columns):
        if pa.types.is_null(kind):  # the writers have no such type
            raise NeedsSparkError(f"topic {topic.topic!r}: column {path} is {kind}, which is for the job")
    _check_partitions(topic, columns)
    if table_format == "delta":
        demanding = property_requiring_delta_writer(topic.properties)
        if demanding is not None:
            value = topic.properties.get(demanding)
            raise NeedsSparkError(f"topic {topic.topic!r}: property {demanding} = {value} is for the job")


def _check_partitions(topic: TypedTopic, columns: pa.Schema) -> None:
    """Refuse transforms, and columns whose text in a table's log is not certainly Spark's."""
    metadata = {topic.metadata_prefix + field.name: field.type for field in schema_of(METADATA)}
    kinds = metadata | dict.fromkeys(TIME_COLUMNS, pa.date32()) | {field.name: field.type for field in columns}
    for text in topic.partition_by:
        partition = parse_partition(text)
        check_columns_exist([partition.column], kinds)
        if partition.transform != "identity" or kinds[partition.column] not in _PARTITION_TYPES:
            raise NeedsSparkError(f"topic {topic.topic!r}: partition_by {text} is for the job")


def build_local_decoder(topic: TypedTopic) -> BodyDecoder:
    """Build the decoder of a topic's bodies; its fields have the comments of the schema.

    Raises:
        NeedsSparkError: only Spark's parser may accept the schema.
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
    """Export of one topic, which ``check_topic`` has accepted, to its typed table and to the dead letters, if any."""

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
        self._schema = typed_columns(topic, self._metadata, self._decoder.value_type, self._time_columns)
        self._spec = TableSpec(
            partitions,
            stats=stats_columns(self._schema, partitions),
            properties=table_properties(topic),
            initial_properties=tuple(topic.properties.items()),
            comment=table_comment(topic),
        )
        prefix = topic.metadata_prefix
        log = open_table(topic.table)
        partition_texts = find_partition_texts(log, topic, self._decoder.value_type)
        self._decoder = replace(self._decoder, partition_texts=partition_texts)
        self._table = LocalExactlyOnceTable(topic.table, log, self.selection, self._spec, prefix + _OFFSET)
        self.tables = {topic.table: f"{prefix}store_timestamp"}
        self._dead_letters: LocalExactlyOnceTable | None = None
        if dead_letters is not None:
            dead_log = open_table(dead_letters)
            self._dead_letters = LocalExactlyOnceTable(dead_letters, dead_log, self.selection, DEAD_LETTER_TABLE)
            self.tables[dead_letters] = "store_timestamp"

    def check(self) -> None:
        log, dead_letters = self._table.log, self._dead_letters
        log.check_writable(self._schema.names, self._spec)
        mismatch = log.type_mismatch(self._schema) if log.exists() else None
        if mismatch is not None:
            raise NeedsSparkError(f"{self._table.path}: {mismatch}")
        self._table.check(self._schema)
        if dead_letters is not None:
            dead_letters.log.check_writable(dead_letter_columns().names, DEAD_LETTER_TABLE)
            dead_letters.check(dead_letter_columns())

    def table_schemas(self) -> Iterator[tuple[ExactlyOnceTable, pa.Schema]]:
        yield self._table, self._schema
        if self._dead_letters is not None:
            yield self._dead_letters, dead_letter_columns()

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        return resolve_undecoded(self._table, self._dead_letters, accepted, self.name)

    def source_options(self) -> dict[str, str]:
        """Return the options for the columns used; bodies are inflated, as they were sent."""
        return {"columns": ",".join(messages_to_read(self._time_columns)), "decompress": "true"}

    def commit_pending(self, records: PendingRecords) -> ExportCounts:
        dead_letters = None
        if self._dead_letters is not None:
            columns = dead_letter_columns()
            dead_letters = _output(self._dead_letters, columns, DEAD_LETTER_TABLE, {"topic": self.name})
        rows = _output(self._table, self._schema, self._spec, {})
        table = TypedTable(self._runner, self._decoder, self._metadata, self._time_columns, None, rows, dead_letters)
        return table.commit_pending(records)


def _output(
    table: LocalExactlyOnceTable, schema: pa.Schema, table_spec: TableSpec, texts: Mapping[str, str]
) -> OutputTable:
    """Return a table as tasks write it; ``texts`` are values of columns that all rows of the export have."""
    find_offsets = partial(table.committed_offsets, texts=texts)
    return OutputTable(table, schema, lambda: table.log.layout(table_spec, CODEC, schema.names), find_offsets)
