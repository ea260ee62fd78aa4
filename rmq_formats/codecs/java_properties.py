"""Java's properties format: config files, and the bodies of codes 25, 26, 318 and 319.

Source: ``java.util.Properties#load``, ``MixAll#properties2String``.
"""

import re
from collections.abc import Mapping
from typing import Final

from rmq_formats.errors import DecodeError

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_KEY_END: Final = re.compile(r"(?<!\\)(?:\\\\)*[=: \t\f]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse the keys and values of a text; of a repeated key the last one counts.

    Raises DecodeError for an escape of a Unicode character without four hex digits.
    """
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _KEY_END.search(line)
        at = len(line) if end is None else end.end() - 1
        rest = line[at:].lstrip(_BLANKS)
        if rest[:1] in {"=", ":"}:
            rest = rest[1:].lstrip(_BLANKS)
        settings[_unescape(line[:at])] = _unescape(rest)
    return settings


def _logical_lines(text: str) -> list[str]:
    """Return lines without comments and blank ones; one that ends with an odd number of backslashes goes on."""
    lines: list[str] = []
    begun: list[str] = []  # joined once at the end of the line: there may be as many parts as characters
    for natural in _LINE_END.split(text):
        part = natural.lstrip(_BLANKS)
        if not begun and (not part or part[0] in "#!"):
            continue
        goes_on = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        begun.append(part[:-1] if goes_on else part)
        if not goes_on:
            lines.append("".join(begun))
            begun = []
    if begun:
        lines.append("".join(begun))
    return lines


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise DecodeError("a \\u without four hex digits in properties", actual=text[:64])
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _LETTERS.get(escape, escape)

    return _ESCAPE.sub(replace, text)


def format_properties(values: Mapping[str, str]) -> str:
    """Format properties as Java's servers send them: sorted, one ``key=value`` a line, nothing escaped."""
    return "".join(f"{key}={values[key]}\n" for key in sorted(values))
