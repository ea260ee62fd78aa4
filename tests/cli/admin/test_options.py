"""Options of ``rmq admin`` that change more than a line's looks."""

import asyncio
import json
import signal
import subprocess

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.header import request
from tests.cli.admin.conftest import BROKER, Cluster
from tests.cli.admin.test_groups import client, connections
from tests.client.scenarios import fresh
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import COMMAND


def order_config(cluster: Cluster, topic: str) -> str | None:
    """What the name server knows of a topic's order."""

    async def ask() -> str | None:
        async with RemotingClient() as asker:
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
            return (await asker.invoke(cluster.namesrv, request(101, fields), 30)).ext_fields.get("value")

    return asyncio.run(ask())


def test_an_ordered_topic_is_registered_with_the_name_servers(cluster: Cluster) -> None:
    topic = fresh("Ordered")
    cluster.rows("updateTopic", "-t", topic, "-c", "DefaultCluster", "-w", "3")
    assert order_config(cluster, topic) is None
    cluster.rows("updateTopic", "-t", topic, "-c", "DefaultCluster", "-w", "3", "-o", "true")
    assert order_config(cluster, topic) == f"{BROKER}:3"
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": f"another:2;{BROKER}:3"}

    async def put() -> None:
        async with RemotingClient() as asker:
            assert (await asker.invoke(cluster.namesrv, request(100, fields), 30)).code == 0

    asyncio.run(put())
    cluster.rows("updateTopic", "-t", topic, "-b", cluster.broker, "-w", "4", "-o", "true")
    assert order_config(cluster, topic) == f"another:2;{BROKER}:4"  # as mqadmin: -b says nothing of other brokers


def test_a_consumer_has_queues_and_is_given_a_message_again(cluster: Cluster) -> None:
    topic, group = fresh("Topic"), fresh("group")
    (sent,) = cluster.send(topic, "a")
    with client("consume", "--namesrv", cluster.namesrv, "--topic", topic, "--group", group, "--from", "first"):
        (member,) = connections(cluster, "consumerConnection", "-g", group)
        for _ in range(300):  # it has its queues some time after it is a member
            rows = cluster.rows("consumerProgress", "-g", group, "-t", topic, "-s", "true", code=None)
            if rows and all(one["client"] for one in rows):
                break
        assert {one["client"] for one in rows} == {member["address"]}
        to = "-g", group, "-d", member["client_id"]
        for command, msg_id in (("queryMsgById", "offset_msg_id"), ("queryMsgByUniqueKey", "msg_id")):
            (result,) = cluster.rows(command, "-t", topic, "-i", sent[msg_id], *to)
            assert (result["result"], result["client_id"]) == ("CR_SUCCESS", member["client_id"])
    assert "give both" in cluster.error("queryMsgById", "-i", sent["offset_msg_id"], "-g", group)
    offline = cluster.error("queryMsgById", "-i", sent["offset_msg_id"], "-g", group, "-d", "nobody")
    assert "not online" in offline


def test_a_message_is_sent_again(cluster: Cluster) -> None:
    topic = fresh("Topic")
    (first,) = cluster.send(topic, "once more", tags="T", keys="k1")
    (again,) = cluster.rows("queryMsgById", "-i", first["offset_msg_id"], "-s", "true")
    assert (again["original_msg_id"], again["status"]) == (first["msg_id"], "SEND_OK")
    (found,) = cluster.rows("queryMsgByUniqueKey", "-t", topic, "-i", again["msg_id"])
    assert (found["body"], found["tags"], found["keys"]) == ("once more", "T", "k1")
    assert again["msg_id"] != first["msg_id"]


def test_clusters_are_listed_again_and_again(cluster: Cluster) -> None:
    command = [*COMMAND, "admin", "clusterList", "-n", cluster.namesrv, "-i", "1", "--json"]
    with warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["broker_name"] == BROKER
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"rmq: interrupted\n"
        assert process.wait(timeout=60) == 130


def test_options_without_effect_are_accepted(cluster: Cluster) -> None:
    topic = fresh("Topic")
    cluster.send(topic, "a")
    assert cluster.rows("topicRoute", "-t", topic, "-l") == cluster.rows("topicRoute", "-t", topic)
    cluster.rows("brokerConsumeStats", "-b", cluster.broker, "-t", "30000")
