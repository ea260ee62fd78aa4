"""A single pull: what its answers mean, and what the next one does for them."""

import pytest

from rmq_core.client import BrokerError, ClientOptions, ConsumerOptions
from rmq_core.client.cluster import Cluster
from rmq_core.client.pull.request import Puller, PullStatus, subscription
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand
from tests.client.conftest import QUEUE, FakeCluster

WANTED = subscription("T")
FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "8", "minOffset": "3", "maxOffset": "9"}
COMMITS, WAITS, HAS_SUBSCRIPTION = 1, 2, 4


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MESSAGE),
        (20, PullStatus.NO_MATCHED_MESSAGE),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
async def test_an_answer_says_what_was_found_and_where_to_go_on(
    fakes: FakeCluster, code: int, status: PullStatus
) -> None:
    fakes.brokers["a"].answer = lambda command, _: command.response(code, "text", FIELDS)
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        pulled = await Puller(cluster, "g", ConsumerOptions(), sends_subscription=True).pull(QUEUE, 5, WANTED)
    assert (pulled.status, pulled.next_offset, pulled.min_offset, pulled.max_offset) == (status, 8, 3, 9)
    assert pulled.messages == []


async def test_any_other_answer_is_an_error(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = lambda command, _: command.response(16, "no permission")
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        with pytest.raises(BrokerError, match="no permission") as refused:
            await Puller(cluster, "g", ConsumerOptions(), sends_subscription=True).pull(QUEUE, 5, WANTED)
    assert refused.value.code == 16


async def test_the_next_pull_goes_to_the_broker_that_is_suggested_and_commits_at_the_master_only(
    fakes: FakeCluster,
) -> None:
    fakes.slaves["a"] = fakes.addresses["b"]

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        return command.response(19, None, FIELDS | {"suggestWhichBrokerId": "1"})

    for broker in fakes.brokers.values():
        broker.answer = answer
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        puller = Puller(cluster, "g", ConsumerOptions(), sends_subscription=False)
        for _ in range(2):
            await puller.pull(QUEUE, 5, WANTED, commit_offset=5)
    (at_master,), (at_slave,) = (fakes.brokers[name].requests for name in "ab")
    assert (at_master.ext_fields["sysFlag"], at_master.ext_fields["commitOffset"]) == (str(COMMITS | WAITS), "5")
    assert (at_slave.ext_fields["sysFlag"], at_slave.ext_fields["commitOffset"]) == (str(WAITS), "0")


async def test_a_request_says_what_is_wanted_where_no_heartbeat_has(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = lambda command, _: command.response(19, None, FIELDS)
    async with Cluster(fakes.namesrv, ClientOptions()) as cluster:
        puller = Puller(cluster, "g", ConsumerOptions(), sends_subscription=True)
        await puller.pull(QUEUE, 5, subscription("T", sql="a > 1"), waits=False, max_messages=3)
    (asked,) = fakes.brokers["a"].requests
    names = ("subscription", "expressionType", "maxMsgNums", "queueOffset", "sysFlag")
    assert [asked.ext_fields[name] for name in names] == ["a > 1", "SQL92", "3", "5", str(HAS_SUBSCRIPTION)]
