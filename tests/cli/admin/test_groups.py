"""Groups, how far they are, and who is connected, by ``rmq admin``."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.admin.conftest import BROKER, Cluster
from tests.client.scenarios import fresh
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import COMMAND


def progress(cluster: Cluster, group: str, topic: str) -> tuple[int, int, int]:
    """The first queue's end, the group's offset there, and how far that is behind."""
    (first, _) = cluster.rows("consumerProgress", "-g", group, "-t", topic)
    assert (first["topic"], first["broker_name"], first["queue_id"]) == (topic, BROKER, 0)
    return first["broker_offset"], first["consumer_offset"], first["diff"]


def test_a_group_is_made_and_deleted(cluster: Cluster) -> None:
    group = fresh("group")
    made = cluster.rows("updateSubGroup", "-g", group, "-c", "DefaultCluster", "-r", "3", "-s", "false")
    assert made == [{"broker": cluster.broker, "group": group, "retry_max_times": 3}]
    settings = json.loads(cluster.text("exportMetadata", "-g"))["subscriptionGroupTable"][group]
    assert (settings["retryMaxTimes"], settings["consumeEnable"]) == (3, False)
    cluster.rows("deleteSubGroup", "-g", group, "-b", cluster.broker, "-r", "true")
    assert group not in json.loads(cluster.text("exportMetadata", "-g"))["subscriptionGroupTable"]


def test_a_group_gets_a_retry_policy_and_no_attribute(cluster: Cluster) -> None:
    group = fresh("group")
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}
    cluster.rows("updateSubGroup", "-g", group, "-p", json.dumps(policy), "--attributes", "")
    settings = json.loads(cluster.text("exportMetadata", "-g"))["subscriptionGroupTable"][group]
    assert (settings["groupRetryPolicy"], settings["attributes"]) == (policy, {})
    assert "unsupported key: lite" in cluster.error("updateSubGroup", "-g", group, "--attributes", "+lite=1")
    assert "--attributes lite=1: add/alter" in cluster.error("updateSubGroup", "-g", group, "--attributes", "lite=1")
    assert "-p nonsense:" in cluster.error("updateSubGroup", "-g", group, "-p", "nonsense")


def test_offsets_of_a_group_are_shown_and_reset(cluster: Cluster) -> None:
    topic, group, other = fresh("Topic"), fresh("group"), fresh("group")
    assert cluster.rows("consumerProgress", "-g", group, code=1) == []
    cluster.send(topic, "a", "b", "c")
    cluster.consume(topic, group, 2)
    assert progress(cluster, group, topic) == (3, 2, 1)
    assert "1 behind" in cluster.text("consumerProgress", "-g", group, "-t", topic)
    assert {"group": group, "diff": 1} in [
        {"group": one["group"], "diff": one["diff"]} for one in cluster.rows("consumerProgress")
    ]
    behind = cluster.rows("brokerConsumeStats", "-b", cluster.broker, "-l", "1")
    assert (group, topic, 0, 1) in [(one["group"], one["topic"], one["queue_id"], one["diff"]) for one in behind]
    assert cluster.rows("cloneGroupOffset", "-s", other, "-d", fresh("group"), "-t", topic, code=1) == []
    assert cluster.rows("cloneGroupOffset", "-s", group, "-d", other, "-t", topic)
    assert progress(cluster, other, topic) == (3, 2, 1)
    skipped = cluster.rows("skipAccumulatedMessage", "-g", group, "-t", topic, "-c", "DefaultCluster")
    assert skipped[0] == {"broker_name": BROKER, "queue_id": 0, "offset": 3}
    assert progress(cluster, group, topic) == (3, 3, 0)
    cluster.rows("resetOffsetByTime", "-g", group, "-t", topic, "-s", "2020-01-01#00:00:00:000", "-c", "DefaultCluster")
    assert progress(cluster, group, topic) == (3, 0, 3)
    one_queue = "-b", cluster.broker, "-q", "0", "-o", "1"
    assert len(cluster.rows("resetOffsetByTime", "-g", group, "-t", topic, "-s", "now", *one_queue)) == 1
    assert progress(cluster, group, topic) == (3, 1, 2)


def test_rates_of_topics_are_shown(cluster: Cluster) -> None:
    topic, group = fresh("Topic"), fresh("group")
    cluster.send(topic, "a", "b", "c")
    (unread,) = cluster.rows("statsAll", "-t", topic)
    assert (unread["group"], unread["accumulation"], unread["in_messages_day"]) == (None, 0, 3)
    cluster.consume(topic, group, 3)
    (read,) = cluster.rows("statsAll", "-t", topic, "-a")
    assert (read["group"], read["accumulation"], read["out_messages_day"]) == (group, 0, 3)
    assert topic in {one["topic"] for one in cluster.rows("statsAll")}


@contextmanager
def client(*arguments: str) -> Iterator[None]:
    """A command that goes on until it is ended."""
    with warm_processes.Popen([*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"a line\n")
            process.stdin.flush()
            yield
        finally:
            process.kill()


def connections(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    """What a command finds, as soon as it finds anything."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            return cluster.rows(*arguments)
        except AssertionError:  # nobody is there yet
            time.sleep(0.1)
    return cluster.rows(*arguments)


