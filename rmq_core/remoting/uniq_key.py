"""Unique keys of messages, in the format of Java's producers; a broker makes the missing keys.

::

    0    4    6         10                       14       16
    +----+-----+----------+------------------------+--------+
    | ip | pid | instance | ms since month's begin | number |   in upper-case hex: 32 characters
    +----+-----+----------+------------------------+--------+

Source: ``MessageClientIDSetter#createUniqID``.
"""

import os
import secrets
import socket
import time
from datetime import datetime
from ipaddress import IPv4Address
from itertools import count
from struct import Struct
from typing import Final

_HEAD = Struct(">4sH4s")
_ANY_OUTSIDE: Final = ("192.0.2.1", 9)  # connecting a datagram socket only looks up the route, and sends nothing


def local_ip() -> str:
    """Return the IPv4 address of this machine's default route, or the loopback address without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_OUTSIDE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class UniqKeys:
    """Generator of the unique keys of one producer.

    Java takes the hash of a class loader for ``instance``; here it is random.
    """

    def __init__(self, ip: str | None = None, pid: int | None = None, instance: bytes | None = None) -> None:
        """Create the keys of a producer.

        The defaults are those of this machine and process, and a random instance of four bytes; ``pid`` is cut to 16
        bits.
        """
        address = IPv4Address(local_ip() if ip is None else ip).packed
        number = (os.getpid() if pid is None else pid) & 0xFFFF
        self._head = _HEAD.pack(address, number, secrets.token_bytes(4) if instance is None else instance).hex().upper()
        self._numbers = count()
        self._begin_ms = self._end_ms = 0
        self._now_ms = -1
        self._to_now = ""  # a key's characters before its number

    def next(self, now_ms: int | None = None) -> str:
        """Return the next key, with the current time by default."""
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        if now != self._now_ms:
            if not self._begin_ms <= now < self._end_ms:
                self._begin_ms, self._end_ms = _month(now)
            self._now_ms, self._to_now = now, f"{self._head}{(now - self._begin_ms) & 0xFFFFFFFF:08X}"
        return f"{self._to_now}{next(self._numbers) & 0xFFFF:04X}"


def _month(now_ms: int) -> tuple[int, int]:
    """Return begin and end of the month in local time, in ms, like Java's calendar."""
    begin = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    return int(begin.timestamp() * 1000), int(following.timestamp() * 1000)
