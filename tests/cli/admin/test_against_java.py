"""``rmq admin`` on the real Java broker, with our name server between them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.admin.conftest import BROKER, Cluster
from tests.client.scenarios import fresh
from tests.interop import peer
from tests.interop.test_namesrv_against_java import (
    SMALL_FILES,
    ask,
    brokers,
    free_port,
    java,
    settings,
    wait_for,
)
from tests.namesrv.test_command import running

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("admin_against_java")]
CLUSTER = "InteropCluster"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Java broker, and commands on it."""
    peer.build()
    directory = tmp_path_factory.mktemp("admin")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        address = stack.enter_context(running("-c", settings(directory / "namesrv")))[1]
        port, conf = free_port(), directory / "broker.conf"
        conf.write_text(
            f"{SMALL_FILES}brokerName={BROKER}\nnamesrvAddr={address}\nlistenPort={port}\nhaListenPort={free_port()}\n"
        )
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf)))
        wait_for(lambda: brokers(address) == {BROKER})
        wait_for(lambda: ask(address, 105, {"topic": "TBW102"}).code == 0)
        broker = f"127.0.0.1:{port}"
        wait_for(lambda: ask(broker, 28).code == 0)  # an error until the original has counted for a second
        yield Cluster(address, broker)


def make(cluster: Cluster, topic: str) -> None:
    """Make a topic, and wait until the name server has heard of it."""
    cluster.rows("updateTopic", "-t", topic, "-c", CLUSTER, "-r", "2", "-w", "2")
    wait_for(lambda: ask(cluster.namesrv, 105, {"topic": topic}).code == 0)


def test_brokers_and_topics_are_listed(cluster: Cluster) -> None:
    topic = fresh("Topic")
    make(cluster, topic)
    (broker,) = cluster.rows("clusterList", "-c", CLUSTER)
    assert (broker["broker_name"], broker["address"], broker["version"]) == (
        BROKER,
        cluster.broker,
        peer.version_name(),
    )
    assert {"topic": topic} in cluster.rows("topicList")
    (route,) = cluster.rows("topicRoute", "-t", topic)
    assert (route["addresses"], route["read_queues"], route["perm"]) == (f"0={cluster.broker}", 2, 6)
    assert [one["max_offset"] for one in cluster.rows("topicStatus", "-t", topic)] == [0, 0]
    names = {one["name"] for one in cluster.rows("brokerStatus", "-b", cluster.broker)}
    assert {"putTps", "commitLogMaxOffset", "brokerVersionDesc"} <= names
    config = {one["name"]: one["value"] for one in cluster.rows("getBrokerConfig", "-c", CLUSTER)}
    assert (config["brokerName"], config["mappedFileSizeCommitLog"]) == (BROKER, "1048576")
    cluster.rows("deleteTopic", "-t", topic, "-c", CLUSTER)
    assert {"topic": topic} not in cluster.rows("topicList")


def test_messages_are_sent_and_found(cluster: Cluster) -> None:
    topic = fresh("Topic")
    make(cluster, topic)
    first, _ = cluster.send(topic, "first", "second", keys="k1 k2")
    for arguments in (
        ["queryMsgById", "-t", topic, "-i", first["offset_msg_id"]],
        ["queryMsgByUniqueKey", "-t", topic, "-i", first["msg_id"]],
        ["queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "0"],
    ):
        assert [one["body"] for one in cluster.rows(*arguments)] == ["first"]
    assert [one["body"] for one in cluster.rows("queryMsgByKey", "-t", topic, "-k", "k2")] == ["first", "second"]
    assert [one["body"] for one in cluster.rows("printMsg", "-t", topic)] == ["first", "second"]
    assert [one["body"] for one in cluster.rows("consumeMessage", "-t", topic, "-c", "1")] == ["first"]
    assert cluster.rows("queryMsgByKey", "-t", topic, "-k", "none", code=1) == []


@pytest.mark.long
def test_offsets_of_groups_are_shown_and_reset(cluster: Cluster) -> None:
    topic, group, other = fresh("Topic"), fresh("group"), fresh("group")
    make(cluster, topic)
    cluster.send(topic, "a", "b", "c")
    cluster.rows("updateSubGroup", "-g", group, "-c", CLUSTER, "-r", "3", "-m", "true")
    cluster.rows("updateSubGroup", "-g", other, "-c", CLUSTER)
    assert "unsupported key: lite" in cluster.error("updateSubGroup", "-g", other, "--attributes", "+lite=1")
    cluster.consume(topic, group, 2)

    def offset(of: str) -> int:
        rows = cluster.rows("consumerProgress", "-g", of, "-t", topic)
        found: int = next(one["consumer_offset"] for one in rows if one["queue_id"] == 0)
        return found

    assert offset(group) == 2
    assert {one["group"]: one["diff"] for one in cluster.rows("consumerProgress")}[group] == 1
    behind = cluster.rows("brokerConsumeStats", "-b", cluster.broker, "-l", "1")
    assert (group, topic, 1) in [(one["group"], one["topic"], one["diff"]) for one in behind]
    cluster.rows("cloneGroupOffset", "-s", group, "-d", other, "-t", topic)
    assert offset(other) == 2
    cluster.rows("skipAccumulatedMessage", "-g", group, "-t", topic)
    assert offset(group) == 3
    cluster.rows("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert offset(group) == 0
    (rates,) = [one for one in cluster.rows("statsAll", "-t", topic) if one["group"] == group]
    assert rates["accumulation"] == 3  # its sums begin with its second sample, ten seconds later
    assert cluster.rows("consumerConnection", "-g", group, code=1) == []
    assert cluster.rows("producerConnection", "-g", group, "-t", topic, code=1) == []
    exported = json.loads(cluster.text("exportMetadata", "-c", CLUSTER))
    assert exported["subscriptionGroupTable"][group]["retryMaxTimes"] == 3
    assert exported["topicConfigTable"][topic]["readQueueNums"] == 2
    assert not {"TBW102", BROKER, CLUSTER} & exported["topicConfigTable"].keys()
    cluster.rows("deleteSubGroup", "-g", group, "-c", CLUSTER, "-r", "true")
    exported = json.loads(cluster.text("exportMetadata", "-c", CLUSTER, "-g"))
    assert group not in exported["subscriptionGroupTable"]
