"""pytest's plugin for ``make test-matrix``: what a Spark is too old for has to say so, and is counted apart.

A test that fails for that reason, which the project tells in one line (``rmq_formats/spark/versions.py``), counts as
skipped, with the line; any other failure stays one. So does a module, or a test, that imports pyspark's own module of
streams, which is there since 4.2.
"""

import re
from collections.abc import Generator
from typing import Any, Final

import pytest

_TOLD: Final = re.compile(
    r"needs Spark 4\.\d or later; this is [\d.]+|No module named 'pyspark.sql.streaming.datasource'"
)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules that cannot be imported for what they need."""
    return _told((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a failure that says what it needs as skipped."""
    return _told((yield))


def _told(report: Any) -> Any:
    if report.failed:
        told = _TOLD.search("\n".join([str(report.longrepr), *(text for _, text in report.sections)]))
        if told:
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, told[0])
    return report