def test_members_of_groups_are_listed(cluster: Cluster) -> None:
    topic, group = fresh("Topic"), fresh("group")
    cluster.send(topic, "a")
    assert cluster.rows("consumerConnection", "-g", group, code=1) == []
    assert cluster.rows("producerConnection", "-g", group, "-t", topic, code=1) == []
    place = "--namesrv", cluster.namesrv, "--topic", topic, "--group", group
    with client("consume", *place), client("produce", *place):
        for arguments in (["consumerConnection", "-g", group], ["producerConnection", "-g", group, "-t", topic]):
            (member,) = connections(cluster, *arguments)
            assert member["address"].startswith("127.0.0.1:")
            assert member["language"] == "PYTHON"
        text = cluster.text("consumerConnection", "-g", group, "-b", cluster.broker)
        assert f"{topic}: *" in text
        assert "CLUSTERING" in text


def test_settings_are_exported(cluster: Cluster, tmp_path: Path) -> None:
    topic = fresh("Topic")
    cluster.rows("updateTopic", "-t", topic, "-r", "3", "-w", "2", "-a", "+message.type=FIFO")
    printed = json.loads(cluster.text("exportMetadata"))
    assert printed["topicConfigTable"][topic]["readQueueNums"] == 3
    assert printed["topicConfigTable"][topic]["attributes"] == {"message.type": "FIFO"}
    assert "TBW102" not in printed["topicConfigTable"]
    assert "TOOLS_CONSUMER" not in printed["subscriptionGroupTable"]
    (written,) = cluster.rows("exportMetadata", "-c", "DefaultCluster", "-f", str(tmp_path / "new"))
    file = tmp_path / "new" / "metadata.json"
    assert written == {"exported": str(file)}
    assert json.loads(file.read_text())["topicConfigTable"][topic]["writeQueueNums"] == 2
    cluster.rows("exportMetadata", "-t", "-f", str(tmp_path))
    assert "subscriptionGroupTable" not in json.loads((tmp_path / "topic.json").read_text())
    assert str(file) in cluster.error("exportMetadata", "-f", str(file))


def test_errors_are_one_line(cluster: Cluster) -> None:
    topic, group = fresh("Topic"), fresh("group")
    cluster.rows("updateTopic", "-t", topic)
    place = "resetOffsetByTime", "-g", group, "-t", topic
    assert "Group" in cluster.error(*place, "-s", "now")
    assert "-s yesterday: not a time" in cluster.error(*place, "-s", "yesterday")
    assert "-q: give -b too" in cluster.error(*place, "-s", "now", "-q", "0")
    assert "-o: give -b and -q too" in cluster.error(*place, "-s", "now", "-o", "0")
    assert "-t: give -g too" in cluster.error("consumerProgress", "-t", topic)
    assert "no name server knows" in cluster.error("skipAccumulatedMessage", "-g", group, "-t", fresh("none"))
    assert "give one of them" in cluster.error("exportMetadata", "-t", "-g")
    assert "group 'a b'" in cluster.error("updateSubGroup", "-g", "a b")


def test_nothing_is_deleted_everywhere(cluster: Cluster) -> None:
    topic, group = "TopicToStay", "group_to_stay"
    cluster.rows("updateTopic", "-t", topic, "-c", "DefaultCluster")
    cluster.rows("updateSubGroup", "-g", group, "-c", "DefaultCluster")
    assert "-c" in cluster.error("deleteTopic", "-t", topic)
    assert "-b or -c" in cluster.error("deleteSubGroup", "-g", group)
    assert {"topic": topic} in cluster.rows("topicList")
