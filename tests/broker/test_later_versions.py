"""What RocketMQ 5.4 and 5.5 have brought to brokers."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.codecs.message_id import decode_message_id
from tests.broker.conftest import Asker, Clock, messages, small_store
from tests.broker.pop.conftest import Popper
from tests.broker.test_administration import create


@pytest.fixture
async def tagging(tmp_path: Path, clock: Clock) -> AsyncIterator[Asker]:
    """A client of a broker that has TAGS in its Index."""
    store = replace(small_store(tmp_path / "store"), index_tags="yes")
    async with Broker(BrokerConfig(listen_port=0), store, clock) as broker, RemotingClient() as client:
        yield Asker(broker, client, {})


async def test_messages_are_found_by_their_tags(tagging: Asker) -> None:
    """``indexType=T``, as mqadmin's ``queryMsgByKey -p T`` of 5.4 and later asks."""
    for number, tags in enumerate(["red", "blue", "red", "red || blue"]):
        properties = {"TAGS": tags, "KEYS": "red", "UNIQ_KEY": f"U{number}"}
        assert (await tagging.send("T", b"%d" % number, properties=properties)).code == 0

    async def found(key: str, **more: object) -> list[bytes]:
        fields: dict[str, object] = {
            "topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": MAX_LONG,
        }  # fmt: skip
        answer = await tagging.ask(RequestCode.QUERY_MESSAGE, fields | more)
        return [one.body for one in messages(answer)] if answer.code == 0 else []

    assert await found("red", indexType="T") == [b"0", b"2"]
    assert await found("red || blue", indexType="T") == [b"3"]
    assert await found("blue", indexType="K") == []
    assert len(await found("red", indexType="K")) == 4
    assert await found("U1", indexType="U") == [b"1"]


async def test_a_priority_chooses_the_queue_of_a_plain_message(asker: Asker) -> None:
    assert (await create(asker, "T", attributes="+message.type=PRIORITY")).code == 0  # two queues to write
    for priority, more, queue_id in (
        ("0", {}, 0), ("1", {}, 1), ("9", {}, 1), ("-1", {}, 0), ("1", {"DELAY": "1"}, 0),
        ("1", {"__SHARDINGKEY": "k"}, 0),
    ):  # fmt: skip
        properties = {"UNIQ_KEY": "U", "_SYS_MSG_PRIORITY_": priority} | more
        answer = await asker.send("T", priority.encode(), properties=properties)
        assert (answer.code, answer.ext_fields["queueId"]) == (0, str(queue_id)), (priority, more)
    stored = [one for queue_id in (0, 1) for one in messages(await asker.pull("T", queue_id=queue_id))]
    assert [one.body for one in stored] == [b"0", b"-1", b"1", b"1", b"9"]
    assert ["_SYS_MSG_PRIORITY_" in one.properties for one in stored] == [True, True, False, True, True]


@pytest.mark.parametrize(("factor", "is_ordered"), [(None, True), ("100", True), ("0", False)])
async def test_a_pop_takes_the_highest_priorities_first(asker: Asker, factor: str | None, is_ordered: bool) -> None:
    assert (await create(asker, "T", attributes="+message.type=PRIORITY", readQueueNums=9, writeQueueNums=9)).code == 0
    attributes = {} if factor is None else {"+priority.factor": factor}
    body = encode_body(SubscriptionGroupConfig(group_name="g", attributes=attributes))
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    popper, orders = Popper(asker), set[tuple[bytes, ...]]()
    for _ in range(20):
        for priority in range(9):
            properties = {"UNIQ_KEY": f"U{priority}", "_SYS_MSG_PRIORITY_": str(priority)}
            await asker.send("T", b"%d" % priority, properties=properties)
        popped = await popper.pop()
        assert sorted(one.body for one in popped) == [b"%d" % priority for priority in range(9)]
        for one in popped:
            await popper.ack(one)
        orders.add(tuple(one.body for one in popped))
    assert (orders == {tuple(b"%d" % priority for priority in range(8, -1, -1))}) == is_ordered


