"""The page of a verification: verdict, figures, a map of the store, what was found and what to do."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from rmq_formats.findings import Finding, Severity
from rmq_formats.offline.verify_report import VerifyReport
from rmq_formats.offline.verify_scan import SegmentState
from rmq_formats.report.style import CSS
from rmq_formats.verify import kinds

MAX_STRIPS: Final = 48  # segments with a strip each; more are a cell each
MAX_CELLS: Final = 4096
MAX_ROWS: Final = 500
MAX_QUEUES: Final = 60
_MAP_UNITS: Final = 1000
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


def page(report: VerifyReport, verified_at: datetime, version: str) -> str:
    """The whole page.

    Args:
        report: what was found.
        verified_at: when; shown in UTC.
        version: of this software.
    """
    title = f"Verification of {report.store}"
    parts = [
        _head(report, verified_at),
        _verdict(report),
        _figures(report),
        _store_parts(report),
        _map(report),
        _kinds(report),
        _queues(report.findings),
        _findings(report),
    ]
    body = "\n".join(part for part in parts if part)
    text = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"<footer>rmq verify {_safe(version)}. Nothing was written into the store.</footer>\n"
        f"</main>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode()


def _safe(value: object) -> str:
    text = str(value)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return escape(text)


def bytes_text(size_bytes: float) -> str:
    """``397 B``, ``1.0 MiB``, ``6.1 GiB``."""
    units = ["KiB", "MiB", "GiB", "TiB"]
    unit = "B"
    while size_bytes >= 1000 and units:
        size_bytes /= 1024
        unit = units.pop(0)
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _tone(errors: int, warnings: int) -> str:
    return "error" if errors else "warning" if warnings else "sound"


def _head(report: VerifyReport, verified_at: datetime) -> str:
    when = verified_at.astimezone(UTC)
    return (
        f'<header><div class="over">Store verification</div><h1 class="mono">{_safe(report.store)}</h1>'
        f'<div class="when">{when:%d %B %Y, %H:%M} UTC · read in {report.seconds:,.1f} s</div></header>'
    )


def _verdict(report: VerifyReport) -> str:
    errors, warnings = report.total(Severity.ERROR), report.total(Severity.WARNING)
    tone = _tone(errors, warnings)
    if report.is_clean:
        headline = "The store is sound"
        said = "Every record, every queue and every Index entry agrees with the others."
        if not report.messages:
            said = "There is no message in it."
    else:
        faults = [_counted(errors, "error")] if errors else []
        faults += [_counted(warnings, "warning")] if warnings else []
        headline = " and ".join(faults)
        said = _said(report)
    icon = f'<svg viewBox="0 0 24 24" aria-hidden="true">{_TICK if report.is_clean else _BANG}</svg>'
    return (
        f'<section class="verdict {tone}"><div class="mark">{icon}</div>'
        f"<div><strong>{headline}</strong><span>{said}</span></div></section>"
    )


def _said(report: VerifyReport) -> str:
    """What the faults come to, in a sentence."""
    stretches = sum(segment.damage_count for segment in report.segments)
    damaged_bytes = sum(segment.damaged_bytes for segment in report.segments)
    lost = sum(count for kind, count in report.counts.items() if kind == kinds.UNIT_LOST)
    said = []
    if stretches:
        what = "One stretch" if stretches == 1 else f"{stretches:,} stretches"
        said.append(f"{what} of the log cannot be read ({bytes_text(damaged_bytes)})")
    else:
        said.append("Every record of the log can be read")
    if lost:
        said.append(f"{_counted(lost, 'message')} known to be lost")
    for name, family in (("ConsumeQueue", "consumequeue"), ("the Index", "index")):
        faults = sum(
            count
            for kind, count in report.counts.items()
            if kind.code.startswith(family) and kind.severity is not Severity.INFO and kind != kinds.UNIT_LOST
        )
        if faults:
            said.append(f"{_counted(faults, 'fault')} in {name}")
    return "; ".join(said) + "."


def _figures(report: VerifyReport) -> str:
    log_bytes = sum(segment.size_bytes for segment in report.segments)
    figures = (
        (f"{report.messages:,}", "messages"),
        (bytes_text(report.bytes), f"of records in {bytes_text(log_bytes)} of log"),
        (f"{len(report.segments):,}", "CommitLog files"),
        (f"{report.queues:,}", f"queues, {report.units:,} units"),
        (f"{report.index_entries:,}", f"keys, {_counted(report.index_files, 'IndexFile')}"),
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
        faults = [_counted(errors, "error")] if errors else []
        faults += [_counted(warnings, "warning")] if warnings else []
        said = ", ".join(faults) or "sound"
        tiles.append(f'<div class="part {_tone(errors, warnings)}"><b>{name}</b>{said}</div>')
    return f'<section class="parts">{"".join(tiles)}</section>'


@dataclass(frozen=True, slots=True)
class _Health:
    """How one segment is: tone and words."""

    tone: str
    note: str


def _health(segment: SegmentState, severities: dict[str, set[Severity]]) -> _Health:
    worst = severities.get(segment.path, set())
    if segment.damage_count:
        what = "1 damaged stretch" if segment.damage_count == 1 else f"{segment.damage_count:,} damaged stretches"
        return _Health(
            "error" if Severity.ERROR in worst else "warning", f"{what}, {bytes_text(segment.damaged_bytes)}"
        )
    if Severity.ERROR in worst:
        return _Health("error", "see findings")
    if Severity.WARNING in worst:
        return _Health("warning", "see findings")
    return _Health("", f"{segment.message_count:,} messages" if segment.data_bytes else "not used yet")


def _map(report: VerifyReport) -> str:
    if not report.segments:
        return ""
    severities: dict[str, set[Severity]] = {}
    marks: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.path is not None and finding.kind.code.startswith("commitlog"):
            severities.setdefault(finding.path, set()).add(finding.kind.severity)
            marks.setdefault(finding.path, []).append(finding)
    if len(report.segments) <= MAX_STRIPS:
        inner = "".join(
            _strip(segment, _health(segment, severities), marks.get(segment.path, [])) for segment in report.segments
        )
    else:
        shown = report.segments[:MAX_CELLS]
        inner = f'<div class="cells">{"".join(_cell(segment, _health(segment, severities)) for segment in shown)}</div>'
    legend = "".join(
        f'<span><i style="background:var(--{colour})"></i>{words}</span>'
        for colour, words in (
            ("sound", "sound records"), ("error", "damaged"), ("warning", "odd, or a warning"), ("empty", "not used"),
        )
    )  # fmt: skip
    return (
        f"<h2>Map of the CommitLog<small>each strip is a file, from its first byte to its last</small></h2>"
        f'<section class="map">{inner}<div class="legend">{legend}</div></section>'
    )


def _strip(segment: SegmentState, health: _Health, findings: Sequence[Finding]) -> str:
    name = segment.path.rpartition("/")[2]
    size = max(segment.size_bytes, 1)

    def rect(css: str, at: int, width: int, title: str) -> str:
        x = min(max(at, 0) / size * _MAP_UNITS, _MAP_UNITS - 3)
        wide = max(min(width / size * _MAP_UNITS, _MAP_UNITS - x), 3)  # a fault of one byte must be seen, too
        return (
            f'<rect class="{css}" x="{x:.2f}" y="0" width="{wide:.2f}" height="18"><title>{_safe(title)}</title></rect>'
        )

    shapes = [f'<rect class="bg" width="{_MAP_UNITS}" height="18"/>']
    if segment.data_bytes:
        title = f"{segment.message_count:,} messages in {bytes_text(segment.data_bytes)}"
        shapes.append(rect("ok", 0, segment.data_bytes, title))
    damaged = {offset for offset, _ in segment.marks}
    for finding in findings:
        if finding.physical_offset is not None and finding.physical_offset not in damaged:
            css = "bad" if finding.kind.severity is Severity.ERROR else "odd"
            if finding.kind.severity is not Severity.INFO and "segment" not in finding.kind.code:
                title = f"{finding.kind.code} at offset {finding.physical_offset}"
                shapes.append(rect(css, finding.physical_offset - segment.start_offset, 0, title))
    for offset, stretch_bytes in segment.marks:
        title = f"offset {offset}: {bytes_text(stretch_bytes)} cannot be read"
        shapes.append(rect("bad", offset - segment.start_offset, stretch_bytes, title))
    label = f'role="img" aria-label="{_safe(name)}"'
    return (
        f'<div class="strip"><span class="name mono" title="{_safe(segment.path)}">{_safe(name)}</span>'
        f'<svg viewBox="0 0 {_MAP_UNITS} 18" preserveAspectRatio="none" {label}>{"".join(shapes)}</svg>'
        f'<span class="note {health.tone}">{health.note}</span></div>'
    )


def _cell(segment: SegmentState, health: _Health) -> str:
    css = health.tone if segment.data_bytes else "unused"
    title = f"{segment.path.rpartition('/')[2]}: {health.note}"
    return f'<i class="{css}" title="{_safe(title)}"></i>'


def _tag(severity: Severity) -> str:
    return f'<span class="tag {severity}">{severity}</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """A table of cells (CSS class, HTML); a head that begins with ``>`` is aligned to the right."""
    head = "".join(f'<th class="{"n" if name.startswith(">") else ""}">{name.lstrip(">")}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f'<td class="{css}">{cell}</td>' for css, cell in row) + "</tr>" for row in rows)
    return f'<div class="frame"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _kinds(report: VerifyReport) -> str:
    if not report.counts:
        return ""
    rows = (
        (
            ("tight", _tag(kind.severity)),
            ("tight mono", _safe(kind.code)),
            ("n", f"{count:,}"),
            ("remedy", _safe(kind.remedy)),
        )
        for kind, count in report.kinds()
    )
    return "<h2>What was found, and what to do</h2>" + _table(("", "kind", ">count", "remedy"), rows)


def _queues(findings: Sequence[Finding]) -> str:
    """The queues that findings are about, those with most errors first."""
    troubled: dict[tuple[str, int], list[Finding]] = {}
    for finding in findings:
        if finding.topic is not None and finding.queue_id is not None and finding.kind.severity is not Severity.INFO:
            troubled.setdefault((finding.topic, finding.queue_id), []).append(finding)
    if not troubled:
        return ""

    def weight(own: Sequence[Finding]) -> tuple[int, int]:
        errors = sum(finding.count for finding in own if finding.kind.severity is Severity.ERROR)
        return -errors, -sum(finding.count for finding in own)

    ranked = sorted(troubled.items(), key=lambda item: (weight(item[1]), item[0]))

    def rows() -> Iterator[Sequence[tuple[str, str]]]:
        for (topic, queue_id), own in ranked[:MAX_QUEUES]:
            totals: Counter[str] = Counter()
            for finding in own:
                totals[finding.kind.code] += finding.count
            offsets = [finding.queue_offset for finding in own if finding.queue_offset is not None]
            told = ", ".join(f"{_safe(code)} <b>{count:,}</b>" for code, count in totals.most_common())
            errors, every = weight(own)
            yield (
                ("", _safe(topic)), ("n", str(queue_id)), ("n", f"{-errors:,}"), ("n", f"{errors - every:,}"),
                ("n", f"{min(offsets):,}" if offsets else ""), ("mono", told),
            )  # fmt: skip

    more = (
        f"<small>{MAX_QUEUES} of {len(ranked):,}</small>"
        if len(ranked) > MAX_QUEUES
        else f"<small>{len(ranked):,}</small>"
    )
    heads = ("topic", ">queue", ">errors", ">warnings", ">first queue offset", "kinds")
    return f"<h2>Queues with trouble{more}</h2>" + _table(heads, rows())


def _findings(report: VerifyReport) -> str:
    if not report.findings:
        return ""
    shown = report.findings[:MAX_ROWS]
    total = sum(report.counts.values())
    note = (
        f"{len(shown):,} listed, which tell {sum(finding.count for finding in shown):,} of {total:,} faults and notes"
    )
    rows = (
        (
            ("tight", _tag(finding.kind.severity)),
            ("", f'<span class="mono">{_safe(finding.kind.code)}</span><small>{_safe(finding.detail)}</small>'),
            ("", _where(finding, report.store)),
            ("mono", _compared(finding)),
        )
        for finding in shown
    )
    return f"<h2>Findings<small>{note}</small></h2>" + _table(("", "what", "where", "expected and found"), rows)


def _where(finding: Finding, store: str) -> str:
    lines = []
    if finding.path is not None:
        lines.append(f'<span class="mono">{_safe(finding.path.removeprefix(store).lstrip("/") or finding.path)}</span>')
    if finding.physical_offset is not None:
        size = "" if finding.size is None else f", {bytes_text(finding.size)}"
        lines.append(f"<small>log offset {finding.physical_offset:,}{size}</small>")
    if finding.topic is not None:
        queue = "" if finding.queue_id is None else f", queue {finding.queue_id}"
        offset = "" if finding.queue_offset is None else f", offset {finding.queue_offset:,}"
        lines.append(f"<small>{_safe(finding.topic)}{queue}{offset}</small>")
    return "".join(lines)


def _compared(finding: Finding) -> str:
    lines = []
    if finding.expected is not None:
        lines.append(_safe(_shortened(finding.expected)))
    if finding.actual is not None:
        lines.append(f"<small>{_safe(_shortened(finding.actual))}</small>")
    return "".join(lines)


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
