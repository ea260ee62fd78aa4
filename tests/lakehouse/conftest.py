"""A session with Delta, and a job that runs within it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_formats.spark import session
from tests.lakehouse.making import Exporter


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session of two processors."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    patient = {"spark_python_authenticate_socketTimeout": "120s"}  # workers that start on a busy machine
    settings = {"spark_sql_shuffle_partitions": "2", "spark_sql_warehouse_dir": str(warehouse), **patient}
    spark = session("tests", master="local[2]", **settings)
    spark.sparkContext.setLogLevel("OFF")  # tests provoke errors, and read them
    yield spark
    spark.stop()


@pytest.fixture
def exporter(spark: SparkSession, tmp_path: Path) -> Exporter:
    """The job, on a store that the test writes."""
    return Exporter(spark, tmp_path / "store", tmp_path)
