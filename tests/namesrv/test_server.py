import asyncio
import logging
from dataclasses import replace

import pytest

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.bodies.routes import encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer
from tests.namesrv.conftest import Asker, Clock
from tests.namesrv.registrations import broker, identity, topics
from tests.namesrv.test_processor import content, register


async def wait_until_unregistered(asker: Asker) -> None:
    async with asyncio.timeout(60):
        while (await asker.ask(105, {"topic": "T"})).code == 0:
            await asyncio.sleep(0.01)


async def test_a_broker_goes_when_its_connection_ends(asker: Asker) -> None:
    await register(asker, broker("other"), topics("U", "V"))
    async with RemotingClient() as of_broker:
        registration = request(103, write_fields(broker()), encode_registration(topics("T", "U")))
        assert (await of_broker.invoke(asker.server.address, registration)).code == 0
        assert (await asker.ask(105, {"topic": "T"})).code == 0
    await wait_until_unregistered(asker)
    assert content(await asker.ask(206)) == {"topicList": ["U", "V"]}


async def test_a_broker_that_connected_anew_stays_when_its_old_connection_ends(asker: Asker) -> None:
    registration = request(103, write_fields(broker()), encode_registration(topics("T", "U")))
    async with RemotingClient() as old:
        await old.invoke(asker.server.address, registration)
        await register(asker, broker(), topics("T", "U"))
    await asyncio.sleep(0.1)
    assert (await asker.ask(105, {"topic": "T"})).code == 0


async def test_a_silent_broker_expires_and_a_heartbeat_keeps_it(asker: Asker, clock: Clock) -> None:
    await register(asker, broker("b"), topics("U", "V"))
    async with RemotingClient() as of_broker:
        await of_broker.invoke(
            asker.server.address, request(103, write_fields(broker()), encode_registration(topics("T", "U")))
        )
        clock.ms += 119_000
        heartbeat = {"clusterName": "C", "brokerName": "b", "brokerAddr": "b0:10911"}
        assert (await asker.ask(904, heartbeat)).code == 0
        await asyncio.sleep(0.1)
        assert (await asker.ask(105, {"topic": "T"})).code == 0
        clock.ms += 2_000
        await wait_until_unregistered(asker)
    assert content(await asker.ask(206)) == {"topicList": ["U", "V"]}


async def test_brokers_are_told_over_the_wire_who_leads_them(asker: Asker) -> None:
    notices: list[RemotingCommand] = []

    def note(command: RemotingCommand, _connection: Connection) -> None:
        notices.append(command)

    master = broker("a", 0, enable_acting_master=True)
    await asker.ask(318, body=b"notifyMinBrokerIdChanged=true")
    async with RemotingServer({905: note}) as of_slave:
        host, port = await of_slave.listen("127.0.0.1", 0)
        await register(asker, broker("a", 1, address=f"{host}:{port}", enable_acting_master=True), topics("T", "U"))
        await register(asker, master, topics("T", "U"))
        await asker.ask(104, write_fields(identity(master)))
        async with asyncio.timeout(60):
            while len(notices) < 2:
                await asyncio.sleep(0.01)
    assert [command.ext_fields for command in notices] == [
        {"minBrokerId": "0", "minBrokerAddr": "a0:10911", "haBrokerAddr": "a0:10912"},
        {"minBrokerId": "1", "minBrokerAddr": f"{host}:{port}", "offlineBrokerAddr": "a0:10911"},
    ]
    assert all(command.is_oneway for command in notices)


async def test_a_broker_that_cannot_be_told_does_no_harm(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    await asker.ask(318, body=b"notifyMinBrokerIdChanged=true")
    for broker_id in (1, 0):
        await register(asker, broker("a", broker_id, address=f"127.0.0.1:{broker_id + 1}"), topics("T", "U"))
    async with asyncio.timeout(60):
        while "of the minimum broker id" not in caplog.text:
            await asyncio.sleep(0.01)
    assert (await asker.ask(105, {"topic": "T"})).code == 0


async def test_it_says_once_where_it_listens(config: NamesrvConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with NameServer(config) as server:
        assert [record.message for record in caplog.records] == [f"name server listens on {server.address}"]


async def test_a_port_in_use_is_an_error_and_leaves_nothing_open(asker: Asker, config: NamesrvConfig) -> None:
    port = int(asker.server.address.rpartition(":")[2])
    with pytest.raises(ListenError, match="in use"):
        await NameServer(replace(config, listen_port=port)).start()


async def test_two_name_servers_know_the_same_broker_and_the_loss_of_one_harms_nobody(
    asker: Asker, config: NamesrvConfig
) -> None:
    async with RemotingClient() as of_broker:
        registration = request(103, write_fields(broker()), encode_registration(topics("T", "U")))
        async with NameServer(config) as second:
            for address in (asker.server.address, second.address):
                assert (await of_broker.invoke(address, registration)).code == 0
                assert (await asker.client.invoke(address, request(105, {"topic": "T"}))).code == 0
        assert (await asker.ask(105, {"topic": "T"})).code == 0


async def test_garbage_from_one_peer_does_not_disturb_others(asker: Asker) -> None:
    await register(asker, broker(), topics("T", "U"))
    host, port = asker.server.address.split(":")
    for garbage in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", (20).to_bytes(4, "big") + bytes(20), b"\x00\x00"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        if garbage != b"\x00\x00":
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert (await asker.ask(105, {"topic": "T"})).code == 0
