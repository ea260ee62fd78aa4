"""Reading with the sources."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession) -> Load:
    """``load(store, **options)`` reads a store's CommitLog."""

    def load_store(store: Path, source: str = "rmq_commitlog", **options: str) -> DataFrame:
        return spark.read.format(source).options(**options).load(str(store))

    return load_store
