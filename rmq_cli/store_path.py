"""Recognises a path by its place and its content: a store, a directory of a store, or one file of a store.

The place decides first: in ``commitlog/`` a file of garbage is a damaged segment, not an unknown file. A file
that was copied out of its store is recognised by its first bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from struct import unpack_from
from typing import Final

from rmq_formats.codecs import dledger, paths, rocksdb_config, tiered
from rmq_formats.codecs.batch_consumequeue import is_batch_queue_file
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.index import IndexHeader
from rmq_formats.codecs.layout import (
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_SIXTH_END,
    EXT_UNIT_MIN_BYTES,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    MAGIC_BLANK,
    MAX_FRAME_BYTES,
    RECORD_VERSIONS,
    UNIT_BYTES,
)
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, SIZE_AND_MAGIC, head_struct
from rmq_formats.errors import StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.read.log_end import readable_segments
from rmq_formats.storage.queue_files import queue_directories
from rmq_formats.storage.queue_logs import tiered_segments
from rmq_formats.storage.segments import Segment, Storage, list_segments, open_storage, read_range
from rmq_formats.storage.store_files import StoreFiles, nearby_store, refuse_no_store
from rmq_formats.storage.store_layouts import is_rocksdb, is_rocksdb_table, queue_database_layout

_HEAD_BYTES: Final = 4096  # enough to know any file by
_TAIL_BYTES: Final = 8
_PLACE: Final = head_struct("magic", "physical_offset")
_STORE_NAMES: Final = {"commitlog", "consumequeue", "consumequeue_ext", "index", "config", "checkpoint"}
_COMPACTION_LOG: Final = "compactionLog"
_LEVELS: Final = 3  # a tree of queues, a topic, a queue


class PathKind(StrEnum):
    """Kind of a path."""

    STORE = "store"
    COMMITLOG = "commitlog"
    CONSUMEQUEUE = "consumequeue"
    CONSUMEQUEUE_EXT = "consumequeue_ext"
    BATCHCONSUMEQUEUE = "batchconsumequeue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    TIER = "tier"
    QUEUE_DATABASE = "queue_database"
    ENTRY_INDEX = "entry_index"


_QUEUE_TREES: Final = {
    "consumequeue": PathKind.CONSUMEQUEUE,
    "consumequeue_ext": PathKind.CONSUMEQUEUE_EXT,
    "batchconsumequeue": PathKind.BATCHCONSUMEQUEUE,
    "compactionCq": PathKind.BATCHCONSUMEQUEUE,  # with the same units
}


@dataclass(frozen=True)
class ClassifiedPath:
    """Path, without a trailing slash, whose kind is determined: a directory of such files at any level, or a file."""

    kind: PathKind
    storage: Storage
    path: str
    is_directory: bool

    @cached_property
    def files(self) -> StoreFiles:
        """Files of the store at the path."""
        return StoreFiles(self.storage, self.path)

    def child(self, kind: PathKind) -> "ClassifiedPath":
        """Return a store's part."""
        return ClassifiedPath(
            kind, self.storage, f"{self.path}/{kind}", kind not in {PathKind.CHECKPOINT, PathKind.CONFIG}
        )


@dataclass(frozen=True, slots=True)
class QueueSegments:
    """The files of one queue; topic and queue id are None where the path does not name them."""

    topic: str | None
    queue_id: int | None
    segments: tuple[Segment, ...]


def classify_path(path: str) -> ClassifiedPath:
    """Determine the kind of a path.

    Raises:
        StoreNotFoundError: the path does not exist.
        StoreLayoutError: the path is of a layout that rmq knows by name, and does not read.
        StoreError: the path is neither a store nor a known file of one.
    """
    storage, path = open_storage(path)
    _refuse_names(storage, path)
    names = [entry.name for entry in storage.entries(path)]
    if names or (storage.is_local and Path(path).is_dir()):
        return ClassifiedPath(_directory_kind(storage, path, names), storage, path, True)
    if not storage.exists(path):
        raise StoreNotFoundError(f"{path}: no such file or directory")
    return ClassifiedPath(_file_kind(storage, path), storage, path, False)


def _parts(storage: Storage, path: str) -> list[str]:
    return (str(Path(path).absolute()) if storage.is_local else path).split("/")


