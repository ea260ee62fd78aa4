"""One small session for all tests of the sources and functions; without Delta, which they do not need."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmq_formats.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session of two processors, its web page off."""
    spark = session("tests", master="local[2]", delta=False, spark_sql_shuffle_partitions="2")
    spark.sparkContext.setLogLevel("OFF")  # tests provoke errors, and read them
    yield spark
    spark.stop()


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession) -> Load:
    """``load(store, **options)`` reads a store's CommitLog."""

    def load_store(store: Path, source: str = "rmq_commitlog", **options: str) -> DataFrame:
        return spark.read.format(source).options(**options).load(str(store))

    return load_store
