"""Reasons why a value is refused: they name column, value and wanted type."""

from typing import Final

_SHOWN_CHARS: Final = 48  # of a value


class Mismatch(ValueError):  # noqa: N818 # no fault of the program: a message that its column cannot hold
    """Value that its column cannot hold unchanged; the text is the reason of a dead letter."""


def mismatch(path: str, value: str, wanted: str) -> Mismatch:
    """Return the error of a value.

    Args:
        path: of the column, members of structs behind dots.
        value: its kind, and what it is.
        wanted: type of the column.
    """
    return Mismatch(f"column {path}: {value}, wanted {wanted}")


def shown(value: object) -> str:
    """Write a value in a line, cut where it is long."""
    text = "".join(char if char.isprintable() else "?" for char in str(value)[: _SHOWN_CHARS + 1])
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
