"""A broker with users: who is let in, what needs which right, and what a stranger gets."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.access.required_permissions import RULES
from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig, load_config
from rmq_core.remoting.access.acl import SIGNATURE, Credentials, sign
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, LockBatchRequest, SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue, encode_body
from rmq_core.remoting.bodies.configs import GroupConfigList, SubscriptionGroupConfig, TopicConfig, TopicConfigList
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import JSON, ROCKETMQ, RequestCode, ResponseCode
from rmq_core.remoting.errors import ConnectionLostError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_formats.errors import OptionError, StoreError
from tests.broker.conftest import small_store

ADMIN, ALICE = Credentials("admin", "s3cret of admin"), Credentials("alice", "s3cret of alice")
SETTINGS = BrokerConfig(
    listen_port=0,
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user=json.dumps({"username": "admin", "password": ADMIN.secret_key}),
)
CLUSTER = SETTINGS.broker_cluster_name


class Door:
    """A broker with users, and clients of any of them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def ask(
        self,
        who: Credentials | None,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        kind: int = JSON,
    ) -> RemotingCommand:
        """Send a request as somebody."""
        texts = {name: str(value) for name, value in (fields or {}).items()}
        async with RemotingClient(credentials=who) as client:
            return await client.invoke(self.broker.address, request(code, texts, body, serialize_type=kind), 60)

    async def make(self, who: Credentials, **more: str) -> RemotingCommand:
        """Make a user."""
        body = {"username": who.access_key, "password": who.secret_key} | more
        return await self.ask(ADMIN, 3001, {"username": who.access_key}, json.dumps(body).encode())

    async def allow(self, who: Credentials, resource: str, *actions: str, decision: str = "Allow") -> RemotingCommand:
        """Give a user rights."""
        entry = {"resource": resource, "actions": actions, "decision": decision}
        body = json.dumps({"subject": f"User:{who.access_key}", "policies": [{"entries": [entry]}]})
        return await self.ask(ADMIN, 3006, {"subject": f"User:{who.access_key}"}, body.encode())


@asynccontextmanager
async def opened(path: Path, settings: BrokerConfig = SETTINGS) -> AsyncIterator[Door]:
    """A broker on a store."""
    async with Broker(settings, small_store(path)) as broker:
        yield Door(broker)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """A broker that knows admin, who may do everything, and alice, who may do nothing yet."""
    async with opened(tmp_path / "store") as door:
        assert (await door.make(ALICE)).code == 0
        yield door


def send_fields(topic: str) -> dict[str, Any]:
    return {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": "",
            "j": 0, "k": "false", "m": "false"}  # fmt: skip


BEAT = encode_body(HeartbeatData(client_id="c", consumer_data_set=[
    ConsumerData(group_name="g", subscription_data_set=[
        SubscriptionData(topic="T"), SubscriptionData(topic="%RETRY%g"),
    ]),
]))  # fmt: skip
LOCK = encode_body(LockBatchRequest(consumer_group="g", client_id="c", mq_set=[MessageQueue(
    broker_name="broker-a", queue_id=0, topic="T"
)]))  # fmt: skip
TG = {"topic": "T", "consumerGroup": "g", "queueId": 0, "group": "g", "groupName": "g", "queueOffset": 0,
      "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
      "timestamp": 0, "isForce": "false", "offset": 0, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 9,
      "producerGroup": "g", "clientID": "c", "clientId": "c", "srcGroup": "a", "destGroup": "g",
      "delayLevel": 0}  # fmt: skip
