"""Spark finds the sources by itself: it looks for top-level modules named ``pyspark_*`` with a ``DefaultSource``.

``test_catalog.py`` has a plain session that finds them.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from pyspark.sql.datasource import DataSource

from rmq_formats.spark.sources import data_sources

ROOT = Path(__file__).parents[2]
MODULES = [info.name for info in iter_modules([str(ROOT)]) if info.name.startswith("pyspark_")]


def test_each_source_has_a_module_that_spark_finds() -> None:
    found = {import_module(name).DefaultSource for name in MODULES}
    assert all(issubclass(source, DataSource) for source in found)
    assert found == set(data_sources())
    assert {f"pyspark_{source.name()}" for source in found} == set(MODULES)


def test_the_modules_load_no_kernels() -> None:
    """Spark imports them for each session and each worker that plans a query."""
    program = f"import sys, {', '.join(MODULES)}; print(*sorted({{'numba', 'pandas', 'rmq_core'}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
