"""Port between exports without Spark and table formats."""

from collections.abc import Callable, Collection
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.errors import RmqError, without_secrets
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.table_log import RowRange, TableLog, TableSpec


class NeedsSparkError(RmqError):
    """An export, or a table, that only the job ``export_delta.py`` can write."""

    def with_command(self, command: str) -> str:
        """Return the error's line with the command that starts the job."""
        return without_secrets(f"{self}: this needs Spark; run: {command}")


class LocalTableLog(TableLog, Protocol):
    """Log of a table that this process writes without Spark."""

    def check_writable(self, columns: Collection[str], table_spec: TableSpec) -> None:
        """Refuse a table into which only Spark's writer can write some columns. Raises NeedsSparkError."""

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout:
        """Return how tasks write the files of the table. Raises NeedsSparkError: its owner may have changed it."""

    def values(self, version: int, row_range: RowRange) -> npt.NDArray[np.int64]:
        """Read the values of a column of integers, of a range of rows."""

    def type_mismatch(self, schema: pa.Schema) -> str | None:
        """Describe a column that the table has with another name or type, whatever its case; None without one."""


OpenLocalTable = Callable[[str], LocalTableLog]


def condition_of(row_range: RowRange) -> pc.Expression:
    """Return the condition of Arrow that a row is in a range of a column of integers."""
    value = pc.field(row_range.column)
    condition = value >= pc.scalar(row_range.first)
    if row_range.last is not None:
        condition &= value <= pc.scalar(row_range.last)
    for name, text in row_range.texts.items():
        condition &= pc.field(name) == pc.scalar(text)
    return condition
