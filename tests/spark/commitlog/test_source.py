"""``rmq_commitlog``: what Spark gives is what the store holds, by every option and however often it is asked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from rmq_formats.arrow import schema
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.spark import explain
from rmq_formats.spark.options import schemas
from rmq_formats.spark.versions import SPARK_VERSION, arrow_schema
from tests.spark.conftest import Load
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.stores.store_files import flip

pytestmark = pytest.mark.spark

Record = dict[str, Any]


@pytest.fixture
def mixed(golden: Callable[[str], Path]) -> Path:
    return golden("mixed") / "store"


def expected(store: Path) -> list[Record]:
    lines = (store.parent / "expected" / "messages.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def places(frame: DataFrame) -> list[int]:
    return sorted(row.physical_offset for row in frame.select("physical_offset").collect())


@pytest.mark.parametrize(
    ("spark_schema", "arrow"),
    [
        (schemas.COMMITLOG, schema.COMMITLOG),
        (schemas.CONSUMEQUEUE, schema.CONSUMEQUEUE),
        (schemas.INDEX, schema.INDEX),
    ],
)
def test_the_arrow_schema_is_the_one_that_spark_demands(spark_schema: Any, arrow: Any) -> None:
    assert arrow_schema(spark_schema).equals(arrow, check_metadata=True)


@pytest.mark.parametrize("name", ["crash", "exotic_crc"])
def test_all_columns_of_a_golden_store_come_through_spark(load: Load, golden: Callable[[str], Path], name: str) -> None:
    store = golden(name) / "store"
    rows = sorted(load(store, splitBytes="300k").collect(), key=lambda row: row.physical_offset)
    records = expected(store)
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert row.topic == record["topic"]
        assert row.properties == record["properties"]
        assert row.keys == [key for key in record["properties"].get("KEYS", "").split(" ") if key]
        assert row.msg_id == record["msg_id"]
        assert row.store_host == record["store_host"]
        assert round(row.store_timestamp.timestamp() * 1000) == record["store_timestamp"]
        assert row.record_error is None
    assert {len(row) for row in rows} == {22}


def test_columns_are_those_asked_for_in_that_order(load: Load, mixed: Path) -> None:
    frame = load(mixed, columns="size, topic,physical_offset")
    assert frame.columns == ["size", "topic", "physical_offset"]
    assert frame.agg(sf.sum("size")).first()[0] == sum(record["size"] for record in expected(mixed))


def test_a_schema_of_some_columns_reads_those(spark: SparkSession, mixed: Path) -> None:
    reader = spark.read.format("rmq_commitlog")
    frame = reader.schema("body binary, queue_offset bigint").load(str(mixed))
    assert frame.columns == ["body", "queue_offset"]
    assert frame.count() == len(expected(mixed))
    with pytest.raises(PySparkException, match="column 'body' is binary"):
        reader.schema("body string").load(str(mixed)).count()
    with pytest.raises(PySparkException, match="unknown column 'bodies'"):
        reader.schema("bodies string").load(str(mixed)).count()
    with pytest.raises(PySparkException, match="but option columns: topic"):
        reader.schema("body binary").option("columns", "topic").load(str(mixed)).count()


def test_subscribe_gives_what_consumers_of_the_topics_are_given(load: Load, mixed: Path) -> None:
    for topics in ({"Tx"}, {"Orders", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%golden_cg"}):
        wanted = [
            record["physical_offset"]
            for record in expected(mixed)
            if record["topic"] in topics and goes_to_consumequeue(record["sys_flag"])
        ]
        assert wanted
        for way in ("auto", "scan", "consumequeue"):
            assert places(load(mixed, subscribe=",".join(topics), accessPath=way)) == wanted


def test_assign_and_offsets_bound_queues(load: Load, mixed: Path) -> None:
    frame = load(
        mixed,
        assign=json.dumps({"Orders": [1, 3]}),
        startingOffsets=json.dumps({"Orders": {"1": 10, "3": -2}}),
        endingOffsets=json.dumps({"Orders": {"1": 20, "3": 5}}),
    )
    found = sorted((row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect())
    assert found == [(1, offset) for offset in range(10, 20)] + [(3, offset) for offset in range(5)]


def test_keys_ids_tags_and_times_find_their_records(load: Load, mixed: Path) -> None:
    records = expected(mixed)
    record = next(record for record in records[1000:] if " " in record["properties"].get("KEYS", "x y"))
    assert places(load(mixed, msgId=record["msg_id"])) == [record["physical_offset"]]
    keyed = next(record for record in records[1000:] if "KEYS" in record["properties"])
    key, topic = keyed["properties"]["KEYS"].split(" ")[0], keyed["topic"]
    same_key = [
        other["physical_offset"]
        for other in records
        if other["topic"] == topic and key in other["properties"].get("KEYS", "").split(" ")
    ]
    assert places(load(mixed, subscribe=topic, key=key)) == same_key
    uniq_key = keyed["properties"]["UNIQ_KEY"]
    same_uniq_key = [other["physical_offset"] for other in records if other["properties"].get("UNIQ_KEY") == uniq_key]
    assert places(load(mixed, uniqKey=uniq_key)) == same_uniq_key
    tagged = [other["physical_offset"] for other in records if other["properties"].get("TAGS") in {"TagA", "created"}]
    assert places(load(mixed, tags="TagA || created")) == tagged
    first, end = str(records[700]["store_timestamp"]), str(records[1400]["store_timestamp"])
    timed = [other["physical_offset"] for other in records if int(first) <= other["store_timestamp"] < int(end)]
    assert places(load(mixed, startingTimestamp=first, endingTimestamp=end)) == timed
    some = records[50]["physical_offset"], records[60]["physical_offset"]
    bounded = load(mixed, startingPhysicalOffset=str(some[0]), endingPhysicalOffset=str(some[1]))
    assert places(bounded) == [other["physical_offset"] for other in records[50:60]]


def test_one_load_answers_every_query_on_it(load: Load, spark: SparkSession, mixed: Path) -> None:
    records = expected(mixed)
    frame = load(mixed)
    orders = sum(record["topic"] == "Orders" for record in records)
    clicks = sum(record["topic"] == "Clicks" for record in records)
    assert frame.filter("topic = 'Orders'").count() == orders
    assert frame.filter("topic = 'Clicks'").count() == clicks
    assert frame.count() == len(records)
    both = frame.filter("topic = 'Orders'").union(frame.filter("topic = 'Clicks'"))
    assert both.count() == orders + clicks
    assert frame.union(frame).count() == 2 * len(records)
    frame.createOrReplaceTempView("mixed_messages")
    sql = "SELECT topic, count(*) AS n FROM mixed_messages WHERE queue_id = {} GROUP BY topic"
    for queue_id in (0, 1):
        found = {row.topic: row.n for row in spark.sql(sql.format(queue_id)).collect()}
        assert sum(found.values()) == sum(record["queue_id"] == queue_id for record in records)
    joined = spark.sql("SELECT 1 FROM mixed_messages a JOIN mixed_messages b USING (physical_offset)")
    assert joined.count() == len(records)


def test_with_filter_pushdown_asked_for_each_use_of_a_load_is_right(
    load: Load, spark: SparkSession, mixed: Path
) -> None:
    records = expected(mixed)
    record = records[500]
    for condition, wanted in [
        ("topic = 'Orders'", [other for other in records if other["topic"] == "Orders"]),
        ("topic IN ('Tx', 'Large') AND queue_id = 1",
         [other for other in records if other["topic"] in {"Tx", "Large"} and other["queue_id"] == 1]),
        (f"physical_offset > {record['physical_offset']} AND physical_offset <= {records[510]['physical_offset']}",
         records[501:511]),
        (f"msg_id = '{record['msg_id']}'", [record]),
        (f"tags = 'TagA' AND store_timestamp >= timestamp_millis({record['store_timestamp']})",
         [other for other in records
          if other["properties"].get("TAGS") == "TagA" and other["store_timestamp"] >= record["store_timestamp"]]),
        (f"store_timestamp = timestamp_millis({record['store_timestamp']})",
         [other for other in records if other["store_timestamp"] == record["store_timestamp"]]),
        ("topic = 'Tx' OR queue_id = 2",
         [other for other in records if other["topic"] == "Tx" or other["queue_id"] == 2]),
    ]:  # fmt: skip
        frame = load(mixed, pushdown="true").filter(condition)
        assert places(frame) == [other["physical_offset"] for other in wanted], condition
    used_often = load(mixed, pushdown="true")
    both = used_often.filter("topic = 'Orders'").union(used_often.filter("topic = 'Tx'"))
    assert both.count() == sum(other["topic"] in {"Orders", "Tx"} for other in records)
    assert used_often.count() == len(records)


def test_damage_is_a_row_is_left_out_or_stops_the_read_as_the_mode_says(
    load: Load, mixed: Path, tmp_path: Path
) -> None:
    store = shutil.copytree(mixed, tmp_path / "store")
    records = expected(mixed)
    flip(store, records[30]["physical_offset"] + 5, 1048576)
    flip(store, records[40]["physical_offset"] + 95, 1048576)
    frame = load(store)
    errors = {row.physical_offset: row for row in frame.filter("record_error IS NOT NULL").collect()}
    magic, body = errors[records[30]["physical_offset"]], errors[records[40]["physical_offset"]]
    assert len(errors) == 2
    assert magic.record_error == DamageCode.MAGIC.text
    assert (magic.size, magic.topic, magic.properties) == (records[30]["size"], None, None)
    assert body.record_error == DamageCode.BODY_CRC.text
    assert body.topic == records[40]["topic"]
    assert frame.count() == len(records)
    assert load(store, mode="dropmalformed").count() == len(records) - 2
    assert load(store, verifyCrc="false").filter("record_error IS NOT NULL").count() == 1
    at = f"offset {records[30]['physical_offset']}"
    with pytest.raises(PySparkException, match=f"commitlog/0{{20}}: no record's magic number at {at}"):
        load(store, mode="FAILFAST").count()


def test_decompress_gives_plain_bodies(load: Load, mixed: Path) -> None:
    stored = load(mixed, subscribe="Compressed").agg(sf.sum(sf.length("body"))).first()[0]
    plain = load(mixed, subscribe="Compressed", decompress="true")
    assert plain.agg(sf.sum(sf.length("body"))).first()[0] > stored
    assert plain.filter("record_error IS NOT NULL").count() == 0


def test_mistakes_are_named_before_anything_is_read(load: Load, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="unknown option 'topic'"):
        load(mixed, topic="a")
    with pytest.raises(AnalysisException, match="option mode of rmq_commitlog cannot be 'odd'"):
        load(mixed, mode="odd")
    with pytest.raises(AnalysisException, match="unknown column 'bodies'"):
        load(mixed, columns="bodies")
    with pytest.raises(PySparkException, match="no such store"):
        load(tmp_path / "none").count()
    with pytest.raises(PySparkException, match="startingOffsets cannot be latest"):
        load(mixed, startingOffsets="latest").count()


def test_nothing_wanted_is_no_rows_and_no_error(load: Load, mixed: Path) -> None:
    assert load(mixed, msgId="7F00000100002A9F0000011F71FB04CB").count() == 0
    assert load(mixed, startingPhysicalOffset="1g".replace("1g", str(1 << 40))).collect() == []


def test_a_store_that_grows_is_read_as_it_was_when_it_was_loaded(load: Load, mixed: Path, tmp_path: Path) -> None:
    store = shutil.copytree(mixed, tmp_path / "store")
    last = max((store / "commitlog").iterdir())
    whole = last.read_bytes()
    records = expected(mixed)
    cut = records[-50]["physical_offset"] - int(last.name)
    assert cut > 0
    last.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    frame = load(store)
    assert frame.count() == len(records) - 50
    last.write_bytes(whole)
    # Spark 4.0 keeps no plan of a Python source: PythonDataSourceV2#getOrCreateReadInfo came with 4.1.
    assert frame.count() == len(records) - (50 if SPARK_VERSION >= (4, 1) else 0)
    assert load(store).count() == len(records)


def test_explain_says_which_way_is_taken_and_why(load: Load, mixed: Path) -> None:
    rare = load(mixed, subscribe="Tx")
    scanned = load(mixed, subscribe="Orders")
    text = explain(rare.union(scanned).filter("queue_id = 1"))
    first, second = text.splitlines()
    assert first.startswith(f"rmq_commitlog {mixed}: access path consumequeue: 8 units of 4 queues")
    assert "access path scan" in second
    assert "cost more than scanning" in second
    assert "index" in explain(load(mixed, subscribe="Tx", key="a"))
    assert explain(load(mixed, "rmq_index")) == f"rmq_index {mixed}: read as it stands"


def test_min_partitions_and_split_bytes_cut_the_log(load: Load, mixed: Path) -> None:
    assert load(mixed).rdd.getNumPartitions() == 3
    assert load(mixed, minPartitions="7").rdd.getNumPartitions() >= 7
    assert load(mixed, splitBytes="100k").rdd.getNumPartitions() > 20
