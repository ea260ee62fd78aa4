"""The work of ``rmq verify``: runs the checks in processes of this machine, and prints the report."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from rmq_cli import output
from rmq_cli.arguments import resolve_store_list
from rmq_cli.commands import interruptible_workers
from rmq_cli.output import bytes_text, printable
from rmq_formats.read.stores import find_stores
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.html.outputs import VerifyOutputs
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from rmq_offline.verify.stores import refuse_inside_stores, verify_stores

if TYPE_CHECKING:
    from rmq_offline.tasks.brokers_report import BrokersReport

LISTED: Final = 25  # findings in the table: --json, --findings and --html have more
_FORMATS: Final = ("json", "parquet")  # of --findings
_PHASES: Final = {"scan": "Reading the CommitLog", "compare": "Comparing queues and Index"}
VALUE_CHARACTERS: Final = 60
_MADE_ANEW: Final = frozenset({"topics.json", "subscriptionGroup.json"})  # by rmq repair --what config
_STYLES: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def run(
    stores: list[str],
    options: VerifyOptions,
    outputs: VerifyOutputs,
    *,
    work: str | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Verify a store, or resolve_store_list, and print the report. Returns the exit code. Raises RmqError."""
    runner = ProcessRunner(workers)
    report: VerifyReport | BrokersReport[VerifyReport]
    store_paths = resolve_store_list(stores)
    if store_paths is None:
        (store,) = stores
        outputs.check(store, _FORMATS)
        with interruptible_workers(), output.progress_by_phase(_PHASES) as on_progress:
            report = verify_store(store, options, runner, work=work, on_progress=on_progress)
        outputs.write(report, datetime.now(UTC))
    else:
        opened_stores = find_stores(store_paths)
        outputs.check_several(opened_stores, _FORMATS)
        refuse_inside_stores(opened_stores, "--work", work)
        with interruptible_workers():
            report = verify_stores(store_paths, options, runner, work=work)
        outputs.write_several(report)
    if as_json:
        output.print_json(report.to_dict())
    elif isinstance(report, VerifyReport):
        show(report, output.console())
    else:
        output.show_by_broker(report, show)
    return output.EXIT_CLEAN if report.is_clean else output.EXIT_FINDINGS


def show(report: VerifyReport, console: Console) -> None:
    """Print the report for people."""
    seconds = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in report.phases.items())
    console.print(
        output.facts(
            ("store", printable(report.store)),
            *([("layout", ", ".join(report.layouts))] if report.layouts else []),
            (
                "log",
                f"{output.counted(report.messages, 'message')}, {bytes_text(report.bytes)}, "
                f"in {output.counted(len(report.segments), 'file')}",
            ),
            ("ConsumeQueue", f"{output.counted(report.queues, 'queue')}, {report.units:,} units"),
            ("Index", f"{output.counted(len(report.index_paths), 'file')}, {report.index_entries:,} keys"),
            ("seconds", f"{report.seconds:.2f} ({seconds}), {report.bytes_per_second / 1e6:,.0f} MB/s"),
            ("verdict", _verdict(report)),
        )
    )
    if report.counts:
        table = output.table("", "kind", ">count", "remedy")
        for kind, count in report.kinds():
            table.add_row(Text(kind.severity, style=_STYLES[kind.severity]), kind.code, f"{count:,}", kind.remedy)
        console.print()
        console.print(table)
    problems = [finding for finding in report.findings if finding.kind.severity is not Severity.INFO]
    for kind in finding_kinds.UNVERIFIED_KINDS:
        kind_findings = [finding for finding in report.findings if finding.kind is kind]
        for finding in kind_findings[:LISTED]:
            console.print(f"{_where(finding)}: {printable(finding.detail)}", markup=False, highlight=False)
        output.print_unlisted(console, len(kind_findings), LISTED, "--findings and --html list them")
    if problems:
        _show_findings(problems, console)
        _print_next_commands(problems, report.store, console)


def _print_next_commands(findings: list[Finding], store: str, console: Console) -> None:
    """Print the commands that deal with findings, to be copied; none for what no command deals with."""
    compressed = [finding.path or "" for finding in findings if finding.kind == finding_kinds.SEGMENT_COMPRESSED]
    if compressed and compressed[0].endswith(".gz"):
        output.print_next(console, "gunzip", compressed[0])
        return
    if any(finding.kind == finding_kinds.LOG_MISSING for finding in findings):
        output.print_next(console, "rmq verify", store, "-c broker.conf")
        return
    if any(finding.kind.is_repaired for finding in findings):
        output.print_next(console, "rmq repair", store, "--plan")
    if any(_is_made_anew(finding) for finding in findings):
        output.print_next(console, "rmq repair", store, "--what config")
    if any(finding.kind in finding_kinds.OF_OFFSETS for finding in findings):
        output.print_next(console, "rmq offsets", store, "clamp")


def _is_made_anew(finding: Finding) -> bool:
    """Return whether a finding is of a lost config file that ``rmq repair --what config`` makes."""
    is_lost = finding.kind in {finding_kinds.CONFIG_LOST, finding_kinds.CONFIG_TOPICS}
    return is_lost and (finding.path or "").rpartition("/")[2] in _MADE_ANEW


def _verdict(report: VerifyReport) -> Text:
    if report.is_clean:
        is_whole = not any(kind in finding_kinds.UNVERIFIED_KINDS for kind in report.counts)
        return Text("sound" if is_whole else "what is checked is sound", style="green")
    totals = [(report.total(severity), severity) for severity in (Severity.ERROR, Severity.WARNING)]
    text = ", ".join(output.counted(count, str(severity)) for count, severity in totals if count)
    return Text(text, style=_STYLES[Severity.ERROR if totals[0][0] else Severity.WARNING])


def _show_findings(findings: list[Finding], console: Console) -> None:
    table = output.table("kind", "where", "what", "expected", "found")
    for finding in findings[:LISTED]:
        table.add_row(
            Text(finding.kind.code, style=_STYLES[finding.kind.severity]),
            _where(finding),
            printable(finding.detail),
            printable(_shortened(finding.expected)),
            printable(_shortened(finding.actual)),
        )
    console.print(table)
    output.print_unlisted(console, len(findings), LISTED, "--findings and --html list them")


def _shortened(text: str | None) -> str:
    return "" if text is None else text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}…"


def _where(finding: Finding) -> str:
    parts = []
    if finding.topic is not None:
        queue = "" if finding.queue_id is None else f"/{finding.queue_id}"
        offset = "" if finding.queue_offset is None else f" #{finding.queue_offset}"
        parts.append(f"{printable(finding.topic)}{queue}{offset}")
    elif finding.path is not None:
        parts.append(printable(finding.path.rpartition("/")[2]))
    if finding.physical_offset is not None:
        parts.append(f"@{finding.physical_offset}")
    return " ".join(parts)
