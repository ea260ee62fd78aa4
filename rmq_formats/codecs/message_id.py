"""Codecs of message ids, as text: the offset message id, of store host and physical offset, and the unique id.

The unique id (UNIQ_KEY) is made by the message's producer::

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

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import pack_fields
from rmq_formats.codecs.record_layout import HOST_V4_BYTES, HOST_V6_BYTES
from rmq_formats.errors import DecodeError

_PHYSICAL_OFFSET = Struct(">q")
_AFTER_IP: Final = Struct(">HIIH")
_V4_BYTES: Final = 4
_V6_BYTES: Final = 16


def encode_message_id(host: Host, physical_offset: int) -> str:
    """Encode host and physical offset in upper-case hex, 32 characters or, for IPv6, 56.

    A record's 16 bytes of ``::ffff:a.b.c.d`` stay 16 bytes here. (Java's decoder makes IPv4 of them and
    then fills the id with zeros to 56 characters, which it cannot read back.)

    Raises:
        LengthError: the offset does not fit into 64 bits.

    Source: ``MessageDecoder#createMessageId``.
    """
    return (host.to_bytes() + pack_fields(_PHYSICAL_OFFSET, physical_offset)).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """Decode an offset message id, in either case of letters, to store host and physical offset (bytes).

    Raises:
        DecodeError: not 32 or 56 hex digits.

    Source: ``MessageDecoder#decodeMessageId``.
    """
    try:
        # bytes.fromhex skips spaces, so the length of its result is checked.
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    host_bytes = len(data) - _PHYSICAL_OFFSET.size
    if host_bytes not in {HOST_V4_BYTES, HOST_V6_BYTES} or 2 * len(data) != len(text):
        raise DecodeError("not an offset message id", expected="32 or 56 hex digits", actual=text[:64])
    host = Host.from_bytes(data, 0, host_bytes == HOST_V6_BYTES)
    return host, _PHYSICAL_OFFSET.unpack_from(data, host_bytes)[0]


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
        """Decode an id, in either case of letters.

        Raises:
            DecodeError: not 32 or 56 hex digits.
        """
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        ip_bytes = len(data) - _AFTER_IP.size
        if ip_bytes not in {_V4_BYTES, _V6_BYTES} or 2 * len(data) != len(text):
            raise DecodeError("not a message id", expected="32 or 56 hex digits", actual=text[:64])
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
    port_at = 2 * (host_bytes - HOST_V4_BYTES + _V4_BYTES)
    return text[port_at : port_at + 4] == "0000" and text[2 * host_bytes : 2 * host_bytes + 1] in set("01234567")
