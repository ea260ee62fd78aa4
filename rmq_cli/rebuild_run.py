"""The work of ``rmq rebuild``: runs the rebuild in processes of this machine, and prints the report."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from rmq_cli import output
from rmq_cli.arguments import resolve_store_list
from rmq_cli.commands import interruptible_workers
from rmq_cli.output import bytes_text, printable
from rmq_offline.job_arguments import check_report
from rmq_offline.rebuild.changes import MAX_NAMED, QueueChanges
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.publication import Outcome, PublishOptions
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import ProcessRunner

if TYPE_CHECKING:
    from rmq_offline.rebuild.stores import OptionsOf
    from rmq_offline.tasks.brokers_report import BrokersReport

LISTED: Final = 50  # findings in the table: the report has more
_PHASES: Final = {"scan": "Reading the CommitLog", "write": "Writing queues and Index"}


def run(
    stores: list[str],
    out: str | None,
    options_of: "OptionsOf",
    publishing: PublishOptions,
    *,
    workers: int | None,
    report_file: str | None,
    as_json: bool,
    leftover: InterruptedRunPolicy,
) -> int:
    """Rebuild a store, or resolve_store_list, and print the report. Returns the exit code. Raises RmqError."""
    runner = ProcessRunner(workers)
    report: RebuildReport | BrokersReport[RebuildReport]
    store_paths = resolve_store_list(stores)
    if store_paths is None:
        (store,) = stores
        options = options_of(store)
        check_report(report_file, [store])
        with interruptible_workers(), output.progress_by_phase(_PHASES) as on_progress:
            report = rebuild_store(store, out, options, runner, on_progress, leftover, publishing)
    else:
        from rmq_offline.rebuild.stores import rebuild_stores  # noqa: PLC0415 # one store needs no verification

        check_report(report_file, store_paths)
        with interruptible_workers():
            report = rebuild_stores(store_paths, out, options_of, runner, leftover, publishing)
    line = output.json_line(report.to_dict())
    if report_file is not None:
        Path(report_file).write_bytes(line)
    if as_json:
        with output.Lines() as lines:
            lines.write(line)
    elif isinstance(report, RebuildReport):
        show(report, output.console())
    else:
        output.show_by_broker(report, show)
    return output.EXIT_CLEAN if report.is_clean else output.EXIT_FINDINGS


def _publication_facts(report: RebuildReport) -> list[tuple[str, str | Text]]:
    outcome = report.outcome
    if outcome.is_plan:
        return [("plan", "nothing was written into the store")]
    facts: list[tuple[str, str | Text]] = [("written to", printable(report.out))]
    if outcome.quarantine is not None:
        size = bytes_text(outcome.quarantine_bytes)
        facts.append(("former files", f"{printable(outcome.quarantine)}, {size} on disk"))
    return facts


def show_changes(outcome: Outcome, console: Console) -> None:
    """Print the changes for consumers, and the command that brings the former files back."""
    changes = outcome.changes
    if changes is not None and (outcome.is_plan or outcome.quarantine is not None or changes.queues):
        console.print()
        console.print(_changes_title(outcome, changes))
        lines = [change.text() for change in changes.queues] + [change.text() for change in changes.groups]
        for line in lines[:LISTED]:
            console.print(printable(line), soft_wrap=True, highlight=False, markup=False)
        output.print_unlisted(console, len(lines), LISTED, "--json lists them")
    if outcome.bring_back is not None:
        console.print("→ The former files stay until you delete them. With the broker stopped this brings them back:")
        console.print(printable(outcome.bring_back), soft_wrap=True, highlight=False, markup=False)


def _changes_title(outcome: Outcome, changes: QueueChanges) -> Text:
    would = "would get" if outcome.is_plan else "get"
    if outcome.unaccepted_queues:
        accept = "--accept " + " --accept ".join(outcome.unaccepted_queues[:MAX_NAMED])
        queues = output.counted(len(outcome.unaccepted_queues), "queue")
        return Text(f"consumers {would} less of {queues}: {accept}", style="red")
    if not outcome.is_as_planned:
        return Text("the second comparison differs from the plan: something else was changed", style="red")
    if not changes.queues:
        return Text(f"consumers {would} the same as before, from every queue", style="green")
    return Text(f"consumers {would} other messages than before:", style="yellow")


def show(report: RebuildReport, console: Console) -> None:
    """Print the report for people."""
    rate = report.bytes / report.seconds / 1e6 if report.seconds else 0.0
    seconds = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in report.phases.items())
    written = f"{output.counted(report.queues, 'queue')}, {output.counted(report.files, 'file')}"
    index = ("Index", f"{report.index_entries:,} entries; of TAGS: {printable(report.index_tags)}")
    if report.finding_counts:
        findings = Text(", ".join(f"{count:,} {code}" for code, count in report.finding_counts.items()), style="yellow")
    else:
        findings = Text("none", style="green")
    console.print(
        output.facts(
            ("store", printable(report.store)),
            *_publication_facts(report),
            ("read", f"{output.counted(report.messages, 'message')} in {bytes_text(report.bytes)}"),
            ("ConsumeQueue", f"{report.units:,} units"),
            *([] if report.outcome.is_plan else [index]),  # a plan makes no Index: consumers do not read it
            ("written", written),
            ("seconds", f"{report.seconds:.2f} ({seconds}), {rate:,.0f} MB/s"),
            ("findings", findings),
        )
    )
    show_changes(report.outcome, console)
    if report.findings:
        table = output.table("severity", "code", ">offset", "what")
        for finding in report.findings[:LISTED]:
            offset = "-" if finding.physical_offset is None else str(finding.physical_offset)
            queue = "" if finding.topic is None else f"{printable(finding.topic)}/{finding.queue_id}: "
            table.add_row(finding.kind.severity, finding.kind.code, offset, f"{queue}{printable(finding.detail)}")
        console.print()
        console.print(table)
    output.print_unlisted(console, len(report.findings), LISTED, "--json and --report list them")
    for remedy in sorted({finding.kind.remedy for finding in report.findings}):
        console.print(f"→ {remedy}")
