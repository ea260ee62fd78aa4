"""The offset message id: where a record stands, as text that any broker or tool can follow."""

from struct import Struct

from rmq_formats.errors import DecodeError
from rmq_formats.hosts import Host
from rmq_formats.layout import HOST_V4_BYTES, HOST_V6_BYTES
from rmq_formats.packing import pack_fields

_PHYSICAL_OFFSET = Struct(">q")


def encode_message_id(host: Host, physical_offset: int) -> str:
    """The offset message id: host and physical offset in upper-case hex, 32 characters or, for IPv6, 56.

    A record's 16 bytes of ``::ffff:a.b.c.d`` stay 16 bytes here. (Java's decoder makes IPv4 of them and
    then fills the id with zeros to 56 characters, which it cannot read back.)

    Args:
        host: the store host.
        physical_offset: of the record, in bytes.

    Raises:
        LengthError: the offset does not fit into 64 bits.

    Source: ``MessageDecoder#createMessageId``.
    """
    return (host.to_bytes() + pack_fields(_PHYSICAL_OFFSET, physical_offset)).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """Store host and physical offset (bytes) of an offset message id, in either case of letters.

    Raises:
        DecodeError: not 32 or 56 hex digits.

    Source: ``MessageDecoder#decodeMessageId``.
    """
    try:
        # bytes.fromhex skips spaces, so that its result is what has to be long enough.
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    host_bytes = len(data) - _PHYSICAL_OFFSET.size
    if host_bytes not in {HOST_V4_BYTES, HOST_V6_BYTES} or 2 * len(data) != len(text):
        raise DecodeError("not an offset message id", expected="32 or 56 hex digits", actual=text[:64])
    host = Host.from_bytes(data, 0, host_bytes == HOST_V6_BYTES)
    return host, _PHYSICAL_OFFSET.unpack_from(data, host_bytes)[0]
