"""The CommitLog of a store: in which directories its files are, and which files it has."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.variants.dledger import ENTRY_HEAD_BYTES
from rmq_formats.errors import StoreError, StoreLayoutError, StoreNotFoundError, StoreSizeError
from rmq_formats.storage import store_variants
from rmq_formats.storage.log_paths import configured_log_directories
from rmq_formats.storage.nearby_store import is_store, nearby_store, refuse_no_store
from rmq_formats.storage.segments import PUBLISHING, WRITE_DIRECTORY, Segment, Storage, list_segments

_LOG_ELSEWHERE: Final = "Where storePathCommitLog is another directory, give -c broker.conf."


def log_directories(storage: Storage, root: str) -> list[tuple[str, int]]:
    """List the directories of a store's CommitLog, in log order, each with the bytes in front of its records.

    Raises:
        StoreLayoutError: it has several DLedger CommitLogs.
    """
    dledger = store_variants.dledger_directories(storage, root)
    store_variants.refuse(store_variants.log_read_refusal(dledger))
    directories = configured_log_directories(root) or [paths.commitlog_dir(root)]
    return [*((directory, 0) for directory in directories), *((directory, ENTRY_HEAD_BYTES) for directory in dledger)]


def refuse_compressed_segments(storage: Storage, root: str) -> None:
    """Refuse to write into a store with a segment that was compressed in place: its messages may be in that file.

    Raises:
        StoreLayoutError: a compressed file stands where a segment with its name is missing.
    """
    for reason in _compressed_segments(storage, root):
        raise StoreLayoutError(reason)


def _compressed_segments(storage: Storage, root: str) -> Iterator[str]:
    """Yield an error text of each compressed file that stands where a segment with its name is missing."""
    for directory, _ in log_directories(storage, root):
        entries = storage.entries(directory)
        there = {entry.name for entry in entries if entry.size_bytes}
        for entry in entries:
            start_offset = paths.parse_compressed_segment_name(entry.name)
            if start_offset is not None and paths.segment_name(start_offset) not in there:
                yield (
                    f"{directory}/{entry.name}: a segment that was compressed in place, which may hold the log from "
                    f"{start_offset} on; decompress it (gunzip), or move it out of the store to do without it"
                )


def check_store(storage: Storage, root: str) -> None:
    """Refuse a store that cannot be read.

    Raises:
        StoreNotFoundError: there is none.
        StoreError: in an object store, some of its objects are those that a write was about to replace.
    """
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store")
    if not storage.is_local and storage.exists(f"{root}/{WRITE_DIRECTORY}/{PUBLISHING}"):
        raise StoreError(f"{root}: a write into this store has not ended; the next one ends it (import_delta)")


def commitlog_segments(storage: Storage, root: str) -> list[Segment]:
    """List the CommitLog segments of the store at ``root``, DLedger segments after those of ``commitlog``.

    Raises:
        StoreNotFoundError: there is no such store, or it holds no CommitLog file.
        StoreLayoutError: it has several DLedger CommitLogs.
        StoreSizeError: files overlap.
        StoreError: see ``check_store``.
    """
    check_store(storage, root)
    segments = [
        segment
        for directory, head in log_directories(storage, root)
        for segment in list_segments(storage, directory, head)
    ]
    if not segments:
        if not is_store(storage, root) and (hint := nearby_store(storage, root)) is not None:
            raise StoreNotFoundError(hint)
        refuse_no_store(storage, root)
        directories = configured_log_directories(root) or [paths.commitlog_dir(root)]
        nothing = f"{', '.join(directories)}: no CommitLog files. {_LOG_ELSEWHERE}"
        raise StoreNotFoundError(next(_compressed_segments(storage, root), nothing))
    segments.sort(key=lambda segment: segment.start_offset)
    for before, after in pairwise(segments):
        if before.end_offset > after.start_offset:
            raise StoreSizeError(f"{after.path}: begins inside of {before.path} ({before.size_bytes} bytes)")
    return segments
