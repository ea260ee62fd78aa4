"""Counts waiting timer messages by their ``timerlog`` units, as stored counts may be wrong after a crash.

Source: ``TimerMessageStore#checkAndReviseMetrics``.
"""

from collections import Counter

import numpy as np

from rmq_core.store.timer.log import TimerLog
from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs.timer import FLAG_DELETE, TIMER_UNIT_BYTES, UNIT_DTYPE


def waiting_by_topic_hash(wheel: TimerWheel, log: TimerLog) -> Counter[int]:
    """Return the number of waiting messages by topic, less the recalls that wait with them.

    Args:
        wheel: which units are of a chain.
        log: the units; all of it is read, block by block.

    Returns:
        By Java's hash of the topic where they belong.

    Raises:
        OSError: a file cannot be read.
    """
    counts: Counter[int] = Counter()
    for position, block in log.blocks():
        units = np.frombuffer(block, dtype=UNIT_DTYPE)
        due_ms = units["write_time_ms"].astype(np.int64) + units["delay_ms"]
        positions = position + TIMER_UNIT_BYTES * np.arange(len(units), dtype=np.int64)
        waiting = wheel.are_linked(due_ms, positions)
        changes = np.where(units["flags"][waiting] & FLAG_DELETE, -1, 1)
        hashes, places = np.unique(units["topic_hash"][waiting], return_inverse=True)
        sums = np.bincount(places, weights=changes, minlength=len(hashes))
        for topic_hash, change in zip(hashes.tolist(), sums.tolist(), strict=True):
            counts[topic_hash] += int(change)
    return counts
