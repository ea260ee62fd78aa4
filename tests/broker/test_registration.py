"""The broker and its name servers."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.cluster import registration
from rmq_core.broker.config import BrokerConfig
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import RegisterBrokerBody, TopicRouteData, encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType, StoreConfig
from tests.broker.conftest import Asker, eventually, small_store


@pytest.fixture
async def namesrvs(tmp_path: Path) -> AsyncIterator[list[str]]:
    """Addresses of two name servers."""

    def config(number: int) -> NamesrvConfig:
        return NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / f"{number}.json"))

    async with NameServer(config(0)) as first, NameServer(config(1)) as second:
        yield [first.address, second.address]


async def route(address: str, topic: str) -> TopicRouteData | None:
    async with RemotingClient() as client:
        answer = await client.invoke(address, request(105, {"topic": topic}))
    return decode_body(answer.body, TopicRouteData) if answer.code == 0 else None


async def test_all_name_servers_know_the_broker_and_its_topics(namesrvs: list[str], store_config: StoreConfig) -> None:
    config = BrokerConfig(listen_port=0, namesrv_addr=";".join(namesrvs))
    async with Broker(config, store_config) as broker, RemotingClient() as client:
        asker = Asker(broker, client, {})
        assert (await asker.send("T")).code == 0
        for address in namesrvs:  # at once: who has made a topic asks for its route next
            found = await route(address, "T")
            assert found is not None
            assert found.broker_datas[0].broker_addrs == {0: broker.address}
            assert [(queue.broker_name, queue.read_queue_nums) for queue in found.queue_datas] == [("broker-a", 4)]
        await asker.ask(25, {}, b"brokerPermission=4\n")

        async def is_read_only() -> bool:
            found = await route(namesrvs[0], "T")
            return found is not None and found.queue_datas[0].perm == 4

        await eventually(is_read_only)
    for address in namesrvs:
        assert await route(address, "T") is None


@asynccontextmanager
async def slow_way(address: str, delay_s: float) -> AsyncIterator[str]:
    """An address behind which is another, whose requests take their time."""
    host, _, port = address.rpartition(":")

    async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter, wait_s: float) -> None:
        while data := await source.read(1 << 16):
            await asyncio.sleep(wait_s)
            target.write(data)
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(relay(reader, there, delay_s), relay(back, writer, 0))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_topic_is_known_where_its_first_message_is_answered(
    namesrvs: list[str], tmp_path: Path, flush: FlushDiskType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_ANSWER_TIMEOUT_S", 60)  # the machine may be busy
    async with (
        slow_way(namesrvs[0], 0.1) as slow,
        Broker(BrokerConfig(listen_port=0, namesrv_addr=slow), small_store(tmp_path / "s", flush)) as broker,
        RemotingClient() as client,
    ):
        for number in range(3):
            answer = await Asker(broker, client, {}).send(f"New{number}")
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
            assert await route(namesrvs[0], f"New{number}") is not None


async def test_ordered_topics_are_those_that_the_name_server_says(
    namesrvs: list[str], store_config: StoreConfig
) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    async with RemotingClient() as client:
        assert (await client.invoke(namesrvs[0], request(100, fields))).code == 0
        async with Broker(BrokerConfig(listen_port=0, namesrv_addr=namesrvs[0]), store_config) as broker:
            asker = Asker(broker, client, {})
            await asker.send("T")

            async def is_ordered() -> bool:
                return broker.state.topics.table["T"].order

            await eventually(is_ordered)


async def test_a_name_server_that_is_not_there_is_told_once_and_holds_nobody_up(
    store_config: StoreConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = BrokerConfig(listen_port=0, namesrv_addr=address, register_broker_timeout_ms=200)
        with caplog.at_level(logging.WARNING, "rmq.broker"):
            async with (
                Broker(replace(config, register_name_server_period_ms=1000), store_config) as broker,
                RemotingClient() as client,
            ):
                answer = await asyncio.wait_for(Asker(broker, client, {}).send("T"), 30)
                assert answer.code == 0
    assert len([one for one in caplog.records if "cannot register" in one.message]) == 1


async def test_a_change_registers_what_it_is_and_a_new_connection_all(
    namesrvs: list[str], store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[set[str]] = []

    def encode(body: RegisterBrokerBody, compressed: bool) -> bytes:
        registered.append(set(body.topic_config_serialize_wrapper.topic_config_table))
        return encode_registration(body, compressed)

    monkeypatch.setattr(registration, "encode_registration", encode)
    monkeypatch.setattr(registration, "_ANSWER_TIMEOUT_S", 60)  # the machine may be busy
    config = BrokerConfig(listen_port=0, namesrv_addr=namesrvs[0])
    async with Broker(config, store_config) as broker, RemotingClient() as client:
        asker = Asker(broker, client, {})
        own = set(broker.state.topics.table)
        await asker.send("A")
        await asker.send("B")
        assert registered == [own, {"A"}, {"B"}]
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "A"})
        await asker.send("C")  # registered at once with the deletion, or after it
        assert registered[3] >= own | {"B"}
        broker.registration._client.disconnect(namesrvs[0])

        async def is_forgotten() -> bool:
            return await route(namesrvs[0], "B") is None

        await eventually(is_forgotten)
        del registered[:]
        await asker.send("D")
        assert registered == [own | {"B", "C", "D"}]
        assert await route(namesrvs[0], "B") is not None
        await asker.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"enableSingleTopicRegister=true\n")
        await asker.send("E")
        assert registered[1] == own | {"B", "C", "D", "E"}


async def test_a_broker_registers_all_its_topics_again_after_each_period(
    namesrvs: list[str], store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[set[str]] = []

    def encode(body: RegisterBrokerBody, compressed: bool) -> bytes:
        registered.append(set(body.topic_config_serialize_wrapper.topic_config_table))
        return encode_registration(body, compressed)

    monkeypatch.setattr(registration, "encode_registration", encode)
    config = BrokerConfig(listen_port=0, namesrv_addr=namesrvs[0])
    object.__setattr__(config, "register_name_server_period_ms", 20)  # less than settings may say

    async def is_repeated() -> bool:
        return len(registered) >= 4

    async with Broker(config, store_config) as broker:
        await eventually(is_repeated)
        assert all(topics == set(broker.state.topics.table) for topics in registered)


async def test_an_odd_answer_of_a_name_server_does_not_end_the_registrations(
    namesrvs: list[str], store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(listen_port=0, namesrv_addr=namesrvs[0])
    object.__setattr__(config, "register_name_server_period_ms", 20)  # less than settings may say
    invoke, count = RemotingClient.invoke, 0

    async def invoked(client: RemotingClient, address: str, command: RemotingCommand, *more: float) -> RemotingCommand:
        nonlocal count
        answer = await invoke(client, address, command, *more)
        count += command.code == RequestCode.REGISTER_BROKER
        if count == 2:
            return RemotingCommand(0, flag=1, fields=b"[]")
        if count == 3:
            raise ZeroDivisionError
        return answer

    async def is_repeated() -> bool:
        return count >= 5

    async with Broker(config, store_config):
        monkeypatch.setattr(RemotingClient, "invoke", invoked)
        await eventually(is_repeated)
    assert "cannot register" in caplog.text
    assert "a registration failed" in caplog.text
