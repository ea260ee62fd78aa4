"""Rights at the proxy where a call names a place in the log, waits, or is a stream that the proxy writes to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_core.broker.tables.names import HALF_TOPIC
from rmq_core.client import Admin
from rmq_core.client.admin.broker_queries import UserRequests
from rmq_core.proxy.access import Caller as ProxyCaller
from rmq_core.proxy.sending import TransactionId
from rmq_core.proxy.server import Proxy
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.bodies.configs import AclInfo, PolicyEntryInfo, PolicyInfo
from tests.broker.access.test_guard import Door, send_fields
from tests.broker.access.test_push_rights import half_fields
from tests.broker.conftest import eventually
from tests.proxy import test_access
from tests.proxy.conftest import Caller, named, seconds
from tests.proxy.test_access import ADMIN, signed

guarded = test_access.guarded


class Users:
    """The users of a proxy's broker."""

    def __init__(self, admin: Admin, caller: Caller) -> None:
        self._requests, self._caller = UserRequests(admin._cluster), caller

    async def allow(self, *topics: str) -> None:
        """Let alice send to these topics and no others, and consume them as group g."""
        entries = [PolicyEntryInfo(actions=["Pub", "Sub"], decision="Allow", resource=f"Topic:{one}") for one in topics]
        entries.append(PolicyEntryInfo(actions=["Sub"], decision="Allow", resource="Group:g"))
        address = self._caller.broker.address
        for topic in ("NormalT", "SecretT"):
            await self._requests.delete_acl(address, "User:alice", f"Topic:{topic}")
        acl = AclInfo(subject="User:alice", policies=[PolicyInfo(entries=entries, policy_type="Custom")])
        await self._requests.put_acl(address, acl, is_new=True)


@pytest.fixture
async def users(guarded: Caller, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Users]:
    monkeypatch.setattr("rmq_core.proxy.access._PUSH_MAX_AGE_S", 0.0)
    async with Admin(guarded.broker.state.config.namesrv_addr, credentials=ADMIN) as admin:
        yield Users(admin, guarded)


async def test_who_may_send_to_one_topic_ends_no_transactions_of_another(guarded: Caller) -> None:
    """Its producer group has the name of the topic that alice may send to; at the proxy groups are topics."""
    door = Door(guarded.broker)
    half = await door.ask(ADMIN, 310, half_fields("SecretT", "NormalT"), b"not paid")
    other = await door.ask(ADMIN, 310, half_fields("NormalT", "NormalT"), b"mine")
    plain = await door.ask(ADMIN, 310, send_fields("NormalT"), b"no half message")
    for sent, resolution, code in (
        (half, v2.COMMIT, v2.INVALID_TRANSACTION_ID), (half, v2.ROLLBACK, v2.INVALID_TRANSACTION_ID),
        (plain, v2.COMMIT, v2.INVALID_TRANSACTION_ID), (other, v2.COMMIT, v2.OK),
    ):  # fmt: skip
        place = int(sent.ext_fields["msgId"][16:], 16)
        offset = int(sent.ext_fields["queueOffset"])
        transaction = TransactionId("A", place, offset, guarded.broker.state.config.broker_name).encode()
        answer = await guarded.call(
            "EndTransaction", topic=named("NormalT"), message_id="A", transaction_id=transaction, resolution=resolution
        )
        assert answer.status.code == code, answer
    store = guarded.broker.store
    assert sum(store.max_offset("SecretT", queue) for queue in range(4)) == 0
    assert not guarded.broker.op_messages.has(int(half.ext_fields["queueOffset"]))
    assert store.max_offset(HALF_TOPIC, 0) == 2


async def test_a_half_message_is_shown_to_clients_that_may_send_to_its_topic(guarded: Caller, users: Users) -> None:
    await users.allow("NormalT", "SecretT")
    settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[named("SecretT")]))

    async def commands() -> AsyncIterator[Any]:
        yield rpc.TelemetryCommand(settings=settings)
        await asyncio.Event().wait()

    stream = guarded.telemetry(commands())
    assert (await asyncio.wait_for(stream.read(), 60)).status.code == v2.OK
    proxy = _proxy_of(guarded)
    await proxy._brokers.register_producer(["SecretT"])
    await eventually(lambda: _is("SecretT" in guarded.broker.state.producers.groups))
    sent = await Door(guarded.broker).ask(ADMIN, 310, half_fields("SecretT", "SecretT"), b"secret")
    assert sent.code == 0
    session = proxy._sessions.producers_of("SecretT")[0]
    await users.allow("NormalT")
    told = session.commands
    assert told is not None
    guarded.clock.ahead_ms = 20_000
    await guarded.broker.checks.check()
    await eventually(lambda: _is(_checked(guarded) == 2))
    await guarded.send(guarded.message())  # behind what the broker has pushed
    assert told.empty()
    await users.allow("NormalT", "SecretT")
    guarded.clock.ahead_ms = 40_000
    await guarded.broker.checks.check()
    command = await asyncio.wait_for(stream.read(), 60)
    assert command.recover_orphaned_transaction_command.message.body == b"secret"
    stream.cancel()


def _checked(caller: Caller) -> int:
    """How many half messages there have been: each that is asked about is stored again."""
    return caller.broker.store.max_offset(HALF_TOPIC, 0)


@pytest.mark.parametrize("name", ["ReceiveMessage", "PullMessage"])
async def test_a_right_that_is_withdrawn_while_a_receive_waits_counts(guarded: Caller, users: Users, name: str) -> None:
    if name == "ReceiveMessage":
        waiting = asyncio.ensure_future(guarded.ask_for("NormalT", poll_s=20))
        held = guarded.broker._pop.polls
        await eventually(lambda: _is(held.count == 1))
    else:
        broker = v2.Broker(name=guarded.broker.state.config.broker_name)
        queue = v2.MessageQueue(topic=named("NormalT"), id=0, broker=broker)
        pull = guarded.call(
            "PullMessage",
            group=named("g"),
            message_queue=queue,
            offset=0,
            batch_size=1,
            long_polling_timeout=seconds(20),
        )
        waiting = asyncio.ensure_future(pull)
        pulls = guarded.broker._parked_pulls
        await eventually(lambda: _is(pulls.count == 1))
    await users.allow("SecretT")
    for queue_id in range(2):
        await Door(guarded.broker).ask(ADMIN, 310, send_fields("NormalT") | {"e": queue_id}, b"secret")
    answers = await waiting
    assert [one.status.code for one in answers] == [v2.UNAUTHORIZED]


async def test_a_stream_of_a_user_with_another_password_gets_nothing(guarded: Caller, users: Users) -> None:
    proxy = _proxy_of(guarded)
    login = await proxy._access.login(dict(guarded.signs()), "127.0.0.1")  # type: ignore[union-attr]
    caller = ProxyCaller(proxy._access, login, "127.0.0.1")
    assert await caller.may_receive(())
    body = b'{"password":"other"}'
    assert (await Door(guarded.broker).ask(ADMIN, 3002, {"username": "alice"}, body)).code == 0
    assert not await caller.may_receive(())
    guarded.signs = signed("alice", "other")


def _proxy_of(caller: Caller) -> Proxy:
    assert caller.proxy is not None
    return caller.proxy


async def _is(value: bool) -> bool:
    return value
