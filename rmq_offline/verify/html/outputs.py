"""Output files of a verification: table of findings, HTML page, JSON report."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rmq_formats.errors import OptionError
from rmq_formats.read.stores import BrokerStore
from rmq_offline.tasks.brokers_report import BrokersReport
from rmq_offline.verify.html.page import render_page
from rmq_offline.verify.phases.plan import refuse_inside_store
from rmq_offline.verify.report import VerifyReport, findings_table, write_findings
from rmq_offline.verify.stores import brokers_findings_table


@dataclass(frozen=True, slots=True)
class VerifyOutputs:
    """Output paths of a verification; None writes no file.

    The format of findings is ``json``, ``parquet``, or ``delta``, which needs Spark.
    """

    findings: str | None = None
    findings_format: str = "json"
    html: str | None = None
    report: str | None = None

    def check(self, store: str, formats: Collection[str]) -> None:
        """Refuse outputs that cannot be written, before the verification starts. Raises OptionError."""
        if self.findings_format not in formats:
            hint = "" if "delta" in formats else " (delta needs Spark: jobs/verify.py)"
            raise OptionError(f"--findings-format {self.findings_format}: give {' or '.join(formats)}{hint}")
        for option, path in (("--findings", self.findings), ("--html", self.html), ("--report", self.report)):
            refuse_inside_store(store, option, path)
            if path is not None and "://" not in path and not Path(path).absolute().parent.is_dir():
                raise OptionError(f"{option} {path}: no such directory")

    def check_several(self, stores: Sequence[BrokerStore], formats: Collection[str]) -> None:
        """Refuse outputs that cannot be written for several stores. Raises OptionError."""
        if self.html is not None:
            raise OptionError(f"--html {self.html}: is a page of one store")
        for store in stores:
            self.check(store.path, formats)

    def write_several(self, report: BrokersReport[VerifyReport]) -> None:
        """Write the files on several stores; a Delta table is left to the caller. Raises OptionError."""
        if self.findings is not None and self.findings_format != "delta":
            write_findings(brokers_findings_table(report), self.findings, self.findings_format)
        if self.report is not None:
            _write_text("--report", self.report, json.dumps(report.to_dict()) + "\n")

    def write(self, report: VerifyReport, verified_at: datetime) -> None:
        """Write the files; a Delta table is left to the caller. Raises OptionError."""
        if self.findings is not None and self.findings_format != "delta":
            write_findings(findings_table(report.findings), self.findings, self.findings_format)
        if self.html is not None:
            _write_text("--html", self.html, render_page(report, verified_at, read_installed_version()))
        if self.report is not None:
            _write_text("--report", self.report, json.dumps(report.to_dict()) + "\n")


def _write_text(option: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise OptionError(f"{option} {path}: {error.strerror}") from error


def read_installed_version() -> str:
    """Return the version of the installed wheel; empty in a source tree."""
    try:
        return version("rmq-lake")
    except PackageNotFoundError:
        return ""
