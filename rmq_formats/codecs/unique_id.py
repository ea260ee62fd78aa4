"""Codec of the unique id of a message (UNIQ_KEY), made by its producer: address, process, class loader, time, number.

::

    0    4 or 16  +2       +4                       +4       +2
    +----+--------+--------+------------------------+--------+
    | ip | pid    | loader | ms since month's begin | number |   in hex: 32 characters, or 56 with IPv6
    +----+--------+--------+------------------------+--------+

The month is the one of the producer's calendar, and is not in the id: the time is told within a month only.
Source: ``MessageClientIDSetter#createUniqID``, ``#getNearlyTimeFromID``.
"""

from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from struct import Struct
from typing import Final

from rmq_formats.codecs.record_layout import HOST_V4_BYTES
from rmq_formats.errors import DecodeError

_REST: Final = Struct(">HIIH")
_V4_BYTES: Final = 4
_V6_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class UniqueId:
    """The parts of a unique id.

    Attributes:
        ip: address of the producer's machine.
        pid: the lower 16 bits of its process id.
        loader: hash of its class loader, which tells two producers of one process.
        month_ms: time since the begin of the month, in ms, modulo 2^32.
        number: of the message, modulo 65,536.
    """

    ip: str
    pid: int
    loader: int
    month_ms: int
    number: int

    @classmethod
    def decode(cls, text: str) -> "UniqueId":
        """Decode an id, in either case of letters.

        Raises:
            DecodeError: not 32 or 56 hex digits.
        """
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        ip_bytes = len(data) - _REST.size
        if ip_bytes not in {_V4_BYTES, _V6_BYTES} or 2 * len(data) != len(text):
            raise DecodeError("not a message id", expected="32 or 56 hex digits", actual=text[:64])
        return cls(str(ip_address(data[:ip_bytes])), *_REST.unpack_from(data, ip_bytes))

    def nearly_time_ms(self, now_ms: int) -> int:
        """Return the last time, in ms, before ``now_ms`` that the id can have, in this machine's time zone."""
        begin = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if int(begin.timestamp() * 1000) + self.month_ms >= now_ms:
            year, month = (begin.year - 1, 12) if begin.month == 1 else (begin.year, begin.month - 1)
            begin = begin.replace(year=year, month=month)
        return int(begin.timestamp() * 1000) + self.month_ms


def is_offset_id(text: str) -> bool:
    """Return whether an id of 32 or 56 hex digits has host and physical offset, and is no producer's.

    Both have the same lengths. A port has 16 bits in a field of 32, so that zeros stand where a producer's id has the
    process id, and a physical offset is not negative.
    """
    host_bytes = len(text) // 2 - 8
    port_at = 2 * (host_bytes - HOST_V4_BYTES + _V4_BYTES)
    return text[port_at : port_at + 4] == "0000" and text[2 * host_bytes : 2 * host_bytes + 1] in set("01234567")
