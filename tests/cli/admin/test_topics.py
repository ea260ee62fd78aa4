"""Topics and brokers by ``rmq admin``."""

import asyncio
import json
from pathlib import Path

from rmq_core.remoting.bodies.routes import encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from tests.cli.admin.conftest import Cluster
from tests.client.scenarios import fresh
from tests.interop.test_namesrv_against_java import settings
from tests.namesrv.registrations import broker, topics
from tests.namesrv.test_command import running


def test_a_topic_is_made_changed_and_deleted(cluster: Cluster) -> None:
    topic = fresh("Topic")
    (made,) = cluster.rows("updateTopic", "-t", topic, "-c", "DefaultCluster", "-r", "4", "-w", "4")
    assert made == {
        "broker": cluster.broker, "topic": topic, "read_queues": 4, "write_queues": 4, "perm": 6, "order": False,
    }  # fmt: skip
    assert {"topic": topic} in cluster.rows("topicList")
    (route,) = cluster.rows("topicRoute", "-t", topic)
    assert route == {
        "broker_name": "admin-a", "cluster": "DefaultCluster", "addresses": f"0={cluster.broker}",
        "read_queues": 4, "write_queues": 4, "perm": 6,
    }  # fmt: skip
    status = cluster.rows("topicStatus", "-t", topic)
    assert [(one["queue_id"], one["min_offset"], one["max_offset"]) for one in status] == [(n, 0, 0) for n in range(4)]
    cluster.rows("updateTopic", "-t", topic, "-b", cluster.broker, "-r", "6", "-w", "2", "-p", "4")
    (route,) = cluster.rows("topicRoute", "-t", topic)
    assert (route["read_queues"], route["write_queues"], route["perm"]) == (6, 2, 4)
    assert cluster.rows("deleteTopic", "-t", topic, "-c", "DefaultCluster") == [
        {"broker": cluster.broker, "deleted_topic": topic}
    ]
    assert {"topic": topic} not in cluster.rows("topicList")
    assert topic in cluster.error("topicRoute", "-t", topic)


def test_a_topic_may_have_batch_queues(cluster: Cluster) -> None:
    topic = fresh("Topic")
    assert "not in set" in cluster.error("updateTopic", "-t", topic, "-a", "+queue.type=Other")
    cluster.rows("updateTopic", "-t", topic, "-a", "+queue.type=BatchCQ")
    assert {"topic": topic} in cluster.rows("topicList")


def test_a_topic_may_be_a_unit_s(cluster: Cluster) -> None:
    for flags, sys_flag in (([], 0), (["-u", "true"], 1), (["-s", "true"], 2), (["-u", "true", "-s", "true"], 3)):
        topic = fresh("Topic")
        cluster.rows("updateTopic", "-t", topic, *flags)
        assert json.loads(cluster.text("exportMetadata", "-t"))["topicConfigTable"][topic]["topicSysFlag"] == sys_flag


def test_statistics_of_clusters_and_brokers_are_shown(cluster: Cluster) -> None:
    (row,) = cluster.rows("clusterList")
    assert (row["cluster"], row["broker_name"], row["broker_id"]) == ("DefaultCluster", "admin-a", 0)
    assert (row["address"], row["version"]) == (cluster.broker, "V5_3_3")
    assert cluster.rows("clusterList", "-c", "none", code=1) == []
    assert cluster.rows("clusterList", "-m")[0].keys() >= {"in_total", "out_total"}
    status = {one["name"]: one["value"] for one in cluster.rows("brokerStatus", "-b", cluster.broker)}
    assert status["brokerVersionDesc"] == "V5_3_3"
    config = {one["name"]: one["value"] for one in cluster.rows("getBrokerConfig", "-c", "DefaultCluster")}
    assert (config["brokerName"], config["mappedFileSizeCommitLog"]) == ("admin-a", "1048576")


async def test_a_broker_that_does_not_answer_is_listed_and_is_exit_code_1(tmp_path: Path) -> None:
    silent = "127.0.0.1:1"
    registration = request(
        RequestCode.REGISTER_BROKER,
        write_fields(broker("silent", address=silent)),
        encode_registration(topics("T", "U")),
    )
    with running("-c", settings(tmp_path / "namesrv")) as (_, namesrv):
        async with RemotingClient() as client:  # the name server knows a broker as long as it is connected
            await client.invoke(namesrv, registration, 5)
            cluster = Cluster(namesrv, silent)
            (row,) = await asyncio.to_thread(lambda: cluster.rows("clusterList", code=1))
            assert (row["broker_name"], row["address"], row["version"], row["in_tps"]) == ("silent", silent, None, None)
            assert "cannot connect" in await asyncio.to_thread(cluster.error, "brokerStatus")


def test_topics_are_listed_with_their_groups(cluster: Cluster) -> None:
    topic, group = fresh("Topic"), fresh("group")
    cluster.send(topic, "a")
    cluster.consume(topic, group, 1)
    found = {one["topic"]: one for one in cluster.rows("topicList", "-c")}
    assert found[topic] == {"topic": topic, "clusters": "DefaultCluster", "groups": group}


def test_tables_are_for_people(cluster: Cluster) -> None:
    head, _, row, *rest = cluster.text("clusterList").splitlines()
    assert head.split()[:3] == ["cluster", "broker", "name"]
    assert row.split()[:4] == ["DefaultCluster", "admin-a", "0", cluster.broker]
    assert not "".join(rest).strip()


def test_errors_are_one_line(cluster: Cluster) -> None:
    assert "no master is registered" in cluster.error("brokerStatus", "-c", "none")
    assert "give one of them" in cluster.error("brokerStatus", "-c", "DefaultCluster", "-b", cluster.broker)
    assert "cannot connect" in cluster.error("brokerStatus", "-b", "127.0.0.1:1")
    assert "-t" in cluster.error("topicRoute")
    assert "code 1" in cluster.error("updateTopic", "-t", fresh("Topic"), "-a", "+none=1")
    assert "topic 'a/b'" in cluster.error("updateTopic", "-t", "a/b")
