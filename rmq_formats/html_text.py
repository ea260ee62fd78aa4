"""HTML helpers of report pages: safe text, formatted numbers, and the cards of notebooks."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

# Colours that are readable in light and in dark notebooks.
_COLOURS: Final = {"sound": "#3f9480", "warning": "#c98a1b", "error": "#d0534a", "info": "#6f93bd"}
_SOFT: Final = "opacity:.68"
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 14px 2px 0;border:0;background:none;white-space:normal"


def safe(value: object) -> str:
    """Escape text of a store for HTML; unprintable characters become U+FFFD."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in str(value)))


def bytes_text(size_bytes: float) -> str:
    """Format a size in bytes: ``397 B``, ``1.0 MiB``, ``6.1 GiB``."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    units = iter(("KiB", "MiB", "GiB", "TiB"))
    unit = "B"
    while abs(size_bytes) >= 1000 and unit != "TiB":
        size_bytes, unit = size_bytes / 1024, next(units)
    return f"{size_bytes:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 file``, ``2 files``, ``3 entries``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("ry") else f"{count:,} {noun}s"


def tone(errors: int, warnings: int) -> str:
    """Return the CSS class for counts of errors and warnings."""
    return "error" if errors else "warning" if warnings else "sound"


def card(title: str, rows: Iterable[tuple[str, str]], *, verdict: str = "", tone: str = "", more: str = "") -> str:
    """Render a card of titled rows for notebooks, light or dark; nothing is fetched.

    Args:
        rows: names and values, as text; rows without a value are left out.
        verdict: the result, as text.
        tone: colour of the verdict: ``sound``, ``warning``, ``error`` or ``info``.
        more: HTML below the rows.
    """
    head = f'<div style="{_SOFT};font-family:monospace;font-size:.92em;overflow-wrap:anywhere">{safe(title)}</div>'
    if verdict:
        head += f'<div style="margin:3px 0 5px;font-size:1.1em;font-weight:600">{_dot(tone)}{safe(verdict)}</div>'
    cells = "".join(_row([f'<span style="{_SOFT}">{safe(name)}</span>', safe(value)]) for name, value in rows if value)
    colour = _COLOURS.get(tone, "#9aa5ab")
    frame = f"border-left:3px solid {colour};padding:3px 0 3px 13px;margin:4px 0"
    return f'<div style="{frame}">{head}{_table(cells)}{more}</div>'


def card_findings(findings: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Render the findings of a card, each with tone (as of ``card``), severity, code, count and remedy."""
    lines = [
        _row(
            [
                f'<span style="color:{_COLOURS[tone]};white-space:nowrap">{_dot(tone)}{safe(severity)}</span>',
                f'<span style="font-family:monospace;font-size:.92em">{safe(code)}</span>',
                f"{count:,}",
                f'<span style="{_SOFT}">{safe(remedy)}</span>',
            ]
        )
        for tone, severity, code, count, remedy in findings
    ]
    return f'<div style="margin-top:6px">{_table("".join(lines))}</div>' if lines else ""


def _dot(tone: str) -> str:
    colour = _COLOURS.get(tone, "#9aa5ab")
    return (
        '<span style="display:inline-block;width:.62em;height:.62em;border-radius:50%;margin-right:.5em;'
        f'background:{colour}"></span>'
    )


def _row(cells: Iterable[str]) -> str:
    inner = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr style="background:none">{inner}</tr>'


def _table(rows: str) -> str:
    return f'<table style="border-collapse:collapse;border:0;margin:0">{rows}</table>'
