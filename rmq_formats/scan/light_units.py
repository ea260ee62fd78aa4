"""Chooses units of light queues (LMQ) by the queues of their records' own units."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT

Units = NDArray[np.int64]


def own_queues(units: Units) -> Units:
    """Return the queue number of each record's own topic, int64[n]: its own unit precedes those of light queues.

    Args:
        units: int64[n, UNIT_COLUMNS], in log order, with all units of each record.
    """
    is_own = units[:, kernel.UNIT_STORE_TIMESTAMP] != LIGHT_UNIT
    queues: Units = units[is_own, kernel.UNIT_QUEUE][np.cumsum(is_own) - 1]
    return queues


def with_store_times(units: Units) -> Units:
    """Set the store time of LMQ units to their record's, as units in RocksDB have store times."""
    is_own = units[:, kernel.UNIT_STORE_TIMESTAMP] != LIGHT_UNIT
    if is_own.all():
        return units
    timed = units.copy()
    timed[:, kernel.UNIT_STORE_TIMESTAMP] = units[is_own, kernel.UNIT_STORE_TIMESTAMP][np.cumsum(is_own) - 1]
    return timed


def drop_light_units(units: Units, names: Sequence[tuple[str, int]], batch_topics: Collection[str]) -> Units:
    """Drop the LMQ units of records in batch queues, as only Java's ``ConsumeQueue`` writes LMQ units.

    Args:
        units: int64[n, UNIT_COLUMNS], as in ``own_queues``.
        names: topic and queue id of each queue number in them.
    """
    if not batch_topics:
        return units
    is_batch = np.array([topic in batch_topics for topic, _ in names], dtype=bool)
    is_light = units[:, kernel.UNIT_STORE_TIMESTAMP] == LIGHT_UNIT
    kept: Units = units[~(is_light & is_batch[own_queues(units)])]
    return kept
