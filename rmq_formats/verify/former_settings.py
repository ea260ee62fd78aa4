"""Tells units of a former setting from wrong ones: their tags codes are other than the setting of now gives."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.verify.delay_levels import MAX_DELAY_MS

Longs = NDArray[np.int64]
_SECOND_MS: Final = 1000  # a level of messageDelayLevel is a number of seconds at least
_FEWEST: Final = 2  # units with one other delay; a single one is one only at an end of the queue


def former_delays(tags_codes: Longs, expected: Longs, store_timestamps_ms: Longs) -> Iterator[tuple[int, int, int]]:
    """Find runs of delayed messages whose level had another delay when they were dispatched.

    Args:
        tags_codes: of a queue's units, in their order: the times of delivery, in ms.
        expected: what they are with the delay of now.
        store_timestamps_ms: of their records.

    Yields:
        First unit, one past the last, and the delay in ms.
    """
    delays = np.where(tags_codes != expected, tags_codes - store_timestamps_ms, 0)
    is_level = (delays > 0) & (delays <= MAX_DELAY_MS) & (delays % _SECOND_MS == 0)
    delays[~is_level] = 0
    bounds = [0, *(np.flatnonzero(np.diff(delays)) + 1).tolist(), len(delays)]
    counts = dict(zip(*(part.tolist() for part in np.unique(delays, return_counts=True)), strict=True))
    for begin, end in pairwise(bounds):
        delay = int(delays[begin]) if end > begin else 0
        if delay and (counts[delay] >= _FEWEST or begin == 0 or end == len(delays)):
            yield begin, end, delay
