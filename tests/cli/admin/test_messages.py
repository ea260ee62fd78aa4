"""Messages by ``rmq admin``."""

import asyncio
import time
from base64 import b64decode
from typing import Any

import pytest

from rmq_cli.admin import messages
from rmq_core.client import Message, Producer
from tests.cli.admin.conftest import BROKER, Cluster
from tests.client.scenarios import fresh


def bodies(cluster: Cluster, *arguments: str, code: int = 0) -> list[str]:
    return [one["body"] for one in cluster.rows(*arguments, code=code)]


def test_a_message_that_was_sent_is_found(cluster: Cluster) -> None:
    topic = fresh("Topic")
    first, second = cluster.send(topic, "first", "second", tags="T", keys="k1 k2")
    assert (first["status"], first["broker_name"], first["queue_id"]) == ("SEND_OK", BROKER, 0)
    assert (first["queue_offset"], second["queue_offset"]) == (0, 1)
    (found,) = cluster.rows("queryMsgById", "-i", first["offset_msg_id"])
    assert (found["topic"], found["body"], found["tags"], found["keys"]) == (topic, "first", "T", "k1 k2")
    assert (found["msg_id"], found["offset_msg_id"]) == (first["msg_id"], first["offset_msg_id"])
    assert bodies(cluster, "queryMsgById", "-t", topic, "-i", second["msg_id"]) == ["second"]
    assert bodies(cluster, "queryMsgByUniqueKey", "-t", topic, "-i", first["msg_id"]) == ["first"]
    assert bodies(cluster, "queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "1") == ["second"]
    assert bodies(cluster, "queryMsgByKey", "-t", topic, "-k", "k2") == ["first", "second"]
    assert bodies(cluster, "queryMsgByKey", "-t", topic, "-k", "k2", "-m", "1") == ["second"]
    assert bodies(cluster, "queryMsgByKey", "-t", topic, "-k", "k1", "-e", "2020-01-01", code=1) == []
    people = cluster.text("queryMsgByKey", "-t", topic, "-k", "k1")
    assert "first" in people
    assert first["msg_id"] in people


def produce(cluster: Cluster, topic: str, body: bytes) -> None:
    async def main() -> None:
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message(topic, body))

    asyncio.run(main())


def test_bodies_are_shown_in_their_charset(cluster: Cluster) -> None:
    topic = fresh("Topic")
    cluster.rows("updateTopic", "-t", topic, "-r", "1", "-w", "1")
    produce(cluster, topic, "订单".encode("gbk"))
    place = "queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "0"
    (found,) = cluster.rows(*place)
    by_id = "queryMsgById", "-t", topic, "-i", found["offset_msg_id"]
    for command, option in ((place, "-f"), (by_id, "-f"), (("printMsg", "-t", topic), "-c")):
        assert "订单" in cluster.text(*command, option, "GBK")
        assert "订单" not in cluster.text(*command)
        assert bodies(cluster, *command, option, "gbk") == ["订单"]
        (line,) = cluster.rows(*command)
        assert b64decode(line["body_base64"]) == "订单".encode("gbk")
        for unknown in ("nonsense", "base64"):
            assert f"{option} {unknown}: not a charset" in cluster.error(*command, option, unknown)
    (line,) = cluster.rows(*place, "-f", "ascii")
    assert "body_base64" in line
    assert "4 bytes" in cluster.text("printMsg", "-t", topic, "--charsetName", "gbk", "-d", "false")


def test_several_ids_are_looked_up(cluster: Cluster) -> None:
    topic = fresh("Topic")
    first, second = cluster.send(topic, "first", "second")
    ids = f"{second['offset_msg_id']}, {first['msg_id']},"
    assert bodies(cluster, "queryMsgById", "-t", topic, "-i", ids) == ["second", "first"]
    assert "-i: no id" in cluster.error("queryMsgById", "-i", " ,")


def test_requests_go_to_the_brokers_of_a_cluster(cluster: Cluster) -> None:
    topic = fresh("Topic")
    (sent,) = cluster.send(topic, "only")
    for command in (
        ["queryMsgByKey", "-t", topic, "-k", "k"],
        ["queryMsgByUniqueKey", "-t", topic, "-i", sent["msg_id"]],
        ["queryMsgById", "-t", topic, "-i", sent["msg_id"]],
    ):
        assert bodies(cluster, *command, "-c", "DefaultCluster") == ["only"]
        assert "none" in cluster.error(*command, "-c", "none")
    status = "topicStatus", "-t", topic
    assert cluster.rows(*status, "-c", "DefaultCluster") == cluster.rows(*status)
    assert "none" in cluster.error(*status, "-c", "none")


