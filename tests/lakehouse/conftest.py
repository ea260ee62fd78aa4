"""The job, run within the tests' session."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lakehouse.exported_stores import Exporter


@pytest.fixture
def exporter(spark: SparkSession, tmp_path: Path) -> Exporter:
    """The job, on a store that the test writes."""
    return Exporter(spark, tmp_path / "store", tmp_path)