async def test_a_message_is_viewed_by_whom_its_topic_is(asker: Asker) -> None:
    plain = await asker.send("T", b"plain")
    assert (await asker.send("T", b"waits", properties={"UNIQ_KEY": "U", "DELAY": "18"})).code == 0
    (waiting,) = messages(await asker.pull("SCHEDULE_TOPIC_XXXX", queue_id=17))

    async def code_of(offset: int, **topic: object) -> int:
        return (await asker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset} | topic)).code

    offset = decode_message_id(plain.ext_fields["msgId"])[1]
    assert [await code_of(offset), await code_of(offset, topic=""), await code_of(offset, topic="T")] == [0, 0, 0]
    assert await code_of(offset, topic="Other") == ResponseCode.NO_PERMISSION
    assert await code_of(waiting.physical_offset, topic="T") == 0
    assert await code_of(waiting.physical_offset, topic="SCHEDULE_TOPIC_XXXX") == ResponseCode.NO_PERMISSION


async def test_a_parent_of_lite_topics_needs_light_queues(asker: Asker) -> None:
    answer = await create(asker, "T", attributes="+message.type=LITE")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "enableLmq=true" in str(answer.remark)
    assert (await create(asker, "T", attributes="+lite.topic.expiration=43201")).code != 0
    assert (await create(asker, "T", attributes="+lite.topic.expiration=43200")).code == 0
    # In a topic of another type a message that names a lite topic is one of the topic itself.
    assert (await asker.send("T", b"to a child", properties={"UNIQ_KEY": "U", "__LITE_TOPIC": "child"})).code == 0
    (kept,) = messages(await asker.pull("T"))
    assert kept.properties["__LITE_TOPIC"] == "child"
    assert set(asker.broker.store.topics()) == {"T"}


@pytest.mark.parametrize(
    ("attribute", "good", "bad"),
    [
        ("lite.bind.topic", ["T", ""], []),
        ("lite.sub.model", ["Shared", "Exclusive"], ["shared", ""]),
        ("lite.sub.client.quota", ["-1", "9999"], ["-2", "x"]),
        ("lite.sub.client.max.event.cnt", ["10", "100000"], ["9", ""]),
        ("lite.sub.reset.offset.exclusive", ["true", "FALSE"], ["1"]),
        ("lite.sub.reset.offset.unsubscribe", ["true", "false"], ["yes"]),
        ("lite.sub.wildcard", ["true", "x"], []),
    ],
)
async def test_groups_have_attributes_of_lite_topics(
    asker: Asker, attribute: str, good: list[str], bad: list[str]
) -> None:
    for value in (*good, *bad):
        body = encode_body(SubscriptionGroupConfig(group_name="g", attributes={f"+{attribute}": value}))
        answer = await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert (answer.code == 0) == (value in good), (value, answer.remark)
    assert asker.broker.state.groups.table["g"].attributes == {attribute: good[-1]}


async def test_several_topics_and_groups_are_deleted_at_once(asker: Asker) -> None:
    for topic in ("T1", "T2", "T3"):
        assert (await create(asker, topic)).code == 0
        assert (await asker.send(topic)).code == 0
    bad = await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, {}, b'{"topicList":["T3","TBW102"]}')
    assert bad.code != 0
    assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, {}, b'{"topicList":["T1","T2"]}')).code == 0
    left = [(await asker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})).code for topic in ("T1", "T2", "T3")]
    assert left == [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST, 0]
    for code, empty in itertools.product((5002, 5003), (b"", b"{}", b'{"topicList":[],"groupNameList":[""]}')):
        assert (await asker.ask(code, {}, empty)).code == ResponseCode.INVALID_PARAMETER
    for group in ("g1", "g2"):
        body = encode_body(SubscriptionGroupConfig(group_name=group))
        assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
        place: dict[str, object] = {"consumerGroup": group, "topic": "T3", "queueId": 0, "commitOffset": 1}
        assert (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place)).code == 0
    gone = b'{"groupNameList":["g1"],"cleanOffset":true}'
    assert (await asker.ask(RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, {}, gone)).code == 0
    table = asker.broker.state.groups.table
    assert ("g1" in table, "g2" in table) == (False, True)
    assert asker.broker.state.offsets.of("T3", "g1") == {}
    assert asker.broker.state.offsets.of("T3", "g2") == {0: 1}