def _refuse_names(storage: Storage, path: str) -> None:
    """Refuse a path whose names belong to a layout that rmq does not read."""
    parts = _parts(storage, path)
    for number, name in enumerate(parts):
        here = "/".join(parts[: number + 1])
        if name == tiered.INDEX_TOPIC and parts[number - 1] not in _QUEUE_TREES:  # there it is a topic
            raise StoreLayoutError(f"{path}: the Index of tiered storage, which rmq does not read")
        is_dledger = name.startswith("dledger-") and storage.exists(f"{here}/data")
        if is_dledger and parts[number + 1 : number + 2] not in (["data"], [PathKind.INDEX]):
            raise StoreLayoutError(
                f"{path}: of a DLedger CommitLog beside its entries, which rmq does not read; those are in {here}/data"
            )
        # A topic's directory may stand beside the database; what else is in the directory is the database's.
        is_in_directory = number + 2 == len(parts) and not storage.entries(path)
        layout = queue_database_layout(storage, here) if is_in_directory else None
        if layout is not None:
            raise StoreLayoutError(f"{path}: a file of a {layout}; give its directory, {here}")


def _is_dledger(parts: list[str], name: str) -> bool:
    """Return whether a directory is ``data`` or ``index`` of a DLedger CommitLog, by the names in its path."""
    return parts[-1:] == [name] and len(parts) > 1 and parts[-2].startswith("dledger-")


def _directory_kind(storage: Storage, path: str, names: list[str]) -> PathKind:
    parts = _parts(storage, path)
    if queue_database_layout(storage, "/".join(parts)) is not None:
        return PathKind.QUEUE_DATABASE
    tree = _tree_of(parts)
    if tree is not None:
        return _QUEUE_TREES[parts[tree]]
    if _is_dledger(parts, "index"):
        return PathKind.ENTRY_INDEX
    tiered_kind = _tiered_kind(parts)
    if tiered_kind is not None:
        return tiered_kind
    if _COMPACTION_LOG in parts[-2:]:
        raise StoreLayoutError(
            f"{path}: logs of several queues, each with offsets of its own; give one queue's directory"
        )
    if any(tiered.parse_cluster_directory(name) is not None for name in names):
        return PathKind.TIER
    if parts[-1] in {PathKind.COMMITLOG, PathKind.INDEX}:
        return PathKind(parts[-1])
    if _is_dledger(parts, "data"):
        return PathKind.COMMITLOG
    # By the path as it is given, which names the database to its reader, too.
    if path.rpartition("/")[2] in rocksdb_config.DATABASES and is_rocksdb(storage, path):
        return PathKind.CONFIG
    if _STORE_NAMES & set(names):
        refuse_no_store(storage, path)
        return PathKind.STORE
    for name in names:
        if paths.parse_segment_name(name) is not None or paths.is_index_file_name(name):
            return _file_kind(storage, f"{path}/{name}")
    raise StoreError(nearby_store(storage, path) or f"{path}: holds no store and no files of one. Give a store.")


def _tree_of(parts: list[str]) -> int | None:
    """Return the level of the tree of queues in a directory's path; a topic may have the name of a tree."""
    levels = range(max(0, len(parts) - _LEVELS), len(parts))
    return next((number for number in levels if parts[number] in _QUEUE_TREES), None)


def _tiered_kind(parts: list[str]) -> PathKind | None:
    """Return the kind of a queue's directory in tiered storage; None if it is no such directory."""
    if len(parts) < _LEVELS or not parts[-2].isdecimal():
        return None
    return {tiered.COMMIT_LOG: PathKind.COMMITLOG, tiered.CONSUME_QUEUE: PathKind.CONSUMEQUEUE}.get(parts[-1])


