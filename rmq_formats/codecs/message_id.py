"""Codecs of message ids, as text: the offset message id, of store host and physical offset, and the unique id.

The unique id (UNIQ_KEY) is made by the message's producer::

    0    4 or 16  +2       +4                       +4       +2
    +----+--------+--------+------------------------+--------+
    | ip | pid    | loader | ms since month's begin | number |   in hex: 32 characters, or 56 with IPv6
    +----+--------+--------+------------------------+--------+

The month is the one of the producer's calendar, and is not in the id: the time is known within a month only.
Source: ``MessageDecoder#createMessageId``, ``#decodeMessageId``; ``MessageClientIDSetter#createUniqID``,
``#getNearlyTimeFromID``.
"""

from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from struct import Struct
from typing import Final

from rmq_formats.codecs.hosts import V4_ADDRESS_BYTES, Host
from rmq_formats.codecs.layout import pack_fields
from rmq_formats.codecs.record_layout import HOST_V4_BYTES, HOST_V6_BYTES
from rmq_formats.errors import DecodeError

_PHYSICAL_OFFSET = Struct(">q")
_AFTER_IP: Final = Struct(">HIIH")
_ID_BYTES: Final = frozenset({16, 28})


def encode_message_id(host: Host, physical_offset: int) -> str:
    """Encode host and physical offset in upper-case hex, 32 characters or, for IPv6, 56. Raises LengthError.

    A record's 16 bytes of ``::ffff:a.b.c.d`` stay 16 bytes here. (Java's decoder makes IPv4 of them and
    then fills the id with zeros to 56 characters, which it cannot read back.)
    """
    return (host.to_bytes() + pack_fields(_PHYSICAL_OFFSET, physical_offset)).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """Decode an offset message id, in either case of letters, to store host and physical offset. Raises DecodeError."""
    data = _read_hex(text, "an offset message id")
    host_bytes = len(data) - _PHYSICAL_OFFSET.size
    host = Host.from_bytes(data, 0, host_bytes == HOST_V6_BYTES)
    return host, _PHYSICAL_OFFSET.unpack_from(data, host_bytes)[0]


def _read_hex(text: str, what: str) -> bytes:
    """Read the 16 or 28 bytes of an id with an IPv4 or IPv6 address. Raises DecodeError."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in _ID_BYTES or 2 * len(data) != len(text):  # bytes.fromhex skips spaces
        raise DecodeError(f"not {what}", expected="32 or 56 hex digits", actual=text[:64])
    return data


@dataclass(frozen=True, slots=True)
class UniqueId:
    """The parts of a unique id.

    Attributes:
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
        """Decode an id of 32 or 56 hex digits, in either case of letters. Raises DecodeError."""
        data = _read_hex(text, "a message id")
        ip_bytes = len(data) - _AFTER_IP.size
        return cls(str(ip_address(data[:ip_bytes])), *_AFTER_IP.unpack_from(data, ip_bytes))

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
    port_at = 2 * (host_bytes - HOST_V4_BYTES + V4_ADDRESS_BYTES)
    return text[port_at : port_at + 4] == "0000" and text[2 * host_bytes : 2 * host_bytes + 1] in set("01234567")
