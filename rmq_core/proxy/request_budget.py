"""Limits of calls: a memory budget of requests that are being read or handled, and the entries of a request.

A call is read when its user is known, and not before: gRPC holds back what is not read. While as many calls are being
read as the budget has room for, the next one waits; one that sends slowly is ended then, so that nobody holds up the
others for longer than a moment.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rmq_core.proxy.wire import StatusError, v2

MOST_CALL_BYTES: Final = 8 << 20  # clients send one message, of 4 MiB at most; decoded it may take 24 times as much
_MOST_READERS: Final = 32  # each may read that many bytes
_PATIENCE_S: Final = 1.0  # with a call that sends slowly, while others wait
_MOST_BYTES: Final = 256 << 20


class RequestBudget:
    """Reads the requests of calls, within a budget."""

    def __init__(self, most_readers: int = _MOST_READERS, most_bytes: int = _MOST_BYTES) -> None:
        """Create an empty budget.

        Args:
            most_readers: calls that are being read at once.
            most_bytes: of requests that are read, until their calls end.
        """
        self.count = 0
        self._most_readers = most_readers
        self._most_bytes = most_bytes
        self._readers: dict[asyncio.Task[Any], float] = {}  # since when, the longest first
        self._waiting: dict[asyncio.Future[None], None] = {}

    @asynccontextmanager
    async def request(self, context: Any) -> AsyncIterator[bytes]:
        """Read the request of a call; its bytes count until the block ends. Raises StatusError."""
        data = await self._read(context)
        if self.count + len(data) > self._most_bytes:
            raise StatusError(v2.TOO_MANY_REQUESTS, f"calls under way have more than {self._most_bytes} bytes")
        self.count += len(data)
        try:
            yield data
        finally:
            self.count -= len(data)

    async def _read(self, context: Any) -> bytes:
        while len(self._readers) >= self._most_readers:
            await self._wait()
        task = asyncio.current_task()
        assert task is not None
        self._readers[task] = time.monotonic()
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if task in self._readers:  # its client has cancelled it
                raise
            task.uncancel()
            raise StatusError(v2.TOO_MANY_REQUESTS, "the request was sent too slowly while others waited") from None
        finally:
            self._readers.pop(task, None)
            self._wake()
        if not isinstance(data, bytes):
            raise StatusError(v2.BAD_REQUEST, "the call has no request")
        return data

    async def _wait(self) -> None:
        """Wait until a request is read; end the slowest call after some time without any."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await waiting
        except TimeoutError:
            slowest, since_s = next(iter(self._readers.items()), (None, 0.0))
            if slowest is not None and time.monotonic() - since_s >= _PATIENCE_S:
                del self._readers[slowest]
                slowest.cancel()
        finally:
            self._waiting.pop(waiting, None)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
                return


MOST_ENTRIES: Final = {"SendMessage": 1024, "AckMessage": 4096, "SyncLiteSubscription": 100_100}
"""By call: fields of the request. The official clients send one message, and acknowledge one."""
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_NUMBER: Final = 0
_BYTES: Final = 2


def check_entries(name: str, data: bytes) -> None:
    """Refuse a request with too many entries before its decoding: a message of two bytes becomes fifty.

    Raises StatusError.
    """
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
