"""Estimates how many messages in a range of a queue match a filter, without reading records.

Source: ``ConsumeQueue#estimateMessageCount``.
"""

from collections.abc import Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.consumequeue.ext import ExtReader, MayMatchUnit
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS

MOST_SCANNED: Final = 20_000  # units of a queue: ``maxConsumeQueueScan``
MOST_MATCHES: Final = 5000  # ``sampleCountThreshold``: above it, the rest is taken to be like what was scanned


def estimate_count(
    queue: ConsumeQueue, begin: int, end: int, tags_codes: Set[int] | None, may_match_unit: MayMatchUnit | None
) -> int:
    """Estimate how many messages of a queue from one queue offset up to another a filter lets through.

    Exact for ranges of up to 20,000 units with up to 5,000 matches; longer ones are taken to be like their begin.
    As far as the queue tells: other tags of the same hash code count, and of SQL92 only bit maps are asked.

    Args:
        queue: the queue.
        begin: queue offset of the first message; where that has been deleted, the range begins, and ends, later.
        end: one after the last.
        tags_codes: messages with one of these tags codes; None for all.
        may_match_unit: asked with store timestamp (ms) and bit map, where ConsumeQueueExt has them; None for all.
    """
    count = max(0, end - max(0, begin))
    begin = max(begin, queue.min_offset)
    scanned = matches = 0
    while scanned < min(count, MOST_SCANNED):
        data = queue.read(begin + scanned, min(count, MOST_SCANNED) - scanned)
        if not data:
            break
        units = np.frombuffer(data, dtype=UNIT_DTYPE)
        match_counts = matches + np.cumsum(_matching(queue, units, tags_codes, may_match_unit))
        most = int(np.searchsorted(match_counts, MOST_MATCHES, side="right"))
        if most < len(units):
            return (MOST_MATCHES + 1) * count // (scanned + most + 1)
        scanned, matches = scanned + len(units), int(match_counts[-1])
    return matches * count // scanned if scanned == MOST_SCANNED else matches


def _matching(
    queue: ConsumeQueue, units: "np.ndarray[tuple[int], np.dtype[np.void]]", tags_codes: Set[int] | None,
    may_match_unit: MayMatchUnit | None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return a mask of the units whose messages may match the filter."""
    codes = units["tags_code"].astype(np.int64)
    matching = np.ones(len(units), dtype=np.bool_)
    ext = queue.ext
    addresses = np.flatnonzero(codes <= EXT_MAX_ADDRESS) if ext is not None else ()
    if ext is not None and may_match_unit is not None:
        reader = ExtReader(ext)
        for at in addresses:
            unit = reader.at(int(codes[at]))
            matching[at] = unit is None or may_match_unit(*unit)
    if tags_codes is not None:
        if ext is not None:
            for at in addresses:
                codes[at] = ext.tags_code(int(codes[at]))
        # The original compares the low half, as that is what it has of a time of delivery.
        matching &= np.isin(codes.astype(np.int32), np.fromiter(tags_codes, dtype=np.int64).astype(np.int32))
    return matching
