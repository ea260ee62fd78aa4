"""Map section of the verification page: segments by health, queues and IndexFiles."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq_formats.html_text import bytes_text, counted, safe, tone
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.phases.scan import SegmentState
from rmq_offline.verify.report import VerifyReport

MAX_STRIPS: Final = 48  # segments that get a strip each; with more, each is a cell
MAX_CELLS: Final = 4096
_MAP_UNITS: Final = 1000


class _Health(NamedTuple):
    tone: str
    note: str


def _health(segment: SegmentState, findings: Sequence[Finding]) -> _Health:
    severities = {finding.kind.severity for finding in findings}
    if segment.damage_count:
        what = "1 damaged range" if segment.damage_count == 1 else f"{segment.damage_count:,} damaged ranges"
        note = f"{what}, {bytes_text(segment.damaged_bytes)}"
        return _Health("error" if Severity.ERROR in severities else "warning", note)
    if Severity.ERROR in severities:
        return _Health("error", "see findings")
    if Severity.WARNING in severities:
        return _Health("warning", "see findings")
    return _Health("", f"{segment.message_count:,} messages" if segment.data_bytes else "not used yet")


def render_store_map(report: VerifyReport) -> str:
    """Render the map section; empty for a store without files."""
    rows = [_log_map(report), _queue_strip(report) + _index_strip(report)]
    inner = '<div class="rule"></div>'.join(row for row in rows if row)
    if not inner:
        return ""
    shown = (
        ("sound", "sound", "ok"), ("error", "damaged", "bad"), ("warning", "odd, or a warning", "odd"),
        ("empty", "not used", "bg"),
    )  # fmt: skip
    legend = "".join(
        f'<span><i style="background:var(--{colour})"></i>{words}</span>'
        for colour, words, css in shown
        if f'<rect class="{css}"' in inner or 'class="cells"' in inner
    )
    return (
        "<h2>Map of the store<small>each strip of the log is a file, from its first byte to its last</small></h2>"
        f'<section class="map">{inner}<div class="legend">{legend}</div></section>'
    )


def _log_map(report: VerifyReport) -> str:
    findings: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in report.findings:
        if finding.path is not None and finding.kind.code.startswith("commitlog"):
            findings[finding.path].append(finding)
    if len(report.segments) > MAX_STRIPS:
        cells = "".join(_cell(segment, findings[segment.path]) for segment in report.segments[:MAX_CELLS])
        return f'<div class="cells">{cells}</div><div class="strip"></div>'
    return "".join(_strip(segment, findings[segment.path]) for segment in report.segments)


def _bar(name: str, shapes: str, note: str, tone: str = "", title: str = "") -> str:
    return (
        f'<div class="strip"><span class="name mono" title="{safe(title or name)}">{safe(name)}</span>'
        f'<svg viewBox="0 0 {_MAP_UNITS} 18" preserveAspectRatio="none" role="img" aria-label="{safe(name)}">'
        f'{shapes}</svg><span class="note {tone}">{note}</span></div>'
    )


def _rect(css: str, x: float, width: float, title: str) -> str:
    return f'<rect class="{css}" x="{x:.2f}" y="0" width="{width:.2f}" height="18"><title>{safe(title)}</title></rect>'


def _queue_strip(report: VerifyReport) -> str:
    """Render all queues as one strip: how many have errors, how many warnings only."""
    worst: dict[tuple[str, int], Severity] = {}
    for finding in report.findings:
        if finding.topic is not None and finding.queue_id is not None and finding.kind.severity is not Severity.INFO:
            name = finding.topic, finding.queue_id
            if worst.get(name) is not Severity.ERROR:
                worst[name] = finding.kind.severity
    total = max(report.queues, len(worst))
    if not total:
        return ""
    errors = sum(severity is Severity.ERROR for severity in worst.values())
    counts = (("bad", errors, "with errors"), ("odd", len(worst) - errors, "with warnings"))
    x, shapes = 0.0, ""
    for css, count, words in (*counts, ("ok", total - len(worst), "sound")):
        if count:
            width = max(count / total * _MAP_UNITS, 3)
            shapes += _rect(css, min(x, _MAP_UNITS - 3), width, f"{counted(count, 'queue')} {words}")
            x += width
    parts = [f"{count:,} of {total:,} {words}" for _, count, words in counts if count]
    note = ", ".join(parts) or counted(total, "queue")
    return _bar("consumequeue", shapes, note, tone(errors, len(worst) - errors) if worst else "")


def _index_strip(report: VerifyReport) -> str:
    """Render the IndexFiles, oldest first, as one strip."""
    paths = report.index_paths
    if not paths:
        return ""
    severities: dict[str | None, list[Severity]] = {path: [] for path in paths}
    for finding in report.findings:
        if finding.path in severities and finding.kind.severity is not Severity.INFO:
            severities[finding.path].append(finding.kind.severity)
    worst = {path: min(grades) for path, grades in severities.items() if grades}  # "error" is before "warning"
    width = _MAP_UNITS / len(paths)
    gap = min(3.0, width / 4)
    shapes = ""
    for number, path in enumerate(paths):
        severity = worst.get(path)
        css = "ok" if severity is None else "bad" if severity is Severity.ERROR else "odd"
        last_gap = 0.0 if number + 1 == len(paths) else gap
        shapes += _rect(css, number * width, width - last_gap, path.rpartition("/")[2])
    errors = sum(severity is Severity.ERROR for severity in worst.values())
    note = f"{len(worst):,} of {counted(len(paths), 'file')} with findings" if worst else counted(len(paths), "file")
    return _bar("index", shapes, note, tone(errors, len(worst) - errors) if worst else "")


def _strip(segment: SegmentState, findings: Sequence[Finding]) -> str:
    size, health = max(segment.size_bytes, 1), _health(segment, findings)

    def rect(css: str, at: int, width: int, title: str) -> str:
        x = min(max(at, 0) / size * _MAP_UNITS, _MAP_UNITS - 3)
        # Even a fault of one byte must be visible.
        return _rect(css, x, max(min(width / size * _MAP_UNITS, _MAP_UNITS - x), 3), title)

    shapes = []
    if segment.data_bytes < segment.size_bytes:
        shapes.append(f'<rect class="bg" width="{_MAP_UNITS}" height="18"/>')
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
    return _bar(segment.path.rpartition("/")[2], "".join(shapes), health.note, health.tone, segment.path)


def _cell(segment: SegmentState, findings: Sequence[Finding]) -> str:
    health = _health(segment, findings)
    css = health.tone if segment.data_bytes else "unused"
    title = f"{segment.path.rpartition('/')[2]}: {health.note}"
    return f'<i class="{css}" title="{safe(title)}"></i>'
