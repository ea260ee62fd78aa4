"""Table formats by name, and the options that they need."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from rmq_lakehouse.command.options import check_installed
from rmq_lakehouse.delta.table import DeltaTableLog
from rmq_lakehouse.table_log import OpenTable


def table_format(spark: SparkSession, name: str, options: Mapping[str, str]) -> OpenTable:
    """Return the function that opens tables of the format ``delta`` or ``iceberg``. Raises OptionError."""
    if name == "delta":
        # Spark's default, INT96, other engines read in nanoseconds, which end in 2262, or not at all.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        return lambda table: DeltaTableLog(spark, table)
    check_installed()
    from rmq_lakehouse.iceberg.catalog import IcebergLocation  # noqa: PLC0415
    from rmq_lakehouse.iceberg.spark_log import IcebergTableLog  # noqa: PLC0415 # an extra of the wheel

    return lambda table: IcebergTableLog(spark, IcebergLocation(table, options))
