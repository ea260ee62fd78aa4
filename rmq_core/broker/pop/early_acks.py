"""Acknowledgements that arrive before their check point: in its last second, or after a stop of the broker."""

from typing import Final

from rmq_core.broker.pop.records import Acknowledgement, Key

MOST_KEYS: Final = 10_000
MOST_OFFSETS: Final = 32  # of a check point; more name messages that it does not have


class EarlyAcks:
    """Bounded buffer of acknowledgements that arrive before their check point.

    Acknowledgements of a finished check point, and repeated ones, must not fill the memory.
    """

    def __init__(self) -> None:
        self._offsets: dict[Key, set[int]] = {}

    def put(self, ack: Acknowledgement) -> None:
        """Add an acknowledgement. A full buffer evicts the oldest check point, which must be finished."""
        if ack.key not in self._offsets and len(self._offsets) >= MOST_KEYS:
            del self._offsets[next(iter(self._offsets))]
        offsets = self._offsets.setdefault(ack.key, set())
        for offset in ack.offsets[:MOST_OFFSETS]:
            if len(offsets) < MOST_OFFSETS:
                offsets.add(offset)

    def drain(self, key: Key) -> set[int]:
        """Remove and return the queue offsets of a check point."""
        return self._offsets.pop(key, set())
