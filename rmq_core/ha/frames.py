"""Frames of the HA protocol, without a network: a slave's offset reports, and a master's pushes of the log.

A report is the offset of the end of the slave's log, 8 bytes. A push is a physical offset and a size, 8 and 4 bytes,
and then so many bytes of the master's log. A push of size 0 is a heartbeat. The numbers are big-endian and signed. The
bytes of a push may begin and end within a record.

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
    """Received bytes of a master's log, with their physical offset; a heartbeat has no bytes."""

    physical_offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    """Encode a slave's report of the end of its log."""
    return _REPORT.pack(offset)


def encode_push(physical_offset: int, size: int) -> bytes:
    """Encode the head of a push, which the bytes of the log follow."""
    return _PUSH.pack(physical_offset, size)


class Reports:
    """Decoder of a slave's reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete with these bytes, in order."""
        data = self._rest + data
        complete_bytes = len(data) - len(data) % _REPORT.size
        self._rest = data[complete_bytes:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:complete_bytes])]


class Pushes:
    """Decoder of a master's pushes, which buffers at most an incomplete head."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0  # physical offset of the next byte
        self._remaining = 0  # bytes of the current push that have not come

    def feed(self, data: bytes) -> Iterator[Push]:
        """Yield the pushes in these bytes, in order; raise ReplicationError for a negative offset or size."""
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
                    raise ReplicationError(
                        f"the master pushed {self._remaining} bytes at {self._offset}: neither can be negative"
                    )
                if not self._remaining:
                    yield Push(self._offset, view[:0])
                continue
            chunk = view[position : position + self._remaining]
            yield Push(self._offset, chunk)
            position += len(chunk)
            self._offset += len(chunk)
            self._remaining -= len(chunk)
