"""Table formats by name, and the options that they need."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.delta.table import DeltaTableLog
from rmq_formats.lakehouse.table_log import OpenTable, TableLog

FORMATS: Final = ("delta", "iceberg")


def table_format(spark: SparkSession, name: str, options: Mapping[str, str]) -> OpenTable:
    """Return the function that opens tables of a format.

    Args:
        spark: the session.
        name: one of ``FORMATS``.
        options: properties of a catalog that table names refer to.

    Raises:
        OptionError: pyiceberg is not installed.
    """
    if name == "delta":
        # Spark's default, INT96, other engines read in nanoseconds, which end in 2262, or not at all.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        return lambda table: DeltaTableLog(spark, table)
    check_installed()
    from rmq_formats.lakehouse.iceberg.catalog import IcebergLocation  # noqa: PLC0415
    from rmq_formats.lakehouse.iceberg.table import IcebergTableLog  # noqa: PLC0415 # an extra of the wheel

    def open_iceberg(table: str) -> TableLog:
        return IcebergTableLog(spark, IcebergLocation(table, options))

    return open_iceberg


def check_installed() -> None:
    """Refuse Iceberg where pyiceberg is missing. Raises OptionError."""
    try:
        import pyiceberg.catalog.sql  # noqa: F401, PLC0415 # an extra of the wheel
    except ImportError as error:
        raise OptionError(f"--format iceberg needs pip install 'rmq-lake[iceberg]': {error}") from error
