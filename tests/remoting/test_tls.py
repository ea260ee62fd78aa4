"""TLS of clients, at a server behind a TLS terminator, and at ones that speak none."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.remoting.access.tls import Tls
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import ConnectError, TransportError
from rmq_core.remoting.header import request
from rmq_formats.errors import OptionError
from tests.remoting.conftest import ECHO, Serve
from tests.support.certificates import KEY_PASSWORD, Authority, Signed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_cert(authority: Authority) -> Signed:
    """The certificate of 127.0.0.1, which all brokers of a cluster share by a name."""
    return authority.sign("server", "127.0.0.1", "brokers.example")


@asynccontextmanager
async def terminated(address: str, cert: Signed, clients: Path | None = None) -> AsyncIterator[str]:
    """The address of a TLS terminator before a plain server; ``clients`` signs what clients have to show."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert.cert, cert.key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    host, port = address.split(":")
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(host, int(port))
        tasks.add(asyncio.ensure_future(pump(reader, behind[1])))
        tasks.add(asyncio.ensure_future(pump(behind[0], writer)))

    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echoed(address: str, tls: Tls | None, body: bytes = b"") -> bytes:
    """The body of the answer to a request."""
    async with RemotingClient(tls=tls) as client:
        return bytes((await client.invoke(address, request(ECHO, {"a": "ä"}, body), 30)).body)


async def failure(address: str, tls: Tls) -> str:
    """Why there is no connection."""
    with pytest.raises(ConnectError) as caught:
        await echoed(address, tls)
    assert str(caught.value).startswith(f"{address}: ")
    return caught.value.reason


async def test_requests_and_answers_pass(serve: Serve, authority: Authority, server_cert: Signed) -> None:
    tls = Tls(trust_cert_path=str(authority.cert))
    async with terminated((await serve())[1], server_cert) as address, RemotingClient(tls=tls) as client:
        for size in (0, 1, 100_000, 4 << 20):
            body = bytes(range(256)) * (size // 256 + 1)
            assert (await client.invoke(address, request(ECHO, {"a": "ä"}, body[:size]), 30)).body == body[:size]
        many = [client.invoke(address, request(ECHO, {}, b"%d" % number), 30) for number in range(200)]
        assert [int(bytes(one.body)) for one in await asyncio.gather(*many)] == list(range(200))


async def test_a_server_has_to_prove_who_it_is(serve: Serve, authority: Authority, server_cert: Signed) -> None:
    trusting = Tls(trust_cert_path=str(authority.cert))
    async with terminated((await serve())[1], server_cert) as address:
        said = await failure(address, Tls())
        assert said == "the server's certificate is not trusted: unable to get local issuer certificate"
        assert await failure(address, replace(trusting, server_name="other.example")) == (
            "the server's certificate is not trusted: Hostname mismatch, certificate is not valid for 'other.example'."
        )
        assert await echoed(address, replace(trusting, server_name="brokers.example"), b"x") == b"x"
        assert await echoed(address, Tls(auth_server=False), b"x") == b"x"
        assert await echoed(address, Tls(auth_server=False, server_name="other.example"), b"x") == b"x"


@pytest.mark.parametrize(
    ("from_day", "why"), [(-3, "certificate has expired"), (1, "certificate is not yet valid")], ids=["over", "early"]
)
async def test_a_server_s_certificate_is_good_for_its_time(
    serve: Serve, authority: Authority, from_day: int, why: str
) -> None:
    cert = authority.sign(f"server{from_day}", "127.0.0.1", from_day=from_day)
    async with terminated((await serve())[1], cert) as address:
        said = await failure(address, Tls(trust_cert_path=str(authority.cert)))
        assert said == f"the server's certificate is not trusted: {why}"


async def test_a_server_of_an_authority_that_nobody_has_named_is_not_trusted(serve: Serve, tmp_path: Path) -> None:
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    cert = own.sign("server", "127.0.0.1")
    async with terminated((await serve())[1], cert) as address:
        assert (await failure(address, Tls(trust_cert_path=str(other.cert)))).startswith(
            "the server's certificate is not trusted"
        )
        assert await echoed(address, Tls(trust_cert_path=str(own.cert)), b"x") == b"x"


async def test_a_client_shows_its_certificate(serve: Serve, authority: Authority, server_cert: Signed) -> None:
    own = authority.sign("client", has_password=True)
    tls = Tls(trust_cert_path=str(authority.cert), cert_path=str(own.cert), key_path=str(own.key))
    async with terminated((await serve())[1], server_cert, authority.cert) as address:
        assert await echoed(address, replace(tls, key_password=KEY_PASSWORD), b"x") == b"x"
        with pytest.raises(OptionError, match=rf"tls.client.certPath {own.cert}: no certificate, or key of it"):
            await echoed(address, tls)
        with pytest.raises(TransportError):  # by TLS 1.3 it hears of that after the handshake
            await echoed(address, Tls(trust_cert_path=str(authority.cert)))


async def test_a_server_without_tls_is_told_of(serve: Serve, authority: Authority) -> None:
    address = (await serve())[1]
    assert "TLS" in await failure(address, Tls(trust_cert_path=str(authority.cert)))
    unused = address.rpartition(":")[0] + ":1"
    assert (await failure(unused, Tls())).startswith("cannot connect: ")


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    missing, garbage = str(tmp_path / "none.pem"), tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    with pytest.raises(OptionError, match=f"^tls.client.trustCertPath {missing}: No such file or directory$"):
        Tls(trust_cert_path=missing).context()
    with pytest.raises(OptionError, match=f"^tls.client.trustCertPath {garbage}: no certificate"):
        Tls(trust_cert_path=str(garbage)).context()
    with pytest.raises(OptionError, match=f"^tls.client.certPath {missing}: No such file or directory$"):
        Tls(cert_path=missing).context()
    with pytest.raises(OptionError, match=r"^tls.client.keyPath a: give tls.client.certPath, too$"):
        Tls(key_path="a").context()
    with pytest.raises(OptionError, match=r"^tls.client.serverName .a: not a host's name$"):
        Tls(server_name=".a").context()


def test_a_key_s_password_is_not_shown() -> None:
    assert "secret" not in repr(Tls(key_password="secret"))
