"""One port takes TLS and plain connections, and the proxy knows who calls."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from rmq_core.proxy import port_forwarder
from rmq_core.proxy.access import address_of
from rmq_core.proxy.port_forwarder import FORWARDED_CLIENTS, make_self_signed
from rmq_core.proxy.server import Proxy
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.access.tls import read_tls_file
from rmq_core.remoting.errors import ListenError
from tests.proxy.conftest import Caller, named


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy without a cluster: it knows calls, and no topics."""
    async with Proxy("127.0.0.1:1", "127.0.0.1:0") as proxy:
        yield proxy


async def heartbeat(channel: Any) -> Any:
    """Call the proxy: a client without settings is answered so."""
    method = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/Heartbeat",
        request_serializer=rpc.HeartbeatRequest.SerializeToString,
        response_deserializer=rpc.HeartbeatResponse.FromString,
    )
    return await method(rpc.HeartbeatRequest(), metadata=[("x-mq-client-id", "c")], timeout=30)


async def trusting(address: str) -> grpc.ChannelCredentials:
    """Trust the certificate that a port shows."""
    host, _, port = address.rpartition(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    return grpc.ssl_channel_credentials(pem.encode())


async def test_a_port_takes_tls_and_plain_connections(proxy: Proxy) -> None:
    options = [("grpc.ssl_target_name_override", "localhost")]
    credentials = await trusting(proxy.address)
    async with (
        grpc.aio.insecure_channel(proxy.address) as plain,
        grpc.aio.secure_channel(proxy.address, credentials, options) as tls,
    ):
        answers = await asyncio.gather(*(heartbeat(channel) for channel in (plain, tls, plain, tls)))
    assert len({answer.status.code for answer in answers}) == 1


async def test_the_proxy_knows_the_client_s_own_address(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caller.proxy is not None
    seen: list[str] = []

    def note(context: Any) -> str:
        seen.append(address_of(context))
        return "127.0.0.1"

    monkeypatch.setattr("rmq_core.proxy.server.host_of", note)
    await caller.call("QueryRoute", topic=named("NormalT"), endpoints=v2.Endpoints())
    (address,) = set(seen)
    assert address in FORWARDED_CLIENTS.values()
    assert address not in FORWARDED_CLIENTS
    with socket.socket() as taken, pytest.raises(OSError, match="in use"):  # it is the client's port
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))


async def test_addresses_are_forgotten_with_their_connections(proxy: Proxy) -> None:
    before = len(FORWARDED_CLIENTS)
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        await heartbeat(channel)
        assert len(FORWARDED_CLIENTS) == before + 1
    while len(FORWARDED_CLIENTS) > before:
        await asyncio.sleep(0.01)


async def test_a_connection_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forwarder, "FIRST_BYTE_S", 0.05)
    async with Proxy("127.0.0.1:1", "127.0.0.1:0") as proxy:
        host, _, port = proxy.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        read = await asyncio.gather(reader.read(), return_exceptions=True)
        assert read == [b""] or isinstance(read[0], ConnectionError)
        writer.close()


async def test_a_port_in_use_is_an_error(proxy: Proxy) -> None:
    with pytest.raises(ListenError, match="in use"):
        async with Proxy("127.0.0.1:1", proxy.address):
            pass


async def test_without_cryptography_the_port_is_plain_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(port_forwarder, "find_spec", lambda _: None)
    async with Proxy("127.0.0.1:1", "127.0.0.1:0") as proxy, grpc.aio.insecure_channel(proxy.address) as channel:
        await heartbeat(channel)
    assert "pip install cryptography" in caplog.text


async def test_a_certificate_of_one_s_own_is_for_tls_alone_unless_plain_is_wanted(tmp_path: Path) -> None:
    key, certificate = make_self_signed()
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "cert").write_bytes(certificate)
    (tmp_path / "tls").write_text(f"tls.server.certPath={tmp_path}/cert\ntls.server.keyPath={tmp_path}/key\n")
    file = read_tls_file(str(tmp_path / "tls"))
    for accepts_plain in (None, True):
        async with Proxy("127.0.0.1:1", "127.0.0.1:0", tls=file, accepts_plain=accepts_plain) as proxy:
            assert (await trusting(proxy.address)) is not None
            async with grpc.aio.insecure_channel(proxy.address) as plain:
                if accepts_plain:
                    await heartbeat(plain)
                else:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await heartbeat(plain)


async def test_what_a_server_sends_first_reaches_each_client() -> None:
    """As gRPC does with its settings, before the front knows that it is connected."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"settings")
        writer.close()
        await writer.wait_closed()

    async def first_bytes(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"P")
        try:
            return await asyncio.wait_for(reader.readexactly(8), 30)
        finally:
            writer.close()
            await writer.wait_closed()

    inner = await asyncio.start_server(greet, "127.0.0.1", 0)
    inner_port = inner.sockets[0].getsockname()[1]
    entrance = port_forwarder.PortForwarder(inner_port, inner_port)
    try:
        port = int((await entrance.listen("127.0.0.1:0")).rpartition(":")[2])
        assert set(await asyncio.gather(*(first_bytes(port) for _ in range(100)))) == {b"settings"}
    finally:
        entrance.close()
        inner.close()
        await inner.wait_closed()
