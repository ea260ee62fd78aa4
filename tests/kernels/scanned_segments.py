"""Segments for the scan's tests: scans and oracle walks in one form, and ways to damage a file."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from rmq_formats.codecs.record_frame import Damage, FrameShape, frame_shape
from rmq_formats.kernels import scan as kernel
from rmq_formats.scan.segment import FrameBatch, scan_segment
from tests.support.oracles.commitlog_walk import walk
from tests.support.stores.record_strategies import encode_segment, messages
from tests.support.stores.store_files import InMemory

FILE_OFFSET = 5 << 30
Item = tuple[str, int, int, int]  # kind, position in the file, size, damage code
WINDOWS = (4096, 5000, 8192, 65536)
windows = st.sampled_from(WINDOWS)


def batches(data: bytes, file_offset: int = FILE_OFFSET, **options: Any) -> Any:
    return scan_segment(InMemory(data), file_offset, len(data), **options)


def scanned(data: bytes, file_offset: int = FILE_OFFSET, **options: Any) -> list[Item]:
    """What a scan yields, in log order; each frame's columns are checked on the way."""
    return [item for batch in batches(data, file_offset, **options) for item in items_of(batch, data, file_offset)]


def items_of(batch: FrameBatch, data: bytes, file_offset: int) -> list[Item]:
    found: list[Item] = [
        ("Damage", item.physical_offset - file_offset, item.size, item.code) for item in batch.all_damages()
    ]
    window_at = batch.physical_offset - file_offset
    for row in batch.frames:
        position = window_at + int(row[kernel.POSITION])
        check_columns(row, frame_shape(memoryview(data), position, file_offset + position), window_at)
        if row[kernel.CODE] == kernel.SOUND:
            found.append(("Frame", position, int(row[kernel.SIZE]), 0))
    if batch.blank_at is not None:
        position = batch.blank_at - file_offset
        found.append(("Blank", position, len(data) - position, 0))
    return sorted(found, key=lambda item: item[1])


def check_columns(row: Any, shape: object, window_at: int) -> None:
    assert isinstance(shape, FrameShape)
    assert row[: kernel.CODE].tolist() == [
        shape.position - window_at, shape.size, shape.body_at - window_at, shape.body_bytes,
        shape.topic_at - window_at, shape.topic_bytes, shape.properties_at - window_at, shape.properties_bytes,
    ]  # fmt: skip


def walked(data: bytes, file_offset: int = FILE_OFFSET, **options: Any) -> list[Item]:
    """What the oracle's walk yields."""
    return [
        (
            type(item).__name__,
            item.physical_offset - file_offset,
            item.size,
            item.code if isinstance(item, Damage) else 0,
        )
        for item in walk(data, file_offset, **options)
    ]


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Segments of records from 91 bytes to some 30 KiB, ended by a BLANK or by zeros."""
    stored = draw(st.lists(messages, min_size=1, max_size=8))
    repeats = draw(st.lists(st.sampled_from([1, 1, 1, 20, 100]), min_size=len(stored), max_size=len(stored)))
    stored = [replace(message, body=message.body * count) for message, count in zip(stored, repeats, strict=True)]
    segment, _ = encode_segment(
        stored, FILE_OFFSET, draw(st.integers(0, 6000)), blank=draw(st.booleans()), crc=draw(st.booleans())
    )
    return segment


Damaging = tuple[str, int, bytes]
damagings = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "overwrite", "insert", "truncate"]),
        st.integers(0, 1 << 20),
        st.one_of(st.binary(min_size=1, max_size=40), st.binary(min_size=300, max_size=300).map(lambda part: part * 7)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, damagings: list[Damaging]) -> bytes:
    """The file after a bit rotted, stretches were lost or moved, or its end was cut off."""
    for kind, anywhere, values in damagings:
        if not data:
            break
        at = anywhere % len(data)
        end = min(at + len(values), len(data))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ (values[0] or 1)]) + data[at + 1 :]
        elif kind == "zero":
            data = data[:at] + bytes(end - at) + data[end:]
        elif kind == "overwrite":
            data = data[:at] + values[: end - at] + data[end:]
        elif kind == "insert":
            data = (data[:at] + values + data[at:])[: len(data)]
        else:
            data = data[:at]
    return data
