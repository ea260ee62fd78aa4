"""Pending requests of a connection, with their timeouts."""

import asyncio
from typing import Final

from rmq_core.remoting.errors import ConnectionLostError, RequestTimeoutError
from rmq_core.remoting.header import RemotingCommand

_MAX_OPAQUE: Final = (1 << 31) - 1
_MIN_EXPIRY_INTERVAL_S: Final = 0.02  # between two searches for expired requests


_PendingRequest = tuple[asyncio.Future[RemotingCommand], float, float]  # future of the response, deadline, timeout


class PendingRequests:
    """Pending requests by number (``opaque``), to match responses.

    One timer serves all requests: a timer for each would cost more than all other work on a request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.address = ""
        self._loop = loop
        self._waiting: dict[int, _PendingRequest] = {}
        self._next_opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self, request: RemotingCommand) -> int:
        """Assign the next number to a request, and return the number."""
        opaque = request.opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & _MAX_OPAQUE
        return opaque

    def add(self, request: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Add a request, and assign its number; return the future of its response."""
        future = self._loop.create_future()
        deadline = self._loop.time() + timeout_s
        self._waiting[self.number(request)] = (future, deadline, timeout_s)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return future

    def resolve(self, response: RemotingCommand) -> None:
        """Resolve the future of a response's request; ignore a response without a request."""
        pending = self._waiting.pop(response.opaque, None)
        if pending is not None and not pending[0].done():
            pending[0].set_result(response)

    def fail(self, reason: str) -> None:
        """Fail the futures of all requests with ConnectionLostError."""
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLostError(self.address, reason))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        expired_opaques = [opaque for opaque, (_, deadline, _) in self._waiting.items() if deadline <= now]
        for opaque in expired_opaques:
            future, _, timeout_s = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeoutError(self.address, f"no answer within {timeout_s:g} s"))
        if self._waiting:
            self._set_timer(
                max(now + _MIN_EXPIRY_INTERVAL_S, min(deadline for _, deadline, _ in self._waiting.values()))
            )
