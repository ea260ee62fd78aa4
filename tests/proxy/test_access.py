"""Logins and rights at the proxy, and TLS."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.client import Admin, Credentials
from rmq_core.client.admin.broker_queries import UserRequests
from rmq_core.client.options import ClientOptions
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.proxy.access import CALLS
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.server import Proxy
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.access.tls import read_tls_file
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_core.remoting.bodies.routes import encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer
from rmq_formats.errors import OptionError
from tests.broker.conftest import Clock, small_store
from tests.namesrv.registrations import broker, topics
from tests.proxy.conftest import Caller, named
from tests.proxy.http2_frames import call
from tests.support.certificates import KEY_PASSWORD, Authority, Signed

ADMIN = Credentials("admin", "of-admin")
TOPICS = ("NormalT", "SecretT")


def signed(name: str, secret: str, *, date: datetime | None = None) -> Callable[[], list[tuple[str, str]]]:
    """What the official clients sign a call with."""

    def metadata() -> list[tuple[str, str]]:
        text = (date or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.new(secret.encode(), text.encode(), hashlib.sha1).hexdigest().upper()
        words = f"MQv2-HMAC-SHA1 Credential={name}/cn/RocketMQ, SignedHeaders=x-mq-date-time, Signature={signature}"
        return [("x-mq-date-time", text), ("authorization", words)]

    return metadata


def test_the_signature_is_that_of_the_original() -> None:
    """A vector that Java's proxy has taken."""
    date = datetime(2020, 1, 1, tzinfo=UTC)
    (_, (_, words)) = signed("alice", "alice1234", date=date)()
    assert words.endswith("Signature=" + "6f5900caa2fa357a310841b7ce66a607e501b6a6".upper())


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Caller]:
    """A client of a proxy whose broker knows users: alice may send to NormalT, and consume it as ``g``."""
    clock = Clock()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        names = await enter(NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)))
        config = BrokerConfig(
            listen_port=0,
            namesrv_addr=names.address,
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user='{"username":"admin","password":"of-admin"}',
        )
        broker = await enter(Broker(config, small_store(tmp_path / "store"), clock))
        admin = await enter(Admin(names.address, credentials=ADMIN))
        for topic in TOPICS:
            await admin.create_topic(topic, queues=2)
        users = UserRequests(admin._cluster)
        await users.create(broker.address, UserInfo(username="alice", password="of-alice"))
        await users.create(broker.address, UserInfo(username="bob", password="of-bob"))
        entries = [
            PolicyEntryInfo(actions=["Pub", "Sub"], decision="Allow", resource="Topic:NormalT"),
            PolicyEntryInfo(actions=["Sub"], decision="Allow", resource="Group:g"),
        ]
        acl = AclInfo(subject="User:alice", policies=[PolicyInfo(entries=entries, policy_type="Custom")])
        await users.put_acl(broker.address, acl, is_new=True)
        proxy = await enter(Proxy(names.address, "127.0.0.1:0", ADMIN))
        channel = await enter(grpc.aio.insecure_channel(proxy.address))
        caller = Caller(channel, broker, clock)
        caller.signs = signed("alice", "of-alice")
        caller.proxy = proxy
        yield caller


async def test_who_may_sends_and_consumes(guarded: Caller) -> None:
    assert (await guarded.send(guarded.message(body=b"mine"))).status.code == v2.OK
    (message,) = await guarded.receive()
    assert message.body == b"mine"
    assert (await guarded.ack(message)).status.code == v2.OK


@pytest.mark.parametrize(
    ("signs", "told"),
    [
        (list, "username cannot be null"),
        (signed("nobody", "x"), "is not found"),
        (signed("alice", "of-bob"), "check signature failed"),
        (signed("alice", "of-alice", date=datetime.now(UTC) - timedelta(days=2)), "more than a day away"),
        (lambda: [("authorization", "x" * 2000)], "too long"),
        (lambda: [*signed("alice", "x")(), ("x-mq-authorization-ak", "admin")], "check signature failed"),
    ],
    ids=["none", "unknown", "wrong", "old", "long", "told"],
)
async def test_who_does_not_sign_well_is_refused_every_call(guarded: Caller, signs: Any, told: str) -> None:
    guarded.signs = signs
    answer = await guarded.send(guarded.message())
    assert (answer.status.code, told in answer.status.message) == (v2.UNAUTHORIZED, True), answer
    for name in ("QueryRoute", *CALLS):
        found = await guarded.call(name)
        first = found[0] if isinstance(found, list) else found
        assert first.status.code == v2.UNAUTHORIZED, name


