"""Limits of calls: a memory budget of requests that are being read or handled, and the entries of a request.

A request is read after the authentication of its user; until then gRPC holds its bytes back. If the budget has no room
for another reader, the next call waits, and the slowest reader is ended after a second.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rmq_core.proxy.wire import StatusError, v2

# Official clients send one message of up to 4 MiB; decoded, it may take 24 times as much.
MAX_CALL_BYTES: Final = 8 << 20
_MAX_READERS: Final = 32  # calls being read at a time, each of up to ``MAX_CALL_BYTES``
_SLOW_READ_S: Final = 1.0  # after which a reader is ended if others wait
_MAX_BYTES: Final = 256 << 20


class RequestBudget:
    """Reader of the requests of calls, within a memory budget."""

    def __init__(self, max_readers: int = _MAX_READERS, max_bytes: int = _MAX_BYTES) -> None:
        """Create an empty budget: of calls being read, and of bytes of read requests whose calls have not ended."""
        self.count = 0
        self._max_readers = max_readers
        self._max_bytes = max_bytes
        self._readers: dict[asyncio.Task[Any], float] = {}  # by start time, the earliest first
        self._waiting: dict[asyncio.Future[None], None] = {}

    @asynccontextmanager
    async def request(self, context: Any) -> AsyncIterator[bytes]:
        """Read the request of a call; its bytes count until the block ends. Raises StatusError."""
        data = await self._read(context)
        if self.count + len(data) > self._max_bytes:
            raise StatusError(v2.TOO_MANY_REQUESTS, f"calls under way have more than {self._max_bytes} bytes")
        self.count += len(data)
        try:
            yield data
        finally:
            self.count -= len(data)

    async def _read(self, context: Any) -> bytes:
        while len(self._readers) >= self._max_readers:
            await self._wait()
        task = asyncio.current_task()
        assert task is not None
        self._readers[task] = time.monotonic()
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if task in self._readers:  # the client has cancelled the call
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
        """Wait until a request is read; after ``_SLOW_READ_S`` end the slowest reader."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            async with asyncio.timeout(_SLOW_READ_S):
                await waiting
        except TimeoutError:
            slowest, since_s = next(iter(self._readers.items()), (None, 0.0))
            if slowest is not None and time.monotonic() - since_s >= _SLOW_READ_S:
                del self._readers[slowest]
                slowest.cancel()
        finally:
            self._waiting.pop(waiting, None)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
                return


MAX_ENTRIES: Final = {"SendMessage": 1024, "AckMessage": 4096, "SyncLiteSubscription": 100_100}
"""Maximum number of fields in the request of a call; the official clients send or acknowledge one message."""
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_NUMBER: Final = 0
_BYTES: Final = 2


def check_entries(name: str, data: bytes) -> None:
    """Refuse too many entries before their decoding: two bytes may become fifty. Raises StatusError."""
    max_entries = MAX_ENTRIES.get(name)
    if max_entries is None:
        return
    position, count = 0, 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind in _FIXED:
            position += _FIXED[kind]
        elif kind in (_NUMBER, _BYTES):
            value, position = _varint(data, position)
            position += value if kind == _BYTES else 0
        else:
            raise StatusError(v2.BAD_REQUEST, "the bytes are no message of the service")
        count += 1
        if count > max_entries:
            raise StatusError(v2.BAD_REQUEST, f"a request has more than {max_entries} entries")


def _varint(data: bytes, begin: int) -> tuple[int, int]:
    """Return a number and the position after the number; a truncated number ends the data."""
    value = shift = 0
    for at in range(begin, min(begin + 10, len(data))):
        value |= (data[at] & 127) << shift
        shift += 7
        if data[at] < 128:
            return value, at + 1
    return value, len(data)
