"""Repair of a DLedger CommitLog: only changes that Raft allows, after which the group's logs still agree.

Certain bytes are written anew: a header follows from its record and its neighbours, a file's end mark from its place,
DLedger's index from the entries. Uncommitted entries behind the last sound one are cut off, as by the original's
recovery. Other damage is refused, since the other members of the group have the right bytes.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import dledger, paths
from rmq_formats.codecs.dledger import (
    ENTRY_HEAD_BYTES,
    ENTRY_MAGIC,
    FILE_END_BYTES,
    FILE_END_MAGIC,
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    INDEX_UNIT_DTYPE,
    EntryHead,
)
from rmq_formats.errors import DecodeError, StoreLayoutError
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.segment import FrameBatch, log_frames, scan_segment
from rmq_formats.storage.contained import write_file
from rmq_formats.storage.segments import LocalStorage, Segment, list_segments
from rmq_offline.repair.filler import Fill, LogRange
from rmq_offline.repair.scan import PaddedFile
from rmq_offline.tasks.publish import sync_directory, sync_file_system
from rmq_offline.verify import finding_kinds, layout_finding_kinds
from rmq_offline.verify.dledger_entries import EntryUnits, index_directory, repaired_terms

MAX_HEADERS: Final = 4096  # to be written anew; of a log with more nothing is certain
_WORD: Final = 4
_WAY: Final = (
    "the other members of the group have the truth: move {directory} out of the store, and the leader sends the log "
    "anew; without other members rmq convert --to classic takes out what is sound"
)
_MADE: Final = "entry-index"  # in the repair's directory
_PER_FILE: Final = INDEX_FILE_BYTES // INDEX_UNIT_BYTES


@dataclass(frozen=True, slots=True)
class EntryRepair:
    """Index and checkpoint that a repair writes anew beside the entries of a DLedger CommitLog.

    Attributes:
        directory: DLedger's directory, relative to the store's root.
        checkpoint: new text of DLedger's ``checkpoint``; None if the old one stays.
    """

    directory: str
    makes_index: bool = False
    checkpoint: str | None = None


@dataclass(slots=True)
class _Log:
    """State of a scan over all entries.

    Attributes:
        last_index: index of the last sound entry before any damage; -1 if there is none.
        end: physical offset of the next entry.
        bad_at: physical offset of the first missing or damaged entry; None without one.
        is_ended: whether the file's end mark was read.
    """

    root: str
    units: EntryUnits
    log_ranges: list[LogRange] = field(default_factory=list)
    last_index: int = -1
    last_term: int = -1
    end: int = -1
    bad_at: int | None = None
    bad_detail: str = ""
    is_ended: bool = True
    headers: int = 0

    def add_range(
        self, segment: Segment, begin: int, size: int, existing_bytes: int, code: str, detail: str, written: str = ""
    ) -> None:
        """Plan to overwrite a range with bytes, which are written in hex, or with zeros."""
        path, fill = relative_path(self.root, segment.path), Fill.BYTES if written else Fill.ZEROS
        self.log_ranges.append(
            LogRange(path, segment.start_offset, begin, size, existing_bytes, code, detail, fill, written=written)
        )


def plan_entries(
    root: str, segments: Sequence[Segment], file_bytes: int, *, makes_index: bool, writes_checkpoint: bool
) -> tuple[EntryRepair, tuple[LogRange, ...], tuple[tuple[str, int], ...]]:
    """Plan the changes of a DLedger CommitLog: index and checkpoint, ranges to overwrite, and files to resize.

    Args:
        makes_index: whether a finding says that DLedger's index differs.
        writes_checkpoint: whether a finding says that DLedger's checkpoint names missing entries.

    Raises:
        StoreLayoutError: damage that Raft does not allow to be repaired here.
        StoreError: a file cannot be read.
    """
    with closing(EntryUnits(LocalStorage(), index_directory(segments[0].path))) as units:
        log, sizes = _scan(root, segments, file_bytes, units)
    if log.last_index < 0:
        _refuse(log, segments[0], segments[0].start_offset, "no sound entry")
    directory = segments[0].path.rsplit("/", 2)[0]
    committed = _read_committed_index(directory)
    if log.bad_at is not None:
        _cut(log, segments, file_bytes, committed)
    text = None
    is_known = committed is not None and committed <= log.last_index  # else committed entries were lost
    if is_known and (writes_checkpoint or (log.bad_at is not None and Path(directory, "checkpoint").exists())):
        text = f"committedIndex={committed}\nendIndex={log.last_index}\n"
    repair = EntryRepair(relative_path(root, directory), makes_index or log.bad_at is not None, text)
    return repair, tuple(log.log_ranges), tuple(sizes)


def _scan(
    root: str, segments: Sequence[Segment], file_bytes: int, units: EntryUnits
) -> tuple[_Log, list[tuple[str, int]]]:
    log = _Log(root, units)
    sizes: list[tuple[str, int]] = []
    for number, segment in enumerate(segments):
        if number and segment.start_offset != segments[number - 1].start_offset + file_bytes:
            _refuse(log, segment, segment.start_offset, "files are missing before this one")
        if segment.size_bytes > file_bytes:
            _refuse(log, segment, segment.end_offset, f"the file is longer than {file_bytes} bytes")
        if segment.size_bytes < file_bytes:
            sizes.append((relative_path(root, segment.path), file_bytes))
        _scan_file(log, segments, number, file_bytes)
    return log, sizes


def _scan_file(log: _Log, segments: Sequence[Segment], number: int, file_bytes: int) -> None:
    segment = segments[number]
    with LocalStorage().open(segment.path) as file:
        data_end = min(file.data_end(), file_bytes)
        reader = PaddedFile(file, file_bytes)
        blank_at = None
        for batch in scan_segment(
            reader, segment.start_offset, file_bytes, data_end=data_end, head_bytes=ENTRY_HEAD_BYTES
        ):
            for damage in batch.damages:
                _note_bad(log, damage.physical_offset, damage.code.text)
            if len(batch.frames):
                _check_frames(log, segments, number, batch, file_bytes)
            blank_at = blank_at if batch.blank_at is None else batch.blank_at
    if blank_at is not None and log.bad_at is None:
        log.is_ended, log.end = True, segment.start_offset + file_bytes
        behind = blank_at + FILE_END_BYTES
        if data_end > behind - segment.start_offset:
            size = segment.start_offset + data_end - behind
            detail = "bytes that are not zero after the file's end mark"
            log.add_range(segment, behind, size, size, finding_kinds.LOG_AFTER_BLANK.code, detail)


def _note_bad(log: _Log, at: int, detail: str) -> None:
    if log.bad_at is None:
        log.bad_at, log.bad_detail = at, detail


def _check_frames(log: _Log, segments: Sequence[Segment], number: int, batch: FrameBatch, file_bytes: int) -> None:
    segment, frames = segments[number], batch.frames
    sound = frames[:, scan_kernel.CODE] == scan_kernel.SOUND
    places = frames[:, scan_kernel.POSITION] + batch.physical_offset - ENTRY_HEAD_BYTES
    count = len(frames) if sound.all() else int(np.argmin(sound))
    if sound.any():
        heads = np.empty((len(frames), kernel.HEAD_COLUMNS), dtype=np.int64)
        kernel.check_heads(batch.data, batch.physical_offset, frames, heads)
        if log.bad_at is not None or (log.end >= 0 and int(places[0]) != log.end):
            _end_before(log, segments, number, int(places[0]), heads, file_bytes)
        if sound[count:].any():
            _refuse(log, segment, int(places[count]), "its record is damaged, and entries follow")
        _check_heads(log, segment, heads[:count], places[:count], frames[:count, scan_kernel.SIZE])
    if count < len(frames):
        _note_bad(log, int(places[count]), "its record is damaged")
    if count:
        log.end, log.is_ended = int(places[count - 1] + frames[count - 1, scan_kernel.SIZE]) + ENTRY_HEAD_BYTES, False


def _end_before(
    log: _Log, segments: Sequence[Segment], number: int, place: int, heads: NDArray[np.int64], file_bytes: int
) -> None:
    """Plan the end mark of the previous file if nothing else is missing between two entries; refuse otherwise."""
    segment, before = segments[number], segments[number - 1]
    bad_at = log.end if log.bad_at is None else log.bad_at
    bases = heads[:, kernel.HEAD_INDEX] - np.arange(len(heads))
    remaining = segment.start_offset - log.end
    is_mark = place == segment.start_offset and number > 0 and not log.is_ended and bad_at == log.end
    if not is_mark or not (bases == log.last_index + 1).any() or remaining < FILE_END_BYTES:
        bad_segment = next(candidate for candidate in reversed(segments) if candidate.start_offset <= bad_at)
        _refuse(log, bad_segment, bad_at, f"{log.bad_detail or 'no entry'}, and entries follow")
    with LocalStorage().open(before.path) as file:
        existing_bytes = max(0, min(file.data_end(), file_bytes) - (log.end - before.start_offset))
    mark = b"".join(word.to_bytes(_WORD, "big", signed=True) for word in (FILE_END_MAGIC, remaining))
    code, detail = finding_kinds.LOG_NO_BLANK.code, "no end mark after the file's last entry"
    log.add_range(before, log.end, remaining, existing_bytes, code, detail, mark.hex())
    log.bad_at, log.bad_detail = None, ""


def _check_heads(
    log: _Log, segment: Segment, heads: NDArray[np.int64], places: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Plan the headers that contradict their records and neighbours; an index unit is further evidence."""
    bases = heads[:, kernel.HEAD_INDEX] - np.arange(len(heads))
    if log.last_index >= 0:
        first = log.last_index + 1
    else:
        values, counts = np.unique(bases, return_counts=True)
        first = int(values[np.argmax(counts)])
    indexes = first + np.arange(len(heads))
    units = log.units.read_units(first, len(heads))
    agrees = (units["magic"] == ENTRY_MAGIC) & (units["index"] == indexes) & (units["pos"] == places)
    agrees &= units["size"] == sizes + ENTRY_HEAD_BYTES
    if not (bases == first).any() and not agrees.any():
        _refuse(log, segment, int(places[0]), f"not entry {first}, which would follow")
    terms = repaired_terms(heads[:, kernel.HEAD_TERM])
    around = np.concatenate([[log.last_term if log.last_term >= 0 else -1], terms, [-1]])
    is_between = (around[:-2] == terms) & (around[2:] == terms)
    is_witnessed = agrees & (units["term"] == terms)
    is_own = heads[:, kernel.HEAD_TERM] == terms
    doubtful = ~is_between & ~is_witnessed & (agrees | ~is_own)
    if (np.diff(terms) < 0).any() or int(terms[0]) < log.last_term or doubtful.any():
        place = int(places[np.argmax(doubtful)])
        _refuse(log, segment, place, "nothing is certain of the entry's term")
    faulty = (heads[:, kernel.HEAD_FAULTS] != 0) | (heads[:, kernel.HEAD_INDEX] != indexes) | ~is_own
    for row in np.flatnonzero(faulty).tolist():
        log.headers += 1
        if log.headers > MAX_HEADERS:
            _refuse(log, segment, int(places[row]), f"more than {MAX_HEADERS} headers are damaged")
        size, pos = int(sizes[row]), int(places[row])
        head = EntryHead(ENTRY_MAGIC, size + ENTRY_HEAD_BYTES, int(indexes[row]), int(terms[row]), pos, 0, 0, 0, size)
        code, detail = layout_finding_kinds.ENTRY_HEADER.code, f"header of entry {indexes[row]}"
        log.add_range(segment, pos, ENTRY_HEAD_BYTES, ENTRY_HEAD_BYTES, code, detail, head.encode().hex())
    log.last_index, log.last_term = int(indexes[-1]), int(terms[-1])