async def test_metadata_that_is_no_text_is_refused_with_one_line_in_the_log(
    guarded: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    assert guarded.proxy is not None
    host, _, port = guarded.proxy.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    metadata = [("x-mq-client-id", b"c"), ("authorization", b"\xff\xfe Credential=alice, Signature=00")]
    writer.write(call("QueryRoute", metadata, b""))
    answer = b""
    async with asyncio.timeout(30):
        while b"check signature failed" not in answer:
            answer += await reader.read(65_536)
    writer.close()
    assert [record.name for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == ["rmq.proxy.audit"]


@pytest.mark.parametrize("is_place_taken", [False, True])
async def test_a_broker_that_registers_later_is_not_asked_who_users_are(guarded: Caller, is_place_taken: bool) -> None:
    asked: list[int] = []

    def say(command: RemotingCommand, _: Connection) -> RemotingCommand:
        asked.append(command.code)
        eve = UserInfo(username="eve", password="of-eve", user_type="Super", user_status="enable")
        return command.response(body=encode_body(eve))

    state = guarded.broker.state
    async with RemotingServer({3004: say, 3009: say}) as fake, RemotingClient() as stranger:
        host, port = await fake.listen("127.0.0.1", 0)
        name = state.config.broker_name if is_place_taken else "aaa"
        registered = await stranger.invoke(
            state.config.namesrv_addr,
            request(
                103,
                write_fields(broker(name, address=f"{host}:{port}", cluster=state.config.broker_cluster_name)),
                encode_registration(topics("NormalT", "SecretT", state_version=99), False),
            ),
        )
        assert registered.code == 0
        guarded.signs = signed("eve", "of-eve")
        assert (await guarded.send(guarded.message())).status.code == v2.UNAUTHORIZED
        assert asked == []
        pinned = Brokers(state.config.namesrv_addr, ClientOptions(), ADMIN, ["10.0.0.1:1"])
        async with pinned:
            assert await pinned.auth_brokers() == ("10.0.0.1:1",)


async def test_rights_are_asked_for_and_a_header_gives_none(guarded: Caller) -> None:
    assert (await guarded.send(guarded.message(topic="SecretT"))).status.code == v2.UNAUTHORIZED
    assert (await guarded.ask_for("SecretT"))[0].status.code == v2.UNAUTHORIZED
    assert (await guarded.ask_for("NormalT", group="other"))[0].status.code == v2.UNAUTHORIZED
    assert (await guarded.call("QueryRoute", topic=named("SecretT"))).status.code == v2.UNAUTHORIZED
    for topic, group, code in (
        ("SecretT", "g", v2.UNAUTHORIZED), ("NormalT", "other", v2.UNAUTHORIZED), ("NormalT", "g", v2.ILLEGAL_TOPIC),
    ):  # fmt: skip
        answer = await guarded.call("SyncLiteSubscription", topic=named(topic), group=named(group))
        assert answer.status.code == code
    alice = guarded.signs
    guarded.signs = lambda: [*alice(), ("x-mq-authorization-ak", "admin")]
    assert (await guarded.send(guarded.message(topic="SecretT"))).status.code == v2.UNAUTHORIZED
    guarded.signs = signed("bob", "of-bob")
    assert (await guarded.send(guarded.message())).status.code == v2.UNAUTHORIZED
    guarded.signs = signed("admin", "of-admin")
    assert (await guarded.send(guarded.message(topic="SecretT"))).status.code == v2.OK


async def test_settings_need_rights_and_clients_of_others_are_out_of_reach(guarded: Caller) -> None:
    async def told(topic: str) -> Any:
        settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[named(topic)]))

        async def commands() -> AsyncIterator[Any]:
            yield rpc.TelemetryCommand(settings=settings)
            await asyncio.Event().wait()

        stream = guarded.telemetry(commands())
        async with asyncio.timeout(60):
            answer = await stream.read()
        stream.cancel()
        return answer

    assert (await told("NormalT")).status.code == v2.OK
    assert (await told("SecretT")).status.code == v2.UNAUTHORIZED
    guarded.signs = signed("alice", "x")
    assert (await told("NormalT")).status.code == v2.UNAUTHORIZED


