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
    """Bytes of a master's log that have arrived, which belong at a physical offset; none of a heartbeat."""

    physical_offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    """Encode a report."""
    return _REPORT.pack(offset)


def encode_push(physical_offset: int, size: int) -> bytes:
    """Encode the head of a push."""
    return _PUSH.pack(physical_offset, size)


class Reports:
    """Decoder of a slave's reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete with these bytes, in order."""
        data = self._rest + data
        end = len(data) - len(data) % _REPORT.size
        self._rest = data[end:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:end])]


class Pushes:
    """Decoder of a master's pushes, which buffers at most an incomplete head."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0  # of what comes next
        self._remaining = 0  # of its stretch, bytes

    def feed(self, data: bytes) -> Iterator[Push]:
        """Yield the pushes in these bytes, in order.

        Raises:
            ReplicationError: a size that no stretch has.
        """
        view, position = memoryview(data), 0
        while position < len(view):
            if not self._remaining:
                head_bytes = _PUSH.size - len(self._head)
                self._head += view[position : position + head_bytes]
                position += head_bytes
                if len(self._head) < _PUSH.size:
                    return
                self._offset, self._remaining = _PUSH.unpack(self._head)
                self._head = b""
                if self._remaining < 0 or self._offset < 0:
                    raise ReplicationError(f"the master pushed a bad head: {self._remaining} bytes at {self._offset}")
                if not self._remaining:
                    yield Push(self._offset, view[:0])
                continue
            piece = view[position : position + self._remaining]
            yield Push(self._offset, piece)
            position += len(piece)
            self._offset += len(piece)
            self._remaining -= len(piece)
