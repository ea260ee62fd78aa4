"""Limit of a request's entries, counted before decoding: a message of two bytes becomes fifty."""

from typing import Final

from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.wire import v2

MOST_ENTRIES: Final = {"SendMessage": 1024, "AckMessage": 4096, "SyncLiteSubscription": 100_100}
"""By call: fields of the request. The official clients send one message, and acknowledge one."""
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_NUMBER: Final = 0
_BYTES: Final = 2


def check_entries(name: str, data: bytes) -> None:
    """Refuse a request with too many entries. Raises StatusError."""
    most = MOST_ENTRIES.get(name)
    if most is None:
        return
    at, count = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind in _FIXED:
            at += _FIXED[kind]
        elif kind in (_NUMBER, _BYTES):
            value, at = _varint(data, at)
            at += value if kind == _BYTES else 0
        else:
            raise StatusError(v2.BAD_REQUEST, "the bytes are no message of the service")
        count += 1
        if count > most:
            raise StatusError(v2.BAD_REQUEST, f"a request has more than {most} entries")


def _varint(data: bytes, begin: int) -> tuple[int, int]:
    """Return a number and the position after the number; a truncated number ends the data."""
    value = shift = 0
    for at in range(begin, min(begin + 10, len(data))):
        value |= (data[at] & 127) << shift
        shift += 7
        if data[at] < 128:
            return value, at + 1
    return value, len(data)