def _cut(log: _Log, segments: Sequence[Segment], file_bytes: int, committed: int | None) -> None:
    """Plan to truncate the log after the last sound entry; refuse if a later entry was committed."""
    assert log.bad_at is not None
    cut_at = log.bad_at
    bad_segment = next(candidate for candidate in reversed(segments) if candidate.start_offset <= cut_at)
    if committed is None:
        _refuse(log, bad_segment, cut_at, f"{log.bad_detail}, and DLedger's checkpoint does not say what was committed")
    elif committed > log.last_index:
        _refuse(log, bad_segment, cut_at, f"{log.bad_detail}, and entry {committed} was committed")
    for segment in segments:
        if segment.end_offset <= cut_at:
            continue
        with LocalStorage().open(segment.path) as file:
            data_end = segment.start_offset + min(file.data_end(), file_bytes)
        begin = max(cut_at, segment.start_offset)
        if data_end > begin:
            size, detail = data_end - begin, f"{log.bad_detail}; no entry behind it was committed"
            log.add_range(segment, begin, size, size, finding_kinds.LOG_TAIL.code, detail)


def _read_committed_index(directory: str) -> int | None:
    """Read ``committedIndex``; -1 without a checkpoint, None if neither checkpoint nor .bak can be read."""
    files = [path for path in (Path(directory, "checkpoint"), Path(directory, "checkpoint.bak")) if path.exists()]
    for path in files:
        try:
            return int(dledger.properties(path.read_bytes().decode())["committedIndex"])
        except (OSError, ValueError, KeyError, DecodeError):
            continue
    return None if files else -1


