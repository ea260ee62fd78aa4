"""Topics and brokers by ``rmq admin``."""

from tests.admin.conftest import Cluster
from tests.client.scenarios import fresh


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


def test_clusters_and_brokers_tell_how_they_do(cluster: Cluster) -> None:
    (broker,) = cluster.rows("clusterList")
    assert (broker["cluster"], broker["broker_name"], broker["broker_id"]) == ("DefaultCluster", "admin-a", 0)
    assert (broker["address"], broker["version"]) == (cluster.broker, "V5_3_3")
    assert cluster.rows("clusterList", "-c", "none") == []
    assert cluster.rows("clusterList", "-m")[0].keys() >= {"in_total", "out_total"}
    status = {one["name"]: one["value"] for one in cluster.rows("brokerStatus", "-b", cluster.broker)}
    assert status["brokerVersionDesc"] == "V5_3_3"
    config = {one["name"]: one["value"] for one in cluster.rows("getBrokerConfig", "-c", "DefaultCluster")}
    assert (config["brokerName"], config["mappedFileSizeCommitLog"]) == ("admin-a", "1048576")


def test_tables_are_for_people(cluster: Cluster) -> None:
    head, _, row, *rest = cluster.text("clusterList").splitlines()
    assert head.split()[:3] == ["cluster", "broker", "name"]
    assert row.split()[:4] == ["DefaultCluster", "admin-a", "0", cluster.broker]
    assert not "".join(rest).strip()


def test_errors_are_one_line(cluster: Cluster) -> None:
    assert "no master is there" in cluster.error("brokerStatus", "-c", "none")
    assert "give one of them" in cluster.error("brokerStatus", "-c", "DefaultCluster", "-b", cluster.broker)
    assert "cannot connect" in cluster.error("brokerStatus", "-b", "127.0.0.1:1")
    assert "-t" in cluster.error("topicRoute")
    assert "topic 'a/b'" in cluster.error("updateTopic", "-t", "a/b")
