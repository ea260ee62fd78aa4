"""Looks up, for units of a queue, whether the CommitLog has a record of that queue where they point."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, MAGIC_V1, MAGIC_V2
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
from rmq_formats.storage.segments import Segment

_ROWS_AT_ONCE: Final = 1 << 15
_HEAD_COLUMNS: Final = max(HEAD_BYTES)


class RecordHeads:
    """The heads of a log's records.

    On an object store, where a look at each head would be a request, all records count as there.
    """

    def __init__(
        self, segments: Sequence[Segment], log_end: int, *, is_local: bool, lost: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Open the files of a log.

        Args:
            segments: in log order.
            log_end: physical offset one past the last record that a broker reads.
            lost: physical offsets of ranges whose records are lost, each with its end.
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
        """Return which units name a record that begins in a lost range."""
        last = np.searchsorted(self._lost_begins, physical_offsets, side="right") - 1
        is_lost: NDArray[np.bool_] = last >= 0
        is_lost[is_lost] = physical_offsets[is_lost] < self._lost_ends[last[is_lost]]
        return is_lost

    def are_records(
        self, topic: str, queue_id: int, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which units point to a record of their queue; the record's checksums do not count.

        Args:
            topic: of the queue; a light queue (LMQ) has records of any topic.
            physical_offsets: of the units, int64[n].
            sizes: of the units, int64[n], in bytes.
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
        if segment.path not in self._maps:
            is_empty = not segment.size_bytes
            none = np.empty(0, dtype=np.uint8)
            self._maps[segment.path] = (
                none if is_empty else np.asarray(np.memmap(segment.path, dtype=np.uint8, mode="r"))
            )
        return self._maps[segment.path]


def _are_records(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    topic: str,
    queue_id: int,
) -> NDArray[np.bool_]:
    """Compare the heads at some positions of a file with the units of the records."""
    are_valid: NDArray[np.bool_] = at + np.maximum(sizes, _HEAD_COLUMNS) <= len(data)
    rows = np.flatnonzero(are_valid)
    heads = data[at[rows, None] + np.arange(_HEAD_COLUMNS)]
    magics = _field(heads, RECORD_MAGIC_AT, ">i4")
    is_record = (_field(heads, RECORD_SIZE_AT, ">i4") == sizes[rows]) & np.isin(magics, (MAGIC_V1, MAGIC_V2))
    is_record &= _field(heads, RECORD_PHYSICAL_OFFSET_AT, ">i8") == physical_offsets[rows]
    if not topic.startswith(LIGHT_QUEUE_PREFIX):
        is_record &= _field(heads, RECORD_QUEUE_ID_AT, ">i4") == queue_id
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
    """Return which records have a topic."""
    kinds = (_field(heads, RECORD_SYS_FLAG_AT, ">i4") & HOST_FLAGS) // FLAG_BORN_HOST_V6
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


def _field(heads: NDArray[np.uint8], at: int, code: str) -> NDArray[Any]:
    return np.ascontiguousarray(heads[:, at : at + np.dtype(code).itemsize]).view(code).ravel()
