"""Tells records of which a part was never written, although their lengths and their body's sum hold."""

from typing import Any, Final

from numba import njit

from rmq_formats.damage import DamageCode
from rmq_formats.kernels.scan import (
    CODE,
    POSITION,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    SIZE,
    TOPIC_AT,
    TOPIC_BYTES,
)

SECTOR_BYTES: Final = 512  # what a disk writes whole, or not at all
_TORN: Final = int(DamageCode.PROPERTIES_CRC)


@njit("boolean(uint8[::1], int64, int64)", cache=True, nogil=True)  # type: ignore[untyped-decorator] # no types
def _is_zero(data: Any, begin: int, end: int) -> bool:
    for at in range(begin, end):
        if data[at] != 0:
            return False
    return True


@njit("void(uint8[::1], int64, int64[:, ::1], int64)", cache=True, nogil=True)  # type: ignore[untyped-decorator]
def mark_torn(data: Any, window_at: int, frames: Any, first: int) -> None:
    """Set the CODE of frames with a sector in which all of topic and properties is zeros.

    What a lost sector takes of the head or the body shows in the lengths or in the body's sum. Topic and
    properties have no sum, but they are text: no sector's share of them is zeros alone.

    Args:
        data: uint8[n], the window.
        window_at: where the window starts in its file.
        frames: int64[n, FRAME_COLUMNS]; CODE is updated.
        first: first row to look at.
    """
    for row in range(first, len(frames)):
        if frames[row, CODE] != 0:
            continue
        end = frames[row, POSITION] + frames[row, SIZE]
        topic_at, properties_at = frames[row, TOPIC_AT], frames[row, PROPERTIES_AT]
        topic_end = topic_at + frames[row, TOPIC_BYTES]
        properties_end = properties_at + frames[row, PROPERTIES_BYTES]
        sector = (topic_at + window_at) // SECTOR_BYTES * SECTOR_BYTES - window_at
        while sector < end:
            stop = sector + SECTOR_BYTES
            topic_begin, topic_stop = max(sector, topic_at), min(stop, topic_end)
            text_begin, text_stop = max(sector, properties_at), min(stop, properties_end)
            if (topic_begin < topic_stop or text_begin < text_stop) and (
                _is_zero(data, topic_begin, topic_stop) and _is_zero(data, text_begin, text_stop)
            ):
                frames[row, CODE] = _TORN
                break
            sector = stop
