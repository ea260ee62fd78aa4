"""Rebalance: whom it asks for the members of its group, and where its queues begin."""

import asyncio
from typing import ClassVar

import pytest

from rmq_core.client import ClientOptions, MessageQueue, PushOptions, StartPosition
from rmq_core.client.cluster import Cluster
from rmq_core.client.consumer.offset_store import RemoteOffsets
from rmq_core.client.consumer.rebalance import Rebalancer
from rmq_core.client.pull.request import QueueOffsets, subscription
from rmq_core.remoting.bodies.clients import ConsumerIdList, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
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
    is_abandoned = is_revoked = False

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
        ("T", LAST, None, 70),
        ("T", FIRST, None, 0),
        ("T", TIMESTAMP, None, 40),
        ("T", LAST, 5, 5),
        ("T", FIRST, 5, 5),
        ("T", TIMESTAMP, 5, 5),
        ("T", LAST, 0, 0),
        ("%RETRY%g", LAST, None, 0),
        ("%RETRY%g", FIRST, None, 0),
        ("%RETRY%g", TIMESTAMP, None, 70),
    ],
)
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


class Followed(Begun):
    """A pull loop that notes when it starts and stops."""

    events: ClassVar[list[str]] = []

    def _note(self, event: str) -> None:
        self.events.append(f"{event} {self.queue.topic} {self.queue.broker_name}{self.queue.queue_id}")

    def start(self, offset: int) -> None:
        super().start(offset)
        self._note("start")

    async def stop(self) -> None:
        self._note("stop")


async def settled(member: Rebalancer[Followed], count: int) -> list[str]:
    """Rebalance until so many queues are assigned; return what started and stopped meanwhile, in order."""
    Followed.events.clear()
    async with asyncio.timeout(60):
        while len(member.pull_loops) != count:
            await member.rebalance()
            await asyncio.sleep(0)
    await member.rebalance()
    return sorted(Followed.events)


async def test_only_queues_that_change_hands_start_and_stop(fakes: FakeCluster) -> None:
    others: list[str] = []

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.response(body=encode_body(ConsumerIdList(consumer_id_list=[*others, cluster.client_id])))
        return command.response(0, None, {"offset": "7"})

    for broker in fakes.brokers.values():
        broker.answer = answer
    subscriptions = {topic: subscription(topic) for topic in ("T", "U")}
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        offsets = RemoteOffsets("g", QueueOffsets(cluster))
        member = Rebalancer(cluster, "g", PushOptions(), subscriptions, offsets, None, Followed)
        queues = ("a0", "a1", "b0", "b1")
        assert await settled(member, 8) == [f"start {topic} {queue}" for topic in "TU" for queue in queues]
        others.append("zzz")  # behind this client in the order of ids: it gets the second half
        assert await settled(member, 4) == [f"stop {topic} {queue}" for topic in "TU" for queue in ("b0", "b1")]
        del subscriptions["U"]
        assert await settled(member, 2) == ["stop U a0", "stop U a1"]
        others.clear()
        assert await settled(member, 4) == ["start T b0", "start T b1"]


async def test_queues_of_other_brokers_do_not_wait_for_a_broker_that_hangs(fakes: FakeCluster) -> None:
    def hang(command: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        return None if hangs and command.code == RequestCode.QUERY_CONSUMER_OFFSET else answer(command, connection)

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.response(body=encode_body(ConsumerIdList(consumer_id_list=[cluster.client_id])))
        return command.response(0, None, {"offset": "7"})

    hangs = True
    fakes.brokers["a"].answer, fakes.brokers["b"].answer = hang, answer
    async with Cluster(fakes.namesrv, ClientOptions(request_timeout_s=0.5)) as cluster:
        offsets = RemoteOffsets("g", QueueOffsets(cluster))
        member = Rebalancer(cluster, "g", PushOptions(), {"T": subscription("T")}, offsets, None, Followed)
        assert not await member.rebalance()
        assert sorted((queue.broker_name, queue.queue_id) for queue in member.pull_loops) == [("b", 0), ("b", 1)]
        hangs = False
        assert await member.rebalance()
        assert len(member.pull_loops) == 4


async def test_a_consumer_that_broadcasts_has_all_queues_and_asks_for_no_members(fakes: FakeCluster) -> None:
    for broker in fakes.brokers.values():
        broker.answer = lambda command, _: command.response(0, None, {"offset": "7"})
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        offsets, wanted = RemoteOffsets("g", QueueOffsets(cluster)), {"T": subscription("T")}
        member = Rebalancer(cluster, "g", PushOptions(), wanted, offsets, None, Followed, is_broadcasting=True)
        assert len(await settled(member, 4)) == 4
    assert asked(fakes) == {"a": 0, "b": 0}


async def test_a_rebalance_runs_at_the_start_at_each_interval_and_when_it_is_asked_for(fakes: FakeCluster) -> None:
    rounds: list[float] = []

    class Counted(Rebalancer[Followed]):
        async def rebalance(self) -> bool:
            rounds.append(self._options.rebalance_interval_s)
            return True

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(rounds) < count:
                await asyncio.sleep(0.001)

    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        offsets = RemoteOffsets("g", QueueOffsets(cluster))
        for interval_s in (0.005, 3600):
            member = Counted(cluster, "g", PushOptions(rebalance_interval_s=interval_s), {}, offsets, None, Followed)
            rounds.clear()
            cluster.run(member.run())
            await until(1)
            if interval_s == 3600:
                await asyncio.sleep(0.02)
                assert len(rounds) == 1
                member.rebalance_soon()
            await until(2)
            await cluster.stop_tasks()
