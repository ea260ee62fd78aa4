"""A session for tests of jobs, which need Delta."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rmq_formats.spark import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session of two processors."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    spark = session("tests", master="local[2]", spark_sql_warehouse_dir=str(warehouse))
    yield spark
    spark.stop()
