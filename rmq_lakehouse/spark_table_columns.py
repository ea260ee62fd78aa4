"""Checks of columns and rows that the logs of Delta and Iceberg do through Spark."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_lakehouse.evolution import check_columns, column, current_columns, missing, type_mismatches, with_wider_types
from rmq_lakehouse.table_log import RowRange, SparkTableLog, check_identity_columns


def check_table_columns(path: str, log: SparkTableLog, schema: StructType, identity_columns: Sequence[str]) -> None:
    """Refuse columns that a table cannot take; arguments as of ``TableLog.check_columns``. Raises StoreError."""
    existing, columns = log.schema(), _expected_columns(path, log, schema)
    former = log.former_columns()  # a column of another one's former name tells nothing apart
    check_identity_columns(path, [name for name in existing.fieldNames() if name not in former], identity_columns)
    check_columns(path, existing, columns)
    for column_path, narrow, wide in type_mismatches(existing, columns):
        reason = log.widening_refusal(narrow, wide)
        if reason is not None:
            name = ".".join(column_path)
            raise StoreError(
                f"{path}: its column {name} is {narrow.simpleString()}, not {wide.simpleString()}: {reason}"
            )


def _expected_columns(path: str, log: SparkTableLog, schema: StructType) -> StructType:
    """Return the columns to write with the table's present names, and with its types where these are wider."""
    current = current_columns(path, schema, log.former_columns())
    return with_wider_types(log.storable_schema(current), log.schema())


def add_missing_columns(path: str, log: SparkTableLog, schema: StructType) -> None:
    """Widen columns of a table, and add the columns that it lacks, under their current names."""
    for column_path, _, wide in type_mismatches(log.schema(), _expected_columns(path, log, schema)):
        log.widen_column(column_path, wide)
    current = with_wider_types(current_columns(path, schema, log.former_columns()), log.schema())
    if any(missing(log.schema(), current)):
        log.add_columns(current)


def current_name(path: str, log: SparkTableLog, name: str) -> str:
    """Return the current name of a table's column. Raises StoreError: the owner has dropped the column."""
    current = log.former_columns().get(name, name)
    if current is None or current not in log.schema().fieldNames():
        raise StoreError(f"{path}: its column {name} was dropped; leave --retention and --optimize out")
    return current


def frame_has_rows(frame: DataFrame | None, row_range: RowRange, count: int) -> bool:
    """Return whether a frame has at least ``count`` rows of a range; None is a frame without rows."""
    if frame is None:
        return False
    value = column(row_range.column)
    value = F.unix_millis(value) if row_range.is_time else value
    condition = value >= row_range.first
    if row_range.last is not None:
        condition &= value <= row_range.last
    for name, text_value in row_range.texts.items():
        condition &= column(name) == text_value
    return frame.where(condition).limit(count).count() >= count
