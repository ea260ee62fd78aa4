"""``jobs/replay.py``: messages of a store at a cluster again, in order, without a gap."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import replay
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.errors import ClusterError, OptionError, RmqError
from rmq_offline.replay import run
from rmq_offline.replay.batch_messages import ORIGIN
from rmq_offline.replay.checkpoint import ReplayCheckpoint
from tests.jobs.replayed_messages import (
    QUEUES,
    Messages,
    arguments,
    expected_messages,
    make_topics,
    replay_store,
    sent_messages,
)
from tests.replay.small_stores import orders_message
from tests.spark.live.scenarios import fresh, make_topic
from tests.support.processes.broker_processes import configured
from tests.support.stores.store_files import flip, write_commitlog
from tests.support.torture import rounds

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
_CONF = "mappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\n"
_KILLED = (
    "import sys\nfrom jobs import replay\ngiven = replay.parser().parse_args(sys.argv[1:])\nreplay.main(given, None)"
)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server's address of ``rmq standalone``."""
    with configured(tmp_path_factory.mktemp("replay"), _CONF) as running:
        yield running.namesrv


@pytest.fixture(scope="module")
def mixed(golden: Callable[[str], Path]) -> Path:
    """The root of the golden store ``mixed``."""
    return golden("mixed") / "store"


@pytest.fixture(scope="module")
def expected(golden: Callable[[str], Path]) -> Messages:
    """What it has for consumers."""
    return expected_messages(golden("mixed"))


def count(messages: Messages) -> int:
    return sum(map(len, messages.values()))


def flat(messages: Messages) -> list[dict[str, Any]]:
    return sorted((one for queue in messages.values() for one in queue), key=lambda one: one["physical_offset"])


def test_all_users_messages_come_as_they_were_in_the_order_of_their_queues(
    namesrv: str, mixed: Path, expected: Messages
) -> None:
    make_topics(namesrv, expected)
    counted, _ = replay_store(mixed, namesrv, "--dry-run")
    assert count(sent_messages(namesrv, expected)) == 0
    report, code = replay_store(mixed, namesrv)
    assert code == 0
    assert report["topics"] == counted["topics"]
    assert report["messages"] == counted["messages"] == count(expected)
    assert sent_messages(namesrv, expected) == expected


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--topics", "Orders", "--tags", "TagA || TagB"], lambda topic, one: topic == "Orders" and one["tag"] in "AB"),
        (
            ["--topics", "Orders", "--sql", "TAGS = 'TagA' AND UNIQ_KEY IS NOT NULL"],
            lambda topic, one: topic == "Orders" and one["tag"] == "A",
        ),
        (["--queues", '{"Clicks": [1, 2]}'], lambda topic, one: topic == "Clicks" and one["queue_id"] in (1, 2)),
        (
            ["--starting-physical-offset", "500000", "--ending-physical-offset", "600000"],
            lambda _, one: 500000 <= one["physical_offset"] < 600000,
        ),
    ],
)
def test_a_choice_is_sent_to_one_topic(
    namesrv: str, mixed: Path, expected: Messages, given: list[str], wanted: Callable[[str, dict[str, Any]], bool]
) -> None:
    target = make_topic(namesrv, fresh("Chosen"), 4)
    chosen = [
        one["physical_offset"]
        for (topic, queue_id), queue in expected.items()
        for one in queue
        if wanted(topic, {**one, "queue_id": queue_id, "tag": one["properties"].get("TAGS", "no").removeprefix("Tag")})
    ]
    assert 0 < len(chosen) < count(expected)
    report, _ = replay_store(mixed, namesrv, "--to-topic", target, *given)
    assert report["messages"] == len(chosen)
    assert [one["physical_offset"] for one in flat(sent_messages(namesrv, target))] == sorted(chosen)


