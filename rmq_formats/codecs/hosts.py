"""Codec of born and store hosts: an address of 4 or 16 bytes and a port of 4."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from struct import Struct
from typing import Final

from rmq_formats.errors import DecodeError, LengthError, TruncatedError

V4_ADDRESS_BYTES: Final = 4
V6_ADDRESS_BYTES: Final = 16
MAX_PORT: Final = 65535
_PORT = Struct(">i")
_V4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
_TEXT = re.compile(r"(?:\[(?P<v6>[^\[\]%]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Host:
    """Address and port of a host in a record.

    Attributes:
        address: 4 bytes (IPv4) or 16 (IPv6), in network order.
        port: signed 32 bits on disk; 0 to 65535 when it makes sense.
    """

    address: bytes
    port: int

    def __post_init__(self) -> None:
        if len(self.address) not in {V4_ADDRESS_BYTES, V6_ADDRESS_BYTES}:
            raise LengthError("bad length of a host address", expected="4 or 16", actual=len(self.address))
        if not -(1 << 31) <= self.port < 1 << 31:
            raise LengthError("a port that does not fit into 32 bits", actual=self.port)

    @classmethod
    def parse(cls, text: str) -> "Host":
        """Parse ``ip:port`` or ``[ipv6]:port``; an IPv4-mapped address becomes IPv4. Raises DecodeError."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match["port"]) > MAX_PORT:
            raise DecodeError(f"not a host and port: {text!r}")
        try:
            address = IPv4Address(match["v4"]).packed if match["v4"] else IPv6Address(match["v6"]).packed
        except AddressValueError as error:
            raise DecodeError(f"not a host and port: {text!r}") from error
        return cls(_unmapped(address), int(match["port"]))

    @classmethod
    def from_bytes(cls, buffer: bytes | bytearray | memoryview, position: int, v6: bool) -> "Host":
        """Decode 8 bytes at a position, or 20 if ``v6``. Raises TruncatedError."""
        port_at = position + (V6_ADDRESS_BYTES if v6 else V4_ADDRESS_BYTES)
        if position < 0 or port_at + _PORT.size > len(buffer):
            raise TruncatedError("the bytes end within a host", physical_offset=position)
        return cls(bytes(buffer[position:port_at]), _PORT.unpack_from(buffer, port_at)[0])

    def to_bytes(self) -> bytes:
        """Encode the 8 or 20 bytes on disk: address, then port as a 32-bit integer."""
        return self.address + _PORT.pack(self.port)

    @property
    def is_v6(self) -> bool:
        """True for an IPv6 host of 20 bytes; a flag in a record's sys_flag marks it."""
        return len(self.address) == V6_ADDRESS_BYTES

    @property
    def text(self) -> str:
        """The host as ``ip:port``, or ``[ipv6]:port`` with the short form of RFC 5952.

        ``::ffff:a.b.c.d`` shows as IPv4: a JVM makes that of its 16 bytes (``InetAddress#getByAddress``).
        """
        address = _unmapped(self.address)
        if len(address) == V4_ADDRESS_BYTES:
            return f"{IPv4Address(address)}:{self.port}"
        return f"[{IPv6Address(address).compressed}]:{self.port}"

    def __str__(self) -> str:
        return self.text


def _unmapped(address: bytes) -> bytes:
    if len(address) == V6_ADDRESS_BYTES and address.startswith(_V4_MAPPED_PREFIX):
        return address[-V4_ADDRESS_BYTES:]
    return address
