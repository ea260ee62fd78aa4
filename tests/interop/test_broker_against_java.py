"""The real Java clients, broker and mqadmin at our broker, and on the stores that it writes."""

import base64
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.message_id import encode_message_id
from tests.broker.transaction.conftest import HALF, OP
from tests.cli.admin.conftest import Cluster
from tests.cli.admin.test_groups import client, connections
from tests.interop import peer
from tests.support.processes.broker_processes import Standalone, configured
from tests.support.stores.store_files import tree

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("broker_against_java")]

SIZES = {
    "mappedFileSizeCommitLog": 1048576,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "messageDelayLevel": " ".join(f"{second}s" for second in range(1, 19)),
}
SETTINGS = "".join(f"{key}={value}\n" for key, value in SIZES.items()) + (
    "enablePropertyFilter=true\ndiskMaxUsedSpaceRatio=99\nfileReservedTime=87600\nbrokerName=ours\n"
    "transactionTimeOut=2000\ntransactionCheckInterval=3000\n"
)
MESSAGES = 400


@dataclass(frozen=True)
class Written:
    """What GoldenWriter has sent through our broker.

    Attributes:
        running: name server and broker, at work on it again.
        stopped: the store as it was when they were stopped in between.
        exit_code: of that stop.
        output: what the writer said.
    """

    running: Standalone
    stopped: Path
    exit_code: int
    output: str

    def mqadmin(self, command: str, *arguments: str) -> str:
        """Run a command at our name server."""
        done = peer.command(command, "-n", self.running.namesrv, *arguments)
        assert "SubCommandException" not in done, done[-3000:]
        return done


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    peer.build()
    directory = tmp_path_factory.mktemp("broker")
    settings = f"{SETTINGS}indexTags={peer.index_tags()}\n"
    with configured(directory, settings) as running:
        output = peer.run("golden", running.namesrv, "7", str(MESSAGES), java_options=peer.QUICK_START)
        exit_code = running.stop()
    shutil.copytree(directory / "store", directory / "stopped")
    with configured(directory, settings) as running:
        yield Written(running, directory / "stopped", exit_code, output)


def test_every_kind_of_message_is_sent_and_consumed(written: Written) -> None:
    assert "golden: sent" in written.output
    topics = Counter(message["topic"] for message in peer.dump(written.stopped))
    assert sum(topics[topic] for topic in ("Orders", "Payments", "Clicks", "audit-log_1")) == MESSAGES
    assert {name: topics[name] for name in ("Compressed", "Delayed", "Large", "OneByte", "Ordered")} == {
        "Compressed": 15, "Delayed": 10, "Large": 3, "OneByte": 3, "Ordered": 40,
    }  # fmt: skip
    # Eight messages of two tags fail: once again each, then dead.
    assert topics["%RETRY%golden_cg"] == 8
    assert topics["%DLQ%golden_cg"] == 8
    assert topics["SCHEDULE_TOPIC_XXXX"] == 10 + 8


def test_transactions_are_as_the_original_stores_them(written: Written) -> None:
    """Of 12 four are committed, four rolled back, and four committed when Java's producer is asked."""
    found = peer.dump(written.stopped)
    half, notes, final = ([one for one in found if one["topic"] == topic] for topic in (HALF, OP, "Tx"))
    assert (len(half), len(final)) == (12 + 4, 8)
    assert [one["properties"].get("TRANSACTION_CHECK_TIMES") for one in half] == [None] * 12 + ["1"] * 4
    assert {one["sys_flag"] for one in half} == {0}
    assert {one["sys_flag"] for one in final} == {8}
    offsets = {one["physical_offset"]: one for one in half}
    for one in final:
        meant = offsets[one["prepared_transaction_offset"]]
        assert one["body_base64"] == meant["body_base64"]
        assert one["properties"] == meant["properties"]
    noted = "".join(base64.b64decode(one["body_base64"]).decode() for one in notes).rstrip(",").split(",")
    assert sorted(map(int, noted)) == [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 14, 15]


