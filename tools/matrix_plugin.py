"""pytest's plugin for ``make test-matrix``: counts tests that need an older or a newer Spark separately.

A test that fails for that reason, which the project tells in one line (``rmq_formats/spark/versions.py``), counts as
skipped, with the line; any other failure stays one. So does a module, or a test, that imports pyspark's own module of
streams, which is there since 4.2; and a test in which Delta calls what this Spark has no more, because it was built for
others, which a job tells in a line (there as well) and a test's own query by the JVM's error.
"""

import re
from collections.abc import Generator
from typing import Any, Final

import pyspark
import pytest

from rmq_formats.spark.versions import DELTA_SPARKS

_TOO_OLD: Final = r"needs Spark 4\.\d or later; this is [\d.]+|No module named 'pyspark.sql.streaming.datasource'"
_LINKAGE: Final = "(?:NoSuchMethod|NoSuchField|NoClassDefFound|AbstractMethod|IncompatibleClassChange)Error"
_DELTA_IS_FOR_OTHERS: Final = (
    r"a library in the JVM does not fit Spark [\d.]+ \(Delta [\d.]+ is built for Spark [\d.]+ to [\d.]+\)"
    # Its first frame is on a line of its own, or behind escapes, where the error is quoted as a text.
    rf"|java\.lang\.{_LINKAGE}: [^\n\\]*(?=\\?n?(?:[E\s]|\\t)*at (?:org\.apache\.spark\.sql\.delta|io\.delta)\.)"
)


def reason(text: str, spark: str) -> str | None:
    """Find the line by which a failure names another Spark as its requirement; None for other failures."""
    fits = spark.startswith(tuple(f"{version}." for version in DELTA_SPARKS))
    match = re.search(_TOO_OLD if fits else f"{_TOO_OLD}|{_DELTA_IS_FOR_OTHERS}", text)
    return match[0] if match else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules that cannot be imported for what they need."""
    return _skip_if_unsupported((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a failure that names its requirement as skipped."""
    return _skip_if_unsupported((yield))


def _skip_if_unsupported(report: Any) -> Any:
    if report.failed:
        needs = reason("\n".join([str(report.longrepr), *(text for _, text in report.sections)]), pyspark.__version__)
        if needs:
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, needs)
    return report