def tls_file(tmp_path: Path, **values: object) -> Path:
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"tls.server.{key.replace('__', '.')}={value}\n" for key, value in values.items()))
    return file


async def is_answered(port: str, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a client with these credentials is let in."""
    async with grpc.aio.secure_channel(port, credentials) as channel:
        caller = Caller(channel, None, Clock())  # type: ignore[arg-type] # no broker is asked
        try:
            answer = await caller.call("Heartbeat", client_type=v2.PRODUCER, timeout=10)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status.code == v2.OK)


async def test_tls_with_a_certificate_that_changes(tmp_path: Path) -> None:
    authorities = [Authority(tmp_path, name) for name in ("first", "second")]
    now = authorities[0].sign("server", "127.0.0.1")
    file = read_tls_file(str(tls_file(tmp_path, certPath=now.cert, keyPath=now.key)))

    async def answers(port: str, authority: Authority) -> bool:
        trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        return await is_answered(port, trusted)

    async with Proxy("127.0.0.1:1", "127.0.0.1:0", tls=file) as proxy:
        assert await answers(proxy.address, authorities[0])
        assert not await answers(proxy.address, authorities[1])
        authorities[1].sign("server", "127.0.0.1")  # in the same files
        assert await answers(proxy.address, authorities[1])
        now.key.write_text("no key")
        assert await answers(proxy.address, authorities[1])
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await Caller(channel, None, Clock()).call("Heartbeat", timeout=10)  # type: ignore[arg-type]


async def test_clients_show_their_certificates(tmp_path: Path) -> None:
    """To who has none, or one of others, or one whose time is over, nothing is said."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    own = authority.sign("server", "127.0.0.1")
    values = {
        "certPath": own.cert,
        "keyPath": own.key,
        "trustCertPath": authority.cert,
        "need__client__auth": "require",
    }
    file = read_tls_file(str(tls_file(tmp_path, **values)))

    async def answers(port: str, cert: Signed | None) -> bool:
        pair = (None, None) if cert is None else (cert.key.read_bytes(), cert.cert.read_bytes())
        shown = grpc.ssl_channel_credentials(authority.cert.read_bytes(), *pair)
        return await is_answered(port, shown)

    async with Proxy("127.0.0.1:1", "127.0.0.1:0", tls=file) as proxy:
        for cert in (None, stranger.sign("strange"), authority.sign("over", from_day=-3)):
            assert not await answers(proxy.address, cert)
        assert await answers(proxy.address, authority.sign("client"))


def test_certificates_that_cannot_be_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good, locked = authority.sign("good", "127.0.0.1"), authority.sign("locked", "127.0.0.1", has_password=True)
    (tmp_path / "no.pem").write_text("none")
    cases: list[tuple[dict[str, object], str]] = [
        ({"certPath": good.cert}, "needs tls.server.certPath and"),
        ({"certPath": tmp_path / "gone", "keyPath": good.key}, "gone"),
        ({"certPath": tmp_path / "no.pem", "keyPath": good.key}, "no.pem"),
        ({"certPath": locked.cert, "keyPath": locked.key, "keyPassword": KEY_PASSWORD}, "keyPassword"),
        ({"certPath": good.cert, "keyPath": good.key, "need__client__auth": "optional"}, "optional"),
    ]
    for values, told in cases:
        with pytest.raises(OptionError, match=told):
            Proxy("127.0.0.1:1", "127.0.0.1:0", tls=read_tls_file(str(tls_file(tmp_path, **values))))
