"""The work of ``rmq repair``: plans or repairs in processes of this machine, and prints the report."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.text import Text

from rmq_cli import output
from rmq_cli.commands import interruptible_workers
from rmq_cli.output import bytes_text, printable
from rmq_cli.rebuild_run import show_changes
from rmq_offline.repair.config import repair_config
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.report import RepairReport
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import OnProgress, ProcessRunner, Progress
from rmq_offline.verify.phases.plan import VerifyOptions

LISTED: Final = 40  # steps, and findings, in the tables: --json has all


def run(
    store: str,
    options: VerifyOptions,
    *,
    apply: bool,
    accept: Sequence[str],
    work: str | None,
    workers: int | None,
    as_json: bool,
    leftover: InterruptedRunPolicy,
) -> int:
    """Plan or repair, and print the report. Returns the exit code. Raises RmqError."""
    with interruptible_workers(), _status() as on_progress:
        report = repair_store(
            store,
            options,
            ProcessRunner(workers),
            apply=apply,
            work=work,
            on_progress=on_progress,
            leftover=leftover,
            accept=accept,
        )
    if as_json:
        output.print_json(report.to_dict())
    else:
        show(report, output.console())
        _show_next(report, store)
    return output.EXIT_CLEAN if report.is_clean else output.EXIT_FINDINGS


def run_config(store: str, *, apply: bool, as_json: bool) -> int:
    """Plan or make lost config files anew, and print the report. Returns the exit code. Raises RmqError."""
    report = repair_config(store, apply=apply)
    console = output.console()
    if as_json:
        output.print_json(report.to_dict())
        return output.EXIT_CLEAN if report.is_clean else output.EXIT_FINDINGS
    table = output.table("file", "why", "what it has" if report.is_applied else "what it would have")
    for step in report.steps:
        table.add_row(step.path, printable(step.why), printable(", ".join(step.names[:LISTED])))
    console.print(table if report.steps else "both files are there, and parse")
    if report.directory is not None:
        console.print(f"what did not parse is in {printable(report.directory)}", soft_wrap=True)
    if not report.is_clean:
        command = printable(shlex.join(["rmq", "repair", store, "--what", "config", "--apply"]))
        console.print(f"→ {command}", soft_wrap=True, highlight=False, markup=False)
    return output.EXIT_CLEAN if report.is_clean else output.EXIT_FINDINGS


@contextmanager
def _status() -> Iterator[OnProgress]:
    """Show the current phase on stderr if that is a terminal: a repair goes through the same phases more than once."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    titles = {"scan": "Reading the CommitLog", "compare": "Comparing queues and Index", "write": "Writing them anew"}
    with Console(stderr=True).status("Looking at the store") as status:

        def on_progress(progress: Progress) -> None:
            status.update(f"{titles[progress.phase]}: {progress.done / max(1, progress.total):.0%}")

        yield on_progress


def show(report: RepairReport, console: Console) -> None:
    """Print the report for people."""
    console.print(output.facts(*_facts(report)))
    if report.steps:
        table = output.table("", "what", "where", ">offset", ">bytes", "why")
        for number, step in enumerate(report.steps[:LISTED], 1):
            offset = "" if step.physical_offset is None else str(step.physical_offset)
            size = "" if step.size is None else bytes_text(step.size)
            table.add_row(str(number), step.action, printable(step.path), offset, size, printable(step.why))
        console.print()
        console.print(table)
        output.print_unlisted(console, len(report.steps), LISTED, "--json lists them")
    show_changes(report.outcome, console)
    if report.disturbed:
        console.print(Text(f"queues changed outside of the plan: {', '.join(report.disturbed)}", style="red"))
    if report.left:
        _show_left(report, console)


def _facts(report: RepairReport) -> list[tuple[str, str | Text]]:
    facts: list[tuple[str, str | Text]] = [("store", printable(report.store))]
    if report.layouts:
        facts.append(("layout", ", ".join(report.layouts)))
    if report.is_resumed:
        facts.append(("resumed", "a repair that was interrupted"))
    if report.lost:
        facts.append(("lost", f"{output.counted(report.lost, 'message')} in damaged ranges of the log"))
    if report.explained:
        facts.append(("quarantined", f"{output.counted(report.explained, 'queue offset')} without a message"))
    if report.closed:
        facts.append(("closed gaps", f"{output.counted(report.closed, 'queue offset')} without a record"))
    if report.directory is not None:
        facts.append(("quarantine", printable(report.directory)))
    if report.outcome.quarantine is not None:
        size = bytes_text(report.outcome.quarantine_bytes)
        facts.append(("former queues", f"{printable(report.outcome.quarantine)}, {size} on disk"))
    return [*facts, ("seconds", f"{report.seconds:.2f}"), ("verdict", _verdict(report))]


def _verdict(report: RepairReport) -> Text:
    if report.is_clean:
        return Text("repaired; the verification finds nothing" if report.steps else "sound", style="green")
    if not report.is_applied and report.steps:
        unrepaired = f", {output.counted(len(report.left), 'finding')} cannot be repaired" if report.left else ""
        return Text(f"{output.counted(len(report.steps), 'step')} to do{unrepaired}; --apply does them", style="yellow")
    if not report.left:
        return Text("repaired, but consumers get less than before", style="red")
    return Text(f"{output.counted(len(report.left), 'finding')} could not be repaired", style="red")


def _show_next(report: RepairReport, store: str) -> None:
    """Print the command to run next, to be copied."""
    if report.is_applied or not report.steps:
        return
    arguments = [item for item in sys.argv[1:] if item not in {"--plan", "--json"}] or ["repair", store]
    accept = [part for name in report.outcome.unaccepted_queues for part in ("--accept", name)]
    command = printable(shlex.join(["rmq", *arguments, "--apply", *accept]))
    output.console().print(f"→ {command}", soft_wrap=True, highlight=False, markup=False)


def _show_left(report: RepairReport, console: Console) -> None:
    table = output.table("cannot be repaired", ">offset", "where", "what", "remedy")
    for finding in report.left[:LISTED]:
        offset = "" if finding.physical_offset is None else str(finding.physical_offset)
        queue = "" if finding.queue_id is None else f"/{finding.queue_id}"
        where = f"{finding.topic}{queue}" if finding.topic is not None else (finding.path or "").rpartition("/")[2]
        table.add_row(finding.kind.code, offset, printable(where), printable(finding.detail), finding.kind.remedy)
    console.print()
    console.print(table)
    output.print_unlisted(console, len(report.left), LISTED, "--json lists them")
