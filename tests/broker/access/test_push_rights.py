"""What a broker sends by itself goes to users who have the right at that moment, and to nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand, request
from tests.broker.access.test_guard import ADMIN, ALICE, SETTINGS, Door, send_fields
from tests.broker.conftest import Clock, eventually, small_store

MALLORY = Credentials("mallory", "s3cret of mallory")
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6,
    "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip
POP = {
    "consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 60_000,
    "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
}  # fmt: skip


class Client:
    """A connection of a user, and what the broker pushes to it."""

    def __init__(self, door: Door, remoting: RemotingClient, handlers: dict[int, Handler]) -> None:
        self.pushed: list[tuple[int, bytes]] = []
        self._door, self._remoting = door, remoting
        for code in (39, 40, 307, 309, 326):
            handlers[code] = self._note

    def _note(self, command: RemotingCommand, _: Connection) -> RemotingCommand | None:
        self.pushed.append((command.code, bytes(command.body)))
        return None if command.is_oneway else command.response()

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> RemotingCommand:
        """Send a request."""
        texts = {name: str(value) for name, value in (fields or {}).items()}
        return await self._remoting.invoke(self._door.broker.address, request(code, texts, body), 60)

    async def produce(self, client_id: str, *groups: str) -> RemotingCommand:
        """Be a member of producer groups."""
        beat = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=one) for one in groups])
        return await self.ask(34, {}, encode_body(beat))

    async def consume(self, client_id: str) -> RemotingCommand:
        """Be a member of the consumer group g, which subscribes to T."""
        data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
        return await self.ask(34, {}, encode_body(HeartbeatData(client_id=client_id, consumer_data_set=[data])))

    def codes(self) -> list[int]:
        """Codes of what was pushed."""
        return [code for code, _ in self.pushed]


class PushDoor(Door):
    """A broker with users whose clock a test sets forward."""

    clock: Clock

    @asynccontextmanager
    async def client(self, who: Credentials) -> AsyncIterator[Client]:
        """A connection of a user."""
        handlers: dict[int, Handler] = {}
        async with RemotingClient(handlers, credentials=who) as remoting:
            yield Client(self, remoting, handlers)

    async def withdraw(self, who: Credentials, resource: str) -> None:
        """Take a right from a user."""
        subject = f"User:{who.access_key}"
        assert (await self.ask(ADMIN, 3008, {"subject": subject, "resource": resource})).code == 0


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[PushDoor]:
    clock = Clock()
    settings = replace(SETTINGS, transaction_check_interval_ms=3_600_000)
    async with Broker(settings, small_store(tmp_path / "store"), clock) as broker:
        door = PushDoor(broker)
        door.clock = clock
        for who in (ALICE, MALLORY):
            assert (await door.make(who)).code == 0
        yield door


def half_fields(topic: str, group: str = "pg") -> dict[str, Any]:
    """Fields of a half message."""
    return send_fields(topic) | {"g": now_ms(), "i": f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01A", "f": 4}


async def test_a_half_message_is_shown_to_producers_who_may_publish_to_its_topic(door: PushDoor) -> None:
    async with door.client(MALLORY) as mallory, door.client(ALICE) as alice:
        await mallory.produce("m", "pg")
        assert (await door.ask(ADMIN, 310, half_fields("Secret"), b"secret")).code == 0
        door.clock.ahead_ms = 10_000
        await door.broker.checks.check()
        await door.allow(ALICE, "Topic:Secret", "Pub")
        await alice.produce("a", "pg")
        door.clock.ahead_ms = 20_000
        await door.broker.checks.check()
        await eventually(lambda: _is(alice.codes() == [39]))
        assert b"secret" in alice.pushed[0][1]
        await door.withdraw(ALICE, "Topic:Secret")
        for step in range(3):
            door.clock.ahead_ms = 30_000 + step * 10_000
            await door.broker.checks.check()
        await alice.ask(35)  # what was pushed before has arrived
        await mallory.ask(35)
        assert (alice.codes(), mallory.codes()) == ([39], [])


@pytest.mark.parametrize("change", ["disable", "delete", "password"])
async def test_a_user_who_is_no_more_is_not_asked(door: PushDoor, change: str) -> None:
    await door.allow(ALICE, "Topic:Secret", "Pub")
    async with door.client(ALICE) as alice:
        await alice.produce("a", "pg")
        await door.ask(ADMIN, 310, half_fields("Secret"), b"secret")
        if change == "delete":
            await door.ask(ADMIN, 3003, {"username": "alice"})
        else:
            body = b'{"userStatus":"disable"}' if change == "disable" else b'{"password":"other"}'
            assert (await door.ask(ADMIN, 3002, {"username": "alice"}, body)).code == 0
        door.clock.ahead_ms = 10_000
        await door.broker.checks.check()
        assert (await alice.ask(26)).code == ResponseCode.NO_PERMISSION
        assert alice.pushed == []


def request_fields(client_id: str, correlation_id: str = "1") -> dict[str, Any]:
    """Fields of a message that wants a reply."""
    return send_fields("T") | {"i": f"CORRELATION_ID\x01{correlation_id}\x02REPLY_TO_CLIENT\x01{client_id}\x02TTL\x013"}


def reply_fields(client_id: str, correlation_id: str = "1") -> dict[str, Any]:
    """Fields of a reply."""
    properties = (
        f"MSG_TYPE\x01reply\x02CORRELATION_ID\x01{correlation_id}\x02REPLY_TO_CLIENT\x01{client_id}\x02TTL\x013"
    )
    return send_fields("R") | {"i": properties}


async def test_a_reply_goes_to_the_user_who_made_the_request(door: PushDoor) -> None:
    await door.allow(ALICE, "Topic:T", "Pub")
    async with door.client(MALLORY) as mallory, door.client(ALICE) as other, door.client(ALICE) as alice:
        await mallory.produce("c", "pg")
        await other.produce("c", "pg")
        await alice.produce("c", "pg")
        assert (await alice.ask(310, request_fields("c"), b"?")).code == 0
        assert (await door.ask(ADMIN, 325, reply_fields("c"), b"answer")).code == 0
        assert (alice.pushed, other.pushed, mallory.pushed) == ([(326, b"answer")], [], [])
        await door.withdraw(ALICE, "Topic:T")
        assert (await door.ask(ADMIN, 325, reply_fields("c"), b"answer")).code == ResponseCode.SYSTEM_ERROR
        assert (len(alice.pushed), mallory.pushed) == (1, [])


async def test_a_reply_to_an_unknown_request_needs_a_right_on_the_topic_of_replies(door: PushDoor) -> None:
    """The request came to another broker."""
    async with door.client(MALLORY) as mallory, door.client(ALICE) as alice:
        await mallory.produce("c", "pg")
        assert (await door.ask(ADMIN, 325, reply_fields("c"), b"answer")).code == ResponseCode.SYSTEM_ERROR
        await door.allow(ALICE, "Topic:R", "Sub")
        await alice.produce("c", "pg")
        assert (await door.ask(ADMIN, 325, reply_fields("c"), b"answer")).code == ResponseCode.SYSTEM_ERROR
        await alice.produce("d", "pg")
        assert (await door.ask(ADMIN, 325, reply_fields("d"), b"answer")).code == 0
        assert (alice.pushed, mallory.pushed) == ([(326, b"answer")], [])


@pytest.mark.parametrize(("code", "fields"), [(11, PULL), (200050, POP), (200054, POP)], ids=["pull", "pop", "notify"])
@pytest.mark.parametrize("resource", ["Topic:T", "Group:g"])
async def test_a_right_that_is_withdrawn_while_a_request_waits_counts(
    door: PushDoor, code: int, fields: dict[str, Any], resource: str
) -> None:
    make = {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    assert (await door.ask(ADMIN, 17, make | {"order": "false", "defaultTopic": "TBW102"})).code == 0
    for one in ("Topic:T", "Group:g"):
        await door.allow(ALICE, one, "Sub")
    async with door.client(ALICE) as alice:
        waiting = asyncio.ensure_future(alice.ask(code, fields))
        held = door.broker._parked_pulls if code == 11 else door.broker._pop.polls
        await eventually(lambda: _is(held.count == 1))
        await door.withdraw(ALICE, resource)
        assert (await door.ask(ADMIN, 310, send_fields("T"), b"secret")).code == 0
        answer = await waiting
        assert (answer.code, bytes(answer.body)) == (ResponseCode.NO_PERMISSION, b"")
        assert resource in (answer.remark or "")


async def test_members_who_lost_their_right_are_told_nothing_of_their_group(door: PushDoor) -> None:
    for who in (ALICE, MALLORY):
        for resource in ("Topic:T", "Group:g"):
            await door.allow(who, resource, "Sub")
    async with door.client(MALLORY) as mallory, door.client(ALICE) as alice:
        await mallory.consume("c")
        await door.withdraw(MALLORY, "Group:g")
        mallory.pushed.clear()
        await alice.consume("c")
        sent = await door.ask(ADMIN, 310, send_fields("T"), b"secret")
        directly = {"consumerGroup": "g", "clientId": "c", "msgId": sent.ext_fields["msgId"], "topic": "T"}
        for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            assert (await door.ask(ADMIN, code, directly)).code == 0
        assert (set(alice.codes()), mallory.codes()) == ({40, 307, 309}, [])


async def _is(value: bool) -> bool:
    return value
