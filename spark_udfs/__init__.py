"""Column functions for DataFrames and SQL: RocketMQ's hashes, CRCs, properties, plain bodies, and typed message bodies.

Kernels process whole Arrow columns. ``register_functions(spark)``, which ``rmq_formats.spark.session()`` calls,
registers the functions for SQL by their names.
"""

from pyspark.sql import SparkSession

from spark_udfs.functions import rmq_body as rmq_body  # this package's interface
from spark_udfs.functions import rmq_crc32 as rmq_crc32
from spark_udfs.functions import rmq_key_hash as rmq_key_hash
from spark_udfs.functions import rmq_properties as rmq_properties
from spark_udfs.functions import rmq_tags_code as rmq_tags_code


def register_functions(spark: SparkSession) -> None:
    """Register the functions for SQL: ``SELECT rmq_tags_code(tags) FROM …``.

    Spark 4.0 has no Arrow functions: a query with such a function ends with an error that names the version.
    """
    for function in (rmq_properties, rmq_tags_code, rmq_key_hash, rmq_crc32, rmq_body):
        spark.udf.register(function.over_arrays.__name__, function.for_sql())