def _file_kind(storage: Storage, path: str) -> PathKind:
    parts = _parts(storage, path)
    if parts[-2:-1] == [PathKind.COMMITLOG] or _is_dledger(parts[:-1], "data") or parts[-4:-3] == [_COMPACTION_LOG]:
        return PathKind.COMMITLOG
    if parts[-4:-3] and parts[-4] in _QUEUE_TREES:
        return _QUEUE_TREES[parts[-4]]
    if _is_dledger(parts[:-1], "index"):
        return PathKind.ENTRY_INDEX
    tiered_kind = _tiered_kind(parts[:-1])
    if tiered_kind is not None:
        return tiered_kind
    if parts[-2:-1] == [PathKind.INDEX] and paths.is_index_file_name(parts[-1]):
        return PathKind.INDEX
    if parts[-1] == PathKind.CHECKPOINT:
        return PathKind.CHECKPOINT
    if is_rocksdb(storage, path.rpartition("/")[0] or "."):
        raise StoreLayoutError(f"{path}: a file of a RocksDB, which rmq does not read alone")
    with storage.open(path) as file:
        head = read_range(file, 0, _HEAD_BYTES)
        tail = read_range(file, max(0, file.size_bytes - _TAIL_BYTES), min(_TAIL_BYTES, file.size_bytes))
        if is_rocksdb_table(tail):
            raise StoreLayoutError(f"{path}: a file of a RocksDB, by its content, which rmq does not read alone")
        if dledger.begins_with_index(head):
            return PathKind.ENTRY_INDEX
        kind = PathKind.BATCHCONSUMEQUEUE if is_batch_queue_file(head) else _content_kind(head, file.size_bytes)
    if kind is None:
        raise StoreError(nearby_store(storage, path) or f"{path}: not a file of a store that rmq knows. Give a store.")
    return kind


def _content_kind(head: bytes, size_bytes: int) -> PathKind | None:
    if head.lstrip()[:1] == b"{":
        return PathKind.CONFIG
    if len(head) < UNIT_BYTES:
        return None
    magic = SIZE_AND_MAGIC.unpack_from(head)[1]
    if dledger.begins_with_entry(head):
        return PathKind.COMMITLOG
    if magic == MAGIC_BLANK or magic in RECORD_VERSIONS:
        return PathKind.COMMITLOG
    if _is_index_header(head, size_bytes):  # before the units: the header's times could be one
        return PathKind.INDEX
    unit = Unit.decode(head)
    is_unit = RECORD_FIXED_BYTES_V1 <= unit.size <= MAX_FRAME_BYTES or unit.names_no_record
    if size_bytes % UNIT_BYTES == 0 and unit.physical_offset >= 0 and is_unit:
        return PathKind.CONSUMEQUEUE
    ext_bytes, bit_map_bytes = unpack_from(">h", head)[0], unpack_from(">h", head, EXT_UNIT_MIN_BYTES - 2)[0]
    if EXT_UNIT_MIN_BYTES <= ext_bytes == EXT_UNIT_MIN_BYTES + bit_map_bytes:
        return PathKind.CONSUMEQUEUE_EXT
    if size_bytes == CHECKPOINT_FILE_BYTES and not any(head[CHECKPOINT_SIXTH_END:]) and any(head):
        return PathKind.CHECKPOINT
    return None


def _is_index_header(head: bytes, size_bytes: int) -> bool:
    if size_bytes < INDEX_HEADER_BYTES + INDEX_SLOT_BYTES + INDEX_ENTRY_BYTES:
        return False
    header = IndexHeader.decode(head)
    return (
        1 << 39 < header.begin_timestamp_ms < 1 << 45  # from 1987 to 3084
        and 0 <= header.begin_physical_offset <= header.end_physical_offset
        and 0 < header.slot_count < header.index_count <= size_bytes // INDEX_ENTRY_BYTES
    )


def list_path_segments(place: ClassifiedPath) -> list[Segment]:
    """Return the CommitLog files of a store, of a directory or of one file, by offset.

    Raises StoreNotFoundError without a CommitLog file, and StoreSizeError if files overlap.
    """
    storage, path = place.storage, place.path
    if place.kind is PathKind.STORE:
        return readable_segments(place.files)
    if place.is_directory:
        directory, _, name = path.rpartition("/")
        if name == PathKind.COMMITLOG:
            whole = readable_segments(StoreFiles(storage, directory or ("/" if path.startswith("/") else ".")))
            segments = [segment for segment in whole if not segment.head_bytes]
        else:
            listed = tiered_segments(storage, path) if name == tiered.COMMIT_LOG else list_segments(storage, path)
            segments = [replace(segment, head_bytes=_head_bytes(storage, segment.path)) for segment in listed]
        if not segments:
            raise StoreNotFoundError(f"{path}: no CommitLog files")
        return segments
    start_offset = _start_offset(path.rpartition("/")[2])
    with storage.open(path) as file:
        size_bytes = file.size_bytes
        head = read_range(file, 0, dledger.ENTRY_HEAD_BYTES + _PLACE.size).ljust(_PLACE.size, b"\0")
    head_bytes = _head_bytes(storage, path)
    if start_offset is None:  # a copy under another name: its first record says where it stood
        start_offset = 0
        if head_bytes:
            start_offset = dledger.EntryHead.decode(head).pos
        elif _PLACE.unpack_from(head)[0] in RECORD_VERSIONS:
            start_offset = _PLACE.unpack_from(head)[1]
    return [Segment(path, start_offset, size_bytes, head_bytes)]


