"""Quarantine of damaged CommitLog ranges: copied, then overwritten by records that every reader skips.

The original cuts the log at the first bad byte, so that all later records are lost and its slaves cannot go on.
Here the damaged bytes are copied to ``<root>/quarantine`` and overwritten with tombstones: records of rolled back
transactions, which every RocketMQ skips and none delivers. A slave receives the tombstones with the log, and records
their ranges in its own quarantine, so that its queues have the same gaps as its master's.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rmq_core.store.commitlog.log import LogFile, store_timestamp_ms
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import BLANK_BYTES, FLAG_TRANSACTION_ROLLBACK, MAGIC_BLANK
from rmq_formats.codecs.paths import SEGMENT_NAME_DIGITS
from rmq_formats.codecs.record import MessageToStore, encode_record
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, SIZE_AND_MAGIC

TOMBSTONE_TOPIC: Final = "rmq_sys_QUARANTINE"
_MAX_TOMBSTONE_BYTES: Final = 4 << 20
_MIN_TOMBSTONE_BYTES: Final = RECORD_FIXED_BYTES_V1 + 1  # a topic of one letter; no record is smaller
HEAD_BYTES: Final = RECORD_FIXED_BYTES_V1 - 3  # bytes of a record before its body
_COPY_BLOCK_BYTES: Final = 4 << 20
_NO_HOST: Final = Host(bytes(4), 0)


class Quarantine:
    """Copies damaged ranges to the quarantine directory, and overwrites the ranges in the log."""

    def __init__(self, root: str, disk: Disk) -> None:
        self.directory = f"{root.rstrip('/')}/quarantine"
        self._disk = disk

    def copy(self, file: LogFile, damage: Damage, now_ms: int) -> str:
        """Copy a damaged range and its metadata to the quarantine, and fsync both; return the path of the copy.

        After an OSError there is no copy, so the caller must not change the log.
        """
        self._disk.make_durable_directory(self.directory)
        path = f"{self._path_of(damage)}.{now_ms}.bin"
        metadata = {
            "physical_offset": damage.physical_offset, "size": damage.size, "code": damage.code.name,
            "reason": damage.code.text, "found_timestamp": now_ms, "log_file": file.path,
        }  # fmt: skip
        self._disk.remove(path)
        descriptor = self._disk.create(path, damage.size, allocate=False)
        try:
            position = damage.physical_offset - file.start
            for offset in range(0, damage.size, _COPY_BLOCK_BYTES):
                data = self._disk.read(file.descriptor, min(_COPY_BLOCK_BYTES, damage.size - offset), position + offset)
                self._disk.write(descriptor, data, offset)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.replace(f"{self._path_of(damage)}.{now_ms}.json", json.dumps(metadata).encode())
        return path

    def _path_of(self, damage: Damage) -> str:
        return f"{self.directory}/{damage.physical_offset:0{SEGMENT_NAME_DIGITS}d}"

    def record_tombstone(self, tombstone_range: Damage) -> None:
        """Record the range of a tombstone that came with the master's log; the replaced bytes are at the master."""
        self._disk.make_durable_directory(self.directory)
        metadata = {
            "physical_offset": tombstone_range.physical_offset, "size": tombstone_range.size,
            "reason": "a tombstone of the master, whose quarantine has the bytes",
        }  # fmt: skip
        self._disk.replace(f"{self._path_of(tombstone_range)}.json", json.dumps(metadata).encode())

    def find_overwritten(self, files: Sequence[LogFile]) -> list[Damage]:
        """Find the recorded ranges that are tombstones or a BLANK in the log.

        The lost messages of such a range had queue offsets, so the gap in their queue must remain.
        """
        damages = []
        for path in sorted(Path(self.directory).glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                metadata = msgspec.json.decode(path.read_bytes(), type=_RangeMetadata)
                start, size = metadata.physical_offset, metadata.size
                file = next((file for file in reversed(files) if file.start <= start), None)
                if file is not None and start + size <= file.end:
                    head = self._disk.read(file.descriptor, HEAD_BYTES, start - file.start)
                    if _is_filler(head, start, file.end - start):
                        damages.append(Damage(start, size, DamageCode.MAGIC))
        return damages

    def overwrite_with_tombstones(self, file: LogFile, damage: Damage, timestamp_ms: int) -> bool:
        """Overwrite a damaged range with tombstones, and with a BLANK at its end if the range ends with its file.

        Args:
            damage: sound records follow it, in this file or in the next.
            timestamp_ms: store time for the tombstones, taken from a record nearby.

        Returns:
            True if tombstones were written. A range that is too small for one stays as it is, or becomes a BLANK.
        """
        position, remaining_bytes = damage.physical_offset - file.start, damage.size
        if position + remaining_bytes == file.size and remaining_bytes >= BLANK_BYTES:
            has_room = remaining_bytes >= _MIN_TOMBSTONE_BYTES + BLANK_BYTES
            blank_bytes = BLANK_BYTES if has_room else remaining_bytes
            blank = SIZE_AND_MAGIC.pack(blank_bytes, MAGIC_BLANK)
            self._disk.write(file.descriptor, blank, file.size - blank_bytes)
            remaining_bytes -= blank_bytes
        if remaining_bytes < _MIN_TOMBSTONE_BYTES:
            return False
        while remaining_bytes:
            size = remaining_bytes
            if size > _MAX_TOMBSTONE_BYTES:  # the remaining bytes need room for another tombstone
                size = min(_MAX_TOMBSTONE_BYTES, remaining_bytes - _MIN_TOMBSTONE_BYTES)
            self._disk.write(file.descriptor, tombstone(size, file.start + position, timestamp_ms), position)
            position += size
            remaining_bytes -= size
        return True


class _RangeMetadata(msgspec.Struct):
    physical_offset: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    size: Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]


def _is_filler(head: bytes, physical_offset: int, remaining_bytes: int) -> bool:
    """Return whether a record's first bytes belong to a tombstone, or to a BLANK up to the file's end."""
    if head[: SIZE_AND_MAGIC.size] == SIZE_AND_MAGIC.pack(remaining_bytes, MAGIC_BLANK):
        return True
    size = int.from_bytes(head[:4], "big", signed=True)
    return size <= remaining_bytes and is_tombstone(head, physical_offset, size)


def is_tombstone(head: bytes, physical_offset: int, size: int) -> bool:
    """Return whether a record is a tombstone, by its first ``HEAD_BYTES``, its physical offset and its size."""
    if not _MIN_TOMBSTONE_BYTES <= size <= _MAX_TOMBSTONE_BYTES or len(head) < HEAD_BYTES:
        return False
    return tombstone(size, physical_offset, store_timestamp_ms(memoryview(head)))[:HEAD_BYTES] == head


def tombstone(size: int, physical_offset: int, timestamp_ms: int) -> bytes:
    """Return a record of exactly ``size`` bytes that no consumer gets: one of a rolled back transaction."""
    topic = TOMBSTONE_TOPIC[: size - RECORD_FIXED_BYTES_V1]
    message = MessageToStore(
        topic=topic,
        queue_id=0,
        body=bytes(size - RECORD_FIXED_BYTES_V1 - len(topic)),
        sys_flag=FLAG_TRANSACTION_ROLLBACK,
        born_timestamp_ms=timestamp_ms,
        born_host=_NO_HOST,
        store_host=_NO_HOST,
    )
    return encode_record(
        message,
        queue_offset=0,
        physical_offset=physical_offset,
        store_timestamp_ms=timestamp_ms,
        max_body_bytes=_MAX_TOMBSTONE_BYTES,
    )
