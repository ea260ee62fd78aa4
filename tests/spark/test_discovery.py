"""Spark finds the sources by itself: it looks for top-level modules named ``pyspark_*`` with a ``DefaultSource``."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from pyspark.sql.datasource import DataSource

from rmq_formats.spark import data_sources

ROOT = Path(__file__).parents[2]


def test_each_source_has_a_module_that_spark_finds() -> None:
    names = [info.name for info in iter_modules([str(ROOT)]) if info.name.startswith("pyspark_")]
    found = {import_module(name).DefaultSource for name in names}
    assert all(issubclass(source, DataSource) for source in found)
    assert found == set(data_sources())
    assert {source.name() for source in found} == {"rmq_commitlog", "rmq_consumequeue", "rmq_index"}
