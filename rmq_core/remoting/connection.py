"""A connection between two peers, either of which may send requests to the other.

All received frames are handled in one batch, and their responses are written together. A long batch yields to the
other connections in between. A handler that returns its response directly costs no task and no future.
"""

import asyncio
import logging
import sys
from asyncio import iscoroutine
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from rmq_core.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode, Version
from rmq_core.remoting.connection_state import (
    CLOSE,
    CLOSED,
    FINISH,
    HANDLE,
    READ,
    READING,
    RELEASE,
    RELEASED,
    SUSPEND,
    SUSPENDED,
    TRANSITIONS,
    YIELD,
    Event,
)
from rmq_core.remoting.error_responses import RefusalLog, failure, not_supported
from rmq_core.remoting.errors import ConnectionLostError
from rmq_core.remoting.frames import MAX_FRAME_BYTES, FrameParser, frame_head
from rmq_core.remoting.header import Body, RemotingCommand
from rmq_core.remoting.loop import work_clock
from rmq_core.remoting.pending import PendingRequests
from rmq_formats.codecs.hosts import Host
from rmq_formats.errors import FormatError

log = logging.getLogger(__name__)

HandlerResponse = RemotingCommand | Awaitable[RemotingCommand | None] | None
Handler = Callable[[RemotingCommand, "Connection"], HandlerResponse]
"""Handler of a request. It returns the response, or an awaitable of the response, or None: then the handler may
``send`` the response later, or never. An exception becomes an error response."""

LARGE_BODY_BYTES: Final = 32 << 10  # smaller bodies are copied into one write, larger ones are not copied
# More response bytes are written before the end of the batch, so that the peer can work on them.
FLUSH_BYTES: Final = 64 << 10
WAITING_BYTES: Final = 2048  # of memory for a request and its response, without the bodies
SLICE_S: Final = 0.0005  # of work on one connection, before it yields to the others
BATCH_S: Final = 0.004  # of work on one batch, before its responses are written
_GO_AWAY_ABOVE: Final = int(Version.V5_3_1)


