"""A name server, a broker and a proxy in this process, and calls to it by plain gRPC."""

import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.client import Admin
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.proxy.server import Proxy
from rmq_core.proxy.wire import rpc, v2
from tests.broker.conftest import Clock, small_store

TOPICS = {
    "NormalT": "NORMAL",
    "FifoT": "FIFO",
    "DelayT": "DELAY",
    "TranT": "TRANSACTION",
    "MixedT": "MIXED",
    "PriorityT": "PRIORITY",
}
STREAMS = ("ReceiveMessage", "PullMessage")


class Caller:
    """A client of the gRPC service.

    Attributes:
        broker: behind the proxy.
        clock: the broker's.
        proxy: that it calls; None where another is there.
        namesrv: address of the name server; empty likewise.
    """

    def __init__(self, channel: Any, broker: Broker, clock: Clock) -> None:
        self._channel, self.broker, self.clock = channel, broker, clock
        self.proxy: Proxy | None = None
        self.namesrv = ""
        self.client_id = f"test@{uuid.uuid4()}"
        self.signs: Callable[[], list[tuple[str, str]]] = list  # gives what a call has besides
        self._numbers = itertools.count()

    async def call(self, name: str, *, timeout: float = 30, client_id: str | None = None, **fields: Any) -> Any:
        """Call a method; of a stream all answers come as a list."""
        request, answer = getattr(rpc, f"{name}Request"), getattr(rpc, f"{name}Response")
        path = f"/apache.rocketmq.v2.MessagingService/{name}"
        metadata = [("x-mq-client-id", self.client_id if client_id is None else client_id), *self.signs()]
        kinds = {"request_serializer": request.SerializeToString, "response_deserializer": answer.FromString}
        if name in STREAMS:
            method = self._channel.unary_stream(path, **kinds)
            return [one async for one in method(request(**fields), metadata=metadata, timeout=timeout)]
        method = self._channel.unary_unary(path, **kinds)
        return await method(request(**fields), metadata=metadata, timeout=timeout)

    def telemetry(self, commands: AsyncIterator[Any]) -> Any:
        """The stream of commands."""
        method = self._channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        return method(commands, metadata=[("x-mq-client-id", self.client_id), *self.signs()])

    def message(self, topic: str = "NormalT", body: bytes = b"hello", **system: Any) -> Any:
        """A message; its times are set by name in ms."""
        told = {"message_id": f"01{next(self._numbers):030X}", "tag": "a", "keys": ["k1", "k2"], "born_host": "here"}
        delivery_ms = system.pop("delivery_ms", None)
        made = v2.Message(
            topic=named(topic),
            user_properties={"colour": "blue"},
            body=body,
            system_properties=v2.SystemProperties(**(told | system)),
        )
        made.system_properties.born_timestamp.GetCurrentTime()
        if delivery_ms is not None:
            made.system_properties.delivery_timestamp.FromMilliseconds(delivery_ms)
        return made

    async def send(self, *messages: Any) -> Any:
        """Send messages in one request."""
        return await self.call("SendMessage", messages=messages)

    async def receive(self, topic: str = "NormalT", group: str = "g", **more: Any) -> list[Any]:
        """Receive messages; no code but that of nothing is expected."""
        found = await self.ask_for(topic, group, **more)
        assert found[0].status.code in (v2.OK, v2.MESSAGE_NOT_FOUND), found[0].status
        return [one.message for one in found if one.HasField("message")]

    async def ask_for(self, topic: str = "NormalT", group: str = "g", **more: Any) -> list[Any]:
        """Receive messages; all that is answered."""
        invisible_s, poll_s = more.pop("invisible_s", 30), more.pop("poll_s", 5)
        fields: dict[str, Any] = {
            "group": named(group), "message_queue": v2.MessageQueue(topic=named(topic), id=-1), "batch_size": 32,
            "filter_expression": v2.FilterExpression(type=v2.TAG, expression="*"),
            "invisible_duration": seconds(invisible_s), "long_polling_timeout": seconds(poll_s),
        }  # fmt: skip
        return list(await self.call("ReceiveMessage", **(fields | more)))

    async def ack(self, message: Any, group: str = "g", handle: str | None = None) -> Any:
        """Acknowledge a message."""
        system = message.system_properties
        entry = rpc.AckMessageEntry(message_id=system.message_id, receipt_handle=handle or system.receipt_handle)
        return await self.call("AckMessage", group=named(group), topic=message.topic, entries=[entry])


def named(name: str) -> Any:
    """A resource."""
    return v2.Resource(name=name)


def seconds(value: float) -> Any:
    """A duration."""
    from google.protobuf.duration_pb2 import Duration

    found = Duration()
    found.FromMilliseconds(int(value * 1000))
    return found


@asynccontextmanager
async def proxied(store: Path) -> AsyncIterator[Caller]:
    """A client of a proxy, whose broker has a topic of each kind."""
    clock = Clock()
    async with NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        config = BrokerConfig(
            listen_port=0,
            namesrv_addr=names.address,
            recall_message_enable=True,
            transaction_check_interval_ms=200,
            transaction_timeout_ms=500,
            enable_mixed_message_type=True,
        )
        async with Broker(config, small_store(store), clock) as broker:
            async with Admin(names.address) as admin:
                for topic, kind in TOPICS.items():
                    await admin.create_topic(topic, queues=2, attributes=f"+message.type={kind}")
            async with (
                Proxy(names.address, "127.0.0.1:0") as proxy,
                grpc.aio.insecure_channel(proxy.address) as channel,
            ):
                found = Caller(channel, broker, clock)
                found.proxy, found.namesrv = proxy, names.address
                yield found


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    """The same, on a store of its own."""
    async with proxied(tmp_path / "store") as found:
        yield found
