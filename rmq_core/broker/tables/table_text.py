"""Text of a table's file, in pieces: a table may have ten thousands of entries, and the event loop is not to wait."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import structs

_ENTRIES: Final = 50  # of a piece: a fraction of a slice for groups, which have the longest


def table_pieces(body: msgspec.Struct) -> Iterator[bytes]:
    """Encode a table as indented JSON, piece by piece.

    Entries that are put or taken away meanwhile may be there or not; each that is there is whole.

    Args:
        body: members of it that are tables are encoded in pieces, the others whole.
    """
    before = b"{"
    for field in structs.fields(body):
        value = getattr(body, field.name)
        if value is msgspec.UNSET:
            continue
        yield b"%b\n %b: " % (before, msgspec.json.encode(field.encode_name))
        before = b","
        if isinstance(value, Mapping) and len(value) > _ENTRIES:
            yield from _entries(value)
        else:
            yield _indented(value)
    yield b"\n}"


def _entries(table: Mapping[Any, Any]) -> Iterator[bytes]:
    entries = iter(list(table.items()))
    before = b"{"
    while piece := dict(islice(entries, _ENTRIES)):
        yield before + _indented(piece)[1:-2]  # without its braces
        before = b","
    yield b"\n}"


def _indented(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
