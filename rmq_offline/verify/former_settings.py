"""Finds units of a former setting, whose tags codes are other than those of the present setting."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from rmq_formats.codecs.layout import EXT_MAX_ADDRESS
from rmq_formats.kernels.units import STORE_TIMESTAMP, TAGS_CODE
from rmq_offline.verify.delay_levels import MAX_DELAY_MS
from rmq_offline.verify.log_facts import Longs, Mask

_SECOND_MS: Final = 1000  # a level of messageDelayLevel is a number of seconds at least
_FEWEST: Final = 2  # units with one other delay; at an end of the queue a single unit is enough
_FEWEST_REPEATS: Final = 5  # units whose tags occurred before with the same deviating code


def find_former_delays(
    tags_codes: Longs, expected: Longs, store_timestamps_ms: Longs
) -> Iterator[tuple[int, int, int]]:
    """Find runs of delayed messages whose level had another delay when they were dispatched.

    Args:
        tags_codes: delivery times of a queue's units, in their order, in ms.
        expected: the delivery times by the present delay.
        store_timestamps_ms: store timestamps of the units' records.

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


def set_former_delays(rows: Longs, expected: Longs, is_known: Mask) -> None:
    """Set the delivery times of damaged units that stand between two units of one former delay.

    Args:
        rows: int64[n, ROW_COLUMNS], expected rows by queue offset; their tags codes are set.
        expected: int64[n], the delivery times by the present delay.
        is_known: bool[n], which rows have the tags code of a sound unit.
    """
    known_rows = np.flatnonzero(is_known)
    damaged = np.flatnonzero(~is_known & (rows[:, STORE_TIMESTAMP] > 0))
    after = np.searchsorted(known_rows, damaged)
    is_inside = (after > 0) & (after < len(known_rows))
    damaged, after = damaged[is_inside], after[is_inside]
    tags_codes = rows[:, TAGS_CODE]
    delays = np.where(tags_codes != expected, tags_codes - rows[:, STORE_TIMESTAMP], 0)
    before_delays, after_delays = delays[known_rows[after - 1]], delays[known_rows[after]]
    is_former = (before_delays > 0) & (before_delays == after_delays)
    between = damaged[is_former]
    rows[between, TAGS_CODE] = rows[between, STORE_TIMESTAMP] + before_delays[is_former]


def find_former_tags(tags_codes: Longs, expected: Longs) -> Iterator[Longs]:
    """Find runs of units whose tags codes another hash made: the same tags have the same other code again and again.

    A run ends at a unit that has the hash of now. It goes over tags whose code is the same everywhere in the queue,
    such as the 0 of messages without tags. Flipped bits are no hash, nor is one code of several tags, except 0.

    Args:
        tags_codes: of a queue's units, in their order.
        expected: hashes of the tags of the units' records.

    Yields:
        Numbers of the units of each run, ascending.
    """
    deviates = (tags_codes != expected) & (expected != 0)  # without tags it is 0, whatever the hash
    if np.count_nonzero(deviates) <= _FEWEST_REPEATS:
        return
    hashed = np.flatnonzero(np.isin(expected, expected[deviates]))
    bounds = [0, *(np.flatnonzero(np.diff(deviates[hashed])) + 1).tolist(), len(hashed)]
    for begin, end in pairwise(bounds):
        numbers = hashed[begin:end]
        if end - begin > _FEWEST_REPEATS and deviates[numbers[0]]:
            numbers = numbers[_is_other_hash(tags_codes[numbers], expected[numbers])]
            if len(numbers) - len(np.unique(expected[numbers])) >= _FEWEST_REPEATS:
                yield numbers


def _is_other_hash(tags_codes: Longs, expected: Longs) -> Mask:
    """Find the units whose code is the usual one of their tags, and of no other tags of the run."""
    pairs, place, counts = np.unique(
        np.stack([expected, tags_codes], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    by_tags = np.lexsort((-counts, pairs[:, 0]))
    usual = by_tags[np.unique(pairs[by_tags, 0], return_index=True)[1]]
    hashes, codes = pairs[usual, 0], pairs[usual, 1]
    _, code_place, code_counts = np.unique(codes, return_inverse=True, return_counts=True)
    is_of_one = (codes == 0) | (code_counts[code_place] == 1)
    is_one_bit = (codes != 0) & (np.bitwise_count(hashes ^ codes) == 1)
    usual = usual[is_of_one & ~is_one_bit & (codes > EXT_MAX_ADDRESS)]
    return np.isin(place.reshape(-1), usual)