def test_delayed_messages_are_as_the_original_stores_them(written: Written) -> None:
    found = [message for message in peer.dump(written.stopped) if message["topic"] == "Delayed"]
    assert {message["properties"]["REAL_TOPIC"] for message in found} == {"Delayed"}
    assert {message["properties"]["DELAY"] for message in found} == {"1", "2", "3"}
    assert all(message["store_timestamp"] - message["born_timestamp"] >= 1000 for message in found)


def test_timer_messages_are_as_the_original_stores_them(written: Written) -> None:
    found = peer.dump(written.stopped)
    waited = {one["properties"]["UNIQ_KEY"]: one for one in found if one["topic"] == "rmq_sys_wheel_timer"}
    came = [one for one in found if one["topic"] == "Timed"]
    assert len(waited) == len(came) == 4
    for one in came:
        properties, before = one["properties"], waited[one["properties"]["UNIQ_KEY"]]["properties"]
        assert properties == before | {name: properties[name] for name in ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")}
        assert (before["REAL_TOPIC"], before["REAL_QID"]) == ("Timed", str(one["queue_id"]))
        assert one["store_timestamp"] >= one["born_timestamp"] + int(before["TIMER_DELAY_MS"]) - 1000
        assert one["store_timestamp"] >= int(before["TIMER_OUT_MS"]) + 1000


def test_mqadmin_sees_the_broker(written: Written) -> None:
    listed = written.mqadmin("clusterList")
    assert re.search(rf"DefaultCluster\s+ours\s+0\s+{re.escape(written.running.broker)}\s+V5_3_3", listed)
    assert "Orders" in written.mqadmin("topicList").split()
    status = written.mqadmin("topicStatus", "-t", "Ordered")
    rows = [line.split() for line in status.splitlines() if line.startswith("ours")]
    assert sum(int(row[3]) - int(row[2]) for row in rows) == 40
    assert "putTps" in written.mqadmin("brokerStatus", "-b", written.running.broker)
    assert "brokerName" in written.mqadmin("getBrokerConfig", "-b", written.running.broker)


def test_mqadmin_finds_messages(written: Written) -> None:
    message = next(one for one in peer.dump(written.stopped) if one["topic"] == "Ordered")
    uniq_key = message["properties"]["UNIQ_KEY"]
    by_key = written.mqadmin("queryMsgByKey", "-t", "Ordered", "-k", message["properties"]["KEYS"])
    assert uniq_key in by_key
    assert "Ordered" in written.mqadmin("queryMsgByUniqueKey", "-t", "Ordered", "-i", uniq_key)
    by_place = ("-t", "Ordered", "-b", "ours", "-i", str(message["queue_id"]), "-o", str(message["queue_offset"]))
    assert uniq_key in written.mqadmin("queryMsgByOffset", *by_place)
    # The broker listens elsewhere since its restart, and an id tells whom to ask.
    by_id = encode_message_id(Host.parse(written.running.broker), message["physical_offset"])
    assert uniq_key in written.mqadmin("queryMsgById", "-t", "Ordered", "-i", by_id)
    printed = written.mqadmin("printMsg", "-t", "Ordered", "-d", "true")
    assert printed.count("MSGID:") == 40


def test_mqadmin_sees_and_moves_groups(written: Written) -> None:
    progress = written.mqadmin("consumerProgress", "-g", "golden_cg")
    assert "%RETRY%golden_cg" in progress
    assert "Ordered" in progress
    moved = written.mqadmin("resetOffsetByTime", "-g", "golden_cg", "-t", "Ordered", "-s", "0")
    assert len([line for line in moved.splitlines() if line.startswith("ours")]) == 4
    again = written.mqadmin("consumerProgress", "-g", "golden_cg")
    rows = [line.split() for line in again.splitlines() if line.startswith("Ordered")]
    assert {row[4] for row in rows} == {"0"}
    written.mqadmin("skipAccumulatedMessage", "-g", "golden_cg", "-t", "Ordered", "-f", "true")
    rows = [
        line.split()
        for line in written.mqadmin("consumerProgress", "-g", "golden_cg").splitlines()
        if line.startswith("Ordered")
    ]
    assert sum(int(row[4]) for row in rows) == 40


def test_mqadmin_makes_uses_and_deletes_topics_and_groups(written: Written) -> None:
    broker = written.running.broker
    made = written.mqadmin("updateTopic", "-b", broker, "-t", "Made", "-r", "3", "-w", "2")
    assert "success" in made
    queue = ("-t", "Made", "-b", "ours", "-i", "1")
    assert "SEND_OK" in written.mqadmin("sendMessage", *queue, "-p", "hello", "-k", "key1")
    assert "hello" in written.mqadmin("consumeMessage", *queue, "-o", "0", "-c", "1")
    assert "success" in written.mqadmin("updateSubGroup", "-b", broker, "-g", "made_group")
    cloned = written.mqadmin("cloneGroupOffset", "-s", "golden_cg", "-d", "made_group", "-t", "Ordered", "-o", "true")
    assert "clone group offset success" in cloned
    written.mqadmin("deleteSubGroup", "-b", broker, "-g", "made_group", "-c", "DefaultCluster")
    assert "success" in written.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "Made")
    assert "Made" not in written.mqadmin("topicList").split()


