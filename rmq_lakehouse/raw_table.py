"""Raw table of an export: its columns, and the tasks that write its files, by Spark or without."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, COMMITLOG, schema_of
from rmq_formats.errors import OptionError
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.exports import ExportTables
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.partitions import DATE, TIME_COLUMNS, check_columns_exist, source_columns, time_column_type
from rmq_lakehouse.raw_files import ERROR, RawTask, TaskRows
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.table_log import TableSpec

_NEEDED: Final = ("physical_offset", "size", "store_timestamp", ERROR)
# Columns with statistics, which cost a look at each value: those that rows are looked up by.
_STATS: Final[tuple[str, ...]] = ("physical_offset", "store_timestamp", "queue_id", "queue_offset", "uniq_key")


class RawTable(ExportTables):
    """Table of all columns of ``rmq_commitlog``, or of some, with the date of the store time. Raises OptionError.

    Args:
        columns: columns of the source, in the order of the table; None is all.
        decompresses: whether bodies are written as they were sent, with a ``sys_flag`` that says so.
    """

    name = "raw"
    table: ExactlyOnceTable

    def __init__(
        self,
        path: str,
        selection: ExportSelection,
        columns: Sequence[str] | None,
        table_spec: TableSpec,
        *,
        decompresses: bool = False,
    ) -> None:
        brokers = () if selection.broker is None else (CLUSTER, BROKER_NAME)
        layout_columns = (*table_spec.partitions, *table_spec.clusters)
        self._source = tuple(COMMITLOG.names)
        if columns is not None:
            self._source = _columns_to_read(columns, brokers, source_columns(layout_columns), decompresses=decompresses)
        self._time_columns = tuple(name for name in TIME_COLUMNS if name == DATE or name in layout_columns)
        self._decompresses = decompresses
        self.file_schema = pa.schema(
            [
                *(field for field in schema_of(self._source) if field.name != ERROR),
                *(pa.field(name, pa.string()) for name in brokers),
                *(pa.field(name, time_column_type(name)) for name in self._time_columns),
            ]
        )
        stats = [name for name in _STATS if name in self._source and name not in table_spec.partitions]
        more_stats = [name for name in table_spec.clusters if name not in stats]
        self.table_spec = replace(table_spec, stats=(*stats, *more_stats))
        self.tables = {path: "store_timestamp"}
        self.selection = selection

    def source_options(self) -> dict[str, str]:
        columns = {"columns": ",".join(self._source)}
        return {**columns, "decompress": "true"} if self._decompresses else columns

    def files_tasks(self, rows: Sequence[TaskRows], layout: Layout) -> list[RawTask]:
        broker, excluded_topics = self.selection.broker, self.selection.excluded_topics
        return [
            RawTask(rows_of_task, self._source, self.file_schema, broker, excluded_topics, layout)
            for rows_of_task in rows
        ]


def _columns_to_read(
    columns: Sequence[str], broker_columns: Sequence[str], layout_columns: Sequence[str], *, decompresses: bool
) -> tuple[str, ...]:
    """Return the columns to read of the source: those of the table, of its layout, and those that each table needs."""
    table_columns = [name for name in layout_columns if name not in broker_columns]
    requested = [name for name in columns if name not in broker_columns]
    if "body" in requested and not decompresses:
        requested.append("sys_flag")  # it says which bodies are compressed
    return tuple(dict.fromkeys([*requested, *_NEEDED, "topic", *table_columns]))


def check_partition_columns(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns that the table lacks, or whose type makes no partitions. Raises OptionError."""
    for name in names:
        check_columns_exist([name], schema.names)
        kind = schema.field(name).type
        if pa.types.is_binary(kind) or pa.types.is_nested(kind):
            nested = "map<string,string>" if pa.types.is_map(kind) else "array<string>"
            text = "binary" if pa.types.is_binary(kind) else nested
            raise OptionError(f"--partition-by {name}: its type {text} makes no partitions")
