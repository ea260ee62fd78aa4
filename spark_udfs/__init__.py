"""Column functions for DataFrames and SQL: RocketMQ's hashes, CRCs, properties, plain bodies, and typed message bodies.

Each works on whole Arrow columns, in kernels. ``register_functions(spark)`` registers them for SQL by their
own names; ``rmq_formats.spark.session()`` does so.
"""

from pyspark.sql import SparkSession

from spark_udfs.functions import rmq_body as rmq_body  # this package's interface
from spark_udfs.functions import rmq_crc32 as rmq_crc32
from spark_udfs.functions import rmq_key_hash as rmq_key_hash
from spark_udfs.functions import rmq_properties as rmq_properties
from spark_udfs.functions import rmq_tags_code as rmq_tags_code


def register_functions(spark: SparkSession) -> None:
    """Register the functions for SQL: ``SELECT rmq_tags_code(tags) FROM …``.

    Spark 4.0 has no Arrow functions: there a query that uses one ends with an error that says so.
    """
    functions = {
        "rmq_properties": rmq_properties,
        "rmq_tags_code": rmq_tags_code,
        "rmq_key_hash": rmq_key_hash,
        "rmq_crc32": rmq_crc32,
        "rmq_body": rmq_body,
    }
    for name, function in functions.items():
        spark.udf.register(name, function.for_sql())
