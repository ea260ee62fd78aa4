"""TLS of servers: modes on one port, clients' certificates, certificates that change, and strangers at the door."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.remoting import tls_detector
from rmq_core.remoting.access.tls import ServerTls, Tls, TlsMode, TlsSettings, read_tls_file
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import ConnectError, TransportError
from rmq_core.remoting.frames import encode_frame
from rmq_core.remoting.header import request
from rmq_core.remoting.server import ServerLimits
from rmq_formats.errors import OptionError
from tests.remoting.conftest import ECHO, Serve
from tests.support.certificates import KEY_PASSWORD, Authority, Signed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cert(authority: Authority) -> Signed:
    """The certificate of 127.0.0.1."""
    return authority.sign("server", "127.0.0.1", has_password=True)


Make = Callable[..., ServerTls]


@pytest.fixture
def tls_of(tmp_path: Path, cert: Signed) -> Make:
    """Makes what a server speaks TLS with, out of a file of settings."""

    def make(mode: TlsMode = TlsMode.PERMISSIVE, **more: object) -> ServerTls:
        file = tmp_path / "tls.properties"
        values = {"certPath": cert.cert, "keyPath": cert.key, "keyPassword": KEY_PASSWORD, **more}
        file.write_text("".join(f"tls.server.{key.replace('__', '.')}={value}\n" for key, value in values.items()))
        found = TlsSettings(mode, str(file), False).server()
        assert found is not None
        return found

    return make


@pytest.fixture
def trusting(authority: Authority) -> Tls:
    """A client's settings that trust the authority."""
    return Tls(trust_cert_path=str(authority.cert))