class Connection(asyncio.Protocol):
    """A connection, made and closed by ``RemotingServer`` and ``RemotingClient``.

    Attributes:
        remote_address: ``host:port`` of the peer; empty before it is connected.
        remote_host: address of the peer in the form of a record's born host, 8 or 20 bytes; empty before it is
            connected.
        parked_bytes: bytes of parked requests, such as long polls, which delay no other request.
        read_time_s: time when the bytes of the current requests were read, by ``work_clock``.
        idle_ticks: number of the server's ticks since the last byte.
        refuses_requests: respond with GO_AWAY to all peers whose version knows that code.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        max_frame_bytes: int,
        max_header_bytes: int = MAX_FRAME_BYTES,
        write_high_water_bytes: int,
        reads_only_while_writable: bool,
        max_waiting_bytes: int = sys.maxsize,
        after_batch: Callable[[], None] | None = None,
        logs_refusals: bool = False,
    ) -> None:
        """Create a connection without a transport.

        Args:
            reads_only_while_writable: stop reading requests while the write buffer is full. For servers only: if both
                peers stopped, they could wait for each other for ever.
            max_waiting_bytes: stop reading requests while ``waiting_bytes`` is larger.
            after_batch: callback after each batch of requests, before their responses are written.
        """
        self.remote_address = ""
        self.remote_host = b""
        self.local_address = ""
        self.waiting_bytes = 0
        self.parked_bytes = 0
        self.idle_ticks = 0
        self.refuses_requests = False
        self._handlers = handlers
        self._after_batch = after_batch
        self._write_high_water_bytes = write_high_water_bytes
        self._reads_only_while_writable = reads_only_while_writable
        self._max_waiting_bytes = max_waiting_bytes
        self._loop = asyncio.get_running_loop()
        self._now = work_clock(self._loop)
        self.read_time_s = self._now()
        self._parser = FrameParser(max_frame_bytes, max_header_bytes)
        self._pending = PendingRequests(self._loop)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._out: list[Body] = []
        self._out_bytes = 0
        self._out_large = False
        self._flush_due = False  # at the end of the batch, or of this turn of the loop
        self._writable: asyncio.Future[None] | None = None  # set while writing is paused
        self._remaining_commands: Iterator[RemotingCommand] | None = None  # of an interrupted batch
        self._batch_end_s: float | None = None  # latest time to write the responses of an interrupted batch
        self._unparsed: list[tuple[float, bytes]] = []  # received bytes with their times, to be handled later
        self._refusals = RefusalLog() if logs_refusals else None
        self._state = READING

    @property
    def is_closing(self) -> bool:
        """Return True if the connection is closing or closed."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_ready(self) -> bool:
        """Return True if the write buffer is below its high-water mark, so that a send leaves at once."""
        return not self.is_closing and self._writable is None

    @property
    def pending_response_count(self) -> int:
        """Number of the peer's requests whose responses are awaited."""
        return len(self._tasks)

    def reserve_inflight(self, size: int) -> None:
        """Add the bytes of a request; its response calls ``release_inflight``."""
        self.waiting_bytes += size
        if self.waiting_bytes > self._max_waiting_bytes:
            self._suspend()
        self._add_memory_bytes(size)

    def release_inflight(self, size: int) -> None:
        """Subtract the bytes of an answered request."""
        self.waiting_bytes -= size
        # Resuming at half of the limit reads many requests at a time, not one by one.
        if self._state is SUSPENDED and self.waiting_bytes <= self._max_waiting_bytes // 2:
            self._move(RELEASE)
            self._loop.call_soon(self._resume)
        self._add_memory_bytes(-size)

    def reserve_parked(self, size: int) -> None:
        """Add the bytes of a long poll, until ``release_parked``."""
        self.parked_bytes += size
        self._add_memory_bytes(size)

    def release_parked(self, size: int) -> None:
        """Subtract the bytes of a long poll."""
        self.parked_bytes -= size
        self._add_memory_bytes(-size)

    def _add_memory_bytes(self, size: int) -> None:
        """Do nothing; a server limits the memory of its connections."""

    def send(self, command: RemotingCommand) -> None:
        """Send a command as it is; do nothing if the connection has ended.

        All commands of one turn of the event loop are written together. Raises FormatError.
        """
        if self.is_closing:
            return
        self._put(command)
        self._flush_soon()

    def start(self, request: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Send a request; return the future of its response with any code.

        The future fails with ``RequestTimeoutError`` or ``ConnectionLostError``.

        Raises:
            ConnectionLostError: the connection has ended.
            FormatError: the request cannot be encoded.
            TypeError: the body is not bytes.
        """
        if self.is_closing:
            raise ConnectionLostError(self.remote_address, "the connection is closed")
        future = self._pending.add(request, timeout_s)
        try:
            self.send(request)
        except Exception:
            future.cancel()
            raise
        return future

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and wait for its answer; raises as ``start`` and as its future."""
        if self._writable is not None:
            await self.writable()
        return await self.start(request, timeout_s)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a one-way request; raises as ``send``."""
        self._pending.number(request)
        request.flag |= ONEWAY_FLAG
        self.send(request)

    async def writable(self) -> None:
        """Wait until the write buffer is below its high-water mark, or the connection ends."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Write the buffered bytes, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; the buffered bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the transport and the addresses of a new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self._transport.set_write_buffer_limits(high=self._write_high_water_bytes)
        remote = Host.parse(address_text(transport.get_extra_info("peername")))
        self.remote_host, self.remote_address = remote.to_bytes(), remote.text
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self._pending.address = self.remote_address

    def data_received(self, data: bytes) -> None:
        """Handle all requests that are complete now."""
        self.idle_ticks = 0
        if self._state is READING:
            self.read_time_s = self._now()
            self._handle(self._parser.feed(data))
        else:
            self._unparsed.append((self._now(), data))

    def pause_writing(self) -> None:
        """Let writers wait, and stop reading with ``reads_only_while_writable``: the write buffer is full."""
        self._writable = self._loop.create_future()
        if self._reads_only_while_writable:
            self._suspend()

    def resume_writing(self) -> None:
        """Release writers, and resume reading: the write buffer has room."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._resume()

    def _suspend(self) -> None:
        self._move(SUSPEND)
        self._pause_reading()

    def _move(self, event: Event) -> None:
        self._state = TRANSITIONS[self._state][event]

    def _pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.is_reading():
            transport.pause_reading()

    def _resume(self) -> None:
        """Handle the waiting requests, then resume reading, unless a limit still suspends the connection."""
        if self._state is CLOSED:
            return
        # The peer caused this wait, not the event loop: the time of the wait does not count.
        if self._state in (SUSPENDED, RELEASED):
            self.read_time_s = self._now()
            self._unparsed = [(self.read_time_s, data) for _, data in self._unparsed]
        is_unread = self._reads_only_while_writable and self._writable is not None
        if is_unread or self.waiting_bytes > self._max_waiting_bytes:
            self._suspend()
        elif self._state is SUSPENDED:
            self._move(RELEASE)
        commands = self._remaining_commands
        if commands is not None and self._state is not SUSPENDED:
            self._remaining_commands = None
            self._handle(commands)
        elif self._batch_end_s is not None:  # the awaited responses may need the end of the batch
            self._batch_end_s = None
            self._end_batch()
            self._flush()
        while self._unparsed and self._remaining_commands is None and self._state is not SUSPENDED:
            self.read_time_s, data = self._unparsed.pop(0)
            self._handle(self._parser.feed(data))
        if self._remaining_commands is None and self._state is not SUSPENDED and not self.is_closing:
            self._move(READ)
            cast(asyncio.Transport, self._transport).resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all requests without a response, and release all waiting writers."""
        self._transport = None
        self._move(CLOSE)
        if self._batch_end_s is not None:
            self._end_batch()
        self._remaining_commands = self._batch_end_s = None
        self._unparsed.clear()
        self._parser.clear()
        self._out.clear()
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._pending.fail("the connection was closed" if error is None else f"the connection was lost: {error}")
        if not self._closed.done():
            self._closed.set_result(None)

    # Handling of requests.

    def _handle(self, commands: Iterator[RemotingCommand]) -> None:
        self._move(HANDLE)
        self._flush_due = True
        now = self._now
        begin_s = now()
        slice_end_s = begin_s + SLICE_S
        batch_end_s = self._batch_end_s or begin_s + BATCH_S
        self._batch_end_s = None
        try:
            for command in commands:
                if command.flag & RESPONSE_FLAG:
                    self._pending.resolve(command)
                    continue
                self._respond(command)
                if self._out_bytes > FLUSH_BYTES:
                    self._flush()
                    self._flush_due = True
                if self._state is SUSPENDED:
                    self._remaining_commands = commands
                    break
                if now() > slice_end_s:
                    self._remaining_commands = commands
                    self._move(YIELD)
                    self._pause_reading()
                    self._loop.call_soon(self._resume)
                    if now() > batch_end_s:
                        break
                    self._batch_end_s = batch_end_s
                    return
        except FormatError as error:
            log.warning("closed %(client)s: %(error)s", {"client": self.remote_address, "error": error})
            self.close()
        self._end_batch()
        self._flush()
        self._move(FINISH)

    def _end_batch(self) -> None:
        if self._after_batch is not None:
            try:
                self._after_batch()
            except Exception:
                log.exception("the callback after a batch failed")

    def _respond(self, request: RemotingCommand) -> None:
        handler = self._handlers.get(request.code)
        try:
            if self.refuses_requests and request.version > _GO_AWAY_ABOVE:
                response: HandlerResponse = request.response(ResponseCode.GO_AWAY, "please go away")
            elif handler is None:
                response = not_supported(request)
                self._log_refusal(request, response)
            else:
                response = handler(request, self)
            if type(response) is RemotingCommand:
                if not request.flag & ONEWAY_FLAG:
                    self._put_response(request, response)
            elif response is not None:
                self._respond_later(request, response)
        except Exception as error:
            refusal = self._refuse(request, error)
            if not request.flag & ONEWAY_FLAG:
                self._put_response(request, refusal)

    def _refuse(self, request: RemotingCommand, error: BaseException) -> RemotingCommand:
        response = failure(request, error)
        self._log_refusal(request, response)
        return response

    def _log_refusal(self, request: RemotingCommand, response: RemotingCommand) -> None:
        if self._refusals is not None:
            self._refusals.log_refusal(request, response, self.remote_address)

    def _respond_later(self, request: RemotingCommand, response: Any) -> None:
        future: asyncio.Future[RemotingCommand | None] = asyncio.ensure_future(response)
        self._tasks.add(future)
        request_bytes = WAITING_BYTES + len(request.body)
        future.add_done_callback(partial(self._on_response, request, request_bytes))
        self.reserve_inflight(request_bytes)

    def _on_response(
        self, request: RemotingCommand, request_bytes: int, future: asyncio.Future[RemotingCommand | None]
    ) -> None:
        self._tasks.discard(future)
        self.release_inflight(request_bytes)
        if future.cancelled():
            return
        error = future.exception()
        response = future.result() if error is None else self._refuse(request, error)
        if response is None or request.flag & ONEWAY_FLAG or self.is_closing:
            return
        try:
            self._put_response(request, response)
        except Exception as encode_error:
            self._put_response(request, failure(request, encode_error))
        self._flush_soon()

    def _put_response(self, request: RemotingCommand, response: RemotingCommand) -> None:
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        self._put(response)

    def _put(self, command: RemotingCommand) -> None:
        body = command.body
        if type(body) is not bytes and not isinstance(body, bytearray | memoryview):
            # Refused here: the joined write of the batch would fail with all other responses.
            raise TypeError(f"the body of {command!r:.200} is {type(body).__name__}, not bytes")
        head = frame_head(command)
        self._out.append(head)
        self._out_bytes += len(head)
        if body:
            self._out.append(body)
            self._out_bytes += len(body)
            if len(body) > LARGE_BODY_BYTES:
                self._out_large = True

    def _flush_soon(self) -> None:
        if self._out_bytes > FLUSH_BYTES:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out, transport = self._out, self._transport
        if not out or transport is None or transport.is_closing():
            return
        large = self._out_large
        self._out, self._out_bytes, self._out_large = [], 0, False
        self.idle_ticks = 0
        transport.writelines(out) if large else transport.write(b"".join(out))


async def close_all(connections: Collection[Connection], grace_s: float) -> None:
    """Close connections, which remove themselves; after ``grace_s`` abort those that have not written their bytes."""
    for connection in list(connections):
        connection.close()
    closing = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
    if closing:
        await asyncio.wait(closing, timeout=grace_s)
    for connection in list(connections):
        connection.abort()
    await asyncio.gather(*closing)


async def await_response(response: HandlerResponse) -> RemotingCommand | None:
    """Await a handler's result in any of its forms; raises as the awaitable."""
    return response if isinstance(response, RemotingCommand) or response is None else await response


def close_response(response: HandlerResponse) -> None:
    """Close the coroutine of a response that is no longer needed."""
    if iscoroutine(response):
        response.close()


def address_text(name: Any) -> str:
    """Return a socket's ``host:port``; IPv6 in brackets, without its zone; 0.0.0.0:0 if the peer has disconnected."""
    host, port = name[:2] if isinstance(name, tuple) else ("0.0.0.0", 0)
    host = host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
