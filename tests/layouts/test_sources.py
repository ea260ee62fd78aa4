"""Sources, the Store class and jobs on other layouts: all rows, or a refusal in one line, never some of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import replay
from rmq_formats.errors import StoreLayoutError
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, Query
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from rmq_offline.spark.commitlog_source import CommitLogSource
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.conftest import LAYOUT_STORES
from tests.layouts.conftest import Untouched
from tests.support.stores.store_files import tree

Golden = Callable[[str], Path]
READ = tuple(LAYOUT_STORES)


def rows_of(source: type, store: Path, **options: str) -> list[dict]:
    """What a batch of a source reads, without a session."""
    made = source({"path": str(store), **options})
    reader = made.reader(made.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def expected_records(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "expected" / "messages.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("by_topic", [False, True], ids=["all", "by topic"])
def test_every_record_is_a_row(name: str, *, by_topic: bool, golden: Golden, untouched: Untouched) -> None:
    expected = expected_records(golden(name))
    topics = sorted({row["topic"] for row in expected})
    options = {"subscribe": ",".join(topics)} if by_topic else {}
    with untouched(golden(name) / "store"):
        found = rows_of(CommitLogSource, golden(name) / "store", **options)
    key = "physicalOffset" if "physicalOffset" in expected[0] else "physical_offset"
    assert sorted(row["physical_offset"] for row in found) == sorted(row[key] for row in expected)


def test_light_queues_are_queues_like_any(golden: Golden) -> None:
    units = rows_of(ConsumeQueueSource, golden("lmq") / "store")
    light = {row["topic"] for row in units if row["topic"].startswith("%LMQ%")}
    assert light == {path.name for path in (golden("lmq") / "store" / "consumequeue").glob("%LMQ%*")}


@pytest.mark.parametrize("name", ["rocksdb_crash", "rocksdb_lmq"])
def test_access_paths_that_need_queue_files_are_refused(name: str, golden: Golden, untouched: Untouched) -> None:
    store = golden(name) / "store"
    with untouched(store):
        with pytest.raises(StoreLayoutError, match="RocksDB"):
            rows_of(CommitLogSource, store, accessPath="consumequeue", subscribePattern=".*")
        with pytest.raises(StoreLayoutError, match="RocksDB"):
            rows_of(CommitLogSource, store, accessPath="index", key="k")


def test_the_files_of_queues_do_not_give_messages_of_batch_topics(golden: Golden, untouched: Untouched) -> None:
    store = golden("bcq") / "store"
    with untouched(store):
        assert {row["topic"] for row in rows_of(ConsumeQueueSource, store, subscribe="Orders")} == {"Orders"}
        with pytest.raises(StoreLayoutError, match="BatchConsumeQueue"):
            rows_of(CommitLogSource, store, accessPath="consumequeue", subscribePattern=".*")
    assert {"BatchOrders", "BatchClicks"} < set(Store(store).topics())


def test_a_stale_plain_queue_of_a_batch_topic_is_not_believed(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    (store / "consumequeue" / "Orders").rename(store / "consumequeue" / "BatchOrders")
    query = Query(topics=frozenset(["BatchOrders"]))
    plan = plan_read(open_store(str(store)), query)
    assert plan.access_path is AccessPath.SCAN
    assert "topic BatchOrders has batch queues" in plan.reason


def test_replay_sends_no_batch_as_one_message(golden: Golden) -> None:
    arguments = ["--store", str(golden("bcq") / "store"), "--to-namesrv", "127.0.0.1:1"]
    with pytest.raises(StoreLayoutError, match="inner batches"):
        replay.check(replay.parser().parse_args(arguments))
    replay.check(replay.parser().parse_args([*arguments, "--topics", "Orders"]))


def test_replay_of_a_group_says_where_its_offsets_are(golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("lmq")
    (store / "config" / "consumerOffset.json").write_text("{}")
    arguments = ["--store", str(store), "--to-namesrv", "127.0.0.1:1", "--group", "golden_cg"]
    before = tree(tmp_path)
    with pytest.raises(StoreLayoutError, match=r"lmqConsumerOffset\.json"):
        replay.check(replay.parser().parse_args(arguments))
    assert tree(tmp_path) == before
