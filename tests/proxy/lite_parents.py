"""Topics with lite topics, and clients of groups that are bound to them, at a proxy in front of any brokers."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio

from rmq_core.client import Admin
from rmq_core.proxy.server import Proxy
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from tests.proxy.conftest import Caller, named, seconds

PATIENCE_S = 90
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Parent:
    """A topic with lite topics, and a client of a group that is bound to it.

    Attributes:
        caller: makes calls to the proxy.
        topic: the parent.
        group: bound to it.
        client_id: of the client.
        asks_again: a receive that is not answered before its deadline has no messages, as for an official client.
    """

    caller: Caller
    topic: str
    group: str
    client_id: str
    asks_again: bool = False

    def other(self) -> "Parent":
        """Another client of the group."""
        return replace(self, client_id=f"other@{next(_NUMBERS)}")

    async def sync(self, action: int, *names: str, **more: Any) -> Any:
        """Change what the client subscribes to; the status."""
        fields = {"topic": named(self.topic), "group": named(self.group), "action": action, "lite_topic_set": names}
        return (await self.caller.call("SyncLiteSubscription", client_id=self.client_id, **(fields | more))).status

    async def subscribe(self, *names: str, **option: Any) -> None:
        """Add children, from an offset."""
        more = {"offset_option": v2.OffsetOption(**option)} if option else {}
        status = await self.sync(v2.PARTIAL_ADD, *names, **more)
        assert status.code == v2.OK, status

    async def send(self, child: str, *bodies: bytes) -> None:
        """Send messages to a child, in order."""
        for body in bodies:
            answer = await self.caller.send(self.caller.message(self.topic, body, lite_topic=child))
            assert answer.status.code == v2.OK, answer.status

    async def receive(self, **more: Any) -> list[Any]:
        """Receive messages."""
        return await self.caller.receive(self.topic, self.group, **({"client_id": self.client_id} | more))

    async def until(self, count: int, **more: Any) -> list[Any]:
        """Receive so many messages; Java's broker may miss one, and looks again after 10 s."""
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                try:
                    found += await self.receive(poll_s=20, **more)
                except grpc.aio.AioRpcError as error:  # Java's broker did not answer one parked pop in 30 s
                    if not (self.asks_again and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                        raise
        return found

    async def ack(self, *messages: Any, **more: Any) -> None:
        """Acknowledge messages."""
        for one in messages:
            system = one.system_properties
            fields = {"message_id": system.message_id, "receipt_handle": system.receipt_handle} | more
            answer = await self.caller.call(
                "AckMessage",
                group=named(self.group),
                topic=named(self.topic),
                client_id=self.client_id,
                entries=[rpc.AckMessageEntry(**fields)],
            )
            assert answer.status.code == v2.OK, answer.status

    async def change(self, message: Any, invisible_s: float, **more: Any) -> Any:
        """Change an invisible time."""
        return await self.caller.call(
            "ChangeInvisibleDuration",
            group=named(self.group),
            topic=named(self.topic),
            client_id=self.client_id,
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=seconds(invisible_s),
            **more,
        )

    def settings(self, client_type: int = v2.LITE_PUSH_CONSUMER) -> Any:
        """Settings of the client."""
        entry = v2.SubscriptionEntry(topic=named(self.topic), expression=v2.FilterExpression(expression="*"))
        subscription = v2.Subscription(group=named(self.group), subscriptions=[entry])
        return v2.Settings(client_type=client_type, subscription=subscription)

    @asynccontextmanager
    async def stream(self, settings: Any = None) -> AsyncIterator[Any]:
        """An open stream of the client, which has sent its settings."""
        closing = asyncio.Event()

        async def commands() -> AsyncIterator[Any]:
            yield rpc.TelemetryCommand(settings=settings or self.settings())
            await closing.wait()

        self.caller.client_id = self.client_id
        stream = self.caller.telemetry(commands())
        try:
            yield stream
        finally:
            closing.set()
            stream.cancel()


Make = Callable[..., Awaitable[Parent]]
"""Makes a parent, with settings of its group."""


@asynccontextmanager
async def parents_at(
    namesrv: str, broker: Any = None, clock: Any = None, *, asks_again: bool = False
) -> AsyncIterator[Make]:
    """Make parents at a proxy in this process, in front of the brokers of a name server."""
    async with (
        Admin(namesrv) as admin,
        Proxy(namesrv, "127.0.0.1:0") as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        caller = Caller(channel, broker, clock)
        caller.proxy, caller.namesrv = proxy, namesrv

        async def make(**more: Any) -> Parent:
            number = next(_NUMBERS)
            topic, group = f"Parent{number}", f"lite_g{number}"
            attributes = {"+lite.bind.topic": topic} | more.pop("attributes", {})
            await admin.create_topic(topic, queues=2, attributes="+message.type=LITE")
            await admin.create_group(SubscriptionGroupConfig(group_name=group, attributes=attributes, **more))
            return Parent(caller, topic, group, f"client@{number}", asks_again)

        yield make


def bodies(messages: list[Any]) -> list[tuple[str, bytes]]:
    """Children and bodies."""
    return [(one.system_properties.lite_topic, one.body) for one in messages]


def attempts(messages: list[Any]) -> list[tuple[bytes, int]]:
    """Bodies, and which delivery of them it is."""
    return [(one.body, one.system_properties.delivery_attempt) for one in messages]


def of(messages: list[Any], child: str) -> list[bytes]:
    """Bodies of a child's messages."""
    return [body for name, body in bodies(messages) if name == child]


async def dead_letters(parent: Parent) -> list[bytes]:
    """Bodies of a group's dead letters."""
    route = await parent.caller.call("QueryRoute", topic=named(parent.topic))
    topic, broker = named(f"%DLQ%{parent.group}"), route.message_queues[0].broker
    queue = v2.MessageQueue(topic=topic, id=0, broker=broker)
    pulled = await parent.caller.call("PullMessage", group=named("p"), message_queue=queue, offset=0, batch_size=32)
    return [one.message.body for one in pulled if one.HasField("message")]
