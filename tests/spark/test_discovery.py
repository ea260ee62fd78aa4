"""Spark finds the sources by itself: it looks for top-level modules named ``pyspark_*`` with a ``DefaultSource``."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from pyspark.sql.datasource import DataSource

from rmq_formats.spark.sources import data_sources

ROOT = Path(__file__).parents[2]
MODULES = [info.name for info in iter_modules([str(ROOT)]) if info.name.startswith("pyspark_")]

# What a user types who knows nothing of this project but the sources' names.
PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for source in ("rmq_commitlog", "rmq_consumequeue", "rmq_index"):
    frame = spark.read.format(source).load(sys.argv[1])
    print(source, frame.count())
"""


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


@pytest.mark.spark
def test_a_plain_session_of_an_installation_needs_no_call(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = golden("mixed") / "store"
    records = len((golden("mixed") / "expected" / "messages.jsonl").read_text("utf-8").splitlines())
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, str(store)],
        cwd=tmp_path, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert counts["rmq_commitlog"] == str(records)
    assert int(counts["rmq_consumequeue"]) > 0
    assert int(counts["rmq_index"]) > 0
