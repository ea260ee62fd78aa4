"""Several stores in one read: each row tells its broker, and every option works over all of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmq_formats.spark import explain
from tests.spark.conftest import Load

pytestmark = [pytest.mark.spark, pytest.mark.long]

Record = dict[str, Any]
STORES = {"a": "crash", "b": "exotic_crc"}


@pytest.fixture(scope="module")
def brokers(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with ``broker-a/store`` and ``broker-b/store``, which do not tell their names."""
    root = tmp_path_factory.mktemp("brokers")
    for letter, name in STORES.items():
        shutil.copytree(golden(name) / "store", root / f"broker-{letter}" / "store")
        shutil.rmtree(root / f"broker-{letter}" / "store" / "config", ignore_errors=True)
    return root


@pytest.fixture(scope="module")
def records(golden: Callable[[str], Path]) -> dict[str, list[Record]]:
    """Records of each broker, as the golden stores list them."""
    return {
        f"broker-{letter}": [
            json.loads(line) for line in (golden(name) / "expected" / "messages.jsonl").read_text().splitlines()
        ]
        for letter, name in STORES.items()
    }


def places(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.broker_name, row.physical_offset) for row in frame.collect())


def test_a_pattern_a_list_and_a_file_give_the_rows_of_all(
    load: Load, spark: SparkSession, brokers: Path, records: dict[str, list[Record]]
) -> None:
    wanted = sorted((broker, record["physical_offset"]) for broker, own in records.items() for record in own)
    columns = "broker_name,physical_offset,cluster"
    frame = load(brokers / "broker-*" / "store", columns=columns)
    assert frame.columns == columns.split(",")
    assert places(frame) == wanted
    roots = [str(brokers / f"broker-{letter}" / "store") for letter in STORES]
    listed = spark.read.format("rmq_commitlog").load(roots)
    assert listed.columns[-3:] == ["record_error", "cluster", "broker_name"]
    assert places(listed.select("broker_name", "physical_offset")) == wanted
    file = brokers / "cluster.toml"
    file.write_text(
        "cluster = 'C'\n"
        + "".join(f"[[brokers]]\nname = 'broker-{letter}'\nroot = 'broker-{letter}/store'\n" for letter in STORES)
    )
    named = spark.read.format("rmq_commitlog").option("stores", str(file)).option("columns", columns).load()
    assert places(named) == wanted
    assert {row.cluster for row in named.collect()} == {"C"}
    assert load(roots[0]).columns[-1] == "record_error"


def test_offsets_keys_and_ids_choose_from_each_store(
    load: Load, brokers: Path, records: dict[str, list[Record]]
) -> None:
    pattern = brokers / "broker-*" / "store"
    record = next(record for record in records["broker-a"][100:] if "UNIQ_KEY" in record["properties"])
    wanted = [("broker-a", record["physical_offset"])]
    columns = "broker_name,physical_offset"
    by_id = load(pattern, msgId=record["msg_id"], columns=columns)
    assert places(by_id) == wanted
    lines = explain(by_id).splitlines()
    assert "; 1 tasks" in lines[0]
    assert "no record of the message id's broker" in lines[1]
    assert places(load(pattern, uniqKey=record["properties"]["UNIQ_KEY"], columns=columns)) == wanted
    topic, queue_id = record["topic"], record["queue_id"]
    offsets = json.dumps({topic: {str(queue_id): 1, f"broker-a:{queue_id}": record["queue_offset"]}})
    frame = load(pattern, assign=json.dumps({topic: [queue_id]}), startingOffsets=offsets, columns=columns)
    first = {"broker-a": record["queue_offset"], "broker-b": 1}
    assert places(frame) == sorted(
        (broker, other["physical_offset"])
        for broker, own in records.items()
        for other in own
        if (other["topic"], other["queue_id"]) == (topic, queue_id) and other["queue_offset"] >= first[broker]
    )
    only_a = load(pattern, assign=json.dumps({topic: [f"broker-a:{queue_id}"]}), columns=columns)
    assert {broker for broker, _ in places(only_a)} == {"broker-a"}
    with pytest.raises(PySparkException, match="queues of broker nobody"):
        load(pattern, assign=json.dumps({topic: ["nobody:0"]}), columns=columns).collect()


def test_a_missing_store_is_one_error_or_a_row(load: Load, brokers: Path, tmp_path: Path) -> None:
    (tmp_path / "broker-a").symlink_to(brokers / "broker-a")
    (tmp_path / "broker-z").mkdir()
    pattern = tmp_path / "broker-*" / "store"
    with pytest.raises(PySparkException, match=r"broker-z/store: no such store; option missingStores=row"):
        load(pattern).collect()
    rows = load(pattern, missingStores="row", subscribe="nothing").collect()
    assert [(row.broker_name, row.topic, row.physical_offset) for row in rows] == [("broker-z", None, None)]
    assert rows[0].record_error.endswith("broker-z/store: no such store")
    with pytest.raises(PySparkException, match="no directory matches"):
        load(tmp_path / "nobody-*" / "store").collect()


def test_a_stream_reads_one_store(spark: SparkSession, brokers: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("rmq_commitlog").load(str(brokers / "broker-*" / "store"))
    sink = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="a stream reads one store"):
        sink.start().awaitTermination()


def test_units_and_entries_of_several_stores_tell_their_broker(load: Load, brokers: Path) -> None:
    for source in ("rmq_consumequeue", "rmq_index"):
        several = load(brokers / "broker-*" / "store", source).groupBy("broker_name").count().collect()
        for row in several:
            assert load(brokers / row.broker_name / "store", source).count() == row["count"]
        assert len(several) == len(STORES)
