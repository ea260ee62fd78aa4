"""The columns of the data source ``rmq``: those of ``rmq_commitlog``, and the broker's name."""

from typing import Final

from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.spark.options import schemas

BROKER_NAME: Final = "broker_name"
COLUMNS: Final = StructType([*schemas.COMMITLOG.fields, StructField(BROKER_NAME, StringType())])
