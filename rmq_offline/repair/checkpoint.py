"""Writes the checkpoint of a store whose log, queues and Index have just been made consistent."""

from pathlib import Path

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.index import IndexHeader
from rmq_formats.codecs.layout import INDEX_HEADER_BYTES
from rmq_formats.errors import FormatError
from rmq_formats.kernels import verify as kernel
from rmq_formats.read.log_end import readable_segments
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_offline.tasks.publish import REBUILT, sync_file_system, write_fsynced
from rmq_offline.verify.phases.plan import index_entries


def write_checkpoint(root: Path) -> None:
    """Flush log, queues and Index, and write a checkpoint with the times of the log's end.

    After a kill a broker begins its recovery where the checkpoint says; it deletes the IndexFiles that end
    later than that (``IndexService#load``), so the checkpoint covers them to their end. The log and the derived
    directories may be on other file systems than the root.
    """
    log_directories = [Path(directory) for directory, _ in open_store(str(root)).log_directories]
    derived_directories = [root / name for name in sorted(REBUILT.directories)]
    for directory in (root, *log_directories, *derived_directories):
        if directory.is_dir():
            sync_file_system(directory)
    write_fsynced(Path(paths.checkpoint_file(str(root))), fresh_checkpoint(root).encode())


def fresh_checkpoint(root: Path) -> Checkpoint:
    """Make the checkpoint of a store whose log, queues and Index are on disk up to the log's end."""
    store = open_store(str(root))
    latest_ms, log_end = 0, 0
    for segment in reversed(readable_segments(store)):
        latest_ms, end = _scan_end(store.storage, segment)
        log_end = log_end or end
        if latest_ms:
            break
    before = _read_checkpoint(Path(paths.checkpoint_file(str(root))))
    return Checkpoint(
        physic_msg_timestamp_ms=latest_ms,
        logics_msg_timestamp_ms=latest_ms,
        index_msg_timestamp_ms=_index_end_ms(store),
        master_flushed_offset=max(0, before.master_flushed_offset),
        confirm_physical_offset=min(max(0, before.confirm_physical_offset), log_end),
    )


def _read_checkpoint(path: Path) -> Checkpoint:
    try:
        return Checkpoint.decode(path.read_bytes())
    except (FormatError, OSError):
        return Checkpoint()


def _scan_end(storage: Storage, segment: Segment) -> tuple[int, int]:
    """Read the latest store timestamp of a file, 0 if there is none, and the physical offset at which its data ends."""
    latest_ms, end = 0, 0
    summary = np.empty(kernel.SUMMARY_COLUMNS, dtype=np.int64)
    with storage.open(segment.path) as file:
        data_end = segment.data_end(file)
        for batch in scan_segment(
            file,
            segment.start_offset,
            segment.size_bytes,
            data_end=data_end,
            verify_crc=False,
            head_bytes=segment.head_bytes,
        ):
            times, odd = (np.empty(len(batch.frames), dtype=np.int64) for _ in range(2))
            kernel.check_records(batch.data, batch.physical_offset, batch.frames, times, odd, summary)
            latest_ms = max(latest_ms, int(summary[kernel.LATEST_MS]))
            end = segment.end_offset if batch.blank_at is not None else batch.next_physical_offset
    return latest_ms, end if data_end else 0


def _index_end_ms(store: StoreFiles) -> int:
    """Read the latest end timestamp of IndexFiles in ms; 0 without one.

    It is later than the log's end where the clock went back since.
    """
    latest_ms = 0
    for entry in index_entries(store):
        with store.storage.open(f"{paths.index_dir(store.root)}/{entry.name}") as file:
            header = read_range(file, 0, INDEX_HEADER_BYTES)
        if len(header) == INDEX_HEADER_BYTES:
            latest_ms = max(latest_ms, IndexHeader.decode(header).end_timestamp_ms)
    return latest_ms
