"""Lag of groups that filter: what ``LagCalculationIT`` of the original asks of its broker."""

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.metrics.prometheus import lag_families
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Handler
from rmq_formats.codecs.hashing import java_string_hash
from tests.broker.conftest import Asker, Clock, small_store
from tests.broker.filter.test_broker import CG, NOBODY, put_bit_maps, sql

EVERYTHING = SubscriptionData(topic="T", sub_string="*", sub_version=1)
TAGGED = SubscriptionData(topic="T", sub_string="A", sub_version=1, tags_set=["A"], code_set=[java_string_hash("A")])


async def lags(asker: Asker, group: str) -> dict[str, float]:
    """The gauges of a group by name, without what all names begin with."""
    found = {}
    for family in await lag_families(asker.broker.state):
        for labels, value in family.samples:
            told = dict(zip(family.labels, labels, strict=True))
            if told["consumer_group"] == group:
                assert told == {
                    "cluster": "DefaultCluster", "consumer_group": group, "is_retry": "false", "is_system": "false",
                    "node_id": "broker-a", "node_type": "broker", "topic": "T",
                }  # fmt: skip
                found[family.name.removeprefix("rocketmq_consumer_")] = value
    return found


async def sent(asker: Asker, *tags: str, queue_id: int = 0) -> None:
    for tag in tags:
        await asker.send("T", queue_id=queue_id, properties={"TAGS": tag, "value": str(len(tag))})


async def commit(asker: Asker, group: str, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    assert (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


async def test_lag_counts_what_a_group_of_tags_wants(asker: Asker, clock: Clock) -> None:
    await sent(asker, *"ABABAB")
    await sent(asker, *"BBA", queue_id=1)
    await asker.heartbeat("cg", TAGGED)
    none = {"lag_messages": 0, "lag_latency_milliseconds": 0, "inflight_messages": 0, "ready_messages": 0}
    told = await lags(asker, "cg")
    assert {name: told[name] for name in none} == none  # it has no offset yet, and takes what comes from now on
    await commit(asker, "cg", 1)
    await commit(asker, "cg", 0, queue_id=1)
    await asker.pull("T", 1, maxMsgNums=2, subscription="A")
    clock.ahead_ms += 5000
    told = await lags(asker, "cg")
    assert (told["lag_messages"], told["inflight_messages"], told["ready_messages"]) == (2 + 1, 2, 0)
    assert told["lag_latency_milliseconds"] >= 5000
    assert told["queueing_latency_milliseconds"] >= 5000  # the second queue's first message
    await asker.heartbeat("cg", SubscriptionData(topic="T", sub_string="*", sub_version=2))
    assert (await lags(asker, "cg"))["lag_messages"] == 5 + 3


async def test_without_estimates_all_messages_count(asker: Asker) -> None:
    await sent(asker, *"ABAB")
    await asker.heartbeat("cg", TAGGED)
    await commit(asker, "cg", 0)
    assert (await lags(asker, "cg"))["lag_messages"] == 2
    assert (await asker.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"estimateAccumulation=false")).code == 0
    assert (await lags(asker, "cg"))["lag_messages"] == 4


async def test_groups_without_members_and_retry_topics_have_none(asker: Asker) -> None:
    await sent(asker, "A")
    assert await lags(asker, "cg") == {}
    await asker.heartbeat("cg", SubscriptionData(topic="%RETRY%cg", sub_string="*", sub_version=1))
    assert await lags(asker, "cg") == {}


@pytest.mark.parametrize(("has_bit_maps", "lag"), [(True, 2), (False, 4)])
async def test_lag_of_sql92_goes_by_bit_maps(
    tmp_path: Path, clock: Clock, has_bit_maps: bool, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(listen_port=0, enable_property_filter=True)
    put_bit_maps(monkeypatch, [CG, NOBODY, CG, NOBODY])
    handlers: dict[int, Handler] = {}
    store = replace(small_store(tmp_path / "store"), consumequeue_ext_enabled=has_bit_maps)
    async with Broker(config, store, clock_ms=clock) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)
        await asker.heartbeat("cg", sql("TAGS = 'A' AND value < 2"))
        clock.ahead_ms += 1000  # bit maps are of messages that come later
        await sent(asker, "A", "BB", "A", "AA")
        await commit(asker, "cg", 0)
        assert (await lags(asker, "cg"))["lag_messages"] == lag