async def echoed(address: str, tls: Tls | None, body: bytes = b"x") -> bytes:
    async with RemotingClient(tls=tls) as client:
        return bytes((await client.invoke(address, request(ECHO, {"a": "ä"}, body), 30)).body)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_requests_and_answers_pass(mode: TlsMode, serve: Serve, tls_of: Make, trusting: Tls) -> None:
    server, address = await serve(tls=tls_of(mode))
    async with RemotingClient(tls=trusting) as client:
        for size in (0, 1, 100_000, 4 << 20):
            body = bytes(range(256)) * (size // 256 + 1)
            assert (await client.invoke(address, request(ECHO, {"a": "ä"}, body[:size]), 30)).body == body[:size]
        many = [client.invoke(address, request(ECHO, {}, b"%d" % number), 30) for number in range(200)]
        assert [int(bytes(one.body)) for one in await asyncio.gather(*many)] == list(range(200))
        (connection,) = server.connections
        assert connection.remote_address.startswith("127.0.0.1:")
    assert not server.pending_handshakes


async def test_one_port_takes_both_or_one_kind(serve: Serve, tls_of: Make, trusting: Tls) -> None:
    permissive, enforcing = (await serve(tls=tls_of()))[1], (await serve(tls=tls_of(TlsMode.ENFORCING)))[1]
    plain = (await serve())[1]
    assert await echoed(permissive, None) == await echoed(permissive, trusting) == b"x"
    assert await echoed(enforcing, trusting) == b"x"
    with pytest.raises(TransportError):
        await echoed(enforcing, None)
    with pytest.raises(ConnectError, match="TLS"):
        await echoed(plain, trusting)


async def test_a_hello_in_pieces_and_requests_in_its_wake(serve: Serve, tls_of: Make, authority: Authority) -> None:
    """The first bytes come one by one, and the first requests together with the end of the handshake."""
    address = (await serve(tls=tls_of()))[1]
    host, port = address.split(":")
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context(cafile=str(authority.cert)).wrap_bio(into, out, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection(host, int(port))
    sent = 0
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            hello = out.read()
            for at in range(len(hello)):
                writer.write(hello[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            into.write(await reader.read(1 << 16))
            sent += 1
    command = request(ECHO, {}, b"early")
    command.opaque = 7
    tls.write(encode_frame(command))
    writer.write(out.read())
    answer = b""
    while b"early" not in answer:
        data = await reader.read(1 << 16)
        assert data
        into.write(data)
        while True:
            try:
                answer += tls.read(1 << 16)
            except ssl.SSLWantReadError:
                break
    writer.close()
    assert sent


async def test_a_client_shows_its_certificate(serve: Serve, tls_of: Make, authority: Authority, trusting: Tls) -> None:
    own = authority.sign("client")
    stranger = Authority(authority.cert.parent, "stranger").sign("strange-client")
    known = replace(trusting, cert_path=str(own.cert), key_path=str(own.key))
    unknown = replace(trusting, cert_path=str(stranger.cert), key_path=str(stranger.key))
    required = (await serve(tls=tls_of(need__client__auth="require", trustCertPath=authority.cert)))[1]
    optional = (await serve(tls=tls_of(need__client__auth="optional", trustCertPath=authority.cert)))[1]
    assert await echoed(required, known) == await echoed(optional, known) == await echoed(optional, trusting) == b"x"
    over, early = (authority.sign(f"client{day}", from_day=day) for day in (-3, 1))
    outdated = [replace(trusting, cert_path=str(one.cert), key_path=str(one.key)) for one in (over, early)]
    refused = [(address, tls) for address in (required, optional) for tls in (unknown, *outdated)]
    for address, tls in ((required, trusting), *refused):
        with pytest.raises(TransportError):  # by TLS 1.3 it hears of that after the handshake
            await echoed(address, tls)


async def test_certificates_are_loaded_anew(
    serve: Serve, tls_of: Make, authority: Authority, trusting: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first, second = authority.sign("first", "127.0.0.1"), authority.sign("second", "127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    address = (await serve(tls=tls_of(certPath=cert, keyPath=key, keyPassword="")))[1]
    async with RemotingClient(tls=trusting) as old:
        await old.invoke(address, request(ECHO, {}, b"x"), 30)
        assert await in_thread(subject, address, authority) == "first"
        cert.write_text("no certificate")
        assert await in_thread(subject, address, authority) == "first"
        assert "the certificates of TLS stay as they were" in caplog.text
        shutil.copy(second.cert, cert)
        assert await in_thread(subject, address, authority) == "first"  # its key is not there yet
        shutil.copy(second.key, key)
        assert await in_thread(subject, address, authority) == "second"
        assert (await old.invoke(address, request(ECHO, {}, b"y"), 30)).body == b"y"  # goes on as it was


async def in_thread(function: Callable[..., str], *arguments: object) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def subject(address: str, authority: Authority) -> str:
    """The name in the certificate that a server shows."""
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=str(authority.cert))
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return dict(part[0] for part in secured.getpeercert()["subject"])["commonName"]


@pytest.mark.parametrize(
    "sent",
    [b"\x16", b"\x16\x03\x01\x02\x00\x01\x00", b"\x16" * 4096, b"\x16\x03\x01\xff\xff" + bytes(70_000), b""],
    ids=["one byte", "half a hello", "noise", "a record too long", "nothing"],
)
async def test_strangers_at_the_door_hold_nobody_up(
    sent: bytes, serve: Serve, tls_of: Make, trusting: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_detector, "HANDSHAKE_TIMEOUT_S", 1.0)
    server, address = await serve(tls=tls_of())
    host, port = address.split(":")
    strangers = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    for _, writer in strangers:
        writer.write(sent)
    assert await echoed(address, trusting) == await echoed(address, None) == b"x"
    for reader, writer in strangers:
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                while await reader.read(1 << 16):  # perhaps an alert, then the end
                    pass
        writer.close()
    assert not server.pending_handshakes


async def test_doors_count_as_connections(serve: Serve, tls_of: Make, trusting: Tls) -> None:
    server, address = await serve(tls=tls_of(), limits=ServerLimits(max_connections=3))
    host, port = address.split(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    while len(server.pending_handshakes) < 3:
        await asyncio.sleep(0.01)
    with pytest.raises(TransportError):
        await echoed(address, trusting)
    for _, writer in silent:
        writer.close()
    while server.pending_handshakes:
        await asyncio.sleep(0.01)
    assert await echoed(address, trusting) == b"x"


async def test_a_server_that_ends_closes_its_doors(serve: Serve, tls_of: Make) -> None:
    server, address = await serve(tls=tls_of())
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03")
    while not server.pending_handshakes:
        await asyncio.sleep(0.01)
    await server.close(0.1)
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        ("on", "", "tls.server.mode=on: give disabled, permissive or enforcing"),
        ("enforcing", None, "tls.server.mode=enforcing needs tls.config.file"),
        ("permissive", "", "needs tls.server.certPath and tls.server.keyPath"),
        ("permissive", "tls.server.certPath=/none\ntls.server.keyPath=/none\n", "tls.server.certPath /none: No such"),
        ("permissive", "tls.server.cert=/none\n", "unknown key 'tls.server.cert'"),
        ("permissive", "tls.test.mode.enable=true\n", "tls.test.mode.enable=true is not supported"),
        ("permissive", "tls.test.mode.enable=maybe\n", "tls.test.mode.enable=maybe: give true or false"),
        ("permissive", "tls.server.need.client.auth=perhaps\n", "give none, optional or require"),
        (
            "permissive",
            "tls.server.need.client.auth=require\ntls.server.authClient=false\n",
            "tls.server.authClient=false is not supported",
        ),
        (
            "permissive",
            "tls.server.need.client.auth=require\ntls.server.certPath=a\ntls.server.keyPath=b\n",
            "tls.server.need.client.auth=require needs tls.server.trustCertPath",
        ),
    ],
)
def test_settings_that_promise_too_much_are_refused(mode: str, text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError) as caught:
        TlsSettings(mode, "" if text is None else str(file), False).server()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_key_without_its_password_are_named(tmp_path: Path, cert: Signed) -> None:
    with pytest.raises(OptionError, match=f"^tls.config.file {tmp_path}/none: No such file or directory$"):
        read_tls_file(f"{tmp_path}/none")
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.server.certPath={cert.cert}\ntls.server.keyPath={cert.key}\ntls.server.keyPassword=secret1\n")
    with pytest.raises(OptionError, match="no certificate, or key of it, in PEM") as caught:
        ServerTls(TlsMode.PERMISSIVE, read_tls_file(str(file)))
    assert "secret1" not in str(caught.value) + repr(read_tls_file(str(file)))


def test_a_file_that_is_cut_is_named_at_every_length(tmp_path: Path, authority: Authority) -> None:
    """None is taken for a shorter certificate or key; but for the last line's end."""
    whole = authority.sign("whole", "127.0.0.1")
    file = tmp_path / "tls.properties"
    for name, path, other in (("certPath", whole.cert, whole.key), ("keyPath", whole.key, whole.cert)):
        text = path.read_text()
        cut = tmp_path / "cut.pem"
        for length in range(0, len(text) - 2, 7):
            cut.write_text(text[:length])
            paths = {name: cut, "keyPath" if name == "certPath" else "certPath": other}
            file.write_text("".join(f"tls.server.{key}={value}\n" for key, value in paths.items()))
            with pytest.raises(OptionError, match="no certificate, or key of it, in PEM"):
                ServerTls(TlsMode.PERMISSIVE, read_tls_file(str(file)))


def test_own_connections_speak_it_where_the_server_demands_it(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.trustCertPath=ca.pem\ntls.client.authServer=false\n")
    assert TlsSettings("permissive", str(file), False).client() is None
    wanted = Tls(trust_cert_path="ca.pem", auth_server=False)
    assert TlsSettings("enforcing", str(file), False).client() == wanted
    assert TlsSettings("disabled", str(file), True).client() == wanted
    assert TlsSettings("disabled", "", True).client() == Tls()
