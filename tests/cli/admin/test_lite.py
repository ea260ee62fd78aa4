"""``rmq admin`` tells of lite topics."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import request
from rmq_formats.codecs.properties import encode_properties
from tests.cli.admin.conftest import SETTINGS, Cluster
from tests.support.processes.broker_processes import configured

LIGHT = f"{SETTINGS}enableLmq=true\nenableMultiDispatch=true\n"


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with lite topics: one client subscribes to two, of which one has two messages."""
    with configured(tmp_path_factory.mktemp("lite"), LIGHT) as running:
        cluster = Cluster(running.namesrv, running.broker)
        cluster.rows("updateTopic", "-t", "Devices", "-a", "+message.type=LITE,+lite.topic.expiration=30")
        cluster.rows("updateSubGroup", "-g", "watchers", "--attributes", "+lite.bind.topic=Devices")
        asyncio.run(use(running.broker))
        yield cluster


async def use(broker: str) -> None:
    """Subscribe and send, as a proxy does."""
    entry = {"action": "COMPLETE_ADD", "clientId": "c1", "group": "watchers", "topic": "Devices"}
    body = json.dumps({"subscriptionSet": [entry | {"liteTopicSet": ["d1", "d2"]}]}).encode()
    fields = {
        "a": "pg", "b": "Devices", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": encode_properties({"UNIQ_KEY": "0A0B", "__LITE_TOPIC": "d1"}).decode(), "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip
    pop = {
        "clientId": "c1", "consumerGroup": "watchers", "topic": "Devices", "maxMsgNum": "1", "invisibleTime": "60000",
        "pollTime": "0", "bornTime": "0",
    }  # fmt: skip
    async with RemotingClient() as client:
        for command in (
            request(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body), request(RequestCode.SEND_MESSAGE_V2, fields, b"1"),
            request(RequestCode.SEND_MESSAGE_V2, fields, b"2"), request(RequestCode.POP_LITE_MESSAGE, pop),
        ):  # fmt: skip
            answer = await client.invoke(broker, command)
            assert answer.code == 0, answer.remark


def test_it_tells_what_there_is(lite: Cluster) -> None:
    rows = lite.rows("getBrokerLiteInfo", "-b", lite.broker, "-d")
    told = {row["name"]: row["value"] for row in rows}
    assert told["light_queues"] == told["light_queues_under_way"] == told["clients"] == 1
    assert (told["subscriptions"], told["minutes of Devices"], told["groups of Devices"]) == (2, 30, "watchers")
    (parent,) = lite.rows("getParentTopicInfo", "-p", "Devices")
    assert (parent["minutes"], parent["children"], parent["groups"]) == (30, 1, "watchers")
    (topic,) = lite.rows("getLiteTopicInfo", "-p", "Devices", "-l", "d1", "-s")
    assert (topic["min_offset"], topic["max_offset"], topic["subscribers"]) == (0, 2, "watchers:c1")
    assert topic["is_its_broker"] is True
    (client,) = lite.rows("getLiteClientInfo", "-p", "Devices", "-g", "watchers", "-c", "c1", "-s")
    assert (client["lite_topics"], client["names"]) == (2, "%LMQ%$Devices$d1 %LMQ%$Devices$d2")
    assert lite.rows("getLiteClientInfo", "-p", "Devices", "-g", "watchers", "-c", "none", code=1) == []


def test_the_lag_of_a_group_is_shown(lite: Cluster) -> None:
    rows = lite.rows("getLiteGroupInfo", "-p", "Devices", "-g", "watchers")
    assert [(row["lite_topic"], row["lag"]) for row in rows] == [("d1", 2), (None, 2)]
    (one,) = lite.rows("getLiteGroupInfo", "-p", "Devices", "-g", "watchers", "-l", "d1")
    assert (one["lite_topic"], one["lag"]) == ("d1", 2)
    assert one["unconsumed_since_ms"] == rows[0]["unconsumed_since_ms"] > 0
    (done,) = lite.rows("triggerLiteDispatch", "-p", "Devices", "-g", "watchers", "-c", "c1")
    assert done["client"] == "c1"
    assert lite.rows("triggerLiteDispatch", "-p", "Devices", "-g", "watchers", "-b", "none", code=1) == []


def test_a_topic_that_is_no_lite_topic_is_refused(lite: Cluster) -> None:
    lite.rows("updateTopic", "-t", "Plain")
    assert "Topic [Plain] type not match." in lite.error("getParentTopicInfo", "-p", "Plain")
    assert "not a LITE group" in lite.error("getLiteGroupInfo", "-p", "Devices", "-g", "TOOLS_CONSUMER")
