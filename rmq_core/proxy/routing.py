"""Routes, assignments, heartbeats, settings, and the offsets of pull consumers.

Source: ``RouteActivity``, ``ClientActivity``. The original's proxy has no pulls and offsets.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from rmq_core.proxy.access import Caller
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import group_name, topic_name
from rmq_core.proxy.collector import Collector
from rmq_core.proxy.errors import StatusError, ok, status_of
from rmq_core.proxy.lite_groups import LITE_CLIENTS, bound_topic, check_settings
from rmq_core.proxy.messages import messages_of, tags_of, to_wire
from rmq_core.proxy.needs import of_settings
from rmq_core.proxy.presence import client_of
from rmq_core.proxy.sessions import Session, Sessions, answered, commands_of, end, names_in, settings_command
from rmq_core.proxy.wire import ms_of, rpc, v2
from rmq_core.remoting.bodies import MessageQueue
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
_MOST_PULLED: Final = 32
_MOST_ENDPOINTS_BYTES: Final = 4096
WhenOver = Callable[[Callable[[Any], None]], None]


class Routing:
    """Handles what is not about single messages."""

    def __init__(self, brokers: Brokers, sessions: Sessions, address: str, collector: Collector) -> None:
        """Use ``address``, ``host:port``, as the endpoint of clients that name none."""
        self._brokers = brokers
        self._sessions = sessions
        self._collector = collector
        host, _, port = address.rpartition(":")
        self._own = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=host.strip("[]"), port=int(port))])

    async def route(self, asked: Any, _: str, __: str) -> Any:
        """QueryRoute: all queues are at the endpoints that the client has asked."""
        topic = topic_name(asked.topic)
        route, kinds = await self._brokers.route(topic), await self._brokers.kinds(topic)
        endpoints = self._endpoints(asked)
        reads, writes = set(route.read_queues), set(route.write_queues)
        queues = [
            v2.MessageQueue(
                topic=v2.Resource(name=topic), id=queue.queue_id, accept_message_types=kinds,
                permission=_permission(queue in reads, queue in writes),
                broker=v2.Broker(name=queue.broker_name, id=0, endpoints=endpoints),
            )
            for queue in sorted(reads | writes)
        ]  # fmt: skip
        return rpc.QueryRouteResponse(status=ok(), message_queues=queues)

    def _endpoints(self, asked: Any) -> Any:
        """Where the client is to go: where it is; each queue of an answer says it. Raises StatusError."""
        if asked.endpoints.ByteSize() > _MOST_ENDPOINTS_BYTES:
            raise StatusError(v2.ILLEGAL_ACCESS_POINT, f"endpoints have more than {_MOST_ENDPOINTS_BYTES} bytes")
        return asked.endpoints if asked.endpoints.addresses else self._own

    async def assignment(self, asked: Any, _: str, __: str) -> Any:
        """QueryAssignment: each broker as a whole; each queue of a group in order that is no lite group."""
        topic, group = topic_name(asked.topic), group_name(asked.group)
        queues = (await self._brokers.route(topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, "no readable queue")
        config = await self._brokers.group(group, topic)
        if not config.consume_message_orderly or bound_topic(config):
            names = dict.fromkeys(queue.broker_name for queue in queues)
            queues = tuple(MessageQueue(broker_name=name, queue_id=-1, topic=topic) for name in names)
        endpoints = self._endpoints(asked)
        found = [
            v2.Assignment(
                message_queue=v2.MessageQueue(
                    topic=v2.Resource(name=topic), id=queue.queue_id, permission=v2.READ_WRITE,
                    broker=v2.Broker(name=queue.broker_name, id=0, endpoints=endpoints),
                )
            )
            for queue in queues
        ]  # fmt: skip
        return rpc.QueryAssignmentResponse(status=ok(), assignments=found)

    async def heartbeat(self, asked: Any, client_id: str, _: str) -> Any:
        """Heartbeat."""
        if asked.client_type not in _CLIENT_TYPES:
            raise StatusError(v2.UNRECOGNIZED_CLIENT_TYPE, "the client type is not known")
        if asked.client_type != v2.PRODUCER:
            group_name(asked.group)
        self._sessions.of(client_id)
        return rpc.HeartbeatResponse(status=ok())

    async def end(self, _: Any, client_id: str, __: str) -> Any:
        """NotifyClientTermination."""
        self._sessions.end(client_id)
        return rpc.NotifyClientTerminationResponse(status=ok())

    # --- telemetry ------------------------------------------------------------------------
    async def telemetry(
        self, commands: AsyncIterator[Any], client_id: str, address: str, caller: Caller, when_over: WhenOver
    ) -> AsyncGenerator[Any]:
        """Telemetry: the client's settings are answered, and it is told what brokers ask it.

        Args:
            commands: of the client.
            client_id: of it.
            address: ``host:port`` of it.
            caller: the user of the client.
            when_over: takes what is called when the call has ended. A generator that gRPC leaves while it writes an
                answer runs no further, until the collector finds it.
        """
        session = self._sessions.of(client_id)
        session.caller = caller
        told = session.open_stream()
        when_over(lambda _: self._sessions.end_stream(session, told))
        reading = asyncio.ensure_future(self._read(commands, session, told, address, caller))
        reading.add_done_callback(lambda _: end(told))
        try:
            async with aclosing(commands_of(session, told)) as telling:
                async for command in telling:
                    yield command
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._sessions.end_stream(session, told)

    async def _read(
        self, commands: AsyncIterator[Any], session: Session, told: "asyncio.Queue[Any]", address: str, caller: Caller
    ) -> None:
        async for command in commands:
            if command.HasField("settings"):
                self._sessions.of(session.client_id)
                answer = await self._settings(session, command.settings, caller)
                if answer.HasField("settings") and session.commands is told:
                    self._note(session, command.settings, address)
                await told.put(answer)  # waits if none are read

    async def _settings(self, session: Session, settings: Any, caller: Caller) -> Any:
        try:
            await caller.check(of_settings(settings))
            topics, group_of = names_in(settings)
            group = None
            if group_of is not None and topics:
                group = await self._brokers.group(group_of, next(iter(sorted(topics))))
                check_settings(group, settings)
            found = answered(settings, group, self._collector)
            if group_of is None:
                session.topics = topics
                await self._produce(topics)
        except RmqError as error:
            return rpc.TelemetryCommand(status=status_of(error))
        return settings_command(found)

    def _note(self, session: Session, settings: Any, address: str) -> None:
        """Have brokers be told of a client that its settings were answered."""
        present, client_id = self._sessions.present, session.client_id.rpartition("\n")[2]
        known = present.get(session.number)
        present[session.number] = client_of(settings, client_id, address, session.number, known)

    async def _produce(self, topics: frozenset[str]) -> None:
        """Be asked about transactions of those topics that take some."""
        for topic in sorted(topics):
            try:
                if v2.TRANSACTION in await self._brokers.kinds(topic):
                    await self._brokers.produce([topic])
            except RmqError:  # it has no route yet; a send finds out
                continue

    # --- pull consumers -------------------------------------------------------------------
    async def pull(self, asked: Any, left_s: float | None) -> AsyncGenerator[Any]:
        """PullMessage: a status, messages, and the next offset."""
        group, topic, address = await self._queue(asked)
        poll_s = max(0.0, min(20.0, ms_of(asked.long_polling_timeout) / 1000))
        if left_s is not None:
            poll_s = max(0.0, min(poll_s, left_s - 2))
        fields = PullMessage(
            consumer_group=group, topic=topic, queue_id=asked.message_queue.id, queue_offset=asked.offset,
            max_msg_nums=min(max(1, asked.batch_size), _MOST_PULLED), sys_flag=_PULL_FLAGS, commit_offset=0,
            suspend_timeout_millis=int(poll_s * 1000), sub_version=0,
            subscription=asked.filter_expression.expression or "*",
            expression_type="SQL92" if asked.filter_expression.type == v2.SQL else "TAG",
        )  # fmt: skip
        answer = await self._brokers.ask(
            address, RequestCode.PULL_MESSAGE, fields, timeout_s=poll_s + 10,
            also=(ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED),
        )  # fmt: skip
        found, tags = read_fields(answer, PullResult), tags_of(asked.filter_expression)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            yield rpc.PullMessageResponse(status=v2.Status(code=v2.ILLEGAL_OFFSET, message="the offset is not there"))
        elif answer.code != ResponseCode.SUCCESS:
            yield rpc.PullMessageResponse(status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"))
        else:
            yield rpc.PullMessageResponse(status=ok())
            body, at = bytes(answer.body), 0
            while at < len(body):
                record = decode_record(body, at, verify_crc=False)
                for one in messages_of(record):
                    if one.queue_offset >= asked.offset and (tags is None or one.tags in tags):
                        yield rpc.PullMessageResponse(message=to_wire(one, topic, None))
                at += record.size
        yield rpc.PullMessageResponse(next_offset=found.next_begin_offset)

    async def update_offset(self, asked: Any, _: str, __: str) -> Any:
        """UpdateOffset."""
        group, topic, address = await self._queue(asked)
        fields = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=asked.message_queue.id, commit_offset=asked.offset
        )
        await self._brokers.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return rpc.UpdateOffsetResponse(status=ok())

    async def get_offset(self, asked: Any, _: str, __: str) -> Any:
        """GetOffset."""
        group, topic, address = await self._queue(asked)
        fields = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=asked.message_queue.id)
        answer = await self._brokers.ask(
            address, RequestCode.QUERY_CONSUMER_OFFSET, fields, also=(ResponseCode.QUERY_NOT_FOUND,)
        )
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(v2.OFFSET_NOT_FOUND, "the group has no offset of this queue")
        return rpc.GetOffsetResponse(status=ok(), offset=int(answer.ext_fields["offset"]))

    async def query_offset(self, asked: Any, _: str, __: str) -> Any:
        """QueryOffset: the first, the next, or that of a time."""
        topic = topic_name(asked.message_queue.topic)
        address = await self._brokers.address(topic, asked.message_queue.broker.name)
        queue = asked.message_queue.id
        if asked.query_offset_policy == v2.TIMESTAMP:
            when = SearchOffset(topic=topic, queue_id=queue, timestamp=ms_of(asked.timestamp))
            answer = await self._brokers.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, when)
        elif asked.query_offset_policy not in (v2.BEGINNING, v2.END):
            raise StatusError(v2.BAD_REQUEST, "the policy of the offset is not known")
        else:
            is_end = asked.query_offset_policy == v2.END
            code = RequestCode.GET_MAX_OFFSET if is_end else RequestCode.GET_MIN_OFFSET
            answer = await self._brokers.ask(address, code, Queue(topic=topic, queue_id=queue))
        return rpc.QueryOffsetResponse(status=ok(), offset=int(answer.ext_fields["offset"]))

    async def _queue(self, asked: Any) -> tuple[str, str, str]:
        group, topic = group_name(asked.group), topic_name(asked.message_queue.topic)
        return group, topic, await self._brokers.address(topic, asked.message_queue.broker.name)


def _permission(may_read: bool, may_write: bool) -> int:
    return int(v2.READ_WRITE if may_read and may_write else v2.READ if may_read else v2.WRITE)
