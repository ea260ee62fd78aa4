"""gRPC server of the proxy: dispatches the calls of the service, and converts errors to statuses.

Source: ``GrpcMessagingApplication``, ``ContextInitPipeline``.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from rmq_core.client.options import ClientOptions
from rmq_core.proxy.access import Caller, CallGuard, address_of, host_of, metadata_of, required_permissions
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.client_reports import ClientReporter
from rmq_core.proxy.lite_subscriptions import LiteSubscriptionActivity
from rmq_core.proxy.port_forwarder import LOOPBACK, PortForwarder, certificates, self_signed
from rmq_core.proxy.receipts import Receipts, Renewal
from rmq_core.proxy.receiving import ReceiveMessageActivity
from rmq_core.proxy.request_budget import MAX_CALL_BYTES, RequestBudget, check_entries
from rmq_core.proxy.routing import ClientActivity
from rmq_core.proxy.sending import SendMessageActivity
from rmq_core.proxy.sessions import NO_COLLECTOR, Collector, Sessions, check_client_id
from rmq_core.proxy.wire import StatusError, rpc, status_of, v2
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.access.tls import TlsFile
from rmq_core.remoting.errors import ListenError, RemotingError
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_CLIENT_ID: Final = "x-mq-client-id"
_MAX_CALLS: Final = 100_000
_MAX_COMMAND_BYTES: Final = 512 << 10  # of a command on a stream; settings have half as many
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MAX_CALL_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # Pings find half-open connections, whose calls would wait for ever.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # The official clients send pings, too: by default gRPC would close their connections.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]
_EXPIRY_INTERVAL_S: Final = 30.0
_GRACE_S: Final = 1.0

Unary = Callable[[Any, str, str], Awaitable[Any]]
Stream = Callable[[Any, str, float | None], AsyncGenerator[Any]]


class Proxy:
    """Proxy on the running event loop; use it with ``async with``, which sets ``address`` to ``host:port``."""

    def __init__(
        self,
        namesrv: str,
        listen: str,
        credentials: Credentials | None = None,
        options: ClientOptions | None = None,
        *,
        authorizes: bool = True,
        tls: TlsFile | None = None,
        accepts_plain: bool | None = None,
        collector: Collector = NO_COLLECTOR,
        auth_brokers: Iterable[str] = (),
    ) -> None:
        """Create a proxy, which ``async with`` starts.

        Args:
            listen: ``host:port`` to listen on; port 0 means a free one.
            credentials: credentials of a super user, to sign the proxy's requests; with them clients must sign calls.
            tls: TLS settings of the server; None for a self-signed certificate, made at the start.
            accepts_plain: accept plain connections, too; by default only if ``tls`` is None.
            auth_brokers: addresses of brokers to query for users; if empty, the masters that are found first.

        Raises OptionError: ``namesrv`` has no address, or a certificate cannot be used.
        """
        self.address = ""
        self._listen = listen
        self._tls = self_signed() if tls is None else certificates(tls)
        self._accepts_plain = tls is None if accepts_plain is None else accepts_plain
        self._brokers = Brokers(namesrv, options or ClientOptions(), credentials, auth_brokers)
        self._access = None if credentials is None else CallGuard(self._brokers, authorizes=authorizes)
        self._sessions = Sessions()
        self._bytes = RequestBudget()
        self._collector = collector

    async def __aenter__(self) -> "Proxy":
        """Listen. Raises ListenError."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_client_error)
        async with AsyncExitStack() as ending:
            await ending.enter_async_context(self._brokers)
            if self._access is not None:
                with suppress(RemotingError):  # else the first call queries them
                    await self._brokers.auth_brokers()
            renewal = Renewal(self._sessions)
            server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)
            await self._bind(server, ending)
            receipts = Receipts(self._brokers, renewal)
            ending.push_async_callback(receipts.close)
            lite = LiteSubscriptionActivity(self._brokers, self._sessions, receipts.start_task)
            server.add_generic_rpc_handlers((self._handlers(receipts, lite),))
            await server.start()
            ending.push_async_callback(server.stop, _GRACE_S)
            ending.push_async_callback(lite.close)  # before all streams end
            for work in (renewal.run(), ClientReporter(self._brokers, self._sessions).run(), self._expire_idle()):
                task = asyncio.create_task(work)
                ending.push_async_callback(_cancel, task)
            self._ending = ending.pop_all()
        protocol = "plain" if self._tls is None else "TLS and plain" if self._accepts_plain else "TLS"
        log.info(
            "the proxy listens on %(address)s, for %(protocol)s connections",
            {"address": self.address, "protocol": protocol},
        )
        if self._tls is None:
            log.warning("clients in Java and Go have to turn TLS off (enableSsl(false)), or: pip install cryptography")
        return self

    async def _bind(self, server: grpc.aio.Server, ending: AsyncExitStack) -> None:
        """Listen for TLS connections, plain ones, or both. Raises ListenError."""
        try:
            if self._tls is not None and self._accepts_plain:
                forwarder = PortForwarder(
                    server.add_insecure_port(f"{LOOPBACK}:0"), server.add_secure_port(f"{LOOPBACK}:0", self._tls)
                )
                ending.callback(forwarder.close)
                self.address = await forwarder.listen(self._listen)
                return
            port = (
                server.add_insecure_port(self._listen)
                if self._tls is None
                else server.add_secure_port(self._listen, self._tls)
            )
        except RuntimeError as error:
            raise ListenError(self._listen, f"cannot listen: {error}") from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._ending.aclose()

    async def _expire_idle(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_INTERVAL_S)
            self._sessions.end_silent()
            await self._brokers.unregister_idle_producers(lambda topic: bool(self._sessions.producers_of(topic)))

    def _handlers(self, receipts: Receipts, lite: LiteSubscriptionActivity) -> grpc.GenericRpcHandler:
        receiving = ReceiveMessageActivity(self._brokers, self._sessions, receipts)
        sending = SendMessageActivity(self._brokers, self._sessions)
        routing = ClientActivity(self._brokers, self._sessions, self.address, self._collector)
        unary: dict[str, Unary] = {
            "QueryRoute": routing.route,
            "Heartbeat": routing.heartbeat,
            "SendMessage": sending.send,
            "QueryAssignment": routing.assignment,
            "AckMessage": receipts.ack,
            "ForwardMessageToDeadLetterQueue": receipts.forward,
            "UpdateOffset": routing.update_offset,
            "GetOffset": routing.get_offset,
            "QueryOffset": routing.query_offset,
            "EndTransaction": sending.end,
            "NotifyClientTermination": routing.end,
            "ChangeInvisibleDuration": receipts.change_invisibility,
            "RecallMessage": sending.recall,
            "SyncLiteSubscription": lite.sync,
        }
        streams: dict[str, Stream] = {
            "ReceiveMessage": receiving.receive,
            "PullMessage": lambda request, _, remaining_s: routing.pull(request, remaining_s),
        }
        methods = {name: self._unary(name, call) for name, call in unary.items()}
        methods |= {name: self._stream(name, call) for name, call in streams.items()}
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry(routing), None, rpc.TelemetryCommand.SerializeToString
        )
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _authenticate(self, context: Any) -> tuple[str, Caller]:
        """Return the client's id, which includes the user's name, and the authenticated user. Raises StatusError."""
        metadata = metadata_of(context)
        client_id = check_client_id(metadata.get(_CLIENT_ID, ""))
        if self._access is None:
            return client_id, Caller()
        host = host_of(context)
        login = await self._access.login(metadata, host)
        return f"{login.name}\n{client_id}", Caller(self._access, login, host)

    def _unary(self, name: str, call: Unary) -> grpc.RpcMethodHandler:
        request_type, response_type = getattr(rpc, f"{name}Request"), getattr(rpc, f"{name}Response")

        async def handle(_: Any, context: Any) -> Any:
            try:
                client_id, caller = await self._authenticate(context)
                async with self._bytes.request(context) as data:
                    check_entries(name, data)
                    request = _decode(request_type, data)
                    await caller.check(required_permissions(name, request))
                    self._sessions.get_or_create(client_id)
                    return await call(request, client_id, host_of(context))
            except Exception as error:
                return response_type(status=_failure_status(name, error))

        # As a stream of requests: then a request is read when this asks for it, and not before its user is known.
        return grpc.stream_unary_rpc_method_handler(handle, None, response_type.SerializeToString)

    def _stream(self, name: str, call: Stream) -> grpc.RpcMethodHandler:
        request_type, response_type = getattr(rpc, f"{name}Request"), getattr(rpc, f"{name}Response")

        async def handle(_: Any, context: Any) -> AsyncIterator[Any]:
            try:
                client_id, caller = await self._authenticate(context)
                async with self._bytes.request(context) as data:
                    request = _decode(request_type, data)
                permissions = required_permissions(name, request)
                await caller.check(permissions)
                self._sessions.get_or_create(client_id)
                is_checked = False
                async with aclosing(call(request, client_id, context.time_remaining())) as responses:
                    async for response in responses:
                        if not is_checked:  # again, as the request may have waited at the broker
                            await caller.check_push(permissions)
                            is_checked = True
                        yield response
            except Exception as error:
                yield response_type(status=_failure_status(name, error))

        return grpc.stream_stream_rpc_method_handler(handle, None, response_type.SerializeToString)

    def _telemetry(self, routing: ClientActivity) -> Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]:
        async def handle(commands: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            try:
                client_id, caller = await self._authenticate(context)
                decoded = (_decode(rpc.TelemetryCommand, data) async for data in _limit_commands(commands))
                stream = routing.telemetry(decoded, client_id, address_of(context), caller, context.add_done_callback)
                async with aclosing(stream) as outgoing:
                    async for command in outgoing:
                        yield command
            except StatusError as error:
                if error.code == v2.UNAUTHORIZED:
                    yield rpc.TelemetryCommand(status=status_of(error))
                    return
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.text)

        return handle


def _is_no_client_error(record: logging.LogRecord) -> bool:
    """Return False for gRPC's tracebacks about a client's metadata that are not UTF-8."""
    return not str(record.msg).startswith("Invalid encoding")


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _limit_commands(commands: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the commands of a client; refuse a too long command. Raises StatusError."""
    async for data in commands:
        if len(data) > _MAX_COMMAND_BYTES:
            raise StatusError(v2.BAD_REQUEST, f"a command has more than {_MAX_COMMAND_BYTES} bytes")
        yield data


def _decode(kind: Any, data: bytes) -> Any:
    """Decode a request: gRPC itself would log a traceback for invalid bytes. Raises StatusError."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise StatusError(v2.BAD_REQUEST, "the bytes are no message of the service") from error


def _failure_status(call: str, error: Exception) -> Any:
    """Return the status of a failed call; log an unexpected error."""
    if isinstance(error, RmqError):
        return status_of(error)
    log.error("%(call)s failed", {"call": call}, exc_info=error)
    return v2.Status(code=v2.INTERNAL_SERVER_ERROR, message="the proxy failed; see its log")
