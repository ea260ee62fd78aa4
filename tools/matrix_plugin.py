"""pytest's plugin for ``make test-matrix``: what a Spark is too old for has to say so, and is counted apart.

A test that fails for that reason, which the project tells in one line (``rmq_formats/spark/versions.py``), counts as
skipped, with the line; any other failure stays one.
"""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from rmq_formats.spark.versions import SPARK_VERSION

_TOLD: Final = re.compile(r"needs Spark 4\.\d or later; this is [\d.]+")
_STREAM_MODULE: Final = "pyspark.sql.streaming.datasource"  # since 4.2; tests of single methods import it


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that an older Spark cannot import."""
    if SPARK_VERSION >= (4, 2) or collection_path.suffix != ".py":
        return None
    return True if _STREAM_MODULE in collection_path.read_text("utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a failure that says what it needs as skipped."""
    report: Any = yield
    if report.failed:
        told = _TOLD.search("\n".join([str(report.longrepr), *(text for _, text in report.sections)]))
        if told:
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, told[0])
    return report
