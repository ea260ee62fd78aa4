"""Selects the frames of a window that a query asks for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.codecs.damage import Damage
from rmq_formats.codecs.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from rmq_formats.kernels import scan
from rmq_formats.kernels.columns import select as kernel
from rmq_formats.kernels.columns import text as text_kernel
from rmq_formats.read.query import MAX_LONG, Query, QueueBounds
from rmq_formats.scan.dispatch import QueueTable


class RowFilter:
    """Filter of rows: evaluates a query on one window after the other, and remembers the queues that it met."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._queues = _WantedQueues(query)
        names_queues = query.reads_queues or query.topic_values is not None or bool(query.bounds)
        self._checks_queues = names_queues
        self._bounds_places = query.first_physical_offset > 0 or query.end_physical_offset < MAX_LONG
        self._tags = None if query.tags is None else _Texts(sorted(query.tags))
        self._uniq_key = None if query.uniq_key is None else _Texts([query.uniq_key])
        self._key = None if query.key is None else _bytes_array(query.key.encode("utf-8", "surrogatepass"))

    def select(self, rows: FrameRows) -> FrameRows:
        """Select rows; the cheapest conditions come first."""
        query = self._query
        keep = np.ones(len(rows), dtype=np.bool_)
        if self._bounds_places:
            keep &= rows.physical_offsets >= query.first_physical_offset
            keep &= rows.physical_offsets < query.end_physical_offset
        if query.has_time:
            first_ms, end_ms = query.time_bounds
            keep &= rows.store_timestamps_ms >= first_ms
            keep &= rows.store_timestamps_ms < end_ms
        if query.reads_queues:
            transaction = rows.sys_flags & FLAG_TRANSACTION_MASK
            keep &= (transaction == 0) | (transaction == FLAG_TRANSACTION_COMMIT)
        elif query.reads_index:
            keep &= rows.sys_flags & FLAG_TRANSACTION_MASK != FLAG_TRANSACTION_ROLLBACK
        if query.msg_id is not None:
            keep &= self._has_message_id(rows)
        rows = rows.take(keep)
        if self._checks_queues and len(rows):
            rows = rows.take(self._queues.wanted(rows))
        return self._with_properties(rows) if len(rows) else rows

    def _with_properties(self, rows: FrameRows) -> FrameRows:
        if self._tags is not None and len(rows):
            rows = rows.take(self._tags.match(rows, text_kernel.TAGS_AT))
        if self._uniq_key is not None and len(rows):
            rows = rows.take(self._uniq_key.match(rows, text_kernel.UNIQ_KEY_AT))
        if self._key is not None and len(rows):
            found = rows.well_known
            keep = np.empty(len(rows), dtype=np.bool_)
            kernel.match_part(rows.data, found, text_kernel.KEYS_AT, self._key, keep)
            rows = rows.take(keep)
        return rows

    def _has_message_id(self, rows: FrameRows) -> NDArray[np.bool_]:
        assert self._query.msg_id is not None
        host, physical_offset = self._query.msg_id
        keep: NDArray[np.bool_] = rows.physical_offsets == physical_offset
        wanted = host.to_bytes()
        for row in np.flatnonzero(keep).tolist():
            at, size = rows.hosts(born=False)[row].tolist()
            keep[row] = rows.data[at : at + size].tobytes() == wanted
        return keep

    def damage(self, damage: Damage) -> bool:
        """Return whether a damaged stretch becomes a row."""
        query = self._query
        inside = query.first_physical_offset <= damage.physical_offset < query.end_physical_offset
        return inside and query.takes_damage


def _bytes_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(data or b"\0"), dtype=np.uint8)  # writable, as the kernels' signatures demand


class _Texts:
    """Set of byte strings to compare with, as kernels take it."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._pool = _bytes_array(b"".join(encoded))
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        sizes = np.array([len(text) for text in encoded], dtype=np.int64)
        self._spans = np.stack([ends - sizes, sizes], axis=1)

    def match(self, rows: FrameRows, column: int) -> NDArray[np.bool_]:
        found = rows.well_known
        keep = np.empty(len(rows), dtype=np.bool_)
        kernel.match_any(rows.data, found, column, self._pool, self._spans, keep)
        return keep


class _WantedQueues(QueueTable):
    """The queues that come along, about each of which the query is asked once."""

    def __init__(self, query: Query) -> None:
        super().__init__()
        self._query = query
        self._bounds: list[QueueBounds] = []
        self._arrays: list[NDArray[np.int64]] = []

    def wanted(self, rows: FrameRows) -> NDArray[np.bool_]:
        numbers = self._number(rows)
        known = len(self._bounds)
        if known < self._used[0]:
            self._bounds += [self._query.queue_bounds(*name) for name in self.queue_names()[known:]]
            names = ("first_offset", "end_offset", "first_ms", "end_ms")
            self._arrays = [
                np.array([getattr(bounds, name) for bounds in self._bounds], dtype=np.int64) for name in names
            ]
        keep = np.ones(len(rows), dtype=np.bool_)
        kernel.within_bounds(numbers, rows.queue_offsets, self._arrays[0], self._arrays[1], keep)
        if self._query.bounds:
            kernel.within_bounds(numbers, rows.store_timestamps_ms, self._arrays[2], self._arrays[3], keep)
        return keep

    def _number(self, rows: FrameRows) -> NDArray[np.int64]:
        rows.repair(scan.TOPIC_AT)
        numbers = np.empty(len(rows), dtype=np.int64)
        done = 0
        while True:
            done = kernel.number_queues(
                rows.data, rows.frames, rows.queue_ids, done,
                self._queues, self._slots, self._pool, self._used, numbers,
            )  # fmt: skip
            if done == len(rows):
                return numbers
            self._grow_queues()
