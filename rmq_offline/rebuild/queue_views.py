"""Queues as consumers see them: the message at each queue offset, and both ends, from files or from RocksDB.

A unit counts if it points to a record of its queue, by the heads of the CommitLog's records.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.batch_consumequeue import split_file
from rmq_formats.codecs.consumequeue import UNIT_DTYPE, is_pre_blank, is_unwritten
from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, LOST_UNIT_SIZE, MAGIC_V1, MAGIC_V2, UNIT_BYTES
from rmq_formats.codecs.record_layout import (
    HEAD_BYTES,
    HOST_FLAGS,
    RECORD_BODY_BYTES_AT,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC_AT,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_SIZE_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import RmqError, StoreError
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import Segment, Storage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import queue_database_layout

_ROWS_AT_ONCE: Final = 1 << 15
_HEAD_COLUMNS: Final = max(HEAD_BYTES)
_MAX_FILE_BYTES: Final = 1 << 30  # the original's have 6 MB; one of a terabyte is none
FileStates = tuple[tuple[int, int, int], ...]  # start, size, time of the last change in ns; of a queue's files


class RecordHeads:
    """The heads of a log's records.

    On an object store each head would cost a request, so that all records within the log's bounds count as present.
    """

    def __init__(
        self, segments: Sequence[Segment], log_end: int, *, is_local: bool, lost: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Open the files of a log.

        Args:
            log_end: physical offset one past the last record that a broker reads.
            lost: (begin, end) physical offsets of ranges whose records are lost.
        """
        self._segments = segments
        self._starts = np.array([segment.start_offset for segment in segments], dtype=np.int64)
        self._is_local = is_local
        self._maps: dict[str, NDArray[np.uint8]] = {}
        ordered = np.array(sorted(lost), dtype=np.int64).reshape(-1, 2)
        self._lost_begins = ordered[:, 0]
        self._lost_ends = np.maximum.accumulate(ordered[:, 1]) if len(ordered) else ordered[:, 1]
        self.begin = segments[0].start_offset
        self.end = log_end

    def in_log(self, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which units point between the log's begin and end."""
        inside: NDArray[np.bool_] = (physical_offsets >= self.begin) & (sizes > 0) & (sizes <= self.end - self.begin)
        inside &= physical_offsets <= self.end - np.minimum(sizes, self.end - self.begin)
        if len(self._lost_begins):
            last = np.searchsorted(self._lost_begins, physical_offsets + sizes, side="left") - 1
            inside &= (last < 0) | (self._lost_ends[last] <= physical_offsets)
        return inside

    def are_lost(self, physical_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        last = np.searchsorted(self._lost_begins, physical_offsets, side="right") - 1
        is_lost: NDArray[np.bool_] = last >= 0
        is_lost[is_lost] = physical_offsets[is_lost] < self._lost_ends[last[is_lost]]
        return is_lost

    def are_records(
        self, topic: str, queue_id: int, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which units, int64[n], point to a record of their queue; the record's checksums do not count.

        A light queue (LMQ) has records of any topic.
        """
        are_valid = self.in_log(physical_offsets, sizes)
        if not self._is_local:
            return are_valid
        rows = np.flatnonzero(are_valid)
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            numbers = np.searchsorted(self._starts, physical_offsets[part], side="right") - 1
            for number in np.unique(numbers).tolist():
                in_segment = part[numbers == number]
                segment = self._segments[number]
                at = physical_offsets[in_segment] - segment.start_offset
                are_valid[in_segment] = _are_records(
                    self._data(segment), at, physical_offsets[in_segment], sizes[in_segment], topic, queue_id
                )
        return are_valid

    def _data(self, segment: Segment) -> NDArray[np.uint8]:
        if not segment.size_bytes:
            return np.empty(0, dtype=np.uint8)
        if segment.path not in self._maps:
            self._maps[segment.path] = np.asarray(np.memmap(segment.path, dtype=np.uint8, mode="r"))
        return self._maps[segment.path]


def _are_records(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    topic: str,
    queue_id: int,
) -> NDArray[np.bool_]:
    are_valid: NDArray[np.bool_] = at + np.maximum(sizes, _HEAD_COLUMNS) <= len(data)
    rows = np.flatnonzero(are_valid)
    heads = data[at[rows, None] + np.arange(_HEAD_COLUMNS)]
    magics = _head_field(heads, RECORD_MAGIC_AT, ">i4")
    is_record = (_head_field(heads, RECORD_SIZE_AT, ">i4") == sizes[rows]) & np.isin(magics, (MAGIC_V1, MAGIC_V2))
    is_record &= _head_field(heads, RECORD_PHYSICAL_OFFSET_AT, ">i8") == physical_offsets[rows]
    if not topic.startswith(LIGHT_QUEUE_PREFIX):
        is_record &= _head_field(heads, RECORD_QUEUE_ID_AT, ">i4") == queue_id
        is_record &= _have_topic(data, at[rows], sizes[rows], heads, magics, topic.encode())
    are_valid[rows] = is_record
    return are_valid


def _have_topic(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    sizes: NDArray[np.int64],
    heads: NDArray[np.uint8],
    magics: NDArray[Any],
    topic: bytes,
) -> NDArray[np.bool_]:
    kinds = (_head_field(heads, RECORD_SYS_FLAG_AT, ">i4") & HOST_FLAGS) // FLAG_BORN_HOST_V6
    extra = np.array(HEAD_BYTES, dtype=np.int64)[kinds] - RECORD_HEAD_BYTES
    body_at = RECORD_BODY_BYTES_AT + extra
    columns = body_at[:, None] + np.arange(4)
    body_bytes = np.ascontiguousarray(heads[np.arange(len(heads))[:, None], columns]).view(">i4").ravel()
    width = np.where(magics == MAGIC_V2, 2, 1)
    topic_at = body_at + 4 + body_bytes.astype(np.int64)
    are_equal: NDArray[np.bool_] = (body_bytes >= 0) & (topic_at + width + len(topic) <= sizes)
    rows = np.flatnonzero(are_equal)
    begins = at[rows] + topic_at[rows]
    lengths = np.where(width[rows] == 2, data[begins].astype(np.int64) << 8 | data[begins + 1], data[begins])
    texts = data[(begins + width[rows])[:, None] + np.arange(len(topic))]
    are_equal[rows] = (lengths == len(topic)) & (texts == np.frombuffer(topic, dtype=np.uint8)).all(axis=1)
    return are_equal


def _head_field(heads: NDArray[np.uint8], at: int, code: str) -> NDArray[Any]:
    return np.ascontiguousarray(heads[:, at : at + np.dtype(code).itemsize]).view(code).ravel()


class QueueIdentity(NamedTuple):
    """Topic, queue id and kind of a queue."""

    topic: str
    queue_id: int
    is_batch: bool = False

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class Units(NamedTuple):
    """Units of a queue that are written and are no pre-blanks, by queue offset; the columns are int64[n].

    Attributes:
        sizes: of the records, in bytes.
        counts: messages of each unit: more than 1 in batch queues only.
        end: queue offset at which the queue ends if no unit points to a record.
    """

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    end: int

    def end_of(self, rows: NDArray[np.bool_]) -> int:
        """Return the queue offset one past the last of some units; 0 where there are none."""
        return int((self.queue_offsets[rows] + self.counts[rows]).max(initial=0))

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Units":
        columns = [column[rows] for column in self[:4]]
        return Units(columns[0], columns[1], columns[2], columns[3], self.end)


@dataclass(frozen=True, slots=True)
class QueueView:
    """Messages that consumers get of a queue, and the units that point to their records.

    Attributes:
        least: smallest queue offset of a message in the log; the end without a message.
        largest: queue offset one past the last message.
    """

    least: int
    largest: int
    units: Units

    @property
    def message_count(self) -> int:
        return int(self.units.counts.sum())


class QueueTree:
    """The queues of a store, or of a directory that has ``consumequeue`` and ``batchconsumequeue`` as a store does."""

    def __init__(self, store: StoreFiles, database: QueueDatabase | None) -> None:
        self._storage = store.storage
        self._database = database
        self._files: dict[QueueIdentity, tuple[Segment, ...]] = {}
        trees = [(paths.batch_consumequeue_dir(store.root), True)]
        if database is None and queue_database_layout(store.storage, paths.consumequeue_dir(store.root)) is None:
            trees.append((paths.consumequeue_dir(store.root), False))
        for directory, is_batch in trees:
            for queue in walk_queues(store.storage, directory):
                self._files[QueueIdentity(queue.topic, queue.queue_id, is_batch)] = queue.segments
        self._stored = set() if database is None else {QueueIdentity(*queue) for queue in database.all_queues()}

    @property
    def names(self) -> set[QueueIdentity]:
        return self._files.keys() | self._stored

    def file_states(self, name: QueueIdentity) -> FileStates:
        return tuple((file.start_offset, file.size_bytes, file.version) for file in self._files.get(name, ()))

    def has_same_files(self, name: QueueIdentity, other: "QueueTree") -> bool:
        files, other_files = self._files.get(name, ()), other._files.get(name, ())  # of the same class
        if not files or [(file.start_offset, file.size_bytes) for file in files] != [
            (file.start_offset, file.size_bytes) for file in other_files
        ]:
            return False
        return all(
            _are_equal(read_queue_file(self._storage, file.path), read_queue_file(other._storage, twin.path))
            for file, twin in zip(files, other_files, strict=True)
        )

    def fingerprint(self, name: QueueIdentity) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for file in self._files.get(name, ()):
            digest.update(f"{file.start_offset} {file.size_bytes} ".encode())
            digest.update(read_queue_file(self._storage, file.path).data)
        if name not in self._files:
            for column in (self.units(name) or NO_UNITS)[:4]:
                digest.update(np.asarray(column, dtype=np.int64).tobytes())
        return digest.digest()

    def units(self, name: QueueIdentity) -> Units | None:
        """Read the units of a queue; None where there is no such queue."""
        if name in self._files:
            files = self._files[name]
            parts = [self._batch_units(file) if name.is_batch else self._file_units(file) for file in files]
            end = 0 if name.is_batch else files[-1].start_offset // UNIT_BYTES
            return _join_units(parts, end)
        if name in self._stored and self._database is not None:
            return _database_units(self._database, name)
        return None

    def _file_units(self, file: Segment) -> Units:
        units = read_file_units(self._storage, file.path)
        offsets = file.start_offset // UNIT_BYTES + np.arange(len(units), dtype=np.int64)
        return make_units(offsets, units).select(~(is_unwritten(units) | is_pre_blank(units)))

    def _batch_units(self, file: Segment) -> Units:
        units, _ = split_file(read_queue_file(self._storage, file.path))
        return make_units(units["base_offset"].astype(np.int64), units, units["batch_size"].astype(np.int64))


def read_queue_file(storage: Storage, path: str) -> NDArray[np.uint8]:
    """Read a queue's file up to its last byte that is not zero; empty for a file that cannot be read."""
    try:
        with storage.open(path) as file:
            data = np.empty(min(file.data_end(), _MAX_FILE_BYTES), dtype=np.uint8)
            return data[: file.read_into(0, data.data)]
    except StoreError:  # verify reports it
        return np.empty(0, dtype=np.uint8)


def read_file_units(storage: Storage, path: str) -> NDArray[np.void]:
    """Read the units of a ConsumeQueue file, UNIT_DTYPE[n], up to the last one that is not zero."""
    data = read_queue_file(storage, path)
    return np.pad(data, (0, -len(data) % UNIT_BYTES)).view(UNIT_DTYPE)  # the last unit may end in zeros


def _are_equal(data: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    words = len(data) // 8 * 8
    return (
        len(data) == len(other)
        and np.array_equal(data[:words].view(np.uint64), other[:words].view(np.uint64))
        and np.array_equal(data[words:], other[words:])
    )


def make_units(
    queue_offsets: NDArray[np.int64], units: NDArray[np.void], counts: NDArray[np.int64] | None = None
) -> Units:
    """Make columns of units with the fields ``physical_offset`` and ``size``; by default each is one message."""
    physical_offsets, sizes = (units[name].astype(np.int64) for name in ("physical_offset", "size"))
    counts = np.ones(len(units), dtype=np.int64) if counts is None else counts
    return Units(queue_offsets, physical_offsets, sizes, counts, 0)


def _join_units(parts: list[Units], end: int) -> Units:
    none = np.empty(0, dtype=np.int64)
    columns = [np.concatenate([none, *(part[number] for part in parts)]) for number in range(4)]
    return Units(columns[0], columns[1], columns[2], columns[3], end)


NO_UNITS: Final = _join_units([], 0)


def _database_units(database: QueueDatabase, name: QueueIdentity) -> Units:
    parts = [make_units(offsets, units) for offsets, units in database.units(name.topic, name.queue_id)]
    bound = database.bound(name.topic, name.queue_id)
    return _join_units(parts, 0 if bound is None else bound.queue_offset + 1)


@contextmanager
def open_tree(root: str) -> Iterator[QueueTree]:
    """Open the queues below a directory; a RocksDB that cannot be read counts as none."""
    store = open_store(root)
    directory = paths.consumequeue_dir(store.root)
    with ExitStack() as stack:
        tree = None
        if queue_database_layout(store.storage, directory) is not None:
            with suppress(RmqError):  # verify reports it, and a rebuild makes it anew
                tree = QueueTree(store, stack.enter_context(open_queues(store.storage, directory)))
        yield tree or QueueTree(store, None)


def fingerprints(root: str) -> dict[QueueIdentity, bytes]:
    """Hash the files of each queue of a store."""
    with open_tree(root) as queues:
        return {name: queues.fingerprint(name) for name in queues.names}


def view(name: QueueIdentity, units: Units | None, heads: RecordHeads) -> QueueView | None:
    """Return what consumers get of a queue's units; None without a queue, or for a queue that never had a message.

    Source: ``ConsumeQueue#correctMinOffset``, ``#getMaxOffsetInQueue``.
    """
    if units is None:
        return None
    in_log = heads.in_log(units.physical_offsets, units.sizes)
    readable = units.select(in_log)
    are_records = heads.are_records(name.topic, name.queue_id, readable.physical_offsets, readable.sizes)
    readable = readable.select(are_records)
    # A unit of an expired or lost record counts for the end, one that points behind the log's end does not.
    is_expired = (units.physical_offsets >= 0) & (units.physical_offsets < heads.begin)
    is_lost = (heads.are_lost(units.physical_offsets) & (units.sizes > 0)) | (units.sizes == LOST_UNIT_SIZE)
    end = units.end_of(is_expired | is_lost)
    if len(readable.queue_offsets):
        last = int((readable.queue_offsets + readable.counts).max())
        return QueueView(int(readable.queue_offsets.min()), max(last, end), readable)
    end = max(units.end, end)
    return QueueView(end, end, readable) if end else None


def with_placeholders(side: QueueView | None, end: int) -> QueueView | None:
    """Return a view of a queue that placeholders for lost messages will fill up to a queue offset; 0 is none."""
    if end <= (0 if side is None else side.largest):
        return side
    if side is not None and len(side.units.queue_offsets):
        return replace(side, largest=end)
    return QueueView(end, end, _join_units([], end))
