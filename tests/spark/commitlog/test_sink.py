"""``df.write.format("rmq_commitlog")``: what Spark gives becomes a store; what it must not be given is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq_offline.spark.job import spark_cause
from tests.conftest import GoldenSettings
from tests.spark.conftest import Load
from tests.support.stores.rebuilt_stores import built, stored_messages
from tests.support.stores.store_files import tree

pytestmark = pytest.mark.spark


def options(settings: GoldenSettings, **more: str) -> dict[str, str]:
    """Sizes of a golden store as the sink takes them."""
    return {
        "commitlogFileBytes": str(settings.commitlog_file_bytes),
        "consumequeueFileBytes": str(settings.consumequeue_file_bytes),
        "consumequeueExtFileBytes": str(settings.ext_file_bytes or 0),
        "indexSlots": str(settings.index_slots),
        "indexEntries": str(settings.index_entries),
        "delayLevels": settings.delay_levels,
        **more,
    }


@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
@pytest.mark.long
def test_a_store_read_and_written_is_java_s(
    name: str,
    load: Load,
    golden: Callable[[str], Path],
    golden_settings: dict[str, GoldenSettings],
    tmp_path: Path,
) -> None:
    frame = load(golden(name) / "store", splitBytes="100k")
    assert frame.rdd.getNumPartitions() > 1
    given = options(golden_settings[name], keepOffsets="true", dispatch="true")
    frame.write.format("rmq_commitlog").mode("overwrite").options(**given).save(str(tmp_path / "store"))
    assert built(tmp_path / "store") == built(golden(name) / "expected")
    if name == "exotic_crc":
        assert tree(tmp_path / "store" / "commitlog") == tree(golden(name) / "store" / "commitlog")


@pytest.mark.long
def test_rows_made_in_spark_are_continued(spark: SparkSession, load: Load, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for times in range(2):
        frame = spark.range(0, 1000, 1, 3).select(
            F.concat(F.lit("Topic"), F.col("id") % 3).alias("topic"),
            (F.col("id") % 2).cast("int").alias("queue_id"),
            F.encode(F.concat(F.lit(f"{times} "), F.col("id").cast("string")), "utf-8").alias("body"),
            F.lit("a").alias("tags"),
            F.array(F.concat(F.lit("key"), F.col("id").cast("string"))).alias("keys"),
        )
        frame.write.format("rmq_commitlog").mode("append").option("commitlogFileBytes", "64k").save(str(store))
    found = list(stored_messages(store))
    assert [m.body for m in found] == [f"{times} {n}".encode() for times in range(2) for n in range(1000)]
    assert {m.tags for m in found} == {"a"}
    assert found[1999].keys == ["key999"]
    queues = load(store).groupBy("topic", "queue_id").agg(F.max("queue_offset") + 1 == F.count("*")).collect()
    assert (len(queues), {row[2] for row in queues}) == (6, {True})


@pytest.mark.long
def test_tables_of_units_and_of_keys_become_java_s_files(
    load: Load, golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    expected, given = golden("mixed") / "expected", options(golden_settings["mixed"])
    units = load(expected, "rmq_consumequeue").repartition(3)
    units.write.format("rmq_consumequeue").mode("overwrite").option(
        "consumequeueFileBytes", given["consumequeueFileBytes"]
    ).save(str(tmp_path))
    records = load(golden("mixed") / "store").where(F.col("sys_flag").bitwiseAND(0xC) != 0xC)
    every = F.concat(F.array_compact(F.array("uniq_key")), F.coalesce("keys", F.array()))
    keys = records.select("topic", F.explode(every).alias("key"), "physical_offset", "store_timestamp")
    sizes = {name: given[name] for name in ("indexSlots", "indexEntries")}
    keys.write.format("rmq_index").mode("overwrite").options(**sizes).save(str(tmp_path))
    assert built(tmp_path) == built(expected)


@pytest.mark.long
def test_the_page_s_example_gives_a_store_with_queues_and_index(spark: SparkSession, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "writing.md").read_text("utf-8")
    code = page.split("```python\n")[1].split("```")[0].replace("/data/store", str(tmp_path / "store"))
    exec(compile(code, "writing.md", "exec"), {"spark": spark})
    (message,) = stored_messages(tmp_path / "store")
    assert (message.topic, message.tags, message.keys, message.body) == ("Orders", "created", ["order-4711"], b"{}")
    assert {path.name for path in (tmp_path / "store").iterdir()} == {
        "commitlog", "consumequeue", "index", "config", "lock",
    }  # fmt: skip


BAD = {
    "no column 'tag'": ("SELECT 'T' topic, X'00' body, 'a' tag", {}),
    "needs the column 'body'": ("SELECT 'T' topic", {}),
    "column 'body' is string, not binary": ("SELECT 'T' topic, 'x' body", {}),
    "unknown option 'filebytes'": ("SELECT 'T' topic, X'00' body", {"fileBytes": "1"}),
    "option crcProperty of": ("SELECT 'T' topic, X'00' body", {"crcProperty": "maybe"}),
    "option keepOffsets needs the column physical_offset": ("SELECT 'T' topic, X'00' body", {"keepOffsets": "true"}),
    "option delayLevels of": ("SELECT 'T' topic, X'00' body", {"delayLevels": "soon"}),
    "topic '../T' cannot name a directory": ("SELECT '../T' topic, X'00' body", {}),
}


@pytest.mark.parametrize(("told", "query", "given"), [(told, *case) for told, case in BAD.items()], ids=BAD)
def test_what_cannot_be_written_is_named(
    spark: SparkSession, tmp_path: Path, told: str, query: str, given: dict[str, str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql(query).write.format("rmq_commitlog").mode("append").options(**given).save(str(tmp_path / "store"))
    assert told in spark_cause(caught.value)
    assert not (tmp_path / "store" / "commitlog").exists()
    assert not (tmp_path / "store" / ".rmq-write").exists()
