"""Reasons why a value is refused: they name column, value and wanted type."""

import base64
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

DEAD_LETTER: Final = "dead-letter"
NULL: Final = "null"
RESCUE: Final = "rescue"
UNKNOWN_FIELDS: Final = "_unknown_fields"  # column with the fields of a body that the schema lacks, by path, in JSON
RESCUED: Final = "_rescued"  # column with the values that did not fit, by column, in JSON

NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # as Protobuf's JSON has them
_SHOWN_CHARS: Final = 48  # of a value


class Mismatch(ValueError):  # noqa: N818 # no fault of the program: a message that its column cannot hold
    """Value that its column cannot have unchanged; the text is the reason of a dead letter.

    Attributes:
        header_is_known: whether the header of a schema registry was read, so that no reason has to suspect one.
    """

    header_is_known = False


def mismatch(path: str, value: str, wanted: str) -> Mismatch:
    """Return the error of a value, which is given by its kind and itself: ``number 7``."""
    return Mismatch(f"column {path}: {value}, wanted {wanted}")


def rows_of_elements(convert: Callable[[Any], dict[str, Any]], elements: Iterable[Any]) -> list[dict[str, Any]]:
    """Convert the elements of an array to rows. Raises ``Mismatch`` with the number of the first that does not fit."""
    rows = []
    for number, element in enumerate(elements):
        try:
            rows.append(convert(element))
        except Mismatch as error:
            raise Mismatch(f"element {number}: {error}") from None
    return rows


Refused = dict[str, Any]
"""Values as they were sent, by their column's path."""


def null_where_refused(convert: Callable[[Any], Any], path: str, refused: Refused | None) -> Callable[[Any], Any]:
    """Return a converter that adds values of a ``Mismatch`` to ``refused``, and returns null; None leaves the error."""
    if refused is None:
        return convert

    def attempt(value: Any) -> Any:
        try:
            return convert(value)
        except Mismatch:
            refused[path] = value
            return None

    return attempt


def python_values_as_json(values: Refused) -> str:
    """Write values of Python as a JSON text; bytes are Base64, and numbers that JSON has not are texts."""
    try:
        return json.dumps(values, ensure_ascii=False, default=_json_text, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(values), ensure_ascii=False, default=_json_text, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value whose numbers are finite, and all others texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list) else value


def with_rescued(
    row: dict[str, Any],
    refused: Refused | None,
    on_mismatch: str,
    write: Callable[[Refused], str] = python_values_as_json,
) -> dict[str, Any]:
    """Add the column ``RESCUED`` to a row with refused values: a JSON text of column and value, by ``write``."""
    if refused and on_mismatch == RESCUE:
        row[RESCUED] = write(refused)
    return row


def _json_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def shown(value: object) -> str:
    """Write a value in a line, cut where it is long."""
    text = "".join(char if char.isprintable() else "?" for char in str(value)[: _SHOWN_CHARS + 1])
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
