"""Which fields of a default record a changed byte is found in; ``docs/verify.md`` publishes the table."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record_frame import FrameShape, frame_shape
from rmq_offline.verify.findings import Severity
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    FIRST_MS,
    flip_at,
    log_path,
    message,
    patch,
    rebuild,
    verify,
)

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
STEP_MS = 40  # between records: some changes of a store timestamp stay within their neighbours'
NUMBER = 25
FIXED = (
    ("size", 0, 4), ("magic", 4, 4), ("body CRC", 8, 4), ("queue id", 12, 4), ("flag", 16, 4), ("queue offset", 20, 8),
    ("physical offset", 28, 8), ("sys flag", 36, 4), ("born timestamp", 40, 8), ("born host: address", 48, 4),
    ("born host: port", 52, 4), ("store timestamp", 56, 8), ("store host: address", 64, 4), ("store host: port", 68, 4),
    ("reconsume times", 72, 4), ("prepared transaction offset", 76, 8), ("body length", 84, 4),
)  # fmt: skip


def published() -> dict[str, str]:
    """Field and verdict of each row of the page's table."""
    rows = re.findall(r"^\| ([^|]+) \| (always|partly|never) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.strip(): verdict for name, verdict in rows}


def fields(record: bytes, shape: FrameShape) -> Iterator[tuple[str, list[int]]]:
    """Each field with its bytes' places in the record."""
    for name, at, width in FIXED:
        yield name, list(range(at, at + width))
    base = shape.position
    for name, begin, size in (
        ("body", shape.body_at, shape.body_bytes),
        ("topic length", shape.topic_at - 1, 1),
        ("topic", shape.topic_at, shape.topic_bytes),
        ("properties length", shape.properties_at - 2, 2),
    ):
        yield name, list(range(begin - base, begin - base + size))
    for name in ("TAGS", "KEYS", "UNIQ_KEY"):
        at = record.index(f"{name}\x01".encode())
        yield f"properties: {name}", list(range(at, record.index(b"\x02", at)))
    at = record.index(b"color\x01")
    yield "properties: others", list(range(at, record.index(b"\x02", at)))


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, int]:
    def properties(n: int) -> bytes:
        return encode_properties({"TAGS": f"T{n % 3}", "UNIQ_KEY": f"U{n:04}", "KEYS": f"k{n}", "color": "red"})

    messages = [message(n, properties_bytes=properties(n)) for n in range(2 * NUMBER)]
    placed = write_commitlog(tmp_path, messages, FILE_BYTES, FIRST_MS)
    for number, physical_offset in enumerate(placed):
        path, position = log_path(tmp_path, physical_offset)
        patch(path, position + 56, (FIRST_MS + number * STEP_MS).to_bytes(8, "big"))
    rebuild(tmp_path)
    return tmp_path, placed[NUMBER]


@pytest.mark.long
@pytest.mark.torture
def test_the_published_table_says_what_is_found(store: tuple[Path, int]) -> None:
    root, physical_offset = store
    path, position = log_path(root, physical_offset)
    data = path.read_bytes()
    shape = frame_shape(memoryview(data), position, physical_offset)
    assert isinstance(shape, FrameShape)
    assert verify(root).is_clean
    verdicts = {}
    for name, places in fields(data[position : position + shape.size], shape):
        masks = [1 << bit for bit in range(8)] if name == "sys flag" else [0x01, 0x80]
        found = []
        for at in places:
            for mask in masks:
                flip_at(path, position + at, mask)
                report = verify(root)
                found.append(report.total(Severity.ERROR) + report.total(Severity.WARNING) > 0)
                flip_at(path, position + at, mask)
        verdicts[name] = "always" if all(found) else "partly" if any(found) else "never"
    assert verdicts == published()