def test_messages_are_found_by_ids(namesrv: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    lines = (golden("mixed") / "expected" / "messages.jsonl").read_text().splitlines()
    orders = [one for one in map(json.loads, lines) if one["topic"] == "Orders"]
    ids = tmp_path / "ids"
    ids.write_text(f"{orders[3]['msg_id']}\n{orders[7]['properties']['UNIQ_KEY']}\nnone-such\n")
    target = make_topic(namesrv, fresh("Ids"))
    report, _ = replay_store(golden("mixed") / "store", namesrv, "--to-topic", target, "--msg-ids", f"@{ids}")
    assert report["messages"] == 2
    found = [one["physical_offset"] for one in flat(sent_messages(namesrv, target))]
    assert found == [orders[3]["physical_offset"], orders[7]["physical_offset"]]


def test_a_group_s_backlog_is_what_it_has_not_consumed(namesrv: str, mixed: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(mixed, store)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text(offsets.read_text().replace("{0:182,1:182,2:182,3:182", "{0:180,1:182,2:182,3:1"))
    report, _ = replay_store(store, namesrv, "--group", "golden_cg_ok", "--dry-run")
    assert report["topics"] == {"Orders": {"0": 2, "3": 181}}
    with pytest.raises(OptionError, match="no offsets of this group"):
        replay_store(store, namesrv, "--group", "nobody", "--dry-run")


def saved(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint has."""
    found: dict[str, Any] = json.loads((checkpoint / "replay.json").read_text())
    return found


@pytest.mark.torture
@pytest.mark.parametrize("number", rounds(1))
def test_a_replay_that_is_killed_goes_on_without_a_gap(
    namesrv: str, mixed: Path, expected: Messages, tmp_path: Path, number: int
) -> None:
    target, checkpoint = make_topic(namesrv, fresh("Killed"), QUEUES), tmp_path / "checkpoint"
    more = ["--to-topic", target, "--topics", "Orders,Clicks", "--checkpoint", str(checkpoint)]
    slow = [sys.executable, "-c", _KILLED, *arguments(mixed, namesrv, *more, "--rate", "200")]
    with subprocess.Popen(slow) as process:
        deadline = time.monotonic() + 300
        while not (checkpoint / "replay.json").exists() or not sent_messages(namesrv, target):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    before = sent_messages(namesrv, target)
    saved_messages = saved(checkpoint)["messages"]
    report, code = replay_store(mixed, namesrv, *more)
    assert code == 0
    wanted = {queue: messages for queue, messages in expected.items() if queue[0] in ("Orders", "Clicks")}
    assert 0 < count(before) < count(wanted)
    after = sent_messages(namesrv, target)
    assert count(before) + report["messages"] == count(after)
    seen = {one["physical_offset"]: one for one in flat(after)}
    assert list(seen.values()) == flat(wanted)
    for queue in after.values():  # what came again begins anew, but nothing overtakes
        firsts = list(dict.fromkeys(one["physical_offset"] for one in queue))
        for source in wanted.values():
            own = {one["physical_offset"] for one in source}
            assert [offset for offset in firsts if offset in own] == sorted(own & set(firsts))
    again, _ = replay_store(mixed, namesrv, *more)
    assert again["messages"] == 0
    assert saved(checkpoint)["messages"] == saved_messages + report["messages"]  # of all runs
    with pytest.raises(RmqError, match="the checkpoint of another replay"):
        replay_store(mixed, namesrv, "--to-topic", target, "--topics", "Orders", "--checkpoint", str(checkpoint))


def test_a_rate_is_observed_and_the_checkpoint_saved_on_the_way(
    namesrv: str, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, offsets = make_topic(namesrv, fresh("Rate")), []

    def save(checkpoint: ReplayCheckpoint, next_physical_offset: int, *more: Any) -> None:
        offsets.append(next_physical_offset)
        save_it(checkpoint, next_physical_offset, *more)

    save_it = ReplayCheckpoint.save
    monkeypatch.setattr(ReplayCheckpoint, "save", save)
    monkeypatch.setattr(run, "_SAVE_EVERY_S", 0.0)
    more = ["--to-topic", target, "--topics", "Ordered", "--rate", "40", "--checkpoint", str(tmp_path)]
    report, _ = replay_store(mixed, namesrv, *more)
    assert report["messages"] == 40
    assert report["seconds"] >= 1
    assert offsets == sorted(offsets)
    assert len(set(offsets)) > 3  # ten parts, which were read at once


def test_damaged_records_are_counted_and_the_rest_is_sent(namesrv: str, mixed: Path, tmp_path: Path) -> None:
    store, target = tmp_path / "store", make_topic(namesrv, fresh("Damaged"))
    shutil.copytree(mixed, store)
    (*_, last) = expected_messages(mixed.parent)["Orders", 0]
    flip(store, last["physical_offset"] + 88 + 2, 1048576)
    report, code = replay_store(store, namesrv, "--to-topic", target, "--queues", '{"Orders": [0]}')
    assert (code, report["damaged"], report["messages"]) == (1, 1, 181)
    assert count(sent_messages(namesrv, target)) == 181


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--to-topic", "NoSuchTopic"], "no topic NoSuchTopic at the name server"),
        (["--topics", "%RETRY%golden_cg"], "brokers take no batches for retry topics"),
        (["--sql", "a = = 1"], "--sql 'a = = 1': "),
        (["--rate", "0"], "--rate 0: expected messages a second"),
        (["--msg-ids", ","], "names no message"),
        (["--starting-offsets", "[]"], "option startingOffsets of rmq_commitlog cannot be"),
        (["--topics", "Orders", "--queues", '{"Orders": [1]}'], "exclude each other"),
    ],
)
def test_an_impossible_replay_is_reported_before_any_send(
    namesrv: str, mixed: Path, more: list[str], message: str
) -> None:
    with pytest.raises(RmqError, match=message):
        replay_store(mixed, namesrv, *more)


def test_ids_that_are_no_text_are_reported(mixed: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    ids.write_bytes(b"7F0000\xff")
    with pytest.raises(OptionError, match="not text in UTF-8, at byte 6"):
        replay_store(mixed, "127.0.0.1:1", "--msg-ids", f"@{ids}")


def test_a_topic_that_exists_nowhere_is_reported(spark: SparkSession, mixed: Path) -> None:
    parsed = replay.parser().parse_args(arguments(mixed, "127.0.0.1:1", "--topics", "Orders,NoSuchTopic", "--dry-run"))
    replay.check(parsed)
    with pytest.raises(OptionError, match="has no topic 'NoSuchTopic'"):
        replay.main(parsed, spark)


def test_a_store_is_not_replayed_to_itself(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mixed)
    parsed = replay.parser().parse_args(["--store", str(mixed), "--to-store", f"file://{tmp_path}/link/"])
    with pytest.raises(OptionError, match="is the replayed store itself"):
        replay.check(parsed)


def test_a_name_server_that_does_not_answer_is_reported(mixed: Path) -> None:
    with pytest.raises(ClusterError, match="cannot connect"):
        replay_store(mixed, "127.0.0.1:1", "--topics", "Orders")


def test_messages_go_to_another_store(spark: SparkSession, mixed: Path, expected: Messages, tmp_path: Path) -> None:
    target = tmp_path / "target"
    parsed = replay.parser().parse_args(
        ["--store", str(mixed), "--store-id", "golden", "--to-store", str(target), "--topics", "Orders,Tx"]
    )
    replay.check(parsed)
    report, code = replay.main(parsed, spark)
    wanted = [one for queue, messages in expected.items() if queue[0] in ("Orders", "Tx") for one in messages]
    assert (code, report["messages"]) == (0, len(wanted))
    rows = spark.read.format("rmq_commitlog").load(str(target)).orderBy("physical_offset").collect()
    assert [row.properties[ORIGIN] for row in rows] == [
        f"golden@{offset}" for offset in sorted(one["physical_offset"] for one in wanted)
    ]
    assert {bytes(row.body) for row in rows} == {one["body"] for one in wanted}


def test_offsets_in_light_queues_are_left_out_of_another_store(spark: SparkSession, tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "7"}
    write_commitlog(store, [orders_message(0, b"body", properties_bytes=encode_properties(properties))], 4096)
    parsed = replay.parser().parse_args(["--store", str(store), "--store-id", "golden", "--to-store", str(target)])
    replay.check(parsed)
    assert replay.main(parsed, spark)[0]["messages"] == 1
    (row,) = spark.read.format("rmq_commitlog").load(str(target)).collect()
    assert row.properties == {"INNER_MULTI_DISPATCH": "%LMQ%a", ORIGIN: "golden@0"}
    assert not (target / "consumequeue" / "%LMQ%a").exists()


@pytest.mark.long
def test_messages_of_a_tier_go_to_another_store_with_their_places_in_queues(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    shutil.copytree(golden("tiered") / "store", store)
    for path in sorted((store / "commitlog").iterdir())[:2]:  # expired
        path.unlink()
    parsed = replay.parser().parse_args(
        ["--store", str(store), "--store-id", "golden", "--tier", str(store / "tiered"), "--to-store", str(target)]
    )
    replay.check(parsed)
    report, code = replay.main(parsed, spark)
    lines = (golden("tiered") / "expected" / "messages.jsonl").read_text().splitlines()
    users = [one for one in map(json.loads, lines) if one["topic"] != "SCHEDULE_TOPIC_XXXX"]
    assert (code, report["messages"]) == (0, len(users))
    rows = spark.read.format("rmq_commitlog").load(str(target)).collect()
    assert {row.properties[ORIGIN] for row in rows} == {
        f"golden@{one['topic']}/{one['queue_id']}/{one['queue_offset']}" for one in users
    }
