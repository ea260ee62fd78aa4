"""The work of ``rmq convert``: converts in processes of this machine, and prints the report."""

from typing import Final

from rich.console import Console
from rich.text import Text

from rmq_core.cli import output
from rmq_core.cli.output import bytes_text, printable
from rmq_core.cli.rebuild_run import interruptible_workers
from rmq_formats.convert.job import convert_store
from rmq_formats.convert.report import ConvertReport
from rmq_formats.tasks.runner import ProcessRunner
from rmq_formats.verify.phases.plan import VerifyOptions

LISTED: Final = 40  # findings: --json has all


def run(store: str, to: str, out: str, sizes: VerifyOptions, *, workers: int | None, as_json: bool) -> int:
    """Convert, and print the report. Returns the exit code. Raises RmqError."""
    with interruptible_workers():
        report = convert_store(store, to, out, sizes, ProcessRunner(workers))
    if as_json:
        output.print_json(report.to_dict())
    else:
        show(report, output.console())
    return output.EXIT_FINDINGS if report.done.findings else output.EXIT_CLEAN


def show(report: ConvertReport, console: Console) -> None:
    """Print the report for people."""
    done = report.done
    console.print(
        output.facts(
            ("store", printable(report.store)),
            ("new store", f"{printable(report.out)}, {report.to}"),
            ("written", f"{output.counted(done.messages, 'message')} in {bytes_text(done.bytes)}"),
            ("seconds", f"{report.seconds:.2f}"),
            *(("changed" if not number else "", Text(change)) for number, change in enumerate(done.changes)),
        )
    )
    if done.findings:
        table = output.table("left out", ">offset", "what")
        for finding in done.findings[:LISTED]:
            offset = "-" if finding.physical_offset is None else str(finding.physical_offset)
            table.add_row(Text(finding.kind.code, style="red"), offset, printable(finding.detail))
        console.print()
        console.print(table)
        if len(done.findings) > LISTED:
            console.print(f"… {len(done.findings) - LISTED:,} more; --json lists them")
