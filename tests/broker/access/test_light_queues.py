"""Rights on light queues: to put messages into them, and to read what others have put there."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.header import RemotingCommand
from tests.broker.access.test_guard import ADMIN, ALICE, SETTINGS, Door, send_fields
from tests.broker.test_light_queues import light_store

READ = {"consumerGroup": "g", "queueId": 0, "queueOffset": 0, "maxMsgNums": 9, "sysFlag": 4, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
POP = {"consumerGroup": "g", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0,
       "initMode": 0, "expType": "TAG", "exp": "*"}  # fmt: skip


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """A broker with light queues and alice, who may send to Orders, and read it as group g."""
    async with Broker(SETTINGS, light_store(tmp_path / "store")) as broker:
        door = Door(broker)
        assert (await door.make(ALICE)).code == 0
        assert (await door.allow(ALICE, "Topic:Orders", "Pub", "Sub")).code == 0
        assert (await door.allow(ALICE, "Group:g", "Sub")).code == 0
        assert (await door.ask(ADMIN, 17, topic("Orders"))).code == 0
        assert (await door.ask(ADMIN, 17, topic("Payments"))).code == 0
        assert (await door.ask(ADMIN, 310, naming("Payments", "%LMQ%x"), b"paid")).code == 0
        yield door


def topic(name: str) -> dict[str, object]:
    return {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}  # fmt: skip


def naming(name: str, *light: str) -> dict[str, object]:
    """Fields of a send; the property stands twice, of which the second counts."""
    words = f"INNER_MULTI_DISPATCH\x01%LMQ%allowed\x02INNER_MULTI_DISPATCH\x01{','.join(light)}\x02"
    return send_fields(name) | {"i": words}


def is_refused(answer: RemotingCommand, name: str) -> bool:
    return answer.code == ResponseCode.NO_PERMISSION and f"Topic:{name}" in str(answer.remark)


async def test_rights_on_a_topic_put_nothing_into_light_queues(door: Door) -> None:
    assert (await door.ask(ALICE, 310, send_fields("Orders"), b"1")).code == 0
    assert is_refused(await door.ask(ALICE, 310, naming("Orders", "%LMQ%x"), b"2"), "%LMQ%x")
    old = {"topic": "Orders", "producerGroup": "pg", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
           "sysFlag": 0, "bornTimestamp": 0, "flag": 0, "properties": naming("", "%LMQ%x")["i"]}  # fmt: skip
    assert is_refused(await door.ask(ALICE, 10, old, b"3"), "%LMQ%x")
    assert (await door.allow(ALICE, "Topic:%LMQ%a*", "Pub")).code == 0
    assert (await door.ask(ALICE, 310, naming("Orders", "%LMQ%a1", "%LMQ%a2"), b"4")).code == 0
    assert is_refused(await door.ask(ALICE, 310, naming("Orders", "%LMQ%a1", "%LMQ%x"), b"5"), "%LMQ%x")
    assert door.broker.store.max_offset("%LMQ%x", 0) == 1


async def test_rights_on_other_topics_read_no_light_queue(door: Door) -> None:
    reads = [(11, READ), (361, READ), (30, {"queueId": 0}), (31, {"queueId": 0}), (29, {"queueId": 0, "timestamp": 0}),
             (200050, POP)]  # fmt: skip
    for code, fields in reads:
        assert is_refused(await door.ask(ALICE, code, fields | {"topic": "%LMQ%x"}), "%LMQ%x"), code
    retry = "%RETRY%g_%LMQ%x"
    assert is_refused(await door.ask(ALICE, 200050, POP | {"topic": retry}), "%LMQ%x")
    assert (await door.allow(ALICE, "Topic:%LMQ%x", "Sub")).code == 0
    answer = await door.ask(ALICE, 11, READ | {"topic": "%LMQ%x"})
    assert b"paid" in bytes(answer.body)
    assert is_refused(await door.ask(ALICE, 11, READ | {"topic": "Payments"}), "Payments")
