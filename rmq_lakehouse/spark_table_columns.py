"""Checks of columns and rows that the logs of Delta and Iceberg do through Spark."""

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_lakehouse.evolution import check_columns, column, current_columns, missing, type_mismatches, with_wider_types
from rmq_lakehouse.table_log import RowRange, SparkTableLog, check_identity_columns


class SparkTableColumns(SparkTableLog, Protocol):
    """Methods that the logs of Delta and Iceberg have in common."""

    def check_columns(self, path: str, schema: StructType, identity_columns: Sequence[str]) -> None:
        existing, columns = self.schema(), self._expected_columns(path, schema)
        former = self.former_columns()  # a new column with a former column's name identifies no row
        check_identity_columns(path, [name for name in existing.fieldNames() if name not in former], identity_columns)
        check_columns(path, existing, columns)
        for column_path, narrow, wide in type_mismatches(existing, columns):
            reason = self.widening_refusal(narrow, wide)
            if reason is not None:
                name = ".".join(column_path)
                raise StoreError(
                    f"{path}: its column {name} is {narrow.simpleString()}, not {wide.simpleString()}: {reason}"
                )

    def _expected_columns(self, path: str, schema: StructType) -> StructType:
        """Return the columns to write with the table's present names, and with its types where these are wider."""
        current = current_columns(path, schema, self.former_columns())
        return with_wider_types(self.storable_schema(current), self.schema())

    def add_missing_columns(self, path: str, schema: StructType) -> None:
        """Widen columns of a table, and add the columns that it lacks, under their current names."""
        for column_path, _, wide in type_mismatches(self.schema(), self._expected_columns(path, schema)):
            self.widen_column(column_path, wide)
        current = with_wider_types(current_columns(path, schema, self.former_columns()), self.schema())
        if any(missing(self.schema(), current)):
            self.add_columns(current)

    def current_name(self, path: str, name: str) -> str:
        """Return the current name of a table's column. Raises StoreError: the owner has dropped the column."""
        current = self.former_columns().get(name, name)
        if current is None or current not in self.schema().fieldNames():
            raise StoreError(f"{path}: its column {name} was dropped; leave --retention and --optimize out")
        return current

    def has_rows(self, version: int, row_range: RowRange, count: int = 1) -> bool:
        frame = self.rows(version, [row_range.column, *row_range.texts])
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
