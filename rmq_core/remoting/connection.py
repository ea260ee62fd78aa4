"""One connection, of a server or of a client: both send requests, and both answer them.

All frames that have arrived are handled in one go, and their answers leave in one write. A handler that gives
its answer at once costs no task and no future.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from rmq_core.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode, Version
from rmq_core.remoting.errors import ConnectionLostError, ResponseError
from rmq_core.remoting.frames import FrameParser, frame_head
from rmq_core.remoting.header import Body, RemotingCommand
from rmq_core.remoting.pending import PendingRequests
from rmq_formats.errors import FormatError, RmqError
from rmq_formats.hosts import Host

log = logging.getLogger(__name__)

Answer = RemotingCommand | Awaitable[RemotingCommand | None] | None
Handler = Callable[[RemotingCommand, "Connection"], Answer]
"""Takes a request. Gives its answer; or an awaitable of it; or None, and then the handler may ``send`` the answer
at any later time, or never. What it raises becomes an answer too."""

LARGE_BODY_BYTES: Final = 32 << 10  # smaller ones are copied into one write, larger ones written from where they are
# More is written before the batch ends: the other side works on it meanwhile, and the transport's limit decides.
FLUSH_BYTES: Final = 64 << 10
MAX_REMARK: Final = 4096  # characters of an error's text
_GO_AWAY_ABOVE: Final = int(Version.V5_3_1)


class Connection(asyncio.Protocol):
    """A connection. ``RemotingServer`` and ``RemotingClient`` make it and close it.

    Attributes:
        remote_address: ``host:port`` of the other side; empty until it is connected.
        remote_host: the same as a record's born host has it, 8 or 20 bytes; none until it is connected.
        local_address: ``host:port`` of this side.
        idle_ticks: how often the owner's clock has found it idle in a row.
        refuses_requests: answers requests with GO_AWAY where the peer is known to understand that.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        max_frame_bytes: int,
        write_high_water_bytes: int,
        reads_only_while_writable: bool,
        after_batch: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a connection.

        Args:
            handlers: by request code.
            max_frame_bytes: limit of a frame that comes in.
            write_high_water_bytes: when more than that waits to be written, who writes has to wait.
            reads_only_while_writable: take no more requests while their answers are not taken. For a server;
                if both sides did so, they could wait for each other for ever.
            after_batch: called when all frames that had arrived are handled, before their answers are written.
        """
        self.remote_address = ""
        self.remote_host = b""
        self.local_address = ""
        self.idle_ticks = 0
        self.refuses_requests = False
        self._handlers = handlers
        self._after_batch = after_batch
        self._write_high_water_bytes = write_high_water_bytes
        self._reads_only_while_writable = reads_only_while_writable
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(max_frame_bytes)
        self._pending = PendingRequests(self._loop)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._out: list[Body] = []
        self._out_bytes = 0
        self._out_large = False
        self._flush_due = False  # at the end of the batch, or of this turn of the loop
        self._writable: asyncio.Future[None] | None = None  # set while writing is paused
        self._rest: Iterator[RemotingCommand] | None = None  # of a batch that stopped as writing was paused
        self._unread: list[bytes] = []  # what has come since

    # What users of a connection call.

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_ready(self) -> bool:
        """Whether what is sent now has not to wait behind much else."""
        return not self.is_closing and self._writable is None

    @property
    def unanswered(self) -> int:
        """How many requests of the peer have an awaitable for an answer."""
        return len(self._tasks)

    def send(self, command: RemotingCommand) -> None:
        """Send a command as it is; nothing happens if the connection has ended.

        All that is sent in one turn of the loop leaves in one write.

        Raises:
            FormatError: it cannot be encoded.
        """
        if self.is_closing:
            return
        self._put(command)
        self._flush_soon()

    def start(self, request: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Send a request; the future of its answer, whatever its code.

        The future fails with ``RequestTimeoutError`` or ``ConnectionLostError``.

        Raises:
            ConnectionLostError: the connection has ended.
            FormatError: the request cannot be encoded.
        """
        if self.is_closing:
            raise ConnectionLostError(self.remote_address, "the connection is closed")
        future = self._pending.add(request, timeout_s)
        try:
            self.send(request)
        except FormatError:
            future.cancel()
            raise
        return future

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and wait for its answer; raises what ``start`` does and its future fails with."""
        if self._writable is not None:
            await self.writable()
        return await self.start(request, timeout_s)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a request that gets no answer; raises as ``send``."""
        self._pending.number(request)
        request.flag |= ONEWAY_FLAG
        self.send(request)

    async def writable(self) -> None:
        """Wait until less than the high-water mark waits to be written, or the connection ends."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Write what is to be written, then end."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._closed)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=self._write_high_water_bytes)
        remote = Host.parse(_address(transport.get_extra_info("peername")))
        self.remote_host, self.remote_address = remote.to_bytes(), remote.text
        self.local_address = _address(transport.get_extra_info("sockname"))
        self._pending.address = self.remote_address

    def data_received(self, data: bytes) -> None:
        """Handle all requests that are complete now."""
        self.idle_ticks = 0
        if self._rest is not None:
            self._unread.append(data)
        else:
            self._handle(self._parser.feed(data))

    def pause_writing(self) -> None:
        """The peer is slow to read."""
        self._writable = self._loop.create_future()
        if self._reads_only_while_writable and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        rest, self._rest = self._rest, None
        if rest is not None:
            self._handle(rest)
        while self._unread and self._rest is None:
            self._handle(self._parser.feed(self._unread.pop(0)))
        if self._writable is None and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell all who wait."""
        self._transport = None
        self._rest = None
        self._unread.clear()
        self._out.clear()
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._pending.fail("the connection was closed" if error is None else f"the connection was lost: {error}")
        if not self._closed.done():
            self._closed.set_result(None)

    # How it works.

    def _handle(self, commands: Iterator[RemotingCommand]) -> None:
        """Handle commands, then write the answers."""
        self._flush_due = True
        try:
            for command in commands:
                if command.flag & RESPONSE_FLAG:
                    self._pending.resolve(command)
                    continue
                self._answer(command)
                if self._out_bytes > FLUSH_BYTES:
                    self._flush()
                    self._flush_due = True
                    if self._writable is not None and self._reads_only_while_writable:
                        self._rest = commands
                        break
        except FormatError as error:
            log.warning("closed %(client)s: %(error)s", {"client": self.remote_address, "error": error})
            self.close()
        if self._after_batch is not None:
            try:
                self._after_batch()
            except Exception:
                log.exception("the end of a batch failed")
        self._flush()

    def _answer(self, request: RemotingCommand) -> None:
        """Have a request handled, and put its answer with the others."""
        handler = self._handlers.get(request.code)
        try:
            if self.refuses_requests and request.version > _GO_AWAY_ABOVE:
                answer: Answer = request.response(ResponseCode.GO_AWAY, "please go away")
            elif handler is None:
                remark = f" request type {request.code} not supported"
                answer = request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            else:
                answer = handler(request, self)
            if type(answer) is RemotingCommand:
                if not request.flag & ONEWAY_FLAG:
                    self._put_answer(request, answer)
            elif answer is not None:
                self._answer_later(request, answer)
        except Exception as error:
            if not request.flag & ONEWAY_FLAG:
                self._put_answer(request, failure(request, error))

    def _answer_later(self, request: RemotingCommand, answer: Any) -> None:
        future: asyncio.Future[RemotingCommand | None] = asyncio.ensure_future(answer)
        self._tasks.add(future)
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: RemotingCommand, future: asyncio.Future[RemotingCommand | None]) -> None:
        self._tasks.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        answer = future.result() if error is None else failure(request, error)
        if answer is None or request.flag & ONEWAY_FLAG or self.is_closing:
            return
        try:
            self._put_answer(request, answer)
        except Exception as encode_error:
            self._put_answer(request, failure(request, encode_error))
        self._flush_soon()

    def _put_answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        answer.opaque = request.opaque
        answer.flag |= RESPONSE_FLAG
        self._put(answer)

    def _put(self, command: RemotingCommand) -> None:
        head = frame_head(command)
        self._out.append(head)
        self._out_bytes += len(head)
        if body := command.body:
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
        """Write what has gathered."""
        self._flush_due = False
        out, transport = self._out, self._transport
        if not out or transport is None or transport.is_closing():
            return
        large = self._out_large
        self._out, self._out_bytes, self._out_large = [], 0, False
        self.idle_ticks = 0
        if large:
            transport.writelines(out)
        else:
            transport.write(b"".join(out))


def failure(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    """The answer to a request whose handler has raised; what was not raised on purpose is logged."""
    if isinstance(error, ResponseError):
        code, remark = error.code, error.remark
    elif isinstance(error, RmqError):
        code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
    else:
        log.error("request %(code)d failed", {"code": request.code}, exc_info=error)
        code, remark = int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"
    # It may quote what came in: no surrogates, which have no UTF-8, and not all of a large body.
    return request.response(code, remark[:MAX_REMARK].encode("utf-8", "replace").decode())


def _address(name: Any) -> str:
    """``host:port`` of a socket's name; IPv6 in brackets, without its zone; zeros if the peer has gone already."""
    host, port = name[:2] if isinstance(name, tuple) else ("0.0.0.0", 0)
    host = host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
