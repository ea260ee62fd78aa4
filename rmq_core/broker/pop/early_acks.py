"""Acknowledgements that come before their check point: in the last second of it, or after a stop of the broker."""

from typing import Final

from rmq_core.broker.pop.records import Acknowledgement, Key

MOST_KEYS: Final = 10_000
MOST_OFFSETS: Final = 32  # of a check point; more name messages that it does not have


class EarlyAcks:
    """Keeps them, bounded: one of a check point that is done, or is said again and again, must not fill the memory."""

    def __init__(self) -> None:
        self._offsets: dict[Key, set[int]] = {}

    def put(self, ack: Acknowledgement) -> None:
        """Keep one; where there are too many, the oldest is of a check point that is done."""
        if ack.key not in self._offsets and len(self._offsets) >= MOST_KEYS:
            del self._offsets[next(iter(self._offsets))]
        known = self._offsets.setdefault(ack.key, set())
        for offset in ack.offsets[:MOST_OFFSETS]:
            if len(known) < MOST_OFFSETS:
                known.add(offset)

    def take(self, key: Key) -> set[int]:
        """Remove those of a check point; return the queue offsets."""
        return self._offsets.pop(key, set())
