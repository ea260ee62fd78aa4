"""``queryCq`` (321), 908, and codes that are refused with a reason."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_formats.codecs.hashing import java_string_hash
from tests.broker.conftest import Asker, small_store
from tests.broker.test_batch_queues import KEY, batch, make

TAGGED = SubscriptionData(topic="T", sub_string="A", sub_version=1, tags_set=["A"], code_set=[java_string_hash("A")])


async def units(asker: Asker, **more: object) -> dict[str, Any]:
    fields: dict[str, object] = {"topic": "T", "queueId": 0, "index": 0, "count": 10}
    answer = await asker.ask(RequestCode.QUERY_CONSUME_QUEUE, fields | more)
    assert answer.code == 0, answer.remark
    told: dict[str, Any] = json.loads(bytes(answer.body))
    return told


async def test_units_of_a_queue_are_told(asker: Asker) -> None:
    for tag in "AB":
        await asker.send("T", properties={"TAGS": tag})
    told = await units(asker)
    first, second = told.pop("queueData")
    assert told == {"maxQueueIndex": 2, "minQueueIndex": 0}
    assert first == {"eval": False, "physicOffset": 0, "physicSize": first["physicSize"], "tagsCode": 65}
    assert second["physicOffset"] == first["physicSize"]
    assert [one["tagsCode"] for one in (await units(asker, index=1))["queueData"]] == [66]
    for none in ({"index": 2}, {"index": 1 << 62}, {"index": -(1 << 63)}, {"count": 0}, {"count": -1}):
        assert (await units(asker, **none))["queueData"] == []
    assert len((await units(asker, count=(1 << 31) - 1))["queueData"]) == 2
    answer = await asker.ask(RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": 9, "index": 0, "count": 1})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "9@T is not exist!")


async def test_units_of_a_batch_queue_are_told_from_the_batch_on_that_an_offset_is_in(asker: Asker) -> None:
    assert (await make(asker)).code == 0
    for _ in range(2):
        await asker.send("B", batch(b"1", b"2", b"3"), m="true", properties=KEY)
    told = await units(asker, topic="B")
    first, second = told.pop("queueData")
    assert told == {"maxQueueIndex": 6, "minQueueIndex": 0}
    assert (first["physicOffset"], second["physicOffset"]) == (0, first["physicSize"])
    assert (await units(asker, topic="B", index=4))["queueData"] == [second]
    assert (await units(asker, topic="B", index=6))["queueData"] == []


async def test_a_group_s_subscription_is_told(asker: Asker) -> None:
    await asker.send("T")
    assert (await units(asker, consumerGroup="cg"))["filterData"] == "cg@T is not online!"
    await asker.heartbeat("cg", TAGGED)
    told = await units(asker, consumerGroup="cg")
    assert told["subscriptionData"]["subString"] == "A"
    assert told["filterData"] == "null"


async def test_units_of_consume_queue_ext_are_told_and_matched(tmp_path: Path) -> None:
    handlers: dict[int, Handler] = {}
    store = replace(small_store(tmp_path / "store"), consumequeue_ext_enabled=True)
    async with Broker(BrokerConfig(listen_port=0), store) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)
        await asker.heartbeat("cg", TAGGED)
        for tag in "AB":
            await asker.send("T", properties={"TAGS": tag})
        found = (await units(asker, consumerGroup="cg"))["queueData"]
        assert [(one["tagsCode"], one["eval"]) for one in found] == [(65, True), (66, False)]
        ext = json.loads(found[0]["extendDataJson"])
        assert (ext["tagsCode"], base64.b64decode(ext["filterBitMap"])) == (65, b"")
        assert ext["msgStoreTime"] > 0
        assert [one["eval"] for one in (await units(asker))["queueData"]] == [False, False]


async def test_a_master_has_no_flush_offset_to_set(asker: Asker) -> None:
    assert (await asker.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 0})).code == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (RequestCode.ADD_BROKER, ": brokers run in no container here; start and stop them by rmq broker"),
        (RequestCode.CONTROLLER_GET_METADATA_INFO, ": there is no controller here"),
        (RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, ": static topics are not kept here"),
        (200_072, ": lite topics are acknowledged by code 200051 with liteTopic"),
        (9999, ""),
    ],
)
async def test_what_is_not_there_is_refused_with_a_reason(asker: Asker, code: int, reason: str) -> None:
    answer = await asker.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported{reason}"
