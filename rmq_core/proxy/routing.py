"""Routes, assignments, heartbeats, settings, and the offsets of pull consumers.

Source: ``RouteActivity``, ``ClientActivity``. The original's proxy has no pulls and offsets.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from rmq_core.proxy.access import Caller, settings_permissions
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import LITE_CLIENTS, bound_topic, check_settings, group_name, topic_name
from rmq_core.proxy.client_reports import client_of
from rmq_core.proxy.messages import messages_of, tags_of, to_wire
from rmq_core.proxy.sessions import (
    Collector,
    Session,
    Sessions,
    commands_of,
    end,
    merge_settings,
    names_in,
)
from rmq_core.proxy.wire import StatusError, ms_of, ok, rpc, status_of, v2
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.requests import (
    PullMessage,
    PullResult,
    QueryConsumerOffset,
    Queue,
    SearchOffset,
    UpdateConsumerOffset,
)
from rmq_formats.codecs.record import decode_record
from rmq_formats.errors import RmqError

_PULL_FLAGS: Final = 2 | 4  # may wait, brings its subscription
_CLIENT_TYPES: Final = (
    v2.PRODUCER, v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER, v2.PULL_CONSUMER, *LITE_CLIENTS,
)  # fmt: skip
_MAX_PER_PULL: Final = 32
_MAX_ENDPOINTS_BYTES: Final = 4096
OnCallEnd = Callable[[Callable[[Any], None]], None]


class ClientActivity:
    """gRPC calls for routes, assignments, heartbeats, settings and offsets."""

    def __init__(self, brokers: Brokers, sessions: Sessions, address: str, collector: Collector) -> None:
        """Use ``address``, ``host:port``, as the endpoint of clients that name none."""
        self._brokers = brokers
        self._sessions = sessions
        self._collector = collector
        host, _, port = address.rpartition(":")
        self._default_endpoints = v2.Endpoints(
            scheme=v2.IPv4, addresses=[v2.Address(host=host.strip("[]"), port=int(port))]
        )

    async def route(self, request: Any, _: str, __: str) -> Any:
        """QueryRoute: all queues are at the endpoints that the client has called."""
        topic = topic_name(request.topic)
        route, message_types = await self._brokers.route(topic), await self._brokers.message_types(topic)
        endpoints = self._endpoints(request)
        reads, writes = set(route.read_queues), set(route.write_queues)
        queues = [
            _wire_queue(queue, endpoints, _permission(queue in reads, queue in writes), message_types)
            for queue in sorted(reads | writes)
        ]
        return rpc.QueryRouteResponse(status=ok(), message_queues=queues)

    def _endpoints(self, request: Any) -> Any:
        """Return the endpoints of all queues: those that the client has called. Raises StatusError."""
        if request.endpoints.ByteSize() > _MAX_ENDPOINTS_BYTES:
            raise StatusError(v2.ILLEGAL_ACCESS_POINT, f"endpoints have more than {_MAX_ENDPOINTS_BYTES} bytes")
        return request.endpoints if request.endpoints.addresses else self._default_endpoints

    async def assignment(self, request: Any, _: str, __: str) -> Any:
        """QueryAssignment: each broker as a whole; each queue of an ordered group without lite topics."""
        topic, group = topic_name(request.topic), group_name(request.group)
        queues = (await self._brokers.route(topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, "no readable queue")
        config = await self._brokers.group(group, topic)
        if not config.consume_message_orderly or bound_topic(config):
            names = dict.fromkeys(queue.broker_name for queue in queues)
            queues = tuple(MessageQueue(broker_name=name, queue_id=-1, topic=topic) for name in names)
        endpoints = self._endpoints(request)
        wire_queues = [_wire_queue(queue, endpoints, v2.READ_WRITE) for queue in queues]
        assignments = [v2.Assignment(message_queue=queue) for queue in wire_queues]
        return rpc.QueryAssignmentResponse(status=ok(), assignments=assignments)

    async def heartbeat(self, request: Any, client_id: str, _: str) -> Any:
        """Heartbeat."""
        if request.client_type not in _CLIENT_TYPES:
            raise StatusError(v2.UNRECOGNIZED_CLIENT_TYPE, "the client type is not known")
        if request.client_type != v2.PRODUCER:
            group_name(request.group)
        self._sessions.get_or_create(client_id)
        return rpc.HeartbeatResponse(status=ok())

    async def end(self, _: Any, client_id: str, __: str) -> Any:
        """NotifyClientTermination."""
        self._sessions.end(client_id)
        return rpc.NotifyClientTerminationResponse(status=ok())

    async def telemetry(
        self, commands: AsyncIterator[Any], client_id: str, address: str, caller: Caller, on_call_end: OnCallEnd
    ) -> AsyncGenerator[Any]:
        """Telemetry: answers the settings of the client at ``address``, and forwards brokers' requests to the client.

        The stream is also ended by ``on_call_end``: gRPC may leave a generator while it writes an answer, and the
        generator's own end then waits for the garbage collector.
        """
        session = self._sessions.get_or_create(client_id)
        session.caller = caller
        stream = session.open_stream()
        on_call_end(lambda _: self._sessions.end_stream(session, stream))
        reading = asyncio.ensure_future(self._read(commands, session, stream, address, caller))
        reading.add_done_callback(lambda _: end(stream))
        try:
            async with aclosing(commands_of(session, stream)) as outgoing:
                async for command in outgoing:
                    yield command
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._sessions.end_stream(session, stream)

    async def _read(
        self, commands: AsyncIterator[Any], session: Session, stream: "asyncio.Queue[Any]", address: str, caller: Caller
    ) -> None:
        async for command in commands:
            if command.HasField("settings"):
                self._sessions.get_or_create(session.client_id)
                response = await self._settings(session, command.settings, caller)
                if response.HasField("settings") and session.commands is stream:
                    present, number = self._sessions.present, session.number
                    client_id = session.client_id.rpartition("\n")[2]
                    present[number] = client_of(command.settings, client_id, address, number, present.get(number))
                await stream.put(response)  # waits if none are read

    async def _settings(self, session: Session, settings: Any, caller: Caller) -> Any:
        try:
            await caller.check(settings_permissions(settings))
            topics, consumer_group = names_in(settings)
            group = None
            if consumer_group is not None and topics:
                group = await self._brokers.group(consumer_group, next(iter(sorted(topics))))
                check_settings(group, settings)
            merged = merge_settings(settings, group, self._collector)
            if consumer_group is None:
                session.topics = topics
                await self._register_producer(topics)
        except RmqError as error:
            return rpc.TelemetryCommand(status=status_of(error))
        return rpc.TelemetryCommand(status=ok(), settings=merged)

    async def _register_producer(self, topics: frozenset[str]) -> None:
        for topic in sorted(topics):
            try:
                if v2.TRANSACTION in await self._brokers.message_types(topic):
                    await self._brokers.register_producer([topic])
            except RmqError:  # it has no route yet; a send finds out
                continue

    async def pull(self, request: Any, remaining_s: float | None) -> AsyncGenerator[Any]:
        """PullMessage: a status, messages, and the next offset."""
        group, topic, address = await self._queue(request)
        poll_s = max(0.0, min(20.0, ms_of(request.long_polling_timeout) / 1000))
        if remaining_s is not None:
            poll_s = max(0.0, min(poll_s, remaining_s - 2))
        fields = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=request.message_queue.id,
            queue_offset=request.offset,
            max_msg_nums=min(max(1, request.batch_size), _MAX_PER_PULL),
            sys_flag=_PULL_FLAGS,
            commit_offset=0,
            suspend_timeout_millis=int(poll_s * 1000),
            sub_version=0,
            subscription=request.filter_expression.expression or "*",
            expression_type="SQL92" if request.filter_expression.type == v2.SQL else "TAG",
        )
        response = await self._brokers.request(
            address,
            RequestCode.PULL_MESSAGE,
            fields,
            timeout_s=poll_s + 10,
            also=(ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED),
        )
        result, tags = read_fields(response, PullResult), tags_of(request.filter_expression)
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            yield rpc.PullMessageResponse(status=v2.Status(code=v2.ILLEGAL_OFFSET, message="the offset is not there"))
        elif response.code != ResponseCode.SUCCESS:
            yield rpc.PullMessageResponse(status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"))
        else:
            yield rpc.PullMessageResponse(status=ok())
            body, position = bytes(response.body), 0
            while position < len(body):
                record = decode_record(body, position, verify_crc=False)
                for message in messages_of(record):
                    if message.queue_offset >= request.offset and (tags is None or message.tags in tags):
                        yield rpc.PullMessageResponse(message=to_wire(message, topic, None))
                position += record.size
        yield rpc.PullMessageResponse(next_offset=result.next_begin_offset)

    async def update_offset(self, request: Any, _: str, __: str) -> Any:
        """UpdateOffset."""
        group, topic, address = await self._queue(request)
        fields = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=request.message_queue.id, commit_offset=request.offset
        )
        await self._brokers.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return rpc.UpdateOffsetResponse(status=ok())

    async def get_offset(self, request: Any, _: str, __: str) -> Any:
        """GetOffset."""
        group, topic, address = await self._queue(request)
        fields = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=request.message_queue.id)
        response = await self._brokers.request(
            address, RequestCode.QUERY_CONSUMER_OFFSET, fields, also=(ResponseCode.QUERY_NOT_FOUND,)
        )
        if response.code != ResponseCode.SUCCESS:
            raise StatusError(v2.OFFSET_NOT_FOUND, "the group has no offset of this queue")
        return rpc.GetOffsetResponse(status=ok(), offset=int(response.ext_fields["offset"]))

    async def query_offset(self, request: Any, _: str, __: str) -> Any:
        """QueryOffset: the first, the next, or that of a time."""
        topic = topic_name(request.message_queue.topic)
        address = await self._brokers.address(topic, request.message_queue.broker.name)
        queue = request.message_queue.id
        if request.query_offset_policy == v2.TIMESTAMP:
            when = SearchOffset(topic=topic, queue_id=queue, timestamp=ms_of(request.timestamp))
            response = await self._brokers.request(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, when)
        elif request.query_offset_policy not in (v2.BEGINNING, v2.END):
            raise StatusError(v2.BAD_REQUEST, "the policy of the offset is not known")
        else:
            is_end = request.query_offset_policy == v2.END
            code = RequestCode.GET_MAX_OFFSET if is_end else RequestCode.GET_MIN_OFFSET
            response = await self._brokers.request(address, code, Queue(topic=topic, queue_id=queue))
        return rpc.QueryOffsetResponse(status=ok(), offset=int(response.ext_fields["offset"]))

    async def _queue(self, request: Any) -> tuple[str, str, str]:
        group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        return group, topic, await self._brokers.address(topic, request.message_queue.broker.name)


def _wire_queue(queue: MessageQueue, endpoints: Any, permission: int, message_types: Sequence[int] = ()) -> Any:
    return v2.MessageQueue(
        topic=v2.Resource(name=queue.topic),
        id=queue.queue_id,
        accept_message_types=message_types,
        permission=permission,
        broker=v2.Broker(name=queue.broker_name, id=0, endpoints=endpoints),
    )


def _permission(may_read: bool, may_write: bool) -> int:
    return int(v2.READ_WRITE if may_read and may_write else v2.READ if may_read else v2.WRITE)