def test_mqadmin_sees_who_is_connected(written: Written) -> None:
    topic, group, namesrv = "Members", "member_group", written.running.namesrv
    written.mqadmin("updateTopic", "-b", written.running.broker, "-t", topic, "-r", "2", "-w", "2", "-o", "true")
    cluster = Cluster(namesrv, written.running.broker)
    (sent,) = cluster.rows("sendMessage", "-t", topic, "-p", "a body")
    place = "--namesrv", namesrv, "--topic", topic, "--group", group
    with client("consume", *place, "--from", "first"), client("produce", *place):
        (member,) = connections(cluster, "consumerConnection", "-g", group)
        connections(cluster, "producerConnection", "-g", group, "-t", topic)
        shown = written.mqadmin("consumerConnection", "-g", group)
        assert member["client_id"] in shown
        assert "PYTHON" in shown
        assert "PYTHON" in written.mqadmin("producerConnection", "-g", group, "-t", topic)
        assert "PROP_CONSUMER_START_TIMESTAMP" in written.mqadmin(
            "consumerStatus", "-g", group, "-i", member["client_id"]
        )
        directly = "-i", sent["offset_msg_id"], "-g", group, "-d", member["client_id"], "-t", topic
        assert "CR_SUCCESS" in written.mqadmin("queryMsgById", *directly)
    route = written.mqadmin("topicRoute", "-t", topic)
    assert '"orderTopicConf":"ours:2"' in route.replace(" ", "")
    assert written.running.broker in route


def test_mqadmin_shows_statistics(written: Written) -> None:
    assert "Orders" in written.mqadmin("statsAll", "-t", "Orders")
    assert "golden_cg" in written.mqadmin("brokerConsumeStats", "-b", written.running.broker)
    changed = peer.command("updateBrokerConfig", "-b", written.running.broker, "-k", "traceOn", "-v", "false")
    assert "traceOn cannot be changed while it runs" in changed
    exported = written.mqadmin("exportMetadata", "-c", "DefaultCluster", "-f", str(written.stopped.parent))
    assert "export" in exported


@pytest.mark.long
def test_the_original_makes_the_same_queues_and_index(written: Written, tmp_path: Path) -> None:
    assert written.exit_code == 0
    assert not (written.stopped / "abort").exists()
    java = tmp_path / "java"
    shutil.copytree(written.stopped / "commitlog", java / "commitlog")
    assert peer.rebuild(java, **SIZES)["loaded"]
    assert tree(written.stopped / "consumequeue") == tree(java / "consumequeue")
    ours, theirs = tree(written.stopped / "index"), tree(java / "index")
    assert [ours[name] for name in sorted(ours)] == [theirs[name] for name in sorted(theirs)]
