"""Frames of HTTP/2, made by hand: calls that no library of gRPC sends."""

import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call(method: str, metadata: Sequence[tuple[str, bytes]], request: bytes) -> bytes:
    """All frames of a connection with one call, on stream 1."""
    pairs = [
        (":method", b"POST"), (":scheme", b"http"), (":authority", b"proxy"), ("te", b"trailers"),
        (":path", f"/apache.rocketmq.v2.MessagingService/{method}".encode()), ("content-type", b"application/grpc"),
    ]  # fmt: skip
    pairs.sort(key=lambda pair: not pair[0].startswith(":"))
    headers = b"".join(_literal(name.encode(), value) for name, value in [*pairs, *metadata])
    body = b"\0" + struct.pack(">I", len(request)) + request
    return b"".join(
        [PREFACE, frame(_SETTINGS, 0, 0, b""), frame(_HEADERS, _END_HEADERS, 1, headers),
         frame(_DATA, _END_STREAM, 1, body)]
    )  # fmt: skip


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(count: int) -> bytes:
    """Length of a literal of HPACK, without Huffman coding."""
    if count < 127:
        return bytes([count])
    count, parts = count - 127, [127]
    while count >= 128:
        count, low = divmod(count, 128)
        parts.append(low + 128)
    return bytes([*parts, count])
