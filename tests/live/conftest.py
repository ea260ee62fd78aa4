"""A session for tests of the live source and sink."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rmq_formats.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session of two processors."""
    patient = {"spark_python_authenticate_socketTimeout": "120s"}  # workers that start on a busy machine
    spark = session("live", master="local[2]", delta=False, spark_sql_shuffle_partitions="2", **patient)
    spark.sparkContext.setLogLevel("OFF")  # tests provoke errors, and read them
    yield spark
    spark.stop()
