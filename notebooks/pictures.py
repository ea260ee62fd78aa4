"""Draws a store: its log as a map, and a record byte by byte."""

from collections.abc import Sequence
from typing import Any, Final

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
from look import EMPTY, PALETTE
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from rmq_formats import Store, StoredMessage
from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6, MAGIC_V1

MAX_FILES: Final = 24
MAX_BYTES: Final = 1280
_TOPICS: Final = 8  # that have a colour of their own
_COLUMNS: Final = 1000
_PER_ROW: Final = 32
_KINDS: Final = {
    "frame": "#c9d3da",
    "place": "#9fc3b8",
    "when, who": "#a9c1de",
    "flags": "#e3dccb",
    "body": "#f0cf94",
    "topic": "#e3a59d",
    "properties": "#c9b6da",
}


def log_map(store: Store) -> None:
    """Draw the CommitLog as strips, one a file, from its first byte to its last; a colour is a topic.

    Args:
        store: of which the first files are shown.
    """
    columns = ["physical_offset", "size", "topic"]
    places = pa.Table.from_batches(store.arrow(columns, mode="DROPMALFORMED", verify_crc=False))
    offsets, sizes = (places[name].to_numpy() for name in columns[:2])
    topics = places["topic"].to_pandas()
    common = list(topics.value_counts().index[:_TOPICS])
    colour_of = topics.map({topic: number for number, topic in enumerate(common)}).fillna(len(common)).to_numpy()
    segments = store.segments()[:MAX_FILES]
    image = np.full((len(segments), _COLUMNS), np.nan)
    for row, segment in enumerate(segments):
        at = segment.start_offset + (np.arange(_COLUMNS) + 0.5) * segment.size_bytes / _COLUMNS
        record = np.clip(np.searchsorted(offsets, at, side="right") - 1, 0, None)
        inside = (at >= offsets[record]) & (at < offsets[record] + sizes[record])
        image[row] = np.where(inside, colour_of[record], np.nan)
    colours = [*PALETTE[: len(common)], "#33393d"]
    figure, ax = plt.subplots(figsize=(10, 1.1 + 0.34 * len(segments)))
    ax.set_facecolor(EMPTY)
    ax.imshow(image, aspect="auto", interpolation="nearest", cmap=ListedColormap(colours), vmin=0, vmax=len(common))
    names = [f"{segment.start_offset:020d}" for segment in segments]
    ax.set_yticks(range(len(segments)), names, family="monospace", fontsize=8)
    ax.set_yticks(np.arange(0.5, len(segments) - 1), minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", color="white", linewidth=5)
    ax.tick_params(which="both", length=0)
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.set_title("The CommitLog, a strip a file")
    labels = [*common, "other topics"][: topics.nunique()]
    patches = [Patch(color=colour) for colour in colours[: len(labels)]]
    figure.legend(patches, labels, loc="outside lower center", ncols=min(len(labels), 6), fontsize=8.5)


def fields_of(message: StoredMessage) -> list[tuple[str, int, str]]:
    """Return name, width in bytes and kind of each field of a record, in their order."""
    born, stored = (20 if message.sys_flag & flag else 8 for flag in (FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6))
    return [
        ("size", 4, "frame"),
        ("magic", 4, "frame"),
        ("body CRC", 4, "frame"),
        ("queue id", 4, "place"),
        ("flag", 4, "flags"),
        ("queue offset", 8, "place"),
        ("physical offset", 8, "place"),
        ("sys flag", 4, "flags"),
        ("born timestamp", 8, "when, who"),
        ("born host", born, "when, who"),
        ("store timestamp", 8, "when, who"),
        ("store host", stored, "when, who"),
        ("reconsume times", 4, "flags"),
        ("prepared transaction offset", 8, "flags"),
        ("body length", 4, "frame"),
        ("body", len(message.body), "body"),
        ("topic length", 1 if message.magic == MAGIC_V1 else 2, "frame"),
        ("topic", len(message.topic.encode()), "topic"),
        ("properties length", 2, "frame"),
        ("properties", len(message.properties_bytes), "properties"),
    ]


def record_picture(record: bytes, fields: Sequence[tuple[str, int, str]], title: str) -> None:
    """Draw a record byte by byte; letters where they can be read, else hexadecimal.

    Args:
        record: its bytes, of which the first ``MAX_BYTES`` are shown.
        fields: name, width and kind of each, see ``fields_of``.
        title: of the picture.
    """
    shown = record[:MAX_BYTES]
    rows = -(-len(shown) // _PER_ROW)
    figure, ax = plt.subplots(figsize=(10, 1 + 0.29 * rows))
    at = 0
    for _, width, kind in fields:
        for place in range(at, min(at + width, len(shown))):
            _byte(ax, place, shown[place], kind)
        if at < len(shown):
            row, column = divmod(at, _PER_ROW)
            ax.plot([column] * 2, [row, row + 0.94], color="white", linewidth=2.5, solid_capstyle="butt")
        at += width
    ax.set(xlim=(0, _PER_ROW), ylim=(rows, 0), xticks=[])
    names = [f"+{row * _PER_ROW}" for row in range(rows)]
    ax.set_yticks(np.arange(rows) + 0.5, names, family="monospace", fontsize=8)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_title(title)
    patches = [Patch(color=colour) for colour in _KINDS.values()]
    figure.legend(patches, list(_KINDS), loc="outside lower center", ncols=len(_KINDS), fontsize=8.5)


def _byte(ax: Any, place: int, value: int, kind: str) -> None:
    row, column = divmod(place, _PER_ROW)
    ax.add_patch(Rectangle((column, row), 1, 0.94, color=_KINDS[kind], linewidth=0))
    is_text = kind in {"body", "topic", "properties"} and 32 < value < 127
    ax.text(
        column + 0.5,
        row + 0.5,
        chr(value) if is_text else f"{value:02x}",
        ha="center",
        va="center",
        family="monospace",
        fontsize=8 if is_text else 7.5,
        color="#2b3237",
    )
