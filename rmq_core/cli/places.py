"""What a path is: a store, a directory of one, or one file of it, told by its place and its content.

Place counts first: in ``commitlog/`` a file of garbage is a damaged segment, not an unknown file. A file
that was copied out of its store is told by its first bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from struct import unpack_from
from typing import Final

from rmq_formats import paths
from rmq_formats.consumequeue import Unit
from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.index import IndexHeader
from rmq_formats.layout import (
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_USED_BYTES,
    EXT_UNIT_MIN_BYTES,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_FRAME_BYTES,
    RECORD_FIXED_BYTES_V1,
    RECORD_MAGIC_AT,
    RECORD_PHYSICAL_OFFSET_AT,
    UNIT_BYTES,
)
from rmq_formats.segment import (
    Segment,
    Storage,
    commitlog_segments,
    list_segments,
    open_storage,
    opened,
    read_range,
)

_HEAD_BYTES: Final = 4096  # enough to know any file by
_STORE_NAMES: Final = {"commitlog", "consumequeue", "consumequeue_ext", "index", "config", "checkpoint"}
_QUEUE_TREES: Final = {"consumequeue", "consumequeue_ext"}


class Kind(StrEnum):
    """What a path is."""

    STORE = "store"
    COMMITLOG = "commitlog"
    CONSUMEQUEUE = "consumequeue"
    CONSUMEQUEUE_EXT = "consumequeue_ext"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Place:
    """A path that was recognised.

    Attributes:
        kind: what it holds.
        storage: where it is.
        path: as given, without a trailing slash.
        is_directory: a directory of such files, of any level; else one file.
    """

    kind: Kind
    storage: Storage
    path: str
    is_directory: bool

    def child(self, kind: Kind) -> "Place":
        """A store's part."""
        return Place(kind, self.storage, f"{self.path}/{kind}", kind not in {Kind.CHECKPOINT, Kind.CONFIG})


@dataclass(frozen=True, slots=True)
class Queue:
    """The files of one queue; topic and queue id are None where the path does not tell them."""

    topic: str | None
    queue_id: int | None
    segments: tuple[Segment, ...]


def recognise(path: str) -> Place:
    """Tell what a path is.

    Raises:
        StoreNotFoundError: there is nothing.
        StoreError: there is nothing that rmq knows.
    """
    storage, path = open_storage(path)
    names = [entry.name for entry in storage.entries(path)]
    if names or (storage.is_local and Path(path).is_dir()):
        return Place(_directory_kind(storage, path, names), storage, path, True)
    if not storage.exists(path):
        raise StoreNotFoundError(f"{path}: no such file or directory")
    return Place(_file_kind(storage, path), storage, path, False)


def _parts(storage: Storage, path: str) -> list[str]:
    return (str(Path(path).absolute()) if storage.is_local else path).split("/")


def _directory_kind(storage: Storage, path: str, names: list[str]) -> Kind:
    parts = _parts(storage, path)
    for above in parts[-1:-4:-1]:  # itself, the queue's topic, the queue
        if above in _QUEUE_TREES:
            return Kind(above)
    if parts[-1] in {Kind.COMMITLOG, Kind.INDEX}:
        return Kind(parts[-1])
    if _STORE_NAMES & set(names):
        return Kind.STORE
    for name in names:
        if paths.parse_segment_name(name) is not None or paths.is_index_file_name(name):
            return _file_kind(storage, f"{path}/{name}")
    raise StoreError(f"{path}: holds no store and no files of one")


def _file_kind(storage: Storage, path: str) -> Kind:
    parts = _parts(storage, path)
    if parts[-2:-1] == [Kind.COMMITLOG]:
        return Kind.COMMITLOG
    if parts[-4:-3] and parts[-4] in _QUEUE_TREES:
        return Kind(parts[-4])
    if parts[-2:-1] == [Kind.INDEX] and paths.is_index_file_name(parts[-1]):
        return Kind.INDEX
    if parts[-1] == Kind.CHECKPOINT:
        return Kind.CHECKPOINT
    with opened(storage, path) as file:
        kind = _content_kind(read_range(file, 0, _HEAD_BYTES), file.size_bytes)
    if kind is None:
        raise StoreError(f"{path}: not a file of a store that rmq knows")
    return kind


