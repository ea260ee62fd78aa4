"""Makes DLedger's index and its checkpoint anew, of the entries that are in the log."""

import shutil
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.variants.dledger import (
    ENTRY_HEAD_BYTES,
    ENTRY_MAGIC,
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    INDEX_UNIT_DTYPE,
)
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.segment import FrameBatch, scan_segment
from rmq_formats.storage.contained import write_file
from rmq_formats.storage.segments import LocalStorage, list_segments, opened
from rmq_offline.repair.entries import EntryRepair
from rmq_offline.tasks.publish import sync_directory, sync_file_system

_MADE: Final = "entry-index"  # in the repair's directory
_PER_FILE: Final = INDEX_FILE_BYTES // INDEX_UNIT_BYTES


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
    for segment in list_segments(storage, str(data), ENTRY_HEAD_BYTES):
        with opened(storage, segment.path) as file:
            for batch in scan_segment(
                file, segment.start_offset, segment.size_bytes, data_end=file.data_end(), verify_crc=False,
                head_bytes=ENTRY_HEAD_BYTES,
            ):  # fmt: skip
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
    """Write units of ascending indexes to their files."""
    while len(units):
        number, place = divmod(int(units["index"][0]), _PER_FILE)
        count = min(len(units), _PER_FILE - place)
        with _opened(target / paths.segment_name(number * INDEX_FILE_BYTES)) as file:
            file.seek(place * INDEX_UNIT_BYTES)
            file.write(units[:count].tobytes())
        units = units[count:]


def _opened(path: Path) -> BinaryIO:
    if path.exists():
        return path.open("r+b")
    file = path.open("w+b")
    file.truncate(INDEX_FILE_BYTES)
    return file
