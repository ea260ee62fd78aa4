"""The column functions, from DataFrames and from SQL."""

from collections.abc import Callable
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_udfs import rmq_body, rmq_crc32, rmq_key_hash, rmq_properties, rmq_tags_code
from tests.spark.conftest import Load

pytestmark = pytest.mark.spark


def test_functions_of_a_dataframe_give_rocketmqs_values(spark: SparkSession) -> None:
    rows = [("TopicTest", "key1", "TagA", b"hello", b"a\x01\x02b\x011\x02c\x012"), ("T", None, None, None, None)]
    frame = spark.createDataFrame(rows, "topic string, key string, tags string, body binary, block binary")
    found = frame.select(
        rmq_tags_code("tags").alias("code"),
        rmq_key_hash("topic", "key").alias("hash"),
        rmq_crc32("body").alias("crc"),
        rmq_properties("block").alias("properties"),
    )
    expected = spark.createDataFrame(
        [(2598919, 1655984460, 907060870, {"b": "1", "c": "2"}), (0, None, None, None)],
        "code bigint, hash int, crc int, properties map<string,string>",
    )
    assert_df_equality(found, expected, ignore_nullable=True)


def test_functions_are_known_to_sql(spark: SparkSession) -> None:
    query = """
        SELECT rmq_tags_code('TAG_😀') AS code, rmq_key_hash('TopicTest', 'DESIGNING WORKHOUSES') AS hash,
               rmq_crc32(CAST('123456789' AS BINARY)) AS crc,
               rmq_properties(CAST('k\x01v' AS BINARY))['k'] AS value
    """
    expected = spark.createDataFrame(
        [(-1826110392, 88816898, 1274296614, "v")], "code bigint, hash int, crc int, value string"
    )
    assert_df_equality(spark.sql(query), expected, ignore_nullable=True)


@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
def test_functions_agree_with_the_sources(load: Load, golden: Callable[[str], Path], name: str) -> None:
    store = golden(name) / "store"
    messages = load(store, columns="physical_offset,topic,tags,body,body_crc")
    assert messages.filter("rmq_crc32(body) != body_crc").count() == 0
    units = load(store, "rmq_consumequeue", columns="physical_offset,tags_code")
    other = messages.join(units, "physical_offset").filter("rmq_tags_code(tags) != tags_code")
    if name == "exotic_crc":  # its units have addresses into ConsumeQueueExt for codes
        assert other.count() == messages.count()
    else:
        assert {row.topic for row in other.select("topic").distinct().collect()} <= {"SCHEDULE_TOPIC_XXXX"}


def test_a_compressed_body_becomes_the_body_that_was_sent(load: Load, golden: Callable[[str], Path]) -> None:
    store = golden("mixed") / "store"
    stored = load(store, columns="physical_offset,body,sys_flag").select(
        "physical_offset", rmq_body("body", "sys_flag")
    )
    plain = load(store, columns="physical_offset,body", decompress="true")
    assert [tuple(row) for row in stored.orderBy("physical_offset").collect()] == [
        tuple(row) for row in plain.orderBy("physical_offset").collect()
    ]
