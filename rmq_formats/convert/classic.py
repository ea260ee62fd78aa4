"""Conversion of a store with a DLedger CommitLog into a classic one, which a broker without DLedger opens.

The records stand one behind the other, without the headers of entries: so those of the DLedger CommitLog get new
physical offsets. All else of them stays, queue offsets too, and with those the offsets of consumers.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.damage import Damage
from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK
from rmq_formats.codecs.record_layout import SIZE_AND_MAGIC
from rmq_formats.convert.report import Converted, Source
from rmq_formats.errors import StoreLayoutError
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.rebuild.job import rebuild_store
from rmq_formats.rebuild.options import RebuildOptions
from rmq_formats.repair.checkpoint import write_checkpoint
from rmq_formats.scan.segment import FrameBatch, scan_segment
from rmq_formats.storage import store_variants
from rmq_formats.storage.commitlog import commitlog_segments
from rmq_formats.storage.segments import OpenRange, Segment, Storage, open_storage, opened
from rmq_formats.tasks.publish import start_sync
from rmq_formats.tasks.runner import Runner
from rmq_formats.verify import finding_kinds

_COPIED_BYTES: Final = 4 << 20
_TIMER_CHECKPOINT: Final = "timercheck"  # of timerlog and timerwheel, which hold physical offsets

CHANGES: Final = (
    "each message of the DLedger CommitLog has another physical offset, and so another offset message id: ids that "
    "clients, logs and traces have kept, and the marks of exports and streams, lead to no message or to another one; "
    "unique keys and KEYS lead to the new places",
    "terms and indexes of entries are gone: the new store is that of a single broker, and must not come back into the "
    "DLedger group; start it with enableDLegerCommitLog=false",
    "entries that no leader had committed yet are messages like the others",
    "the commit or rollback of a transaction that a client holds names the half message by its old offset, and fails; "
    "the broker then asks the client again",
    "timerlog, timerwheel and config/timercheck are left out: a broker makes them anew from the timer topic; RocketMQ "
    "may then deliver timed messages a second time that were due before",
)


def convert_to_classic(source: Source, new: Path, runner: Runner) -> Converted:
    """Make a classic store of one with a DLedger CommitLog; see ``convert_store``.

    Raises:
        StoreLayoutError: a classic store, or one with queues of a layout that a rebuild would get wrong.
    """
    storage, root = open_storage(source.store)
    found = store_variants.recognise(storage, root)
    if store_variants.Variant.DLEDGER not in found:
        raise StoreLayoutError(f"{root}: has no DLedger CommitLog: it is a classic store already")
    store_variants.refuse(store_variants.no_classic_store(found))
    segments = commitlog_segments(storage, root)
    directory = Path(paths.commitlog_dir(str(new)))
    directory.mkdir()
    entries = [segment for segment in segments if segment.head_bytes]
    for segment in segments:
        if not segment.head_bytes:
            _copy_file(storage, segment.path, directory / Path(segment.path).name, segment.size_bytes)
    damages: list[Damage] = []
    begin = entries[0].start_offset if entries else segments[-1].end_offset
    with _LogWriter(directory, begin, source.sizes.commitlog_file_bytes) as log:
        for batch in _batches(storage, entries):
            damages += batch.all_damages()
            log.append(batch)
    _copy_config(storage, root, new)
    report = rebuild_store(str(new), None, RebuildOptions(True, True, source.sizes), runner)
    write_checkpoint(new)
    findings = tuple(finding_kinds.damage_finding(damage) for damage in damages)
    return Converted(report.messages, report.bytes, CHANGES, findings + report.findings)


def _batches(storage: Storage, segments: list[Segment]) -> Iterator[FrameBatch]:
    for segment in segments:
        with opened(storage, segment.path) as file:
            yield from scan_segment(
                file, segment.start_offset, segment.size_bytes, data_end=file.data_end(), head_bytes=segment.head_bytes
            )


class _LogWriter(ExitStack):
    """Writes records one behind the other into the files of a new CommitLog, as a broker does."""

    def __init__(self, directory: Path, begin: int, file_bytes: int) -> None:
        super().__init__()
        self._directory = directory
        self._file_bytes = file_bytes
        self._file_begin = begin
        self._at = begin  # physical offset of the next record
        self._out = np.empty(0, dtype=np.uint8)
        self._halves = np.empty((2, 0), dtype=np.int64)  # half messages: where they stood, and where they stand
        self._known = np.array([0, begin], dtype=np.int64)
        self._file: BinaryIO = self._made()

    def append(self, batch: FrameBatch) -> None:
        """Append the sound records of a batch."""
        frames = np.ascontiguousarray(batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND])
        needed = int(frames[:, scan_kernel.SIZE].sum())
        if needed > len(self._out):
            self._out = np.empty(needed, dtype=np.uint8)
        self._make_room_for_halves(len(frames))
        first = 0
        while first < len(frames):
            room = self._file_begin + self._file_bytes - BLANK_BYTES - self._at
            stop = int(
                kernel.take_records(batch.data, frames, first, self._at, room, self._out, self._halves, self._known)
            )
            size = int(frames[first:stop, scan_kernel.SIZE].sum())
            self._write(self._out[:size])
            first = stop
            if first < len(frames):
                self._next_file()

    def _make_room_for_halves(self, count: int) -> None:
        known = int(self._known[0])
        if known + count > self._halves.shape[1]:
            halves = np.empty((2, 2 * known + count), dtype=np.int64)
            halves[:, :known] = self._halves[:, :known]
            self._halves = halves

    def _write(self, records: NDArray[np.uint8]) -> None:
        self._file.write(records.data)
        start_sync(self._file.fileno(), self._at - self._file_begin, len(records))
        self._at += len(records)

    def _next_file(self) -> None:
        end = self._file_begin + self._file_bytes
        self._file.write(SIZE_AND_MAGIC.pack(end - self._at, MAGIC_BLANK))
        self._file.close()
        self._at = self._file_begin = end
        self._file = self._made()

    def _made(self) -> BinaryIO:
        path = self._directory / paths.segment_name(self._file_begin)
        file = self.enter_context(path.open("xb"))
        file.truncate(self._file_bytes)
        return file


def _copy_config(storage: Storage, root: str, new: Path) -> None:
    config = paths.config_dir(root)
    target = Path(paths.config_dir(str(new)))
    target.mkdir()
    for entry in storage.entries(config):
        if not entry.is_directory and not entry.name.startswith(_TIMER_CHECKPOINT):
            _copy_file(storage, f"{config}/{entry.name}", target / entry.name, entry.size_bytes)


def _copy_file(storage: Storage, path: str, target: Path, size_bytes: int) -> None:
    """Copy a file up to its last byte that is not zero; the rest becomes a hole."""
    with opened(storage, path) as source, target.open("xb") as file:
        _copy_bytes(source, file)
        file.truncate(size_bytes)


def _copy_bytes(source: OpenRange, target: BinaryIO) -> None:
    end, buffer = source.data_end(), np.empty(_COPIED_BYTES, dtype=np.uint8)
    for begin in range(0, end, _COPIED_BYTES):
        got = source.read_into(begin, buffer[: min(_COPIED_BYTES, end - begin)].data)
        target.write(buffer[:got].data)
