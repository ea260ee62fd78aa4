import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import DataVersion
from rmq_core.remoting.bodies.routes import RegisterBrokerBody, encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.namesrv_requests import RegisterBroker
from tests.broker.conftest import eventually
from tests.namesrv.conftest import Asker, Clock
from tests.namesrv.registrations import broker, identity, topics


async def register(
    asker: Asker, registration: RegisterBroker, body: RegisterBrokerBody, **more_fields: str
) -> RemotingCommand:
    return await asker.ask(
        103, write_fields(registration) | more_fields, encode_registration(body, registration.compressed)
    )


def content(answer: RemotingCommand) -> Any:
    assert answer.code == 0, answer
    return json.loads(bytes(answer.body))


async def test_a_registered_topic_has_a_route_in_java_s_bytes(asker: Asker) -> None:
    answer = await register(asker, broker(address="127.0.0.1:10911"), topics("T", "U"))
    assert (answer.code, answer.ext_fields, answer.body) == (0, {}, b"")
    route = await asker.ask(105, {"topic": "T"})
    assert bytes(route.body) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"a","cluster":"C",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    for version in (0, 317, 400):
        assert (await asker.ask(105, {"topic": "T"}, version=version)).body == route.body


async def test_no_route_is_code_17_with_the_original_s_remark(asker: Asker) -> None:
    answer = await asker.ask(105, {"topic": "none"})
    assert (answer.code, answer.remark) == (
        17,
        "No topic route info in name server for the topic: none\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
    )


