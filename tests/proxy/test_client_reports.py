"""Brokers know the clients that are connected to a proxy, and administrators see them there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rmq_core.client import Admin
from rmq_core.client.errors import BrokerError
from rmq_core.proxy.access import Caller as ProxyCaller
from rmq_core.proxy.client_reports import split_report, version_of
from rmq_core.proxy.routing import ClientActivity
from rmq_core.proxy.sessions import NO_COLLECTOR, Sessions
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.bodies.clients import ProxiedClient
from tests.proxy.conftest import Caller, named


def consumer(expression: str = "a||b", group: str = "seen") -> Any:
    """Settings of a simple consumer."""
    settings = v2.Settings(
        client_type=v2.SIMPLE_CONSUMER,
        user_agent=v2.UA(language=v2.PYTHON, version="5.1.2"),
        subscription=v2.Subscription(
            group=named(group),
            subscriptions=[
                v2.SubscriptionEntry(
                    topic=named("NormalT"), expression=v2.FilterExpression(type=v2.TAG, expression=expression)
                )
            ],
        ),
    )
    return rpc.TelemetryCommand(settings=settings)


def producer() -> Any:
    """Settings of a producer."""
    settings = v2.Settings(
        client_type=v2.PRODUCER,
        user_agent=v2.UA(language=v2.GOLANG, version="5.0.0-rc"),
        publishing=v2.Publishing(topics=[named("NormalT")]),
    )
    return rpc.TelemetryCommand(settings=settings)


class Stream:
    """An open stream of a client, which sends settings when it is told to."""

    def __init__(self, caller: Caller, client_id: str) -> None:
        self._commands: asyncio.Queue[Any] = asyncio.Queue()
        caller.client_id = client_id
        self.call = caller.telemetry(self._read())

    async def _read(self) -> AsyncIterator[Any]:
        while (command := await self._commands.get()) is not None:
            yield command

    async def send(self, command: Any) -> None:
        """Send settings; return when they are answered."""
        await self._commands.put(command)
        assert (await self.call.read()).status.code == v2.OK


async def members(caller: Caller, group: str = "seen") -> Any:
    """The connections of a group; None if there are none."""
    async with Admin(caller.namesrv) as admin:
        try:
            return await admin.consumer_connections(group)
        except BrokerError:
            return None


async def soon(found: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What is found, when it holds."""
    async with asyncio.timeout(15):
        while not holds(value := await found()):
            await asyncio.sleep(0.1)
    return value


async def test_clients_are_seen_while_they_are_there(caller: Caller) -> None:
    streams = {name: Stream(caller, name) for name in ("one", "two")}
    for stream in streams.values():
        await stream.send(consumer())
    told = await soon(lambda: members(caller), lambda found: found is not None and len(found.connection_set) == 2)
    assert {(one.client_id, one.language, one.version) for one in told.connection_set} == {
        ("one", "PYTHON", 437), ("two", "PYTHON", 437),
    }  # fmt: skip
    assert {one.client_addr.partition(":")[0] for one in told.connection_set} == {"127.0.0.1"}
    assert told.subscription_table["NormalT"].sub_string == "a||b"
    assert told.consume_type == "CONSUME_ACTIVELY"

    await streams["one"].send(consumer("c"))
    await soon(lambda: members(caller), lambda found: found.subscription_table["NormalT"].tags_set == ["c"])
    await caller.call("NotifyClientTermination", client_id="one", group=named("seen"))
    await soon(lambda: members(caller), lambda found: [one.client_id for one in found.connection_set] == ["two"])
    streams["two"].call.cancel()  # as the connection of a client that dies
    await soon(lambda: members(caller), lambda found: found is None)


async def test_producers_are_seen_by_topic_and_all_are_gone_with_their_proxy(caller: Caller) -> None:
    stream, other = Stream(caller, "sends"), Stream(caller, "reads")
    await stream.send(producer())
    await other.send(consumer())
    producers, consumers = caller.broker.state.producers.groups, caller.broker.state.consumers.groups

    async def tables() -> tuple[bool, bool]:
        return "NormalT" in producers, "seen" in consumers

    await soon(tables, all)
    (found,) = producers["NormalT"].values()
    assert (found.client_id, found.language, found.version) == ("sends", "GO", 413)
    assert caller.proxy is not None
    await caller.proxy.__aexit__()
    await soon(tables, lambda found: not any(found))


async def test_a_client_whose_call_has_ended_while_an_answer_was_written_is_gone(caller: Caller) -> None:
    assert caller.proxy is not None
    sessions = Sessions()
    routing = ClientActivity(caller.proxy._brokers, sessions, caller.proxy.address, NO_COLLECTOR)

    async def commands() -> AsyncIterator[Any]:
        yield consumer()
        await asyncio.sleep(60)

    over: list[Callable[[Any], None]] = []
    stream = routing.telemetry(commands(), "one", "127.0.0.1:1", ProxyCaller(), over.append)
    assert (await anext(stream)).status.code == v2.OK
    assert list(sessions.present)
    over[0](None)  # gRPC does not go on with the generator then
    assert not sessions.present
    await stream.aclose()


@pytest.mark.parametrize(("text", "ordinal"), [
    ("5.0.8", 429), ("5.3.3", 479), ("5.1.2", 437), ("5.10.1", 479), ("", 479), ("4.9.4", 479),
])  # fmt: skip
def test_versions_are_those_of_the_original(text: str, ordinal: int) -> None:
    assert version_of(text) == ordinal


def test_many_clients_are_told_in_parts() -> None:
    clients = [ProxiedClient(number=number) for number in range(450)]
    told = list(split_report(clients, [7]))
    assert [len(part.clients) for part in told] == [200, 200, 50]
    assert [part.gone for part in told] == [[7], [], []]
    assert [part.clients for part in split_report([], [])] == [[]]