def _start_offset(name: str) -> int | None:
    """Return the offset in the name of a file of a store or of tiered storage; None for other names."""
    start_offset = paths.parse_segment_name(name)
    return tiered.parse_segment_name(name) if start_offset is None else start_offset


def is_queue_log(place: ClassifiedPath) -> bool:
    """Return whether a log is that of one queue: of tiered storage, or of a compacted topic."""
    return may_have_gaps(place) or _tiered_kind(_directory_parts(place)) is PathKind.COMMITLOG


def may_have_gaps(place: ClassifiedPath) -> bool:
    """Return whether a log may lack files in its middle, as compaction deletes them."""
    return place.kind is PathKind.COMMITLOG and _directory_parts(place)[-3:-2] == [_COMPACTION_LOG]


def _directory_parts(place: ClassifiedPath) -> list[str]:
    parts = _parts(place.storage, place.path)
    return parts if place.is_directory else parts[:-1]


def _head_bytes(storage: Storage, path: str) -> int:
    """Bytes in front of each record of a CommitLog file, see ``Segment``; of a copy, by its first bytes."""
    parts = _parts(storage, path)
    if parts[-2:-1] == [PathKind.COMMITLOG]:
        return 0
    if _is_dledger(parts[:-1], "data"):
        return dledger.ENTRY_HEAD_BYTES
    with storage.open(path) as file:
        return dledger.ENTRY_HEAD_BYTES if dledger.begins_with_entry(read_range(file, 0, _HEAD_BYTES)) else 0


def queues(place: ClassifiedPath, topic: str | None = None) -> Iterator[QueueSegments]:
    """Yield the queues of a tree of queues such as ``consumequeue``, of one topic, one queue or one file."""
    storage, path = place.storage, place.path
    parts = _parts(storage, path)
    tree = _tree_of(parts) if place.is_directory else None
    if not place.is_directory:
        below = parts[-3:-1] if parts[-4:-3] and parts[-4] in _QUEUE_TREES else []
        below = parts[-4:-2] if _tiered_kind(parts[:-1]) is not None else below
        with storage.open(path) as file:
            candidates = [_queue(below, (Segment(path, _start_offset(parts[-1]) or 0, file.size_bytes),))]
    elif tree == len(parts) - 1:
        candidates = [
            _queue([name, queue], tuple(list_segments(storage, f"{path}/{name}/{queue}")))
            for name, queue in queue_directories(storage.entries, path)
            if topic in {None, name}
        ]
    elif tree == len(parts) - 2:
        candidates = [
            _queue([parts[-1], queue.name], tuple(list_segments(storage, f"{path}/{queue.name}")))
            for queue in storage.entries(path)
            if queue.is_directory
        ]
    elif _tiered_kind(parts) is not None:
        candidates = [_queue(parts[-3:-1], tiered_segments(storage, path))]
    else:
        candidates = [_queue([] if tree is None else parts[-2:], tuple(list_segments(storage, path)))]
    selected = (queue for queue in candidates if queue.segments and topic in {None, queue.topic})
    yield from sorted(selected, key=lambda queue: (queue.topic or "", queue.queue_id or 0))


def _queue(below: list[str], segments: tuple[Segment, ...]) -> QueueSegments:
    """Build the files of a queue in a topic's and a queue's directory."""
    if len(below) < 2 or not below[1].isdecimal():
        return QueueSegments(below[0] if below else None, None, segments)
    return QueueSegments(below[0], int(below[1]), segments)


def entry_index_files(place: ClassifiedPath) -> list[Segment]:
    """Return the files of a DLedger CommitLog's index, of a directory or one, by offset in the index."""
    if place.is_directory:
        return list_segments(place.storage, place.path)
    with place.storage.open(place.path) as file:
        return [Segment(place.path, _start_offset(place.path.rpartition("/")[2]) or 0, file.size_bytes)]


def index_files(place: ClassifiedPath) -> list[str]:
    """Paths of the IndexFiles of a directory, oldest first, or of the one file."""
    if not place.is_directory:
        return [place.path]
    entries = place.storage.entries(place.path)
    return [f"{place.path}/{entry.name}" for entry in entries if paths.is_index_file_name(entry.name)]
