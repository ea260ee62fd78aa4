"""Codec of the offset message id: store host and physical offset of a record, as text."""

from struct import Struct

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import pack_fields
from rmq_formats.codecs.record_layout import HOST_V4_BYTES, HOST_V6_BYTES
from rmq_formats.errors import DecodeError

_PHYSICAL_OFFSET = Struct(">q")


def encode_message_id(host: Host, physical_offset: int) -> str:
    """Encode host and physical offset in upper-case hex, 32 characters or, for IPv6, 56.

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
