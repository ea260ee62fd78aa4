"""Which half messages are ended, according to the op messages that were read."""

from collections.abc import Iterable


class Ended:
    """Ended half messages that a round has not passed yet, and the op messages that name them.

    Source: ``TransactionalMessageServiceImpl#fillOpRemoveMap``, ``#calculateOpOffset``.
    """

    def __init__(self, op_offset: int, half_offset: int) -> None:
        """Begin with no op messages.

        Args:
            op_offset: queue offset of the first op message.
            half_offset: queue offset of the first half message that is not done with.
        """
        self.next_op_offset = op_offset
        self._half_offset = half_offset
        self._op_of: dict[int, int] = {}
        self._open: dict[int, int] = {}  # by op message: its half messages that are still to come

    def add(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Add an op message; they come in the order of their queue."""
        self.next_op_offset = op_offset + 1
        for offset in offsets:
            self.take(offset)
            self._op_of[offset] = op_offset
            if offset >= self._half_offset:
                self._open[op_offset] = self._open.get(op_offset, 0) + 1

    def take(self, offset: int) -> bool:
        """Whether a half message is ended; it is forgotten then."""
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
        """Queue offset of the first op message that is needed again."""
        return min(self._open, default=self.next_op_offset)


def half_offsets(body: bytes) -> list[int]:
    """The queue offsets in an op message's body; what is no number is left out, as in the original."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 20]
