"""Stores for tests: trees of bytes, files in memory, and small logs made record by record."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK
from rmq_formats.codecs.record import MessageToStore, encode_record
from rmq_formats.storage.segments import OpenRange
from rmq_offline.rebuild.options import RebuildOptions
from tests.support.oracles.consumequeue import goes_to_consumequeue


def tree(directory: Path) -> dict[str, bytes]:
    """All files under a directory by their relative names."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def write_commitlog(
    store: Path,
    messages: Iterable[MessageToStore],
    file_bytes: int,
    first_store_timestamp_ms: int = 1_700_000_000_000,
    step_ms: int = 1,
) -> list[int]:
    """Write a CommitLog as a broker would, queue offsets counted up by queue; the physical offsets."""
    directory = store / "commitlog"
    directory.mkdir(parents=True, exist_ok=True)
    queue_offsets: dict[tuple[str, int], int] = {}
    image, file_start, at, placed = bytearray(file_bytes), 0, 0, []
    for number, message in enumerate(messages):
        queue = (message.topic, message.queue_id)
        for _ in range(2):
            record = encode_record(
                message,
                queue_offset=queue_offsets.get(queue, 0),
                physical_offset=file_start + at,
                store_timestamp_ms=first_store_timestamp_ms + number * step_ms,
            )
            if at + len(record) + BLANK_BYTES <= file_bytes:
                break
            image[at : at + 8] = (file_bytes - at).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
            _put(directory / f"{file_start:020d}", image)
            image, file_start, at = bytearray(file_bytes), file_start + file_bytes, 0
        image[at : at + len(record)] = record
        placed.append(file_start + at)
        at += len(record)
        if goes_to_consumequeue(message.sys_flag):
            queue_offsets[queue] = queue_offsets.get(queue, 0) + 1
    _put(directory / f"{file_start:020d}", image)
    return placed


def _put(path: Path, image: bytes) -> None:
    """Write a file at once: what follows the log must not see half of one."""
    beside = path.parent.parent / f"{path.name}.new"
    beside.write_bytes(image)
    beside.replace(path)


def flip(store: Path, physical_offset: int, file_bytes: int, mask: int = 0x5A) -> None:
    """Change one byte of the CommitLog."""
    path = store / "commitlog" / f"{physical_offset // file_bytes * file_bytes:020d}"
    data = bytearray(path.read_bytes())
    data[physical_offset % file_bytes] ^= mask
    path.write_bytes(data)


def with_sizes(options: RebuildOptions, **changes: Any) -> RebuildOptions:
    """The same options with other sizes."""
    return replace(options, sizes=replace(options.sizes, **changes))


class InMemory(OpenRange):
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.size_bytes = len(data)

    def read_into(self, offset: int, target: memoryview) -> int:
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def data_end(self) -> int:
        return len(bytes(self.data).rstrip(b"\0"))

    def close(self) -> None:
        pass
