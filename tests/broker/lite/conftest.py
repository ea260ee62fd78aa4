"""A broker with light queues, and a client of lite topics as a proxy of 5.5 is one."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import IN_ORDER, PopHandle, TopicKind
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, Clock, messages
from tests.broker.test_administration import create
from tests.broker.test_light_queues import light_store

PARENT, GROUP = "Devices", "watchers"


@dataclass(frozen=True, slots=True)
class Got:
    """A message of a lite topic, as its consumer sees it."""

    body: bytes
    child: str
    offset: int
    times: int
    handle: str


class Watcher:
    """A client of lite topics."""

    def __init__(self, asker: Asker, client_id: str = "c1", group: str = GROUP, parent: str = PARENT) -> None:
        self.asker, self.client_id, self.group, self.parent = asker, client_id, group, parent

    async def control(self, action: str, *children: str, **more: Any) -> RemotingCommand:
        """LITE_SUBSCRIPTION_CTL with one entry."""
        entry: dict[str, Any] = {
            "action": action, "clientId": self.client_id, "group": self.group, "topic": self.parent,
            "liteTopicSet": list(children), "version": 1,
        }  # fmt: skip
        body = json.dumps({"subscriptionSet": [entry | more]}).encode()
        return await self.asker.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)

    async def add(self, *children: str, **more: Any) -> None:
        """Subscribe to more children."""
        answer = await self.control("PARTIAL_ADD", *children, **more)
        assert answer.code == 0, answer.remark

    async def sync(self, *children: str) -> None:
        """Subscribe to just these children."""
        answer = await self.control("COMPLETE_ADD", *children)
        assert answer.code == 0, answer.remark

    async def ask(self, **more: object) -> RemotingCommand:
        """POP_LITE_MESSAGE."""
        fields: dict[str, object] = {
            "clientId": self.client_id, "consumerGroup": self.group, "topic": self.parent, "maxMsgNum": 32,
            "invisibleTime": 10_000, "pollTime": 0, "bornTime": 0,
        }  # fmt: skip
        return await self.asker.ask(RequestCode.POP_LITE_MESSAGE, fields | more)

    async def pop(self, **more: object) -> list[Got]:
        """Pop; no message is an empty list."""
        return self.got(await self.ask(**more))

    def got(self, answer: RemotingCommand) -> list[Got]:
        """The messages of an answer."""
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL), answer.remark
            return []
        told, found = answer.ext_fields, messages(answer)
        assert told["reviveQid"] == str(IN_ORDER)
        times = [int(one.split()[-1]) for one in told["orderCountInfo"].split(";")]
        assert len(times) == len(found)
        return [
            Got(
                one.body,
                one.properties["__LITE_TOPIC"],
                offset := place(one.properties),
                count,
                PopHandle(
                    offset,
                    int(told["popTime"]),
                    int(told["invisibleTime"]),
                    IN_ORDER,
                    TopicKind.NORMAL,
                    "broker-a",
                    0,
                    offset,
                ).encode(),
            )
            for one, count in zip(found, times, strict=True)
        ]

    def _place(self, one: Got) -> dict[str, object]:
        return {
            "consumerGroup": self.group, "topic": self.parent, "queueId": 0, "offset": one.offset,
            "extraInfo": one.handle, "liteTopic": one.child,
        }  # fmt: skip

    async def ack(self, one: Got, **more: object) -> RemotingCommand:
        """ACK_MESSAGE of a message of a lite topic."""
        return await self.asker.ask(RequestCode.ACK_MESSAGE, self._place(one) | more)

    async def change(self, one: Got, invisible_ms: int, **more: object) -> RemotingCommand:
        """CHANGE_MESSAGE_INVISIBLETIME of such a message."""
        fields = self._place(one) | {"invisibleTime": invisible_ms}
        return await self.asker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields | more)


def place(properties: dict[str, str]) -> int:
    """The place of a message in its only light queue."""
    return int(properties["INNER_MULTI_QUEUE_OFFSET"])


async def send(asker: Asker, child: str, body: bytes = b"hello", parent: str = PARENT, **more: str) -> RemotingCommand:
    """Send a message to a lite topic."""
    properties = {"UNIQ_KEY": "0A0B", "WAIT": "true", "__LITE_TOPIC": child} | more
    return await asker.send(parent, body, properties=properties)


async def make_parent(asker: Asker, name: str = PARENT, minutes: int = -1) -> None:
    """Make a topic of lite topics."""
    answer = await create(asker, name, attributes=f"+message.type=LITE,+lite.topic.expiration={minutes}")
    assert answer.code == 0, answer.remark


async def make_group(asker: Asker, name: str = GROUP, **attributes: str) -> None:
    """Make a group that is bound to the parent; names of attributes without ``lite.``, dots as underscores."""
    signed = {f"+lite.{key.replace('_', '.')}": value for key, value in ({"bind_topic": PARENT} | attributes).items()}
    body = encode_body(SubscriptionGroupConfig(group_name=name, attributes=signed))
    answer = await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == 0, answer.remark


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """A small store with light queues."""
    return light_store(tmp_path / "store")


@pytest.fixture
async def lite(config: BrokerConfig, store_config: StoreConfig, clock: Clock) -> AsyncIterator[Asker]:
    """A broker with a parent and a group; it tells its client which lite topics others took."""
    handlers: dict[int, Handler] = {}
    async with Broker(config, store_config, clock) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)

        def note(command: RemotingCommand, _: Connection) -> None:
            asker.told.append(command)

        handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE] = note
        await make_parent(asker)
        await make_group(asker)
        yield asker


@pytest.fixture
def watcher(lite: Asker) -> Watcher:
    """A client of the group."""
    return Watcher(lite)
