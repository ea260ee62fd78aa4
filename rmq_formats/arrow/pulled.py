"""Finds the frames in pull responses, whose bodies are consecutive CommitLog records."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import FormatError
from rmq_formats.kernels.columns import select
from rmq_formats.kernels.columns.select import list_records
from rmq_formats.kernels.scan import FRAME_COLUMNS
from rmq_formats.scan.segment import FrameBatch

_ANY_LOG_BYTES: Final = 1 << 62  # a pulled record may have any offset: only the record tells it


def pulled_frames(
    answers: Sequence[bytes | memoryview], begin: int, end: int, *, verify_crc: bool = True
) -> FrameBatch:
    """Find the records in some pull responses of one queue.

    Args:
        answers: bodies of pull responses, each of whole records.
        end: one past the last; a broker may return more than was asked for.
        verify_crc: check the sums; a record that fails stays, with its CODE.

    Raises:
        FormatError: bytes that are no records.
    """
    data = np.frombuffer(bytearray().join(answers), dtype=np.uint8)
    points = np.empty((len(data) // RECORD_FIXED_BYTES_V1, select.POINT_COLUMNS), dtype=np.int64)
    result = np.zeros(1, dtype=np.int64)
    record_count = int(list_records(data, points, result))
    if result[0] != len(data):
        raise FormatError("a pull response has bytes that are no record", None, actual=len(data) - int(result[0]))
    frames = np.empty((record_count, FRAME_COLUMNS), dtype=np.int64)
    count = select.check_points(data, len(data), points[:record_count], 0, _ANY_LOG_BYTES, verify_crc, frames)
    if count != record_count:
        raise FormatError("a pull response has records whose lengths do not add up", actual=record_count - count)
    queue_offsets = FrameRows(data, frames).queue_offsets
    is_in_range = (queue_offsets >= begin) & (queue_offsets < end)
    return FrameBatch(data, 0, frames if is_in_range.all() else frames[is_in_range], (), None, 0, 0)