# What a request needs, as pairs of a resource and an action that is enough for it.
WANTED = [
    (310, send_fields("T"), b"x", [("Topic:T", "Pub")]),
    (310, send_fields("%RETRY%g"), b"x", [("Group:g", "Sub")]),
    (320, send_fields("T"), b"", [("Topic:T", "Pub")]),
    (10, TG, b"", [("Topic:T", "Pub")]),
    (37, TG, b"", [("Topic:T", "Pub")]),
    (37, {}, b"", [(f"Cluster:{CLUSTER}", "Update")]),
    (36, TG, b"", [("Group:g", "Sub")]),
    (11, TG, b"", [("Topic:T", "Sub"), ("Group:g", "Sub")]),
    (361, TG, b"", [("Topic:T", "Sub"), ("Group:g", "Sub")]),
    (11, TG | {"topic": "%RETRY%other"}, b"", [("Group:other", "Sub"), ("Group:g", "Sub")]),
    (12, TG, b"", [("Topic:T", "Get")]),
    (14, TG, b"", [("Topic:T", "Get"), ("Group:g", "Sub")]),
    (15, TG, b"", [("Topic:T", "Sub"), ("Group:g", "Update")]),
    (30, TG, b"", [("Topic:T", "Sub")]),
    (33, TG, b"", [(f"Cluster:{CLUSTER}", "Get")]),
    (34, {}, BEAT, [("Group:g", "Sub"), ("Topic:T", "Sub")]),
    (35, TG, b"", [("Group:g", "Sub")]),
    (38, TG, b"", [("Group:g", "Get")]),
    (41, {}, LOCK, [("Group:g", "Sub"), ("Topic:T", "Sub")]),
    (17, TG, b"", [("Topic:T", "Create")]),
    (18, {}, encode_body(TopicConfigList(topic_config_list=[TopicConfig(topic_name="T")])), [("Topic:T", "Create")]),
    (215, TG, b"", [("Topic:T", "Delete")]),
    (200, {}, encode_body(SubscriptionGroupConfig(group_name="g")), [("Group:g", "Create")]),
    (225, {}, encode_body(GroupConfigList(group_config_list=[SubscriptionGroupConfig(group_name="g")])),
     [("Group:g", "Update")]),
    (207, TG, b"", [("Group:g", "Delete")]),
    (222, TG, b"", [("Topic:T", "Update"), ("Group:g", "Update")]),
    (314, TG, b"", [("Group:a", "Get"), ("Group:g", "Update"), ("Topic:T", "Update")]),
    (208, {"consumerGroup": "g"}, b"", [("Group:g", "Get")]),
    (25, {}, b"", [(f"Cluster:{CLUSTER}", "Update")]),
    (26, {}, b"", [(f"Cluster:{CLUSTER}", "Get")]),
    (21, {}, b"", [(f"Cluster:{CLUSTER}", "Get")]),
    (200070, TG | {"maxMsgNum": 1, "invisibleTime": 1, "pollTime": 0, "bornTime": 0}, b"",
     [("Group:g", "Sub"), ("Topic:T", "Sub")]),
    (200071, {}, b'{"subscriptionSet":[{"action":"COMPLETE_REMOVE","clientId":"c","group":"g","topic":"T"}]}',
     [("Group:g", "Sub"), ("Topic:T", "Sub")]),
    (200074, {}, b"", [(f"Cluster:{CLUSTER}", "Get")]),
    (200075, TG, b"", [("Topic:T", "Get")]),
    (200076, {"parentTopic": "T", "liteTopic": "l"}, b"", [("Topic:T", "Get")]),
    (200077, {"parentTopic": "T", "group": "g"}, b"", [("Topic:T", "Get"), ("Group:g", "Get")]),
    (200078, TG, b"", [("Group:g", "Get")]),
    (200079, TG, b"", [("Group:g", "Update")]),
    (3001, {"username": "new"}, b'{"password":"p"}', [(f"Cluster:{CLUSTER}", "Update")]),
    (3005, {}, b"", [(f"Cluster:{CLUSTER}", "Get")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "fields", "body", "needs"), WANTED, ids=[f"{one[0]}-{one[3][0][0]}" for one in WANTED]
)
async def test_a_request_needs_all_its_rights(
    door: Door, code: int, fields: dict[str, Any], body: bytes, needs: list[tuple[str, str]]
) -> None:
    for missing, _ in needs:
        for resource, action in needs:
            await door.ask(ADMIN, 3008, {"subject": "User:alice", "resource": resource})
            if resource != missing:
                assert (await door.allow(ALICE, resource, action)).code == 0
        answer = await door.ask(ALICE, code, fields, body)
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            f"User:alice has no permission to access {missing} from 127.0.0.1, no matched policies.",
        )
    for resource, action in needs:
        assert (await door.allow(ALICE, resource, action)).code == 0
    answer = await door.ask(ALICE, code, fields, body)
    assert "no permission to access" not in (answer.remark or "")


async def test_a_message_that_is_named_by_its_place_needs_its_own_topic(door: Door) -> None:
    """Whatever the request says: a send-back would copy it to where anybody of the group reads it."""
    half = send_fields("Secret") | {"i": "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01A", "f": 4}
    sent = [await door.ask(ADMIN, 310, fields, b"secret") for fields in (send_fields("Secret"), half)]
    ids = [one.ext_fields["msgId"] for one in sent]
    place, half_place = (int(one[16:], 16) for one in ids)
    for resource in ("Group:g", "Topic:T"):
        await door.allow(ALICE, resource, "Sub", "Pub")
    end = {"topic": "T", "producerGroup": "pg", "tranStateTableOffset": 0, "commitLogOffset": half_place,
           "commitOrRollback": 12, "msgId": "A", "transactionId": "A"}  # fmt: skip
    asked: list[tuple[int, dict[str, Any]]] = [
        (36, TG | {"offset": place, "originTopic": "T"}), (309, TG | {"msgId": ids[0]}), (37, end),
    ]  # fmt: skip
    for code, fields in asked:
        answer = await door.ask(ALICE, code, fields)
        assert (answer.code, "Topic:Secret" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True), fields
    assert door.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 0
    await door.allow(ALICE, "Topic:Secret", "Sub", "Pub")
    for code, fields in (asked[0], asked[2]):
        answer = await door.ask(ALICE, code, fields)
        assert answer.code == 0, answer.remark