async def test_clusters_and_topics_are_listed(asker: Asker) -> None:
    await register(asker, broker("a"), topics("T", "U"))
    cluster = content(await asker.ask(106))
    assert cluster["clusterAddrTable"] == {"C": ["a"]}
    assert cluster["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "a0:10911"}
    assert content(await asker.ask(206)) == {"topicList": ["T", "U"]}
    assert content(await asker.ask(224, {"cluster": "C"})) == {"topicList": ["T", "U"]}
    assert content(await asker.ask(304)) == {"brokerAddr": "a0:10911", "topicList": ["C", "a"]}
    for code in (311, 312, 313):
        assert content(await asker.ask(code)) == {"topicList": []}


async def test_a_first_registration_with_one_topic_is_refused(asker: Asker) -> None:
    answer = await register(asker, broker(), topics("T"))
    assert (answer.code, answer.remark) == (1, "register broker failed")


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registration_s_checksum_is_checked(asker: Asker, compressed: bool) -> None:
    body = encode_registration(topics("T", "U"), compressed)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    for given, code in ((crc, 0), (crc ^ 1, 1), (0, 0)):
        fields = write_fields(broker(compressed=compressed, body_crc32=given))
        answer = await asker.ask(103, fields, body)
        assert answer.code == code
        assert code == 0 or answer.remark == "crc32 not match"
    assert content(await asker.ask(206)) == {"topicList": ["T", "U"]}


async def test_a_broker_of_an_old_version_registers_topics_only(asker: Asker) -> None:
    body = encode_body(topics("T", "U").topic_config_serialize_wrapper)
    assert (await asker.ask(103, write_fields(broker()), body, version=30)).code == 0
    assert content(await asker.ask(206)) == {"topicList": ["T", "U"]}


async def test_a_slave_is_told_its_master(asker: Asker) -> None:
    await register(asker, broker("a", 0), topics("T", "U"))
    answer = await register(asker, broker("a", 1), topics("T", "U"))
    assert answer.ext_fields == {"haServerAddr": "a0:10912", "masterAddr": "a0:10911"}
    group = content(await asker.ask(901, {"clusterName": "C", "brokerName": "a"}))
    assert group["brokerMemberGroup"]["brokerAddrs"] == {"0": "a0:10911", "1": "a1:10911"}


async def test_unregistering_takes_effect_at_once(asker: Asker) -> None:
    await register(asker, broker(), topics("T", "U"))
    assert (await asker.ask(104, write_fields(identity(broker())))).code == 0
    assert (await asker.ask(105, {"topic": "T"})).code == 17


@pytest.mark.parametrize("cluster", ["C", "other"])
async def test_a_broker_is_unregistered_on_its_connection_alone(asker: Asker, cluster: str) -> None:
    await register(asker, broker(), topics("T", "U"))
    named = write_fields(identity(broker(cluster=cluster)))
    async with RemotingClient() as stranger:
        refused = await stranger.invoke(asker.server.address, request(104, named), 60)
    assert (refused.code, refused.remark) == (16, "broker a was registered on another connection")
    assert (await asker.ask(105, {"topic": "T"})).code == 0
    assert (await asker.ask(104, write_fields(identity(broker("gone"))))).code == 0


async def test_a_stranger_who_repeats_a_registration_takes_no_broker_away(asker: Asker) -> None:
    await register(asker, broker(), topics("T", "U"))
    fields, body = write_fields(broker()), encode_registration(topics("T", "U"), False)
    async with RemotingClient() as stranger:
        assert (await stranger.invoke(asker.server.address, request(103, fields, body), 60)).code == 0
        refused = await stranger.invoke(asker.server.address, request(104, write_fields(identity(broker()))), 60)
        assert refused.code == 16
    assert (await asker.ask(105, {"topic": "T"})).code == 0, "nor when the stranger leaves"

    async def unregistered() -> bool:
        return (await asker.ask(104, write_fields(identity(broker())))).code == 0

    await eventually(unregistered)


async def test_a_data_version_is_compared_with_the_registered_one(asker: Asker, clock: Clock) -> None:
    fields = write_fields(identity(broker()))
    version = encode_body(DataVersion(counter=1))
    answer = await asker.ask(322, fields, version)
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
    await register(asker, broker(), topics("T", "U"))
    answer = await asker.ask(322, fields, version)
    assert (answer.ext_fields, answer.body) == ({"changed": "false"}, version)
    answer = await asker.ask(322, fields, encode_body(DataVersion(counter=2)))
    assert answer.ext_fields == {"changed": "true"}


async def test_write_perm_is_wiped_and_added(asker: Asker) -> None:
    await register(asker, broker(), topics("T", "U"))
    assert (await asker.ask(205, {"brokerName": "a"})).ext_fields == {"wipeTopicCount": "2"}
    assert content(await asker.ask(105, {"topic": "T"}))["queueDatas"][0]["perm"] == 4
    assert (await asker.ask(327, {"brokerName": "a"})).ext_fields == {"addTopicCount": "2"}
    assert content(await asker.ask(105, {"topic": "T"}))["queueDatas"][0]["perm"] == 6


async def test_key_values_are_set_read_listed_and_deleted(asker: Asker) -> None:
    entry = {"namespace": "N", "key": "k"}
    answer = await asker.ask(101, entry)
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: N Key: k")
    assert (await asker.ask(219, {"namespace": "N"})).code == 22
    assert (await asker.ask(100, entry | {"value": "v"})).code == 0
    assert (await asker.ask(101, entry)).ext_fields == {"value": "v"}
    assert content(await asker.ask(219, {"namespace": "N"})) == {"table": {"k": "v"}}
    assert (await asker.ask(102, entry)).code == 0
    assert (await asker.ask(101, entry)).code == 22
    assert content(await asker.ask(219, {"namespace": "N"})) == {"table": {}}


async def test_order_configuration_goes_to_brokers_and_if_asked_into_routes(asker: Asker) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"}
    await asker.ask(100, order)
    answer = await register(asker, broker(), topics("T", "U"))
    assert content(answer) == {"table": {"T": "a:4"}}
    assert "orderTopicConf" not in content(await asker.ask(105, {"topic": "T"}))
    assert (await asker.ask(318, body=b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=false")).code == 0
    assert content(await asker.ask(105, {"topic": "T"}))["orderTopicConf"] == "a:4"
    assert "orderTopicConf" not in content(await asker.ask(105, {"topic": "U"}))
    assert (await register(asker, broker(), topics("T", "U"))).body == b""


async def test_topics_are_registered_and_deleted_by_hand(asker: Asker) -> None:
    await register(asker, broker(), topics("T", "U"))
    route = b'{"queueDatas":[{"brokerName":"a","readQueueNums":1,"writeQueueNums":1,"perm":6}]}'
    assert (await asker.ask(217, {"topic": "V"}, route)).code == 0
    assert content(await asker.ask(105, {"topic": "V"}))["queueDatas"][0]["readQueueNums"] == 1
    assert (await asker.ask(216, {"topic": "V"})).code == 0
    assert (await asker.ask(216, {"topic": "U", "clusterName": "C"})).code == 0
    assert content(await asker.ask(206)) == {"topicList": ["T"]}


async def test_settings_are_told_and_only_harmless_ones_changed(asker: Asker) -> None:
    before = await asker.ask(319)
    assert b"kvConfigPath=/" in bytes(before.body)
    assert b"scanNotActiveBrokerInterval=20\n" in bytes(before.body)
    for change in ("kvConfigPath=/etc/passwd", "orderMessageEnable=true\nlistenPort=1", "rocketmqHome=/", "x=y",
                   "orderMessageEnable=perhaps", "configBlackList=x"):  # fmt: skip
        answer = await asker.ask(318, body=change.encode())
        assert (answer.code, (answer.remark or "")[:36]) == (16, "Can not update config in black list.")
    assert (await asker.ask(318, body=b"\xff")).code == 1
    assert (await asker.ask(319)).body == before.body
    assert (await asker.ask(318, body=b"enableTopicList=false\nenableAllTopicList=false")).code == 0
    for code in (206, 311):
        answer = await asker.ask(code)
        assert (answer.code, answer.remark) == (1, "disable")


async def test_routes_may_have_to_wait_after_the_start(asker: Asker, clock: Clock) -> None:
    await register(asker, broker(), topics("T", "U"))
    await asker.ask(318, body=b"needWaitForService=true")
    answer = await asker.ask(105, {"topic": "T"})
    assert (answer.code, answer.remark) == (1, "name server not ready")
    clock.ms += 45_000
    assert (await asker.ask(105, {"topic": "T"})).code == 0


async def test_a_client_may_want_the_brokers_of_its_zone(asker: Asker) -> None:
    for name, zone in (("a", "Z1"), ("b", "Z2"), ("c", "")):
        await register(asker, broker(name), topics("T", "U"), **({"__ZONE_NAME": zone} if zone else {}))
    await register(asker, broker("s", 1, enable_acting_master=False), topics("T", "U"))
    zone_fields = {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"}
    route = content(await asker.ask(105, zone_fields))
    assert [entry["brokerName"] for entry in route["brokerDatas"]] == ["a", "s"]
    assert [entry["brokerName"] for entry in route["queueDatas"]] == ["a", "s"]
    assert route["brokerDatas"][0]["zoneName"] == "Z1"
    for fields in ({"topic": "T"}, zone_fields | {"__ZONE_MODE": "false"}, zone_fields | {"__ZONE_NAME": " "}):
        assert len(content(await asker.ask(105, fields))["brokerDatas"]) == 4


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (103, {}, b""),
        (103, write_fields(broker()), b"{"),
        (103, write_fields(broker(compressed=True)), b"no zlib"),
        (103, write_fields(broker()) | {"brokerId": "zero"}, b""),
        (104, {"brokerName": "a"}, b""),
        (105, {}, b""),
        (100, {"namespace": "N", "key": "k"}, b""),
        (217, {"topic": "T"}, b"[1,2"),
        (322, write_fields(identity(broker())), b""),
    ],
)
async def test_bad_requests_are_code_1_and_the_connection_goes_on(
    asker: Asker, code: int, fields: dict[str, str], body: bytes
) -> None:
    answer = await asker.ask(code, fields, body)
    assert answer.code == 1
    assert answer.remark
    assert (await asker.ask(999)).code == 3
    assert content(await asker.ask(206)) == {"topicList": []}


def test_settings_of_the_wire_are_settings_of_the_dataclass() -> None:
    assert replace(NamesrvConfig(), order_message_enable=True).order_message_enable
