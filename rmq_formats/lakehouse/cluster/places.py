"""Finds in the queues of a running broker the messages behind a physical offset, by pulls."""

from collections.abc import Mapping

from rmq_formats.arrow.pulled import pulled_frames
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.errors import ClusterError
from rmq_formats.spark.live.client import ClusterLink
from rmq_formats.spark.live.options import ALL_TAGS, ClusterQueue
from rmq_formats.spark.live.plan import Offsets, gone


def first_at(link: ClusterLink, bounds: Mapping[ClusterQueue, tuple[int, int]], physical_offset: int) -> Offsets:
    """Find the first message of each queue that begins at a physical offset or behind it; its end if none does.

    Args:
        link: to the cluster.
        bounds: min and max offset of each queue, all of one broker; within a queue physical offsets grow.
        physical_offset: in the broker's log, in bytes.

    Raises:
        ClusterError: a message cannot be pulled.
    """
    offsets: Offsets = {}
    for queue in bounds:
        low, high = bounds[queue]
        middle = low  # most often it is the first: one pull
        while low < high:
            if physical_offset_of(link, queue, middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        offsets[queue] = low
    return offsets


def physical_offset_of(link: ClusterLink, queue: ClusterQueue, offset: int) -> int:
    """Pull one message, and return where it begins in its broker's log, in bytes. Raises ClusterError."""
    for records, _ in link.read(queue, offset, offset + 1, ALL_TAGS, None):
        frames = pulled_frames(records, offset, offset + 1, verify_crc=False)
        if len(frames.frames):
            return int(FrameRows(frames.data, frames.frames).physical_offsets[0])
    raise ClusterError(f"{gone(queue, offset, offset + 1)}: deleted while they were read")