async def test_every_code_that_is_handled_says_what_it_needs(door: Door) -> None:
    assert set(door.broker._server._handlers) <= set(RULES)


async def test_a_code_without_an_entry_is_for_super_users(door: Door) -> None:
    for code in set(map(int, RequestCode)) - set(RULES):
        refused = await door.ask(ALICE, code)
        assert refused.code == ResponseCode.NO_PERMISSION
    assert (await door.ask(ADMIN, 9_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_stranger_gets_nothing_by_any_code_and_learns_none(door: Door) -> None:
    codes = sorted({*map(int, RequestCode), 0, -1, 9_999})
    async with RemotingClient() as client:
        asked = [request(code, {"topic": "T"}, b"x" * size) for code in codes[:40] for size in (0, 1 << 10)]
        for answer in await asyncio.gather(*(client.invoke(door.broker.address, one, 60) for one in asked)):
            assert (answer.code, answer.remark) == (16, "username cannot be null."), answer
    late = random.sample(codes, 10)  # by now each is told late
    for answer in await asyncio.gather(*(door.ask(None, code) for code in late)):
        assert (answer.code, answer.remark, bytes(answer.body)) == (16, "username cannot be null.", b"")
    assert (await door.ask(ADMIN, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0


async def test_who_guesses_for_long_is_disconnected_and_others_are_not(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_core.broker.access.guard.REFUSAL_WAIT_S", 0)
    async with RemotingClient(credentials=Credentials("admin", "wrong")) as client:
        for _ in range(1000):
            assert (await client.invoke(door.broker.address, request(26), 60)).remark == "check signature failed."
        with pytest.raises(ConnectionLostError):
            await client.invoke(door.broker.address, request(26), 60)
    assert (await door.ask(ADMIN, 26)).code == 0


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
async def test_a_signature_is_of_the_fields_and_the_body(door: Door, kind: int) -> None:
    await door.allow(ALICE, "Topic:T", "Pub")
    whole = request(310, {name: str(value) for name, value in send_fields("T").items()}, b"body", serialize_type=kind)
    sign(whole, ALICE)
    for name, value, body, code in (
        ("e", "0", b"body", 0), ("e", "1", b"body", 16), ("e", "0", b"bodY", 16), ("extra", "x", b"body", 16),
        (SIGNATURE, "", b"body", 16), (SIGNATURE, "é", b"body", 16), ("AccessKey", "admin", b"body", 16),
    ):  # fmt: skip
        fields = {**whole.ext_fields, name: value}
        answer = await door.ask(None, 310, fields, body, kind)
        assert answer.code == code, (name, value, answer.remark)


async def test_a_disabled_user_is_out_at_once_and_a_password_changes_at_once(door: Door) -> None:
    await door.allow(ALICE, "*", "All")
    assert (await door.ask(ALICE, 26)).code == 0
    changed = await door.ask(ADMIN, 3002, {"username": "alice"}, b'{"userStatus":"disable"}')
    assert changed.code == 0
    assert (await door.ask(ALICE, 26)).remark == "User:alice is disabled."
    body = b'{"userStatus":"enable","password":"other"}'
    assert (await door.ask(ADMIN, 3002, {"username": "alice"}, body)).code == 0
    assert (await door.ask(ALICE, 26)).remark == "check signature failed."
    assert (await door.ask(Credentials("alice", "other"), 26)).code == 0
    await door.allow(ALICE, f"Cluster:{CLUSTER}", "Get", decision="Deny")
    assert "the decision is deny" in ((await door.ask(Credentials("alice", "other"), 26)).remark or "")


async def test_super_users_are_made_by_super_users_and_the_last_one_stays(door: Door) -> None:
    await door.allow(ALICE, f"Cluster:{CLUSTER}", "Update", "Get")
    bob = b'{"password":"p","userType":"Super"}'
    refused = await door.ask(ALICE, 3001, {"username": "bob"}, bob)
    assert (refused.code, refused.remark) == (1, "The super user can only be create by super user")
    for code, name, body in (
        (3002, "admin", b'{"password":"mine"}'), (3002, "alice", b'{"userType":"Super"}'), (3003, "admin", b""),
    ):  # fmt: skip
        assert (await door.ask(ALICE, code, {"username": name}, body)).remark == (
            "The super user can only be update by super user"
        )
    for code, body in ((3003, b""), (3002, b'{"userStatus":"disable"}'), (3002, b'{"userType":"Normal"}')):
        assert (await door.ask(ADMIN, code, {"username": "admin"}, body)).remark == "The last super user has to stay."
    assert (await door.ask(ADMIN, 3001, {"username": "bob"}, bob)).code == 0
    assert (await door.ask(ADMIN, 3003, {"username": "admin"})).code == 0
    assert (await door.ask(Credentials("bob", "p"), 26)).code == 0


async def test_passwords_are_told_to_super_users_alone_and_settings_to_nobody(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await door.allow(ALICE, f"Cluster:{CLUSTER}", "Get")
    for who, is_told in ((ADMIN, True), (ALICE, False)):
        for code in (3004, 3005):
            answer = await door.ask(who, code, {"username": "alice", "filter": "ali"})
            assert (ALICE.secret_key.encode() in bytes(answer.body)) is is_told
        settings = bytes((await door.ask(who, 26)).body)
        assert b"initAuthenticationUser=***" in settings
        assert b"s3cret" not in settings
    assert "s3cret" not in repr(SETTINGS) + caplog.text + repr(door.broker._accounts.users)  # type: ignore[union-attr]


async def test_users_and_policies_are_there_after_a_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as door:
        await door.make(ALICE)
        await door.allow(ALICE, "Topic:T*", "Pub", "Sub")
    file = tmp_path / "store" / "config" / "access" / "accounts.json"
    assert file.parent.stat().st_mode & 0o77 == 0
    async with opened(tmp_path / "store") as door:
        acl = json.loads(bytes((await door.ask(ADMIN, 3009, {"subject": "User:alice"})).body))
        assert acl["policies"][0]["entries"][0]["resource"] == "Topic:T*"
        assert (await door.ask(ALICE, 310, send_fields("T1"), b"x")).code == 0


@pytest.mark.parametrize("damage", ["cut", "policy", "gone"])
async def test_a_broken_file_of_users_is_told_and_nobody_is_let_in_by_it(tmp_path: Path, damage: str) -> None:
    async with opened(tmp_path / "store") as door:
        await door.make(ALICE)
        await door.allow(ALICE, "Topic:T*", "Pub")
        await door.allow(ALICE, "Topic:S*", "Pub")
    file = tmp_path / "store" / "config" / "access" / "accounts.json"
    whole = file.read_text()
    if damage == "gone":
        file.unlink()
    else:
        file.write_text(whole[: len(whole) // 2] if damage == "cut" else whole.replace("Topic:T*", "Thing:T*"))
    with pytest.raises(StoreError, match=r"accounts\.json") as told:
        async with opened(tmp_path / "store"):
            pass
    assert "s3cret" not in str(told.value)
    file.write_text(whole)
    async with opened(tmp_path / "store") as door:
        assert (await door.ask(ALICE, 310, send_fields("T1"), b"x")).code == 0


@pytest.mark.parametrize(("text", "words"), [
    ("authorizationEnabled=true", "requires authenticationEnabled"),
    ("authenticationEnabled=true\nauthenticationWhitelist=105,x", "no request code: 'x'"),
    ("authenticationEnabled=true\ninitAuthenticationUser=s3cret", "initAuthenticationUser: is not JSON of the form"),
    ('authenticationEnabled=true\ninnerClientAuthenticationCredentials={"accessKey":"a"}', "is not JSON of the form"),
    ('authenticationEnabled=true\ninitAuthenticationUser={"username":"","password":"s3cret"}', "is empty"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_without_the_secret(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{text}\n")
    with pytest.raises(OptionError, match=words) as told:
        load_config(str(tmp_path / "store"), file, environ={})
    assert "s3cret" not in str(told.value)


async def test_a_broker_without_a_super_user_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="requires a super user: give initAuthenticationUser"):
        async with opened(tmp_path / "store", BrokerConfig(listen_port=0, authentication_enabled=True)):
            pass


async def test_lists_of_codes_are_let_through(tmp_path: Path) -> None:
    settings = replace(SETTINGS, authentication_whitelist="28", authorization_whitelist="26")
    async with opened(tmp_path / "store", settings) as door:
        await door.make(ALICE)
        for who, code, expected in ((None, 28, 0), (None, 26, 16), (ALICE, 26, 0), (ALICE, 28, 0)):
            assert (await door.ask(who, code)).code == expected


async def test_without_authentication_there_are_no_users_to_administer(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", BrokerConfig(listen_port=0)) as door:
        for code in range(3001, 3011):
            answer = await door.ask(None, code, {"username": "a", "subject": "User:a"}, b'{"password":"p"}')
            assert (answer.code, "authenticationEnabled is not set" in (answer.remark or "")) == (16, True)
