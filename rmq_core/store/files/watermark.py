"""The file ``watermark``: the offsets up to which CommitLog, ConsumeQueues and Index are flushed.

The original's ``checkpoint`` has timestamps instead, with a margin of three seconds, and for the Index only that of a
full file. The original ignores the watermark. The file has two copies, written alternately, each with a checksum in a
disk sector of its own, so that a torn write leaves the other copy. A watermark is valid only while ``checkpoint`` is
unchanged since the watermark was written: else the original has written to the store since.
"""

import os
from struct import Struct
from typing import Final, NamedTuple

from isal import isal_zlib

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import (
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_SIXTH_END,
    CHECKPOINT_USED_BYTES,
    INDEX_HEADER_BYTES,
)
from rmq_formats.errors import FormatError

SECTOR_BYTES: Final = 512
COPIES: Final = 2
_MAGIC: Final = b"RMQMARK1"
# magic, sequence, flags, and the fields of ``Watermark`` from ``log_flushed`` on
_FIELDS = Struct(f">8sqqqqqqqq{INDEX_HEADER_BYTES}s{CHECKPOINT_USED_BYTES}s{CHECKPOINT_USED_BYTES}s")
_SUM = Struct(">I")
_CLEAN: Final = 1
_REBUILD: Final = 2
assert _FIELDS.size + _SUM.size <= SECTOR_BYTES


class Watermark(NamedTuple):
    """Offsets up to which log, queues and Index are on the disk.

    Attributes:
        sequence: increases with each write; the copy with the higher one counts.
        rebuild: a rebuild of queues and Index from the whole log has begun and not ended.
        log_flushed: physical offset below which the log is flushed.
        dispatched: physical offset below which all units are flushed.
        unit_total: sum of the queues' max offsets; a smaller sum at the next start shows missing units.
        index_dispatched: physical offset below which all Index entries are flushed.
        index_name: name of the newest IndexFile as a number; 0 without one.
        checkpoint_before: used bytes of ``checkpoint`` before the watermark was written.
        checkpoint_after: used bytes of ``checkpoint`` that are written after the watermark.
    """

    sequence: int = 0
    clean: bool = False
    rebuild: bool = False
    log_flushed: int = 0
    dispatched: int = 0
    unit_total: int = 0
    index_dispatched: int = 0
    index_name: int = 0
    index_files: int = 0
    index_header: bytes = bytes(INDEX_HEADER_BYTES)
    checkpoint_before: bytes = bytes(CHECKPOINT_USED_BYTES)
    checkpoint_after: bytes = bytes(CHECKPOINT_USED_BYTES)

    def encode(self) -> bytes:
        """Encode one copy, which fills a disk sector."""
        flags = _CLEAN * self.clean + _REBUILD * self.rebuild
        data = _FIELDS.pack(_MAGIC, self.sequence, flags, *self[_LOG_FLUSHED_AT:])
        return (data + _SUM.pack(isal_zlib.crc32(data))).ljust(SECTOR_BYTES, b"\0")

    @classmethod
    def decode(cls, sector: bytes) -> "Watermark | None":
        """Decode one copy; None for a torn or missing copy."""
        data = sector[: _FIELDS.size]
        if len(sector) < SECTOR_BYTES or not data.startswith(_MAGIC):
            return None
        if _SUM.unpack_from(sector, _FIELDS.size)[0] != isal_zlib.crc32(data):
            return None
        _, sequence, flags, *values = _FIELDS.unpack(data)
        return cls(sequence, bool(flags & _CLEAN), bool(flags & _REBUILD), *values)


_LOG_FLUSHED_AT: Final = Watermark._fields.index("log_flushed")


class CheckpointFiles:
    """The files ``checkpoint`` and ``watermark`` of a store."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._disk = disk
        self._checkpoint_path = paths.checkpoint_file(root)
        self._watermark_path = watermark_file(root)
        self._root = root
        checkpoint_bytes = self._read(self._checkpoint_path)[:CHECKPOINT_SIXTH_END]
        self._checkpoint_bytes = checkpoint_bytes.ljust(CHECKPOINT_SIXTH_END, b"\0")
        data = self._read(self._watermark_path)
        sectors = (data[at : at + SECTOR_BYTES] for at in range(0, COPIES * SECTOR_BYTES, SECTOR_BYTES))
        copies = [copy for copy in map(Watermark.decode, sectors) if copy is not None]
        self._newest = max(copies, key=lambda copy: copy.sequence, default=None)
        self._sequence = 0 if self._newest is None else self._newest.sequence

    def _read(self, path: str) -> bytes:
        try:
            return self._disk.read_file(path)[:CHECKPOINT_FILE_BYTES]
        except FileNotFoundError:
            return b""

    @property
    def checkpoint_bytes(self) -> bytes:
        """The bytes of ``checkpoint`` that all brokers use; a watermark identifies its checkpoint by them."""
        return self._checkpoint_bytes[:CHECKPOINT_USED_BYTES]

    @property
    def checkpoint(self) -> Checkpoint:
        """The decoded ``checkpoint``; zeros if the file is missing."""
        try:
            return Checkpoint.decode(self._checkpoint_bytes)
        except FormatError:
            return Checkpoint()

    def trusted(self) -> Watermark | None:
        """Return the newest watermark; None if another program has written the checkpoint since."""
        newest = self._newest
        if newest is not None and self.checkpoint_bytes in (newest.checkpoint_before, newest.checkpoint_after):
            return newest
        return None

    def write(self, watermark: Watermark, checkpoint: Checkpoint) -> None:
        """Write and fsync the watermark, then the checkpoint: the watermark always matches one of two checkpoints."""
        self._sequence += 1
        after = checkpoint.encode()[:CHECKPOINT_SIXTH_END]
        copy = watermark._replace(
            sequence=self._sequence,
            checkpoint_before=self.checkpoint_bytes,
            checkpoint_after=after[:CHECKPOINT_USED_BYTES],
        ).encode()
        self._write(self._watermark_path, copy, self._sequence % COPIES * SECTOR_BYTES, COPIES * SECTOR_BYTES)
        if after != self._checkpoint_bytes:
            self._write(self._checkpoint_path, after, 0, CHECKPOINT_FILE_BYTES)
            self._checkpoint_bytes = after

    def _write(self, path: str, data: bytes, offset: int, file_bytes: int) -> None:
        created = not os.path.exists(path)  # noqa: PTH110 # paths are strings here
        descriptor = self._disk.create(path, file_bytes, allocate=True) if created else self._disk.open(path)
        try:
            if not created and os.fstat(descriptor).st_size < file_bytes:
                self._disk.allocate(descriptor, 0, file_bytes)
            self._disk.write(descriptor, data, offset)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        if created:
            self._disk.sync_directory(self._root)


def watermark_file(root: str) -> str:
    """``<root>/watermark``."""
    return f"{root.rstrip('/')}/watermark"
