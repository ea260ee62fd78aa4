"""HTML page of a verification: verdict, figures, a map of the store, findings and remedies."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rmq_formats.html_text import bytes_text, counted, safe, tone
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.html.map import render_store_map
from rmq_offline.verify.html.style import CSS
from rmq_offline.verify.report import VerifyReport, list_faults

MAX_ROWS: Final = 500
MAX_QUEUES: Final = 60
_TICK = '<path d="M5 12.5l4.5 4.5L19 7.5" fill="none" stroke="currentColor" stroke-width="2.6" stroke-linecap="round"/>'
_BANG = (
    '<path d="M12 5v9" fill="none" stroke="currentColor" stroke-width="3" stroke-linecap="round"/>'
    '<circle cx="12" cy="19" r="1.9" fill="currentColor"/>'
)
_PARTS: Final = (
    ("CommitLog", ("commitlog",)),
    ("ConsumeQueue", ("consumequeue", "consumequeue_ext")),
    ("Index", ("index",)),
    ("Checkpoint", ("checkpoint",)),
    ("Config", ("config", "store")),
)


def render_page(report: VerifyReport, verified_at: datetime, version: str) -> str:
    """Render the whole page; the time is shown in UTC."""
    title = f"Verification of {report.store}"
    parts = [
        _head(report, verified_at),
        _verdict(report),
        _figures(report),
        _store_parts(report),
        render_store_map(report),
        _kinds(report),
        _queues(report.findings),
        _findings(report),
    ]
    body = "\n".join(part for part in parts if part)
    text = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"<footer>rmq verify {safe(version)}. Nothing was written into the store.</footer>\n"
        f"</main>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode()


def _head(report: VerifyReport, verified_at: datetime) -> str:
    when = verified_at.astimezone(UTC)
    return (
        f'<header><div class="over">Store verification</div><h1 class="mono">{safe(report.store)}</h1>'
        f'<div class="when">{when:%d %B %Y, %H:%M} UTC · read in {report.seconds:,.1f} s</div></header>'
    )


def _verdict(report: VerifyReport) -> str:
    css = tone(report.total(Severity.ERROR), report.total(Severity.WARNING))
    if not report.is_clean:
        summary = _summarize(report)
    elif report.messages:
        summary = "Every record, every queue and every Index entry agrees with the others."
    else:
        summary = "There is no message in it."
    icon = f'<svg viewBox="0 0 24 24" aria-hidden="true">{_TICK if report.is_clean else _BANG}</svg>'
    return (
        f'<section class="verdict {css}"><div class="mark">{icon}</div>'
        f"<div><strong>{report.headline}</strong><span>{summary}</span></div></section>"
    )


def _summarize(report: VerifyReport) -> str:
    damage_count = sum(segment.damage_count for segment in report.segments)
    damaged_bytes = sum(segment.damaged_bytes for segment in report.segments)
    lost = report.counts.get(finding_kinds.UNIT_LOST, 0)
    clauses = ["Every record of the log can be read"]
    if damage_count:
        what = "One range" if damage_count == 1 else f"{damage_count:,} ranges"
        clauses = [f"{what} of the log cannot be read ({bytes_text(damaged_bytes)})"]
    if lost:
        clauses.append(f"{counted(lost, 'message')} known to be lost")
    for name, family in (("ConsumeQueue", "consumequeue"), ("the Index", "index")):
        faults = sum(
            count
            for kind, count in report.counts.items()
            if kind.code.startswith(family) and kind.severity is not Severity.INFO and kind != finding_kinds.UNIT_LOST
        )
        if faults:
            clauses.append(f"{counted(faults, 'fault')} in {name}")
    return "; ".join(clauses) + "."


def _figures(report: VerifyReport) -> str:
    log_bytes = sum(segment.size_bytes for segment in report.segments)
    figures = (
        (f"{report.messages:,}", "messages"),
        (bytes_text(report.bytes), f"in {bytes_text(log_bytes)} of log"),
        (f"{len(report.segments):,}", "CommitLog files"),
        (f"{report.queues:,}", f"queues, {report.units:,} units"),
        (f"{report.index_entries:,}", f"keys, {counted(len(report.index_paths), 'IndexFile')}"),
        (f"{report.bytes_per_second / 1e6:,.0f} MB/s", "of records verified"),
    )
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in figures)
    return f'<section class="figures">{cells}</section>'


def _store_parts(report: VerifyReport) -> str:
    tiles = []
    for name, families in _PARTS:
        totals: Counter[Severity] = Counter()
        for kind, count in report.counts.items():
            if kind.code.partition(".")[0] in families:
                totals[kind.severity] += count
        errors, warnings = totals[Severity.ERROR], totals[Severity.WARNING]
        status = ", ".join(list_faults(errors, warnings)) or "sound"
        tiles.append(f'<div class="part {tone(errors, warnings)}"><b>{name}</b>{status}</div>')
    return f'<section class="parts">{"".join(tiles)}</section>'


def _tag(severity: Severity) -> str:
    return f'<span class="tag {severity}">{severity}</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]], css: str = "") -> str:
    """Render a table of cells (CSS class, HTML); a head that begins with ``>`` is aligned to the right."""
    head = "".join(f'<th class="{"n" if name.startswith(">") else ""}">{name.lstrip(">")}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f'<td class="{css}">{cell}</td>' for css, cell in row) + "</tr>" for row in rows)
    return f'<div class="frame"><table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _kinds(report: VerifyReport) -> str:
    if report.is_clean:
        return ""
    rows = []
    for kind, count in report.kinds():
        code, remedy = ("tight mono", safe(kind.code)), ("remedy", safe(kind.remedy))
        rows.append([("tight", _tag(kind.severity)), code, ("n", f"{count:,}"), remedy])
    return "<h2>What was found, and what to do</h2>" + _table(("", "kind", ">count", "remedy"), rows)


def _queues(findings: Sequence[Finding]) -> str:
    """Render the findings by queue, queues with most errors first."""
    troubled: dict[tuple[str, int], list[Finding]] = {}
    for finding in findings:
        if finding.topic is not None and finding.queue_id is not None and finding.kind.severity is not Severity.INFO:
            troubled.setdefault((finding.topic, finding.queue_id), []).append(finding)
    if not troubled:
        return ""

    def weight(queue_findings: Sequence[Finding]) -> tuple[int, int]:
        errors = sum(finding.count for finding in queue_findings if finding.kind.severity is Severity.ERROR)
        return -errors, -sum(finding.count for finding in queue_findings)

    ranked = sorted(troubled.items(), key=lambda item: (weight(item[1]), item[0]))

    def rows() -> Iterator[Sequence[tuple[str, str]]]:
        for (topic, queue_id), queue_findings in ranked[:MAX_QUEUES]:
            totals: Counter[str] = Counter()
            for finding in queue_findings:
                totals[finding.kind.code] += finding.count
            offsets = [finding.queue_offset for finding in queue_findings if finding.queue_offset is not None]
            kinds = ", ".join(f"{safe(code)} <b>{count:,}</b>" for code, count in totals.most_common())
            errors, every = weight(queue_findings)
            yield (
                ("topic", safe(topic)), ("n", str(queue_id)), ("n", f"{-errors:,}"), ("n", f"{errors - every:,}"),
                ("n", f"{min(offsets):,}" if offsets else ""), ("mono", kinds),
            )  # fmt: skip

    shown = f"{MAX_QUEUES} of {len(ranked):,}" if len(ranked) > MAX_QUEUES else f"{len(ranked):,}"
    heads = ("topic", ">queue", ">errors", ">warnings", ">first queue offset", "kinds")
    return f"<h2>Queues with trouble<small>{shown}</small></h2>" + _table(heads, rows())


def _findings(report: VerifyReport) -> str:
    if not report.findings:
        return ""
    shown = report.findings[:MAX_ROWS]
    shown_count, total = sum(finding.count for finding in shown), sum(report.counts.values())
    note = f"{len(shown):,} listed, covering {shown_count:,} of {total:,} faults and notes"
    if report.is_clean:
        note = "none of them is a fault"
    compares = any(finding.expected is not None or finding.actual is not None for finding in shown)

    def rows() -> Iterator[Sequence[tuple[str, str]]]:
        for finding in shown:
            what = f'<span class="mono">{safe(finding.kind.code)}</span><small>{safe(finding.detail)}</small>'
            cells = [("tight", _tag(finding.kind.severity)), ("", what), ("", _where(finding, report.store))]
            yield [*cells, ("mono", _compared(finding))] if compares else cells

    heads = ["", "what", "where", "expected and found"]
    return f"<h2>{'Notes' if report.is_clean else 'Findings'}<small>{note}</small></h2>" + _table(
        heads if compares else heads[:3], rows(), "findings"
    )


def _where(finding: Finding, store: str) -> str:
    lines = []
    if finding.path is not None:
        lines.append(f'<span class="mono">{safe(finding.path.removeprefix(store).lstrip("/") or finding.path)}</span>')
    if finding.physical_offset is not None:
        size = "" if finding.size is None else f", {bytes_text(finding.size)}"
        lines.append(f"<small>log offset {finding.physical_offset:,}{size}</small>")
    if finding.topic is not None:
        queue = "" if finding.queue_id is None else f", queue {finding.queue_id}"
        offset = "" if finding.queue_offset is None else f", offset {finding.queue_offset:,}"
        lines.append(f"<small>{safe(finding.topic)}{queue}{offset}</small>")
    return "".join(lines)


def _compared(finding: Finding) -> str:
    lines = []
    if finding.expected is not None:
        lines.append(safe(_shortened(finding.expected)))
    if finding.actual is not None:
        lines.append(f"<small>{safe(_shortened(finding.actual))}</small>")
    return "".join(lines)


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
