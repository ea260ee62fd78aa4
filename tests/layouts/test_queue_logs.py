"""Records of tiered storage and of compacted topics are read: those that the golden stores' messages say."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_formats import Query, Store
from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs.tiered import parse_segment_name, segment_name
from rmq_formats.errors import FormatError, OptionError, StoreError, StoreNotFoundError
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, QueueBounds
from rmq_formats.read.task import read_task
from rmq_formats.spark.options.read import commitlog_options, refuse_batch_options
from rmq_formats.storage.queue_logs import LogKind, Logs
from rmq_formats.storage.store_files import open_store
from rmq_offline.spark.commitlog_source import CommitLogSource
from tests.cli.conftest import Rmq
from tests.layouts.test_sources import rows_of

Golden = Callable[[str], Path]
Message = tuple[str, int, int, str, int]  # topic, queue id, queue offset, body, store timestamp
BROKER = "1cfb8c9b_GoldenCluster/golden-a"
LOG_BYTES = 262_144


def stored(golden: Golden, name: str) -> list[dict[str, Any]]:
    lines = (golden(name) / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def told(record: dict[str, Any]) -> Message:
    return (record["topic"], record["queue_id"], record["queue_offset"], record["body_base64"],
            record["store_timestamp"])  # fmt: skip


def read(store: Store, **more: Any) -> list[Message]:
    from base64 import b64encode

    return [
        (item.topic, item.queue_id, item.queue_offset, b64encode(item.body).decode(), item.store_timestamp_ms)
        for item in store.messages(**more)
    ]


def rows(store: Store, **more: Any) -> list[dict[str, Any]]:
    return [row for batch in store.arrow(**more) for row in batch.to_pylist()]


def names(found: Iterator[Any] | list[Any]) -> set[tuple[str, int, int]]:
    return {(row["topic"], row["queue_id"], row["queue_offset"]) for row in found}


def expire(store: Path, files: int) -> int:
    """Delete the first files of the CommitLog, as a broker does in time; returns where it begins then."""
    for path in sorted((store / "commitlog").iterdir())[:files]:
        path.unlink()
    return files * LOG_BYTES


def tier_file(store: Path, queue: str, number: int = 0, kind: str = "COMMIT_LOG") -> Path:
    directory = store / "tiered" / BROKER / queue / kind
    return sorted(directory.iterdir(), key=lambda path: path.name[8:])[number]


# --- tiered -----------------------------------------------------------------------------------


def test_names_of_segments() -> None:
    assert segment_name(0) == "cfcd208400000000000000000000"
    assert parse_segment_name("a9351d8800000000000000065403") == 65403
    assert parse_segment_name("a9351d8900000000000000065403") is None
    assert parse_segment_name("00000000000000065403") is None


def test_the_tier_alone_has_the_messages_of_its_topics(golden: Golden) -> None:
    store = golden("tiered") / "store"
    found = read(Store(store, tier=store / "tiered", log="tiered"))
    expected = [told(record) for record in stored(golden, "tiered") if record["topic"] != "SCHEDULE_TOPIC_XXXX"]
    assert len(found) == len(expected) > 1000
    assert sorted(found) == sorted(expected)
    assert len(Store(store, tier=store / "tiered", log="tiered").topics()) == 4


def test_records_of_the_tier_say_their_place_there(golden: Golden) -> None:
    store = golden("tiered") / "store"
    found = rows(Store(store, tier=store / "tiered", log="tiered"), topic="Orders")
    assert not any(row["record_error"] for row in found)
    own = [row["physical_offset"] for row in found if row["queue_id"] == 0]
    assert own == sorted(own)
    assert own[0] == 0
    assert 65403 in own  # the first of the second segment


def test_joined_with_the_log_none_comes_twice(golden: Golden) -> None:
    store = golden("tiered") / "store"
    joined = rows(Store(store, tier=store / "tiered"))
    assert joined == rows(Store(store))  # which has them all


@pytest.mark.parametrize("files", [1, 2])
def test_what_the_log_has_no_more_comes_from_the_tier(files: int, golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    begin = expire(store, files)
    found = read(Store(store, tier=store / "tiered"))
    expected = [
        told(record)
        for record in stored(golden, "tiered")
        if record["physical_offset"] >= begin or record["topic"] != "SCHEDULE_TOPIC_XXXX"
    ]
    assert sorted(found) == sorted(expected)
    kept = read(Store(store))
    assert found[-len(kept) :] == kept
    assert len(kept) < len(found)


@pytest.mark.parametrize("files", [0, 1])
@pytest.mark.parametrize("log", ["tiered", "joined"])
def test_conditions_hold_in_both_parts(log: str, files: int, golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    expire(store, files)
    every = [told(record) for record in stored(golden, "tiered")]
    orders = sorted(item for item in every if item[0] == "Orders")
    opened = Store(store, tier=store / "tiered", log=log)
    assert sorted(read(opened, topic="Orders")) == orders
    wanted = [item for item in orders if item[1] == 2 and 90 <= item[2] < 130]
    assert sorted(read(opened, topic="Orders", queue_id=2, from_offset=90, to_offset=130)) == wanted
    middle = sorted(item[4] for item in orders)[len(orders) // 2]
    assert sorted(read(opened, topic="Orders", from_time=middle)) == [item for item in orders if item[4] >= middle]
    assert sorted(read(opened, topic="Orders", to_time=middle)) == [item for item in orders if item[4] < middle]
    tags = {"TagA", "TagB", "pay", "refund"}
    query = Query(topics=frozenset(["Orders"]), tags=frozenset(tags))
    tagged = [r for r in stored(golden, "tiered") if r["topic"] == "Orders" and r["properties"].get("TAGS") in tags]
    assert names(rows(opened, query=query)) == names(tagged)


def test_a_message_is_found_by_offset_key_id_and_time(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    expire(store, 2)
    opened = Store(store, tier=store / "tiered")
    for record in [item for item in stored(golden, "tiered") if item["topic"] == "Payments"][::97]:
        place = {"topic": "Payments", "queue_id": record["queue_id"]}
        (found,) = opened.query(**place, offset=record["queue_offset"])
        assert (found.queue_offset, found.properties) == (record["queue_offset"], record["properties"])
        uniq_key = record["properties"].get("UNIQ_KEY")
        assert record["queue_offset"] in {
            item.queue_offset for item in opened.query(topic="Payments", uniq_key=uniq_key)
        }
        (first,) = opened.query(**place, time=record["store_timestamp"])
        assert (first.queue_id, first.store_timestamp_ms) == (record["queue_id"], record["store_timestamp"])


def test_an_offset_is_read_without_a_scan_of_the_queue(golden: Golden) -> None:
    store = golden("tiered") / "store"
    query = Query(
        topics=frozenset(["Orders"]),
        queues={"Orders": frozenset([1])},
        bounds={("Orders", 1): QueueBounds(first_offset=150, end_offset=151)},
    )
    logs = Logs(LogKind.TIERED, str(store / "tiered"))
    plan = plan_read(open_store(str(store)), query, logs=logs)
    assert plan.scanned_bytes < 1000


def test_a_damaged_unit_hides_no_record(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Orders/1", 0, "CONSUME_QUEUE")
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 20):
        data[at : at + 8] = (7).to_bytes(8, "big")
    path.write_bytes(data)
    found = read(
        Store(store, tier=store / "tiered", log="tiered"), topic="Orders", queue_id=1, from_offset=40, to_offset=42
    )
    expected = [told(item) for item in stored(golden, "tiered") if item["topic"] == "Orders" and item["queue_id"] == 1]
    assert found == [item for item in expected if item[2] in {40, 41}]


@pytest.mark.parametrize("split_bytes", [700, 30_000, 1 << 20])
def test_splits_of_any_size_give_the_same_rows(split_bytes: int, golden: Golden) -> None:
    store = str(golden("tiered") / "store")
    opened = Store(store, tier=f"{store}/tiered", log="tiered")
    options = opened._options
    plan = plan_read(open_store(store), Query(), split_bytes=split_bytes, logs=options.logs)
    assert (len(plan.tasks) > 100) == (split_bytes == 700)
    found = [row for task in plan.tasks for batch in read_task(store, task, options) for row in batch.to_pylist()]
    assert found == rows(opened)


def test_damage_of_the_tier_is_told(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Batched/1")
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size + 90] ^= 0x5A  # in the second record's body
    path.write_bytes(data[:-10])  # and the last is cut
    opened = Store(store, tier=store / "tiered", log="tiered")
    failed = [row for row in rows(opened) if row["record_error"]]
    assert [row["record_error"] for row in failed] == ["body CRC does not match", "record size out of bounds"]
    assert failed[0]["physical_offset"] == size
    assert {(row["topic"], row["queue_id"]) for row in failed} == {("Batched", 1)}
    few = opened.arrow(["queue_id", "record_error"])
    assert [row["queue_id"] for batch in few for row in batch.to_pylist() if row["record_error"]] == [1, 1]
    count = len(stored(golden, "tiered"))
    assert len(rows(opened, mode=Mode.DROPMALFORMED)) < count
    with pytest.raises(FormatError, match="Batched/1/COMMIT_LOG"):
        rows(opened, mode=Mode.FAILFAST)
    with pytest.raises(FormatError, match="Batched/1/COMMIT_LOG"):
        list(opened.messages(strict=True))


def test_segments_that_are_gone_take_no_others_with_them(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("tiered")
    tier_file(store, "Orders/0").unlink()
    found = read(Store(store, tier=store / "tiered", log="tiered"), topic="Orders", queue_id=0)
    expected = [told(item) for item in stored(golden, "tiered") if item["topic"] == "Orders" and item["queue_id"] == 0]
    assert 0 < len(found) < len(expected)
    assert found == expected[-len(found) :]


def test_whose_tier_it_is_must_be_known(golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("tiered")
    other = store / "tiered" / "1cfb8c9b_GoldenCluster" / "golden-b"
    shutil.copytree(store / "tiered" / BROKER, other)
    assert len(rows(Store(store, tier=store / "tiered"))) == len(rows(Store(store)))
    shutil.rmtree(store / "config")
    with pytest.raises(StoreNotFoundError, match="there are golden-a of GoldenCluster, golden-b of GoldenCluster"):
        rows(Store(store, tier=store / "tiered"))
    (store / "brokerIdentity").write_text("GoldenCluster#golden-c#1")
    with pytest.raises(StoreNotFoundError, match="broker golden-c; there are"):
        rows(Store(store, tier=store / "tiered"))
    with pytest.raises(StoreNotFoundError, match="no tiered storage"):
        rows(Store(store, tier=tmp_path))


def test_without_a_consumequeue_both_are_not_joined(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    shutil.rmtree(store / "consumequeue")
    with pytest.raises(StoreNotFoundError, match="rmq rebuild, or read the tier alone"):
        rows(Store(store, tier=store / "tiered"))
    assert rows(Store(store, tier=store / "tiered", log="tiered"))


# --- compacted --------------------------------------------------------------------------------


def test_compacted_topics_have_what_compaction_left(golden: Golden) -> None:
    store = golden("compaction") / "store"
    every = {told(item)[:3]: told(item) for item in stored(golden, "compaction")}
    found = read(Store(store).compacted())
    assert {item[0] for item in found} == {"Profiles", "Settings"}
    assert all(every[item[:3]] == item for item in found)
    units = sum(path.stat().st_size for path in (store / "compaction" / "compactionCq").rglob("0*"))
    assert 0 < len(found) < units // 46
    newest = {}
    for record in stored(golden, "compaction"):
        if record["topic"] == "Profiles" and record["body_base64"] and "KEYS" in record["properties"]:
            newest[record["properties"]["KEYS"]] = record["queue_offset"]
    left = {item[2] for item in found if item[0] == "Profiles"}
    last_file = 244
    assert {offset for offset in newest.values() if offset < last_file} <= left


def test_compaction_leaves_the_log_as_it_is(golden: Golden) -> None:
    store = golden("compaction") / "store"
    assert sorted(read(Store(store))) == sorted(map(told, stored(golden, "compaction")))


def test_a_queue_of_a_compacted_topic(golden: Golden) -> None:
    opened = Store(golden("compaction") / "store").compacted()
    every = read(opened)
    wanted = [item for item in every if item[:2] == ("Settings", 1) and 200 <= item[2] < 250]
    assert wanted
    assert read(opened, topic="Settings", queue_id=1, from_offset=200, to_offset=250) == wanted
    assert opened.query(topic="Settings", queue_id=1, offset=wanted[0][2])[0].queue_offset == wanted[0][2]


def test_a_store_without_compacted_topics_says_so(golden: Golden) -> None:
    with pytest.raises(StoreNotFoundError, match="no compacted topics"):
        rows(Store(golden("tiered") / "store").compacted())


# --- Spark and the command line --------------------------------------------------------------


def test_the_source_has_the_rows_of_the_store(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    expire(store, 2)
    opened = Store(store, tier=store / "tiered")
    assert rows_of(CommitLogSource, store, tier=str(store / "tiered")) == rows(opened)
    some = rows_of(CommitLogSource, store, tier=f"{store}/tiered", log="Tiered", subscribe="Orders", splitBytes="5000")
    assert some == rows(Store(store, tier=store / "tiered", log="tiered"), topic="Orders")


def test_several_stores_read_each_its_own_tier(golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("tiered")
    other = tmp_path / "other"
    shutil.copytree(store, other)
    (other / "brokerIdentity").write_text("GoldenCluster#golden-b#1")
    (store / "tiered" / BROKER).with_name("golden-b").mkdir()
    shutil.copytree(store / "tiered" / BROKER / "Orders", store / "tiered" / "1cfb8c9b_GoldenCluster/golden-b/Orders")
    stores = json.dumps([str(store), str(other)])
    made = CommitLogSource({"paths": stores, "tier": f"{store}/tiered", "log": "tiered"})
    reader = made.reader(made.schema())
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    orders = len(rows(Store(store, tier=store / "tiered", log="tiered"), topic="Orders"))
    assert sum(row["broker_name"] == "golden-b" for row in found) == orders
    assert sum(row["broker_name"] == "golden-a" and row["topic"] == "Orders" for row in found) == orders


def test_the_source_reads_compacted_topics(golden: Golden) -> None:
    store = golden("compaction") / "store"
    assert rows_of(CommitLogSource, store, log="compacted") == rows(Store(store).compacted())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log": "cold"}, "option log"),
        ({"log": "joined"}, "needs tier"),
        ({"log": "commitlog", "tier": "/t"}, "tier is"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        commitlog_options({"path": "/store", **options})


def test_streams_follow_the_log_alone() -> None:
    with pytest.raises(OptionError, match="leave out log and tier"):
        refuse_batch_options(commitlog_options({"path": "/store", "tier": "/tier"}))


def test_query_looks_into_the_tier(golden_copy: Golden, golden: Golden, rmq: Rmq) -> None:
    store = golden_copy("tiered")
    expire(store, 2)
    where = ("--topic", "Orders", "--queue", 3, "--offset", 7, "--json")
    assert rmq("query", store, *where).exit_code == 1
    result = rmq("query", store, *where, "--tier", store / "tiered")
    assert result.exit_code == 0, result.output
    (expected,) = [
        item
        for item in stored(golden, "tiered")
        if (item["topic"], item["queue_id"], item["queue_offset"]) == ("Orders", 3, 7)
    ]
    assert told(json.loads(result.stdout)) == told(expected)
    assert "leave --tier out" in rmq("query", store, "--msg-id", "00" * 16, "--tier", store / "tiered").stderr
    assert "no tiered storage" in rmq("query", store, *where, "--tier", store / "config").stderr


# --- options ----------------------------------------------------------------------------------


def test_a_store_with_a_tier_is_copied_with_it(golden: Golden) -> None:
    store = golden("tiered") / "store"
    for opened in (Store(store, tier=store / "tiered"), Store(store).compacted()):
        copied = pickle.loads(pickle.dumps(opened))
        assert repr(copied) == repr(opened)
        assert copied._options == opened._options


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"log": "cold"}, "give commitlog, compacted, tiered, joined"),
        ({"log": "tiered"}, "needs tier"),
        ({"log": "compacted", "tier": "/t"}, "not compacted"),
    ],
)
def test_logs_that_cannot_be_read_are_refused(more: dict[str, str], words: str, golden: Golden) -> None:
    with pytest.raises(OptionError, match=words):
        Store(golden("tiered") / "store", **more)


def test_access_paths_of_the_log_are_refused(golden: Golden) -> None:
    store = str(golden("tiered") / "store")
    logs = Logs(LogKind.JOINED, f"{store}/tiered")
    with pytest.raises(OptionError, match="accessPath index"):
        plan_read(open_store(store), Query(key="a"), access_path=AccessPath.INDEX, logs=logs)
    with pytest.raises(StoreError, match="no such store"):
        plan_read(open_store("/nowhere"), Query(), logs=logs)
