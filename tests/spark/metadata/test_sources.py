"""``rmq_offsets``, ``rmq_topics``, ``rmq_groups`` and ``rmq_timers`` of stores at rest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from rmq_formats.arrow.schema import CONSUMER_OFFSETS
from rmq_formats.codecs.fastjson import loads
from rmq_formats.errors import OptionError
from rmq_formats.pending_timers import pending_timers
from rmq_lakehouse.broker_state.options import OFFSETS_OPTIONS, TIMERS_OPTIONS, metadata_options
from tests.read.test_lag import commit, lag
from tests.spark.conftest import Load

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stores(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with ``a/store`` and ``b/store`` of two brokers, in which some groups are behind."""
    root = tmp_path_factory.mktemp("stores")
    for letter, name in {"a": "mixed", "b": "crash"}.items():
        store = root / letter / "store"
        shutil.copytree(golden(name) / "store", store)
        topics = store / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("golden-a", f"golden-{letter}"))
        commit(store, "Orders@late", {0: 1, 1: 2})
    return root


def test_offsets_of_several_brokers_are_one_table(load: Load, stores: Path) -> None:
    frame = load(stores / "*" / "store", "rmq_offsets")
    assert frame.columns == CONSUMER_OFFSETS.names
    times = [sf.unix_millis(name).alias(name) for name in ("next_timestamp", "max_timestamp")]
    rows = frame.select(*CONSUMER_OFFSETS.names[:-2], *times).collect()
    found = sorted(((row.broker_name, row.topic, row.queue_id, row.group), row.asDict()) for row in rows)
    wanted = [
        (
            (f"golden-{letter}", row["topic"], row["queue_id"], row["group"]),
            {"cluster": "GoldenCluster", "broker_name": f"golden-{letter}"} | row,
        )
        for letter in "ab"
        for row in lag(stores / letter / "store")
    ]
    assert found == sorted(wanted, key=lambda one: one[0])


def test_options_choose_and_a_description_explains(load: Load, spark: SparkSession, stores: Path) -> None:
    store = stores / "a" / "store"
    columns = "lag_messages,queue_id,broker_name"
    few = load(store, "rmq_offsets", group="late, nobody", subscribePattern="Ord.*", columns=columns)
    whole = {row["queue_id"]: row["lag_messages"] for row in lag(store, frozenset(["late"]))}
    assert sorted(tuple(row) for row in few.collect()) == sorted((n, queue, "golden-a") for queue, n in whole.items())
    assert {row.topic for row in load(store, "rmq_offsets", subscribe="Ordered").collect()} == {"Ordered"}
    load(store, "rmq_offsets").createOrReplaceTempView("described")
    comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE described").collect()}
    assert comments == {column.name: column.metadata[b"comment"].decode() for column in CONSUMER_OFFSETS}


def test_topics_and_groups_are_those_of_the_files(load: Load, stores: Path) -> None:
    store = stores / "a" / "store"

    def table(name: str, member: str) -> dict[str, Any]:
        found: Any = loads((store / "config" / name).read_text())
        return dict(found[member])

    topics = table("topics.json", "topicConfigTable")
    rows = load(store, "rmq_topics").collect()
    assert {row.broker_name for row in rows} == {"golden-a"}
    assert {
        row.topic: (row.read_queue_nums, row.write_queue_nums, row.perm, row.order, row.attributes) for row in rows
    } == {
        name: (one["readQueueNums"], one["writeQueueNums"], one["perm"], one["order"], one["attributes"])
        for name, one in topics.items()
    }
    assert load(store, "rmq_topics", subscribe="Orders").count() == 1
    groups = table("subscriptionGroup.json", "subscriptionGroupTable")
    rows = load(store, "rmq_groups").collect()
    assert {row.group: (row.retry_max_times, row.consume_enable, row.consume_message_orderly) for row in rows} == {
        name: (one["retryMaxTimes"], one["consumeEnable"], one["consumeMessageOrderly"]) for name, one in groups.items()
    }
    assert [row.group for row in load(store, "rmq_groups", group="golden_cg").collect()] == ["golden_cg"]


def test_timers_that_wait_are_a_table(load: Load, stores: Path) -> None:
    (stores / "a" / "store" / "config" / "timercheck").unlink(missing_ok=True)
    wanted = {
        (one, row["physical_offset"]) for one in "ab" for row in pending_timers(str(stores / one / "store")).to_pylist()
    }
    rows = load(stores / "*" / "store", "rmq_timers").collect()
    assert {(row.broker_name[-1], row.physical_offset) for row in rows} == wanted
    assert len(wanted) >= 4


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("rmq_offsets", {}, "rmq_offsets needs the root of a store, given to load(), or the option namesrv"),
        ("rmq_offsets", {"path": "/s", "namesrv": "h:1"}, "options namesrv and path exclude each other"),
        ("rmq_offsets", {"path": "/s", "topic": "T"}, "unknown option 'topic' of rmq_offsets; there are path,"),
        ("rmq_offsets", {"path": "/s", "group": "a,,b"}, "option group"),
        ("rmq_offsets", {"path": "/s", "subscribe": "T", "subscribePattern": "T"}, "exclude each other"),
        ("rmq_timers", {"namesrv": "h:1"}, "unknown option 'namesrv' of rmq_timers"),
        ("rmq_timers", {}, "option path is missing"),
    ],
)
def test_a_mistake_names_the_option(source: str, options: dict[str, str], told: str) -> None:
    known = OFFSETS_OPTIONS if source == "rmq_offsets" else TIMERS_OPTIONS
    with pytest.raises(OptionError) as caught:
        metadata_options(source, options, known)
    assert told in str(caught.value)


@pytest.mark.parametrize("source", ["rmq_offsets", "rmq_topics", "rmq_groups", "rmq_timers"])
def test_a_store_that_is_not_there_is_an_error(load: Load, tmp_path: Path, source: str) -> None:
    with pytest.raises(PySparkException, match="no such"):
        load(tmp_path / "absent", source).collect()


def test_a_table_that_cannot_be_read_names_its_file(load: Load, stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "a" / "store" / "config", tmp_path / "config")
    (tmp_path / "config" / "subscriptionGroup.json").write_text(
        json.dumps({"subscriptionGroupTable": {"g": {"retryMaxTimes": "x"}}})
    )
    with pytest.raises(PySparkException, match=r"subscriptionGroup.json: retryMaxTimes has a bad value"):
        load(tmp_path, "rmq_groups").collect()
