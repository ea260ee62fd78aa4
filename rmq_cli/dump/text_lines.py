"""Formats records, units and entries as text for people, in columns of fixed widths, so that output can stream."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from rmq_cli.output import bytes_text, printable, second_text, time_text
from rmq_formats.codecs.compression import Compression, decompress
from rmq_formats.codecs.layout import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import split_keys
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import FormatError
from rmq_formats.kernels.scan import CODE, POSITION, SOUND
from rmq_formats.scan.segment import FrameBatch

LINE_CELLS: Final = 79
_PREVIEW_BYTES: Final = 4 * LINE_CELLS  # enough for a line of any characters
_INDENT: Final = " " * 15

RECORD_HEADING: Final = f"{'offset':>13} {'size':>9}  {'stored':24}  topic/queue #queue offset\n"


def record_lines(batch: FrameBatch, *, topic: str | None = None, with_body: bool = True) -> Iterator[bytes]:
    """Yield the text of each sound record of a batch, two to four lines."""
    view = batch.data.data
    for row in batch.frames.tolist():
        if row[CODE] == SOUND:
            message = decode_record(view, row[POSITION], verify_crc=False)
            if topic is None or message.topic == topic:
                yield record_text(message, with_body=with_body).encode("utf-8", "replace")


def record_text(message: StoredMessage, *, with_body: bool = True) -> str:
    """Format a record: its offsets and time; its tags and keys, if it has any; the beginning of its body."""
    place = f"{printable(message.topic)}/{message.queue_id} #{message.queue_offset}"
    text = f"{message.physical_offset:>13} {message.size:>9}  {time_text(message.store_timestamp_ms)}  {place}\n"
    properties = message.properties
    tags, uniq_key = properties.get(PROPERTY_TAGS), properties.get(PROPERTY_UNIQ_KEY)
    keys = split_keys(properties.get(PROPERTY_KEYS, ""))
    labels = ([f"tags {tags}"] if tags else []) + ([f"keys {' '.join(keys)}"] if keys else [])
    if labels:
        text += f"{_INDENT}{printable('  '.join(labels))}\n"
    if uniq_key:
        text += f"{_INDENT}uniq key {printable(uniq_key)}\n"
    return text + (f"{_INDENT}{preview(message, LINE_CELLS - len(_INDENT))}\n" if with_body else "")


def preview(message: StoredMessage, cells: int) -> str:
    """Format the size and the beginning of a body on one line of at most so many terminal cells."""
    size = bytes_text(len(message.body))
    try:
        codec = Compression.of_sys_flag(message.sys_flag)
        body = decompress(message.body, message.sys_flag)
    except FormatError as error:
        return f"body {size}: {error.reason}"
    if codec is not None:
        size = f"{bytes_text(len(body))} ({size} of {codec.name.lower()})"
    text = text_of(body[:_PREVIEW_BYTES])
    shown = f"body {size}: {body[:16].hex(' ') if text is None else printable(text)}"
    if shown.isascii() and len(shown) > cells:  # the common case, which needs no widths of characters
        return f"{shown[: cells - 2]} …"
    if cell_len(shown) <= cells and (len(body) <= 16 or text is not None):
        return shown
    return set_cell_size(shown, min(cells - 2, cell_len(shown))).rstrip() + " …"


def text_of(data: bytes) -> str | None:
    """Decode bytes as text, or None if they are not; a character that the end cuts through is left out."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        cut = error.reason == "unexpected end of data"
        return data[: error.start].decode() if cut and len(data) >= _PREVIEW_BYTES else None


def _queue_name(row: Any) -> str:
    return "" if row.topic is None else f"{row.topic}/{row.queue_id}"


@dataclass(frozen=True, slots=True)
class TextTable:
    """Table of a file's rows: its heading, the line of a row, and the group under whose name the row stands."""

    heading: str
    line_of: Callable[[Any], str]
    group_of: Callable[[Any], str] = _queue_name

    def lines(self, rows: Iterator[Any]) -> Iterator[bytes]:
        """Yield a line for each row, with the name of a new group before it."""
        group = ""
        for row in rows:
            heading = ""
            if self.group_of(row) != group:
                group = self.group_of(row)
                heading = f"{printable(group)}\n"
            yield f"{heading}{self.line_of(row)}\n".encode("utf-8", "replace")


_UNIT_HEADING: Final = f"{'queue offset':>14} {'physical offset':>17} {'size':>11} {'tags code':>21}"
UNITS: Final = TextTable(
    f"{_UNIT_HEADING}\n",
    lambda row: f"{row.queue_offset:>14} {row.physical_offset:>17} {row.size:>11} {row.tags_code:>21}",
)
BATCH_UNITS: Final = TextTable(
    f"{'queue offset':>14} {'messages':>8} {'physical offset':>17} {'size':>11} {'tags code':>21}  stored\n",
    lambda row: (
        f"{row.queue_offset:>14} {row.batch_size:>8} {row.physical_offset:>17} {row.size:>11} {row.tags_code:>21}"
        f"  {time_text(row.store_timestamp)}"
    ),
)
TIMED_UNITS: Final = TextTable(
    f"{_UNIT_HEADING}  stored\n",
    lambda row: (
        f"{row.queue_offset:>14} {row.physical_offset:>17} {row.size:>11} {row.tags_code:>21}"
        f"  {time_text(row.store_timestamp)}"
    ),
)
ENTRY_INDEX_UNITS: Final = TextTable(
    f"{'index':>14} {'term':>8} {'pos':>17} {'size':>11} {'physical offset':>17}\n",
    lambda row: f"{row.index:>14} {row.term:>8} {row.pos:>17} {row.size:>11} {row.physical_offset:>17}",
    lambda _: "",
)
EXT_UNITS: Final = TextTable(
    f"{'address':>20} {'tags code':>20}  {'stored':24}  bit map\n",
    lambda row: f"{row.address:>20} {row.tags_code:>20}  {time_text(row.store_timestamp)}  {row.bit_map}",
)
ENTRIES: Final = TextTable(
    f"{'entry':>9} {'slot':>8} {'key hash':>11} {'physical offset':>16}  {'stored':20} {'previous':>9}\n",
    lambda row: (
        f"{row.entry:>9} {row.slot:>8} {row.key_hash:>11} {row.physical_offset:>16}"
        f"  {second_text(row.store_timestamp):20} {row.previous_entry:>9}"
    ),
    lambda row: row.index_file,
)