def _content_kind(head: bytes, size_bytes: int) -> Kind | None:
    if head.lstrip()[:1] == b"{":
        return Kind.CONFIG
    if len(head) < UNIT_BYTES:
        return None
    magic = unpack_from(">i", head, RECORD_MAGIC_AT)[0]
    if magic in {MAGIC_V1, MAGIC_V2, MAGIC_BLANK}:
        return Kind.COMMITLOG
    if _is_index_header(head, size_bytes):  # before the units: the header's times could be one
        return Kind.INDEX
    unit = Unit.decode(head)
    is_unit = RECORD_FIXED_BYTES_V1 <= unit.size <= MAX_FRAME_BYTES or unit.is_pre_blank
    if size_bytes % UNIT_BYTES == 0 and unit.physical_offset >= 0 and is_unit:
        return Kind.CONSUMEQUEUE
    ext_bytes, bit_map_bytes = unpack_from(">h", head)[0], unpack_from(">h", head, EXT_UNIT_MIN_BYTES - 2)[0]
    if EXT_UNIT_MIN_BYTES <= ext_bytes == EXT_UNIT_MIN_BYTES + bit_map_bytes:
        return Kind.CONSUMEQUEUE_EXT
    if size_bytes == CHECKPOINT_FILE_BYTES and not any(head[CHECKPOINT_USED_BYTES:]) and any(head):
        return Kind.CHECKPOINT
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


def log_segments(place: Place) -> list[Segment]:
    """The CommitLog files of a store, of a directory or of one file, by offset.

    Raises:
        StoreNotFoundError: there are none.
        StoreSizeError: they overlap.
    """
    storage, path = place.storage, place.path
    if place.kind is Kind.STORE:
        return commitlog_segments(storage, path)
    if place.is_directory:
        directory, _, name = path.rpartition("/")
        if name == Kind.COMMITLOG:
            return commitlog_segments(storage, directory or ("/" if path.startswith("/") else "."))
        found = list_segments(storage, path)
        if not found:
            raise StoreNotFoundError(f"{path}: no CommitLog files")
        return found
    with opened(storage, path) as file:
        start_offset = paths.parse_segment_name(path.rpartition("/")[2])
        if start_offset is None:  # a copy under another name: its first record says where it stood
            head = read_range(file, 0, RECORD_PHYSICAL_OFFSET_AT + 8).ljust(RECORD_PHYSICAL_OFFSET_AT + 8, b"\0")
            is_record = unpack_from(">i", head, RECORD_MAGIC_AT)[0] in {MAGIC_V1, MAGIC_V2}
            start_offset = unpack_from(">q", head, RECORD_PHYSICAL_OFFSET_AT)[0] if is_record else 0
        return [Segment(path, start_offset, file.size_bytes)]


def queues(place: Place, topic: str | None = None) -> Iterator[Queue]:
    """The queues under a path of ``consumequeue`` or ``consumequeue_ext``, by topic and queue id.

    Args:
        place: any level: all topics, one topic, one queue or one file.
        topic: only that one's.
    """
    storage, path = place.storage, place.path
    parts = _parts(storage, path)
    if not place.is_directory:
        below = parts[-3:-1] if parts[-4:-3] and parts[-4] in _QUEUE_TREES else []
        with opened(storage, path) as file:
            start_offset = paths.parse_segment_name(parts[-1]) or 0
            found = [_queue(below, (Segment(path, start_offset, file.size_bytes),))]
    elif parts[-1] in _QUEUE_TREES:
        found = [
            _queue([entry.name, queue.name], tuple(list_segments(storage, f"{path}/{entry.name}/{queue.name}")))
            for entry in storage.entries(path)
            if entry.is_directory and topic in {None, entry.name}
            for queue in storage.entries(f"{path}/{entry.name}")
            if queue.is_directory
        ]
    elif parts[-2] in _QUEUE_TREES:
        found = [
            _queue([parts[-1], queue.name], tuple(list_segments(storage, f"{path}/{queue.name}")))
            for queue in storage.entries(path)
            if queue.is_directory
        ]
    else:
        below = parts[-2:] if parts[-3:-2] and parts[-3] in _QUEUE_TREES else []
        found = [_queue(below, tuple(list_segments(storage, path)))]
    wanted = (queue for queue in found if queue.segments and topic in {None, queue.topic})
    yield from sorted(wanted, key=lambda queue: (queue.topic or "", queue.queue_id or 0))


def _queue(below: list[str], segments: tuple[Segment, ...]) -> Queue:
    """A queue by the two directories that it is in."""
    if len(below) < 2 or not below[1].isdecimal():
        return Queue(below[0] if below else None, None, segments)
    return Queue(below[0], int(below[1]), segments)


def index_files(place: Place) -> list[str]:
    """Paths of the IndexFiles of a directory, oldest first, or of the one file."""
    if not place.is_directory:
        return [place.path]
    entries = place.storage.entries(place.path)
    return [f"{place.path}/{entry.name}" for entry in entries if paths.is_index_file_name(entry.name)]