def test_a_send_is_traced(cluster: Cluster) -> None:
    topic = fresh("Topic")
    cluster.rows("updateTopic", "-t", topic)
    (sent,) = cluster.rows("sendMessage", "-t", topic, "-p", "x", "-m", "true")
    (trace,) = cluster.rows("queryMsgByKey", "-t", "RMQ_SYS_TRACE_TOPIC", "-k", sent["msg_id"])
    assert trace["body"].startswith("Pub\x01")


def test_what_is_not_there_is_exit_code_1(cluster: Cluster) -> None:
    topic = fresh("Topic")
    (sent,) = cluster.send(topic, "only")
    assert cluster.rows("queryMsgByKey", "-t", topic, "-k", "none", code=1) == []
    assert cluster.rows("queryMsgByUniqueKey", "-t", topic, "-i", sent["offset_msg_id"], code=1) == []
    assert cluster.rows("queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "5", code=1) == []


def test_messages_are_printed_and_consumed(cluster: Cluster) -> None:
    topic = fresh("Topic")
    cluster.send(topic, "a1", "a2", tags="A")
    time.sleep(0.01)
    before_ms = str(time.time_ns() // 1_000_000)
    time.sleep(0.01)  # the bound is of one millisecond, which b1 must not share
    cluster.send(topic, "b1", tags="B")
    assert bodies(cluster, "printMsg", "-t", topic) == ["a1", "a2", "b1"]
    assert bodies(cluster, "printMsg", "-t", topic, "-s", "B||C") == ["b1"]
    assert bodies(cluster, "printMsg", "-t", topic, "-b", before_ms) == ["b1"]
    assert bodies(cluster, "printMsg", "-t", topic, "-e", before_ms) == ["a1", "a2"]
    people = cluster.text("printMsg", "-t", topic, "-d", "false")
    assert "2 bytes" in people
    assert "a1" not in people.replace(topic, "")
    assert bodies(cluster, "consumeMessage", "-t", topic, "-c", "2") == ["a1", "a2"]
    place = "consumeMessage", "-t", topic, "-b", BROKER, "-i", "0"
    assert bodies(cluster, *place, "-o", "1") == ["a2", "b1"]
    assert bodies(cluster, *place, "-s", before_ms) == ["b1"]
    assert bodies(cluster, "consumeMessage", "-t", topic, "-b", BROKER, "-i", "1") == []
    group = fresh("group")
    cluster.rows("updateSubGroup", "-g", group)
    assert bodies(cluster, *place, "-g", group) == ["a1", "a2", "b1"]


def test_queues_after_the_last_message_are_not_requested(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = fresh("Topic")
    cluster.rows("updateTopic", "-t", topic, "-r", "4", "-w", "4")
    for queue_id in ("0", "1"):
        cluster.rows("sendMessage", "-t", topic, "-p", queue_id, "-b", BROKER, "-i", queue_id)
    requested = []
    bounds = messages._bounds

    async def record_queue(admin: Any, queue: Any, *times: Any) -> tuple[int, int]:
        requested.append(queue.queue_id)
        return await bounds(admin, queue, *times)

    monkeypatch.setattr(messages, "_bounds", record_queue)
    assert bodies(cluster, "consumeMessage", "-t", topic, "-c", "1") == ["0"]
    assert requested == [0]


def test_errors_are_one_line(cluster: Cluster) -> None:
    topic = fresh("Topic")
    cluster.send(topic, "only")
    assert "no name server knows" in cluster.error("printMsg", "-t", fresh("none"))
    assert "-i: give -b too" in cluster.error("sendMessage", "-t", topic, "-p", "x", "-i", "0")
    assert "no queue with id 9" in cluster.error("sendMessage", "-t", topic, "-p", "x", "-b", BROKER, "-i", "9")
    assert "-o: give -b and -i too" in cluster.error("consumeMessage", "-t", topic, "-o", "1")
    assert "-e soon: not a time" in cluster.error("printMsg", "-t", topic, "-e", "soon")
    assert "message id" in cluster.error("queryMsgById", "-i", "nonsense")