def _refuse(log: _Log, segment: Segment, at: int, what: str) -> NoReturn:
    directory = segment.path.rsplit("/", 2)[0]
    way = _WAY.format(directory=relative_path(log.root, directory))
    raise StoreLayoutError(f"{segment.path}: entry {log.last_index + 1}, at {at}: {what}; {way}")


def relative_path(root: str, path: str) -> str:
    """Return a path without the store's root."""
    return path[len(root.rstrip("/")) + 1 :]


def make_state(root: Path, directory: Path, repair: EntryRepair) -> None:
    """Write index and checkpoint beside the entries, unless they exist: the old ones were moved to the quarantine."""
    log_directory = root / repair.directory
    if repair.makes_index and not (log_directory / "index").exists():
        new_index = directory / _MADE
        shutil.rmtree(new_index, ignore_errors=True)
        new_index.mkdir()
        _write_units(log_directory / "data", new_index)
        sync_file_system(new_index)
        new_index.rename(log_directory / "index")
        sync_directory(log_directory)
    if repair.checkpoint is not None:
        write_file(root, f"{repair.directory}/checkpoint", repair.checkpoint.encode("ascii"))


def _write_units(data: Path, target: Path) -> None:
    storage = LocalStorage()
    for _, batch in log_frames(storage, list_segments(storage, str(data), ENTRY_HEAD_BYTES), verify_crc=False):
        if len(batch.frames):
            _append(target, _units(batch))


def _units(batch: FrameBatch) -> NDArray[np.void]:
    heads = np.empty((len(batch.frames), kernel.HEAD_COLUMNS), dtype=np.int64)
    kernel.check_heads(batch.data, batch.physical_offset, batch.frames, heads)
    units = np.empty(len(heads), dtype=INDEX_UNIT_DTYPE)
    units["magic"], units["index"], units["term"] = ENTRY_MAGIC, heads[:, kernel.HEAD_INDEX], heads[:, kernel.HEAD_TERM]
    units["pos"] = batch.frames[:, scan_kernel.POSITION] + batch.physical_offset - ENTRY_HEAD_BYTES
    units["size"] = batch.frames[:, scan_kernel.SIZE] + ENTRY_HEAD_BYTES
    return units


def _append(target: Path, units: NDArray[np.void]) -> None:
    while len(units):
        number, place = divmod(int(units["index"][0]), _PER_FILE)
        count = min(len(units), _PER_FILE - place)
        path = target / paths.segment_name(number * INDEX_FILE_BYTES)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(INDEX_FILE_BYTES)
            file.seek(place * INDEX_UNIT_BYTES)
            file.write(units[:count].tobytes())
        units = units[count:]
