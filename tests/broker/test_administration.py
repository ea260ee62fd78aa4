"""What administrators ask and change."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmq_core.broker.tables.stats import Stats
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, queue_key
from rmq_core.remoting.bodies.configs import TopicConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs import fastjson
from rmq_formats.codecs.java_properties import parse_properties
from tests.broker.conftest import Asker, messages

QUEUE = queue_key(MessageQueue(broker_name="broker-a", queue_id=0, topic="T"))
PLACE: dict[str, object] = {"consumerGroup": "cg", "topic": "T", "queueId": 0}


def told(answer: RemotingCommand) -> object:
    """What a body says."""
    assert answer.code == 0, answer
    return fastjson.loads(str(answer.body, "utf-8"))


def table(answer: RemotingCommand, name: str) -> dict[str, Any]:
    body = told(answer)
    assert isinstance(body, dict)
    found: dict[str, Any] = body[name]
    return found


async def create(asker: Asker, topic: str, **more: object) -> RemotingCommand:
    fields: dict[str, object] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more)


async def test_a_topic_that_asks_for_compaction_is_made_with_a_warning(
    asker: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await create(asker, "Plain")).code == 0
    assert "compacts no topic" not in caplog.text
    assert (await create(asker, "Keyed", attributes="+cleanup.policy=COMPACTION")).code == 0
    assert "topic Keyed has cleanup.policy=COMPACTION, and this broker compacts no topic" in caplog.text


async def test_topics_are_made_changed_and_deleted(asker: Asker) -> None:
    assert (await create(asker, "T", attributes="+message.type=FIFO")).code == 0
    made = decode_body((await asker.ask(351, {"topic": "T"})).body, TopicConfig)
    assert (made.read_queue_nums, made.write_queue_nums, made.attributes) == (3, 2, {"message.type": "FIFO"})
    assert (await create(asker, "T", perm=4, attributes="-message.type")).code == 0
    assert decode_body((await asker.ask(351, {"topic": "T"})).body, TopicConfig).attributes == {}
    await asker.send("T")
    assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await asker.ask(351, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
    await asker.send("T", b"anew")
    assert [one.body for one in messages(await asker.pull("T"))] == [b"anew"]


@pytest.mark.parametrize(
    "attributes",
    ["message.type=FIFO", "+none=1", "+message.type=none", "-message.type", "+reserve.time=x", "+reserve.time=1_0"],
)
async def test_attributes_that_are_none_are_refused(asker: Asker, attributes: str) -> None:
    assert (await create(asker, "T", attributes=attributes)).code == ResponseCode.SYSTEM_ERROR
    assert (await asker.ask(351, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_topic_has_queues_of_one_of_two_kinds_and_no_light_queue_s_name(asker: Asker) -> None:
    assert (await create(asker, "T", attributes="+queue.type=Other")).code == ResponseCode.SYSTEM_ERROR
    assert (await asker.ask(351, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await create(asker, "T", attributes="+queue.type=SimpleCQ")).code == 0
    assert (await create(asker, "B", attributes="+queue.type=BatchCQ")).code == 0
    assert (await create(asker, "%LMQ%light")).code == ResponseCode.INVALID_PARAMETER


async def test_lists_of_topics_are_made(asker: Asker) -> None:
    body = b'{"topicConfigList":[{"topicName":"A","readQueueNums":1,"writeQueueNums":1},{"topicName":"B"}]}'
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == 0
    topics = table(await asker.ask(RequestCode.GET_ALL_TOPIC_CONFIG), "topicConfigTable")
    assert {"A", "B", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= topics.keys()
    assert topics["TBW102"]["perm"] == 7


async def test_lists_of_topics_change_attributes(asker: Asker) -> None:
    async def put(attributes: str) -> int:
        body = f'{{"topicConfigList":[{{"topicName":"A","attributes":{attributes}}}]}}'
        return (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body.encode())).code

    assert await put('{"message.type":"FIFO"}') == ResponseCode.SYSTEM_ERROR
    assert (await asker.ask(351, {"topic": "A"})).code == ResponseCode.TOPIC_NOT_EXIST
    assert await put('{"+message.type":"FIFO","+reserve.time":"-1"}') == 0
    assert await put('{"-message.type":"","+queue.type":"BatchCQ"}') == ResponseCode.SYSTEM_ERROR
    assert await put('{"message.type":"FIFO","reserve.time":"-1"}') == 0  # as it is: no changes
    assert await put('{"+message.type":"MIXED"}') == ResponseCode.INVALID_PARAMETER
    assert await put('{"-message.type":""}') == 0
    assert decode_body((await asker.ask(351, {"topic": "A"})).body, TopicConfig).attributes == {"reserve.time": "-1"}


async def test_attributes_of_groups_stay_and_there_are_none_to_change(asker: Asker, store_config: StoreConfig) -> None:
    file = Path(store_config.root, "config/subscriptionGroup.json")
    assert (await asker.ask(200, {}, b'{"groupName":"g"}')).code == 0
    await asker.broker.close()
    table = json.loads(file.read_text())
    table["subscriptionGroupTable"]["g"]["attributes"] = {"from.later": "versions"}
    file.write_text(json.dumps(table))
    await asker.broker.start()
    for change in ("+from.later", "-from.later", "+other"):
        refused = await asker.ask(200, {}, f'{{"groupName":"g","attributes":{{"{change}":"x"}}}}'.encode())
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, f"unsupported key: {change[1:]}")
    assert (await asker.ask(225, {}, b'{"groupConfigList":[{"groupName":"g","retryMaxTimes":3}]}')).code == 0
    kept = json.loads(bytes((await asker.ask(352, {"group": "g"})).body))
    assert (kept["attributes"], kept["retryMaxTimes"]) == ({"from.later": "versions"}, 3)
    assert json.loads(file.read_text())["subscriptionGroupTable"]["g"]["attributes"] == {"from.later": "versions"}


async def test_topics_tell_how_far_they_are(asker: Asker) -> None:
    await asker.send("T")
    queues = table(await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}), "offsetTable")
    assert len(queues) == 4
    assert queues[QUEUE]["maxOffset"] == 1
    assert queues[QUEUE]["lastUpdateTimestamp"]


async def test_groups_are_made_and_deleted(asker: Asker) -> None:
    assert (await asker.ask(200, {}, b'{"groupName":"g","retryMaxTimes":3}')).code == 0
    assert table(await asker.ask(201), "subscriptionGroupTable")["g"]["retryMaxTimes"] == 3
    assert (await asker.ask(352, {"group": "g"})).code == 0
    await asker.send("T")
    await asker.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert (await asker.ask(207, {"groupName": "g", "cleanOffset": "true"})).code == 0
    assert (await asker.ask(352, {"group": "g"})).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert b'"T@g"' not in bytes((await asker.ask(43)).body)


async def test_who_is_connected_is_told(asker: Asker) -> None:
    assert (await asker.ask(203, {"consumerGroup": "cg"})).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert (await asker.ask(204, {"producerGroup": "pg"})).code == ResponseCode.SYSTEM_ERROR
    await asker.heartbeat("cg", SubscriptionData(topic="T"))
    consumers = told(await asker.ask(203, {"consumerGroup": "cg"}))
    assert isinstance(consumers, dict)
    assert [one["clientId"] for one in consumers["connectionSet"]] == ["c1"]
    assert consumers["subscriptionTable"]["T"]["subString"] == "*"
    producers = told(await asker.ask(204, {"producerGroup": "pg"}))
    assert isinstance(producers, dict)
    assert producers["connectionSet"][0]["language"] == "PYTHON"
    assert "pg" in table(await asker.ask(328), "data")
    assert told(await asker.ask(300, {"topic": "T"})) == {"groupList": ["cg"]}
    await asker.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "producerGroup": "pg", "consumerGroup": "cg"})
    assert (await asker.ask(203, {"consumerGroup": "cg"})).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert (await asker.ask(204, {"producerGroup": "pg"})).code == ResponseCode.SYSTEM_ERROR


async def test_how_far_groups_are_is_told(asker: Asker) -> None:
    for _ in range(3):
        await asker.send("T")
    await asker.pull("T", sysFlag=5, commitOffset=1)
    progress = table(await asker.ask(208, {"consumerGroup": "cg"}), "offsetTable")
    assert (progress[QUEUE]["brokerOffset"], progress[QUEUE]["consumerOffset"]) == (3, 1)
    assert progress[QUEUE]["lastTimestamp"]
    everyone = told(await asker.ask(317, {"isOrder": "false"}))
    assert isinstance(everyone, dict)
    assert everyone["totalDiff"] == 2
    spans = told(await asker.ask(303, {"topic": "T", "group": "cg"}))
    assert isinstance(spans, dict)
    assert len(spans["consumeTimeSpanSet"]) == 4
    assert told(await asker.ask(343, {"group": "cg"})) == {
        "brokerAddr": asker.broker.address, "topicList": ["T"],
    }  # fmt: skip


async def test_offsets_are_asked_and_set(asker: Asker) -> None:
    assert (await asker.ask(14, PLACE)).code == ResponseCode.QUERY_NOT_FOUND
    await asker.send("T")
    assert (await asker.ask(14, PLACE)).ext_fields == {"offset": "0"}
    assert (await asker.ask(14, PLACE | {"setZeroIfNotFound": "false"})).code == ResponseCode.QUERY_NOT_FOUND
    await asker.heartbeat("cg")
    assert (await asker.ask(15, PLACE | {"commitOffset": 1})).code == 0
    assert (await asker.ask(14, PLACE)).ext_fields == {"offset": "1"}
    assert (await asker.ask(30, {"topic": "T", "queueId": 0})).ext_fields == {"offset": "1"}
    assert (await asker.ask(31, {"topic": "T", "queueId": 0})).ext_fields == {"offset": "0"}
    stored_ms = (await asker.ask(32, {"topic": "T", "queueId": 0})).ext_fields["timestamp"]
    assert int(stored_ms) > 0
    assert (await asker.ask(32, {"topic": "T", "queueId": 1})).ext_fields == {"timestamp": "-1"}
    search: dict[str, object] = {"topic": "T", "queueId": 0, "timestamp": int(stored_ms) + 1}
    assert (await asker.ask(29, search)).ext_fields == {"offset": "1"}
    assert (await asker.ask(29, search | {"boundaryType": "UPPER"})).ext_fields == {"offset": "0"}


async def test_a_reset_is_told_at_the_next_pull(asker: Asker) -> None:
    for _ in range(3):
        await asker.send("T")
    await asker.pull("T", sysFlag=5, commitOffset=3)
    waiting = asyncio.ensure_future(asker.pull("T", 3, sysFlag=6, suspendTimeoutMillis=20_000))
    await asyncio.sleep(0.05)
    reset: dict[str, object] = {"group": "cg", "topic": "T", "timestamp": 0, "isForce": "true"}
    queues = table(await asker.ask(222, reset), "offsetTable")
    assert queues[QUEUE] == 0
    answer = await waiting
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert len(messages(await asker.pull("T"))) == 3
    assert (await asker.ask(222, reset | {"topic": "none"})).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await asker.ask(222, reset | {"group": "none"})).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await asker.ask(222, reset | {"queueId": 0, "offset": 9})).code == ResponseCode.SYSTEM_ERROR


async def test_commits_wait_for_a_reset_to_be_told(asker: Asker) -> None:
    await asker.send("T")
    await asker.heartbeat("cg")
    await asker.ask(222, {"group": "cg", "topic": "T", "timestamp": -1, "isForce": "true"})
    answer = await asker.ask(15, PLACE | {"commitOffset": 0})
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    assert (await asker.ask(14, PLACE)).ext_fields == {"offset": "1"}


async def test_offsets_are_cloned(asker: Asker) -> None:
    await asker.send("T")
    await asker.pull("T", sysFlag=5, commitOffset=1)
    assert (await asker.ask(314, {"srcGroup": "cg", "destGroup": "other", "topic": "T", "offline": "true"})).code == 0
    assert (await asker.ask(14, PLACE | {"consumerGroup": "other"})).ext_fields == {"offset": "1"}


async def test_messages_are_found(asker: Asker) -> None:
    sent = await asker.send("T", b"found", properties={"UNIQ_KEY": "U1", "KEYS": "k1 k2"})
    query: dict[str, object] = {
        "topic": "T", "key": "k2", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60,
    }  # fmt: skip
    assert messages(await asker.ask(12, query))[0].body == b"found"
    assert messages(await asker.ask(12, query | {"key": "U1", "_UNIQUE_KEY_QUERY": "true"}))[0].body == b"found"
    assert (await asker.ask(12, query | {"key": "k2", "_UNIQUE_KEY_QUERY": "true"})).code == 22
    assert (await asker.ask(12, query | {"key": "k3"})).code == ResponseCode.QUERY_NOT_FOUND
    offset = int(sent.ext_fields["msgId"][16:], 16)
    assert messages(await asker.ask(33, {"offset": offset}))[0].body == b"found"
    for wrong in (offset + 1, 1 << 40, -1):
        assert (await asker.ask(33, {"offset": wrong})).code == ResponseCode.SYSTEM_ERROR


async def test_queues_are_locked_by_one_client(asker: Asker) -> None:
    def body(client_id: str, topic: str = "T", name: str = asker.broker.state.config.broker_name) -> bytes:
        queue = {"brokerName": name, "queueId": 0, "topic": topic}
        return msgspec.json.encode({"clientId": client_id, "consumerGroup": "cg", "mqSet": [queue]})

    await asker.send("T")
    assert len(table(await asker.ask(41, {}, body("c1")), "lockOKMQSet")) == 1
    assert len(table(await asker.ask(41, {}, body("c2")), "lockOKMQSet")) == 0
    await asker.ask(42, {}, body("c2"))
    assert len(table(await asker.ask(41, {}, body("c2")), "lockOKMQSet")) == 0
    await asker.ask(42, {}, body("c1"))
    assert len(table(await asker.ask(41, {}, body("c2")), "lockOKMQSet")) == 1
    held_bytes = asker.broker.state.locks.held_bytes
    for made_up in (body("c1", topic="Unknown"), body("c1", name="another")):
        assert len(table(await asker.ask(41, {}, made_up), "lockOKMQSet")) == 0
    assert asker.broker.state.locks.held_bytes == held_bytes


async def test_settings_are_told_and_the_mutable_ones_changed(asker: Asker) -> None:
    settings = await asker.ask(RequestCode.GET_BROKER_CONFIG)
    values = parse_properties(str(settings.body, "utf-8"))
    assert values["brokerName"] == "broker-a"
    assert values["mappedFileSizeCommitLog"] == str(1 << 20)
    assert "counter" in settings.ext_fields["version"]
    assert (await asker.ask(25, {}, b"autoCreateTopicEnable=false\n")).code == 0
    assert (await asker.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
    for change in (b"storePathRootDir=/tmp/x", b"brokerName=x", b"brokerPermission=9", b"none=1"):
        answer = await asker.ask(25, {}, b"autoCreateTopicEnable=true\n" + change)
        assert answer.code == ResponseCode.NO_PERMISSION
    assert (await asker.send("T")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_how_the_broker_does_is_told(asker: Asker) -> None:
    await asker.send("T")
    info = table(await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO), "table")
    assert all(isinstance(value, str) for value in info.values())
    assert info["brokerVersionDesc"] == "V5_3_3"
    assert (info["msgPutTotalTodayNow"], info["dispatchBehindBytes"]) == ("1", "0")
    counted = told(await asker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}))
    assert isinstance(counted, dict)
    assert counted["statsMinute"]["sum"] == 1
    assert (await asker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "none"})).code == 1
    for code in (305, 329, 306, 316, 907):
        assert (await asker.ask(code)).code == 0


async def test_consumers_are_asked_through_the_broker(asker: Asker) -> None:
    await asker.heartbeat("cg")
    asker.handlers[307] = lambda command, _: command.response(body=b'{"jstack":"x"}')
    answer = await asker.ask(307, {"consumerGroup": "cg", "clientId": "c1"})
    assert bytes(answer.body) == b'{"jstack":"x"}'
    offline = await asker.ask(307, {"consumerGroup": "cg", "clientId": "c2"})
    assert (offline.code, offline.remark) == (1, "The Consumer <cg> <c2> not online")


async def test_a_message_is_consumed_on_demand(asker: Asker) -> None:
    sent = await asker.send("T", b"try me")
    await asker.heartbeat("cg")
    given: list[tuple[str, list[bytes]]] = []

    def consume(command: RemotingCommand, _: object) -> RemotingCommand:
        given.append((command.ext_fields["brokerName"], [one.body for one in messages(command)]))
        return command.response(body=b'{"consumeResult":"CR_SUCCESS"}')

    asker.handlers[309] = consume
    fields: dict[str, object] = {"consumerGroup": "cg", "clientId": "c1", "topic": "T"}
    answer = await asker.ask(309, fields | {"msgId": sent.ext_fields["msgId"]})
    assert b"CR_SUCCESS" in bytes(answer.body)
    assert given == [("broker-a", [b"try me"])]
    for wrong in ("nonsense", sent.ext_fields["msgId"][:-1] + "1"):
        assert (await asker.ask(309, fields | {"msgId": wrong})).code == ResponseCode.SYSTEM_ERROR


async def test_rates_are_those_of_their_time() -> None:
    now_ms = [0]
    counted = Stats(lambda: now_ms[0])
    counted.count("N", "k", 20)
    for _ in range(13):
        now_ms[0] += 10_000
        counted.sample()
    counted.count("N", "k", 6)
    found = counted.body("N", "k")
    assert found is not None
    assert (found.stats_minute.sum, found.stats_minute.tps) == (6, 0.1)
    assert (found.stats_hour.sum, found.stats_hour.avgpt) == (26, 13)
    assert counted.body("N", "other") is None
    assert counted.rate("N", "other") == 0


async def test_messages_in_flight_are_seen_in_a_group_s_progress(asker: Asker) -> None:
    """``pullOffset`` is where the last answered pull ended; a reset begins anew."""
    for number in range(5):
        await asker.send("T", b"%d" % number)

    async def offsets() -> tuple[int, int]:
        answer = await asker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "cg", "topic": "T"})
        one = table(answer, "offsetTable")[QUEUE]
        return one["consumerOffset"], one["pullOffset"]

    assert await offsets() == (0, 0)
    await asker.pull("T", 0, maxMsgNums=3)
    assert await offsets() == (0, 3)
    await asker.pull("T", 3, sysFlag=5, commitOffset=2)
    assert await offsets() == (2, 5)
    assert (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 5})).code == 0
    assert await offsets() == (5, 5)
    reset = {"topic": "T", "group": "cg", "timestamp": 0, "isForce": True}
    assert (await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    assert await offsets() == (0, 0)
