"""Frames of the HA protocol, without a network: a slave's offset reports, and a master's pushes of the log.

A slave's report is how far its log reaches, 8 bytes. A push is the physical offset and the size of a stretch
of the master's log, 8 and 4 bytes, and then that stretch; one of size 0 says that the master is there. Both
are big-endian and signed. Stretches begin and end anywhere, within records too.

Source: ``DefaultHAConnection#TRANSFER_HEADER_SIZE``, ``DefaultHAClient#REPORT_HEADER_SIZE``.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from rmq_formats.errors import RmqError

_REPORT: Final = Struct(">q")
_PUSH: Final = Struct(">qi")


class ReplicationError(RmqError):
    """A violation of the HA protocol by the peer; its connection is closed."""


class Push(NamedTuple):
    """Bytes of a master's log that have arrived, or a heartbeat.

    Attributes:
        physical_offset: where in the log it belongs.
        data: the bytes; none of a heartbeat.
    """

    physical_offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    """Encode a report."""
    return _REPORT.pack(offset)


def encode_push(physical_offset: int, size: int) -> bytes:
    """Encode the head of a push."""
    return _PUSH.pack(physical_offset, size)


class Reports:
    """Decodes the offsets that a slave reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete with these bytes, in order."""
        data = self._rest + data
        end = len(data) - len(data) % _REPORT.size
        self._rest = data[end:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:end])]


class Pushes:
    """Decodes the pushes of a master; holds at most an incomplete head."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0  # of what comes next
        self._left = 0  # of its stretch, bytes

    def feed(self, data: bytes) -> Iterator[Push]:
        """The pieces in these bytes, in order.

        Raises:
            ReplicationError: a size that no stretch has.
        """
        view, at = memoryview(data), 0
        while at < len(view):
            if not self._left:
                taken = _PUSH.size - len(self._head)
                self._head += view[at : at + taken]
                at += taken
                if len(self._head) < _PUSH.size:
                    return
                self._offset, self._left = _PUSH.unpack(self._head)
                self._head = b""
                if self._left < 0 or self._offset < 0:
                    raise ReplicationError(f"the master pushed a bad head: {self._left} bytes at {self._offset}")
                if not self._left:
                    yield Push(self._offset, view[:0])
                continue
            piece = view[at : at + self._left]
            yield Push(self._offset, piece)
            at += len(piece)
            self._offset += len(piece)
            self._left -= len(piece)
