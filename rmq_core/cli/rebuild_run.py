"""The work of ``rmq rebuild``: runs the rebuild in processes of this machine, and prints the report."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.text import Text

from rmq_core.cli import output
from rmq_core.cli.output import bytes_text, printable
from rmq_formats.errors import OptionError
from rmq_formats.rebuild.job import rebuild_store
from rmq_formats.rebuild.options import RebuildOptions
from rmq_formats.rebuild.report import RebuildReport
from rmq_formats.rebuild.several import OptionsOf, rebuild_stores
from rmq_formats.tasks.origin import Leftover
from rmq_formats.tasks.runner import ProcessRunner

LISTED: Final = 50  # findings in the table: the report has more
_PHASES: Final = {"scan": "Reading the CommitLog", "write": "Writing queues and Index"}


def run(
    store: str, out: str | None, options: RebuildOptions, *, workers: int | None, report_file: str | None,
    as_json: bool, leftover: Leftover,
) -> int:  # fmt: skip
    """Rebuild, and print the report. Returns the exit code. Raises RmqError."""
    _check_report(report_file)
    with interruptible_workers(), output.progress_by_phase(_PHASES) as on_progress:
        report = rebuild_store(store, out, options, ProcessRunner(workers), on_progress, leftover)
    _write_report(report.to_dict(), report_file, as_json)
    if not as_json:
        show(report)
    return output.EXIT_FINDINGS if report.finding_counts else output.EXIT_CLEAN


def run_several(
    stores: list[str], out: str | None, options_of: OptionsOf, *, workers: int | None, report_file: str | None,
    as_json: bool, leftover: Leftover,
) -> int:  # fmt: skip
    """Rebuild several stores, and print the reports. Returns the exit code. Raises RmqError."""
    _check_report(report_file)
    with interruptible_workers():
        report = rebuild_stores(stores, out, options_of, ProcessRunner(workers), leftover)
    _write_report(report.to_dict(), report_file, as_json)
    if not as_json:
        for store, own in report.reports:
            output.console().print(Text(printable(str(store.broker)), style="bold"))
            show(own)
        output.show_failed(report.failed)
    is_clean = not report.failed and not any(own.finding_counts for _, own in report.reports)
    return output.EXIT_CLEAN if is_clean else output.EXIT_FINDINGS


def _check_report(report_file: str | None) -> None:
    if report_file is not None and not Path(report_file).absolute().parent.is_dir():
        raise OptionError(f"--report {report_file}: no such directory")


def _write_report(report: dict[str, Any], report_file: str | None, as_json: bool) -> None:
    line = output.json_line(report)
    if report_file is not None:
        Path(report_file).write_bytes(line)
    if as_json:
        with output.Lines() as lines:
            lines.write(line)


@contextmanager
def interruptible_workers() -> Iterator[None]:
    """Make Ctrl-C end worker processes at once and silently, within this context.

    A terminal sends SIGINT to all of them, and each would print its own traceback; sent to the first only, it
    would wait for the others' tasks to end. Tasks write beside and rename, so that they may die.
    """
    leader = os.getpid()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() != leader:  # a forked worker, which has inherited this
            os._exit(output.EXIT_INTERRUPTED)
        for child in multiprocessing.active_children():
            child.kill()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def show(report: RebuildReport) -> None:
    """Print the report for people."""
    console = output.console()
    rate = report.bytes / report.seconds / 1e6 if report.seconds else 0.0
    seconds = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in report.phases.items())
    written = f"{output.counted(report.queues, 'queue')}, {output.counted(report.files, 'file')}"
    if report.finding_counts:
        findings = Text(", ".join(f"{count:,} {code}" for code, count in report.finding_counts.items()), style="yellow")
    else:
        findings = Text("none", style="green")
    console.print(
        output.facts(
            ("store", printable(report.store)),
            ("written to", printable(report.out)),
            ("read", f"{output.counted(report.messages, 'message')} in {bytes_text(report.bytes)}"),
            ("ConsumeQueue", f"{report.units:,} units"),
            ("Index", f"{report.index_entries:,} entries; of TAGS: {printable(report.index_tags)}"),
            ("written", written),
            ("seconds", f"{report.seconds:.2f} ({seconds}), {rate:,.0f} MB/s"),
            ("findings", findings),
        )
    )
    if report.findings:
        table = output.table("severity", "code", ">offset", "what")
        for finding in report.findings[:LISTED]:
            offset = "-" if finding.physical_offset is None else str(finding.physical_offset)
            queue = "" if finding.topic is None else f"{printable(finding.topic)}/{finding.queue_id}: "
            table.add_row(finding.kind.severity, finding.kind.code, offset, f"{queue}{printable(finding.detail)}")
        console.print()
        console.print(table)
    if len(report.findings) > LISTED:
        console.print(f"… {len(report.findings) - LISTED:,} more; --json and --report list them")
    for remedy in sorted({finding.kind.remedy for finding in report.findings}):
        console.print(f"→ {remedy}")
