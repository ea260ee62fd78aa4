"""Ended half messages, according to the op messages read."""

from collections.abc import Iterable


class EndedHalfMessages:
    """Ended half messages that a round has not passed yet, with their op messages.

    Source: ``TransactionalMessageServiceImpl#fillOpRemoveMap``, ``#calculateOpOffset``.
    """

    def __init__(self, op_offset: int, half_offset: int) -> None:
        """Begin with no op messages.

        Args:
            op_offset: queue offset of the first op message.
            half_offset: queue offset of the first open half message.
        """
        self.next_op_offset = op_offset
        self._half_offset = half_offset
        self._op_of: dict[int, int] = {}
        self._open: dict[int, int] = {}  # number of half messages ahead, by op message

    def add(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Add an op message, in the order of the op queue."""
        self.next_op_offset = op_offset + 1
        for offset in offsets:
            self.remove(offset)
            self._op_of[offset] = op_offset
            if offset >= self._half_offset:
                self._open[op_offset] = self._open.get(op_offset, 0) + 1

    def remove(self, offset: int) -> bool:
        """Remove a half message and return True, if it is ended."""
        op_offset = self._op_of.pop(offset, None)
        if op_offset is None:
            return False
        if offset >= self._half_offset:
            self._open[op_offset] -= 1
            if not self._open[op_offset]:
                del self._open[op_offset]
        return True

    @property
    def done_op_offset(self) -> int:
        """Queue offset of the first op message to be read again."""
        return min(self._open, default=self.next_op_offset)


def half_offsets(body: bytes) -> list[int]:
    """Return the queue offsets in an op message's body; other text is ignored, as in the original."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 20]
