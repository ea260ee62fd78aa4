"""Rebalance: whom it asks for the members of its group, and where its queues begin."""

from typing import ClassVar

import pytest

from rmq_core.client import ClientOptions, MessageQueue, PushOptions, StartPosition
from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.consumer.offset_store import RemoteOffsets
from rmq_core.client.consumer.rebalance import Rebalancer
from rmq_core.client.pull.queue_offsets import QueueOffsets
from rmq_core.client.pull.subscription import subscription
from rmq_core.remoting.bodies import ConsumerIdList, SubscriptionData, encode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand
from tests.client.conftest import FakeCluster


def members(command: RemotingCommand, _: Connection) -> RemotingCommand:
    """Another consumer has all queues."""
    return command.response(body=encode_body(ConsumerIdList(consumer_id_list=["another"])))


def rebalancer(cluster: Cluster) -> Rebalancer:
    offsets, wanted = RemoteOffsets("g", QueueOffsets(cluster)), {"T": subscription("T")}
    return Rebalancer(cluster, "g", PushOptions(), wanted, offsets, None, None)  # type: ignore[arg-type] # gets no queue


def asked(fakes: FakeCluster) -> dict[str, int]:
    return {
        name: sum(one.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP for one in broker.requests)
        for name, broker in fakes.brokers.items()
    }


async def test_a_random_broker_is_asked_for_the_members(fakes: FakeCluster) -> None:
    for broker in fakes.brokers.values():
        broker.answer = members
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        for _ in range(40):  # one broker gets all of them in 1 of 2^39 runs
            await rebalancer(cluster).rebalance()
    assert sum(asked(fakes).values()) == 40
    assert all(asked(fakes).values())


async def test_the_other_brokers_are_asked_where_one_does_not_know_the_group(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = lambda command, _: command.response(ResponseCode.SYSTEM_ERROR, "no consumer")
    fakes.brokers["b"].answer = members
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        for _ in range(20):
            await rebalancer(cluster).rebalance()
    assert asked(fakes)["b"] == 20


class Begun:
    """A pull loop that only notes where it begins."""

    offsets: ClassVar[dict[MessageQueue, int]] = {}
    is_abandoned = is_leaving = False

    def __init__(self, queue: MessageQueue, _: SubscriptionData) -> None:
        self.queue = queue

    def start(self, offset: int) -> None:
        self.offsets[self.queue] = offset

    async def stop(self) -> None:
        """Nothing is to stop."""


LAST, FIRST, TIMESTAMP = StartPosition.LAST, StartPosition.FIRST, StartPosition.TIMESTAMP


@pytest.mark.parametrize(
    ("topic", "start", "committed", "begins"),
    [
        ("T", LAST, None, 70), ("T", FIRST, None, 0), ("T", TIMESTAMP, None, 40),
        ("T", LAST, 5, 5), ("T", FIRST, 5, 5), ("T", TIMESTAMP, 5, 5), ("T", LAST, 0, 0),
        ("%RETRY%g", LAST, None, 0), ("%RETRY%g", FIRST, None, 0), ("%RETRY%g", TIMESTAMP, None, 70),
    ],
)  # fmt: skip
async def test_a_queue_begins_at_the_consumer_offset_or_where_the_options_say(
    fakes: FakeCluster, topic: str, start: StartPosition, committed: int | None, begins: int
) -> None:
    searched: list[str] = []

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.response(body=encode_body(ConsumerIdList(consumer_id_list=[cluster.client_id])))
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET and committed is None:
            return command.response(ResponseCode.QUERY_NOT_FOUND, "none")
        if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            searched.append(command.ext_fields["timestamp"])
        offsets = {
            RequestCode.QUERY_CONSUMER_OFFSET: committed,
            RequestCode.GET_MAX_OFFSET: 70,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 40,
        }
        return command.response(0, None, {"offset": str(offsets[RequestCode(command.code)])})

    for broker in fakes.brokers.values():
        broker.answer = answer
    options = PushOptions(start=start, start_timestamp_ms=1234)
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        Begun.offsets.clear()
        offsets = RemoteOffsets("g", QueueOffsets(cluster))
        await Rebalancer(cluster, "g", options, {topic: subscription(topic)}, offsets, None, Begun).rebalance()
    assert list(Begun.offsets.values()) == [begins] * 4
    assert set(searched) <= {"1234"}


async def test_a_route_that_is_gone_does_not_hide_where_a_broker_is_now(fakes: FakeCluster) -> None:
    """A retry topic that only a slave knew: its route stays as it was, and must not be what brokers are known by."""
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        await cluster.route("T")
        fakes.slaves["a"] = "127.0.0.1:2"
        before = fakes.addresses.pop("a")
        fakes.addresses["a"] = "127.0.0.1:1"  # for a while, all that is known of it is this
        await cluster.route("%RETRY%g")
        fakes.addresses["a"] = before
        fakes.topics = {"T"}
        await cluster.refresh_routes()
        assert cluster.address("a") == before
