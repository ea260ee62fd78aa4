"""Rewrite of Iceberg files: without rows that are too old, or several small files as one.

A plan names the files that a commit removes, and the rows of them that it adds again. The driver sees bounds of files;
tasks read and write rows, each its own files, without a shuffle.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import TimestamptzType
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rmq_lakehouse.files import TARGET_FILE_BYTES
from rmq_lakehouse.iceberg.rows import frame_of_parts, reader_of, write_parts
from rmq_lakehouse.parquet import Layout, WrittenFile

_SMALL_BYTES: Final = TARGET_FILE_BYTES * 3 // 4  # as Iceberg's own rewrite_data_files


@dataclass(frozen=True, slots=True)
class Plan:
    """Files of a snapshot to rewrite.

    Attributes:
        parts: files to remove, with their delete files; a task rewrites the rows of each part.
        dropped: files to remove with all their rows.
    """

    parts: tuple[tuple[FileScanTask, ...], ...]
    dropped: tuple[FileScanTask, ...] = ()
    row_filter: pc.Expression | None = None

    @property
    def replaced_tasks(self) -> list[FileScanTask]:
        return [*self.dropped, *(task for part in self.parts for task in part)]


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """Files of a plan that tasks have written, and the files that they replace."""

    added: tuple[WrittenFile, ...]
    replaced_tasks: tuple[FileScanTask, ...]

    @property
    def removed(self) -> tuple[DataFile, ...]:
        return tuple(task.file for task in self.replaced_tasks)

    def fits(self, table: Table) -> bool:
        """Return whether a table still has the replaced files, without newly deleted rows."""
        contents = {_content(task) for task in table.scan().plan_files()}
        return all(_content(task) in contents for task in self.replaced_tasks)


def older_rows(table: Table, time_column: str, before: datetime) -> Plan:
    """Plan to delete the rows whose ``time_column`` is before a time; files without younger rows are not read."""
    bound_us = int(before.timestamp() * 1_000_000)
    tasks = list(
        table.scan(row_filter=LessThan(term=Reference(time_column), value=literal(before.isoformat()))).plan_files()
    )
    dropped = [task for task in tasks if _is_all_before(table, task.file, time_column, bound_us)]
    parts = tuple((task,) for task in tasks if task not in dropped)
    field = pc.field(time_column)
    limit = pa.scalar(before, pa.timestamp("us", "UTC"))
    return Plan(parts, tuple(dropped), (field >= limit) | field.is_null())


def small_files(table: Table, time_column: str) -> Plan:
    """Plan to compact small files, per partition up to the target size, ordered by their first ``time_column``.

    A file with delete files is rewritten even alone. Files of former partition specs stay.
    """
    by_partition: dict[str, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        is_small = task.file.file_size_in_bytes < _SMALL_BYTES or task.delete_files
        if is_small and task.file.spec_id == table.spec().spec_id:
            by_partition[repr(task.file.partition)].append(task)
    parts = []
    for tasks in by_partition.values():
        ordered = sorted(tasks, key=lambda task: _bound(table, task.file.lower_bounds, time_column) or 0)
        parts += [part for part in _pack(ordered) if len(part) > 1 or part[0].delete_files]
    return Plan(tuple(parts))


def rewrite(spark: SparkSession, table: Table, layout: Layout, plan: Plan) -> RewriteResult:
    """Rewrite the files of a plan in tasks. Raises StoreError."""
    if not plan.parts:
        return RewriteResult((), tuple(plan.replaced_tasks))
    reader = reader_of(table, from_arrow_schema(table.schema().as_arrow()), plan.row_filter)
    added = write_parts(frame_of_parts(spark, plan.parts), layout, reader.schema, reader.read)
    return RewriteResult(tuple(added), tuple(plan.replaced_tasks))


def _pack(tasks: Sequence[FileScanTask]) -> list[tuple[FileScanTask, ...]]:
    """Split a list of files into parts of at most the target size."""
    parts: list[tuple[FileScanTask, ...]] = []
    part: list[FileScanTask] = []
    size = 0
    for task in tasks:
        if part and size + task.file.file_size_in_bytes > TARGET_FILE_BYTES:
            parts.append(tuple(part))
            part, size = [], 0
        part.append(task)
        size += task.file.file_size_in_bytes
    return [*parts, tuple(part)]


def _content(task: FileScanTask) -> tuple[str, frozenset[str]]:
    return task.file.file_path, frozenset(file.file_path for file in task.delete_files)


def _is_all_before(table: Table, file: DataFile, time_column: str, bound_us: int) -> bool:
    """Return whether the bounds prove that all rows are before a time; rows without a time stay."""
    field_id = table.schema().find_field(time_column).field_id
    upper_bound_us = _bound(table, file.upper_bounds, time_column)
    return (
        upper_bound_us is not None and upper_bound_us < bound_us and (file.null_value_counts or {}).get(field_id) == 0
    )


def _bound(table: Table, bounds: dict[int, bytes] | None, time_column: str) -> int | None:
    """Return a bound of a file's store times, in microseconds; None where it has none."""
    encoded = (bounds or {}).get(table.schema().find_field(time_column).field_id)
    return None if encoded is None else int(from_bytes(TimestamptzType(), encoded))


def cutoff(now_s: float, days: int) -> datetime:
    """Return the time before which rows are deleted; at least the first time of the year 1."""
    first = datetime.min.replace(tzinfo=UTC)
    return datetime.fromtimestamp(max(now_s - days * 86400, first.timestamp()), UTC)
