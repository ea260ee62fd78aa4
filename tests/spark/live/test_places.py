"""Queues of several brokers, and queues whose first messages are gone: at our brokers, without a Spark session."""

import asyncio
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType, StructType

from rmq_core.client import Admin, Producer
from rmq_core.remoting.loop import run
from rmq_formats.codecs.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_ZLIB
from rmq_formats.errors import ClusterError, OptionError
from rmq_lakehouse.live.client import ClusterConnection
from rmq_lakehouse.live.options import ClusterQueue
from rmq_lakehouse.live.plan import Span
from rmq_lakehouse.live.reader import SpanPartition
from rmq_lakehouse.live.source import ClusterSource
from rmq_lakehouse.live.stream import ClusterStreamReader
from tests.spark.live.scenarios import fresh, make_topic, numbered
from tests.spark.live.two_brokers import SMALL_FILES, second_broker
from tests.support.processes.broker_processes import configured, standalone

pytestmark = [pytest.mark.xdist_group("live_places")]
Row = dict[str, Any]
SYS_FLAG = FLAG_COMPRESSED | FLAG_COMPRESSION_ZLIB


def read(namesrv: str, **options: str) -> list[Row]:
    """The rows of a read."""
    source = ClusterSource({"namesrv": namesrv, **options})
    reader = source.reader(source.schema())
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def test_queues_of_two_brokers_are_told_apart(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text(SMALL_FILES)
    with (
        standalone(tmp_path / "a", "-c", str(conf), log=tmp_path / "a.log") as running,
        second_broker(tmp_path, running.namesrv),
    ):
        topic, namesrv = make_topic(running.namesrv, fresh("Both")), running.namesrv
        schema = StructType().add("body", BinaryType()).add("broker_name", StringType()).add("queue_id", IntegerType())
        writer = ClusterSource({"namesrv": namesrv, "topic": topic}).writer(schema, False)
        places = [(broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in (0, 1)]
        columns = ("body", "broker_name", "queue_id")
        sent = [dict(zip(columns, (b"%d" % one, *places[one % 4]), strict=True)) for one in range(40)]
        arrow = pa.schema([("body", pa.binary()), ("broker_name", pa.string()), ("queue_id", pa.int32())])
        writer.write(iter([pa.RecordBatch.from_pylist(sent, schema=arrow)]))
        rows = read(namesrv, subscribe=topic)
        assert sorted(((row["body"], row["broker_name"], row["queue_id"]) for row in rows), key=str) == sorted(
            (tuple(row.values()) for row in sent), key=str
        )
        from_b = json.dumps({topic: {"broker-a:0": 10, "broker-a:1": 10, "broker-b:1": 4}})
        left = sorted(int(row["body"]) for row in read(namesrv, subscribe=topic, startingOffsets=from_b))
        assert left == sorted([*range(2, 40, 4), *range(19, 40, 4)])
        with pytest.raises(Exception, match=r"queue 0 of '.*' is on several brokers: broker-a:0, broker-b:0"):
            read(namesrv, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1}}))


def test_compressed_bodies_are_written_with_the_flag_that_says_so(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text(SMALL_FILES)
    with standalone(tmp_path / "a", "-c", str(conf), log=tmp_path / "a.log") as running:
        topic, namesrv = make_topic(running.namesrv, fresh("Compressed")), running.namesrv
        bodies = [b"%d " % number * 500 for number in range(12)]
        is_compressed = [number % 3 == 0 for number in range(12)]
        rows = [
            {"body": zlib.compress(body) if flag else body, "sys_flag": SYS_FLAG if flag else 0x2, "queue_id": 0}
            for body, flag in zip(bodies, is_compressed, strict=True)
        ]
        schema = StructType().add("body", BinaryType()).add("sys_flag", IntegerType()).add("queue_id", IntegerType())
        arrow = pa.schema([("body", pa.binary()), ("sys_flag", pa.int32()), ("queue_id", pa.int32())])
        writer = ClusterSource({"namesrv": namesrv, "topic": topic}).writer(schema, False)
        writer.write(iter([pa.RecordBatch.from_pylist(rows, schema=arrow)]))
        inflated = sorted(read(namesrv, subscribe=topic), key=lambda row: row["queue_offset"])
        assert [row["body"] for row in inflated] == bodies
        stored = sorted(read(namesrv, subscribe=topic, decompress="false"), key=lambda row: row["queue_offset"])
        assert [(row["body"], row["sys_flag"]) for row in stored] == [
            (row["body"], SYS_FLAG if flag else 0) for row, flag in zip(rows, is_compressed, strict=True)
        ]


def test_rows_of_large_types_are_written_and_numbers_beyond_32_bits_refused(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text(SMALL_FILES)
    with standalone(tmp_path / "a", "-c", str(conf), log=tmp_path / "a.log") as running:
        topic, namesrv = make_topic(running.namesrv, fresh("Large")), running.namesrv
        text = pa.large_string()
        arrow = pa.schema(
            [("body", text), ("keys", pa.list_(text)), ("tags", text), ("properties", pa.map_(text, text))]
        )
        schema = StructType().add("body", StringType()).add("keys", ArrayType(StringType())).add("tags", StringType())
        schema = schema.add("properties", MapType(StringType(), StringType()))
        row = {"body": "paid", "keys": ["k1", "k2"], "tags": "Paid", "properties": [("colour", "red")]}
        writer = ClusterSource({"namesrv": namesrv, "topic": topic}).writer(schema, False)
        writer.write(iter([pa.RecordBatch.from_pylist([row], schema=arrow)]))
        (read_back,) = read(namesrv, subscribe=topic)
        assert (read_back["keys"], read_back["tags"], dict(read_back["properties"])["colour"]) == (
            ["k1", "k2"], "Paid", "red",
        )  # fmt: skip
        maps = pa.map_(pa.string(), pa.string())
        rows = pa.RecordBatch.from_pylist(
            [{"body": "x", "properties": [("UNIQ_KEY", key)]} for key in ("", None, "K" * 32)],
            schema=pa.schema([("body", pa.string()), ("properties", maps)]),
        )
        schema = StructType().add("body", StringType()).add("properties", MapType(StringType(), StringType()))
        ClusterSource({"namesrv": namesrv, "topic": topic}).writer(schema, False).write(iter([rows]))
        uniq_keys = [row["uniq_key"] for row in read(namesrv, subscribe=topic)]
        assert ("K" * 32 in uniq_keys, all(uniq_keys), len(uniq_keys)) == (True, True, 4)
        for name in ("flag", "queue_id"):
            schema = StructType().add("body", StringType()).add(name, LongType())
            wide = pa.RecordBatch.from_pylist([{"body": "x", name: (1 << 32) + 5}])
            writer = ClusterSource({"namesrv": namesrv, "topic": topic}).writer(schema, False)
            with pytest.raises(OptionError, match=f"column '{name}': 4294967301 to 4294967301 need more than 32 bits"):
                writer.write(iter([wide]))
        assert len(read(namesrv, subscribe=topic)) == 4


def test_a_record_of_several_messages_is_a_row_and_no_loss(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text(SMALL_FILES)
    with standalone(tmp_path / "a", "-c", str(conf), log=tmp_path / "a.log") as running:
        topic, namesrv = fresh("Batch"), running.namesrv

        async def fill() -> None:
            async with Admin(namesrv) as admin, Producer(namesrv, "live") as producer:
                await admin.create_topic(topic, queues=1, attributes="+queue.type=BatchCQ")
                async with asyncio.timeout(60):
                    while topic not in await admin.topics():
                        await asyncio.sleep(0.05)
                for begin in (0, 10):
                    await producer.send_batch(numbered(topic, begin, begin + 10))

        run(fill())
        assert [row["queue_offset"] for row in read(namesrv, subscribe=topic)] == [0, 10]


@pytest.fixture(scope="module")
def cut(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server with a broker on a golden store whose first file of the log is gone."""
    directory = tmp_path_factory.mktemp("cut")
    shutil.copytree(golden("mixed") / "store", directory / "store")
    (directory / "store" / "commitlog" / f"{0:020d}").unlink()
    with configured(directory, SMALL_FILES) as running:
        yield running.namesrv


def test_messages_that_are_gone_are_an_error_or_left_out(cut: str) -> None:
    rows = read(cut, subscribe="Orders")
    queue = [row for row in rows if row["queue_id"] == 0]
    first = queue[0]["queue_offset"]
    assert 0 < first < 182
    assert [row["queue_offset"] for row in queue] == list(range(first, 182))
    options = {"assign": '{"Orders": [0]}', "startingOffsets": '{"Orders": {"0": 3}}'}
    told = re.escape(f"Orders broker-a:0: offsets 3 to {first - 1} are missing")
    with pytest.raises(ClusterError, match=told):
        read(cut, **options)
    assert len(read(cut, **options, failOnDataLoss="false")) == len(queue)


def test_a_group_that_stands_at_0_before_the_first_message_has_lost_messages(cut: str) -> None:
    (first, *_) = read(cut, assign='{"Orders": [0]}')
    group, queue = "TOOLS_CONSUMER", ClusterQueue("Orders", first["broker_name"], 0)
    options = {"assign": '{"Orders": [0]}', "group": group, "startingOffsets": "group"}
    assert read(cut, **options)[0] == first  # without an offset: from the first message
    with ClusterConnection(cut, group) as link:
        assert link.commit({queue: 0}, group) == {}
    with pytest.raises(ClusterError, match=f"offsets 0 to {first['queue_offset'] - 1} are missing"):
        read(cut, **options)


def test_messages_that_go_after_planning_are_an_error_or_left_out(cut: str) -> None:
    broker = read(cut, assign='{"Orders": [0]}')[0]["broker_name"]
    partition = SpanPartition(Span(ClusterQueue("Orders", broker, 0), 0, 182))
    source = ClusterSource({"namesrv": cut, "subscribe": "Orders"})
    with pytest.raises(ClusterError, match=r"are missing: deleted while they were read"):
        list(source.reader(source.schema()).read(partition))
    source = ClusterSource({"namesrv": cut, "subscribe": "Orders", "failOnDataLoss": "false"})
    batches = source.reader(source.schema()).read(partition)
    assert sum(batch.num_rows for batch in batches) == len(read(cut, assign='{"Orders": [0]}'))


def test_a_stream_tells_of_a_queue_that_is_shorter_than_its_checkpoint(cut: str) -> None:
    source = ClusterSource({"namesrv": cut, "subscribe": "Orders"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ClusterStreamReader)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(1)) != start
    (name, *_) = start["Orders"]
    beyond = {"Orders": {**start["Orders"], name: 500}}
    with pytest.raises(ClusterError, match=f"Orders {name}: offsets 182 to 499 are missing"):
        reader.latestOffset(beyond, ReadAllAvailable())
    reader.stop()
    lenient = ClusterSource({"namesrv": cut, "subscribe": "Orders", "failOnDataLoss": "false"})
    follower = lenient.streamReader(lenient.schema())
    assert follower.latestOffset(beyond, ReadAllAvailable())["Orders"][name] == 182
    follower.stop()
    with pytest.raises(OptionError, match="is not one of rmq"):
        reader.latestOffset({"physicalOffset": 5}, ReadAllAvailable())


def test_a_batch_that_was_planned_before_a_queue_lost_its_end_is_an_error_or_told(cut: str) -> None:
    source = ClusterSource({"namesrv": cut, "subscribe": "Orders"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    (name, *_) = start["Orders"]
    planned = {"Orders": {**start["Orders"], name: 500}}
    with pytest.raises(ClusterError, match=f"Orders {name}: offsets 182 to 499 are missing"):
        reader.partitions(start, planned)
    reader.stop()
    lenient = ClusterSource({"namesrv": cut, "subscribe": "Orders", "failOnDataLoss": "false"})
    follower = lenient.streamReader(lenient.schema())
    (partition,) = follower.partitions(start, planned)
    assert isinstance(partition, SpanPartition)
    assert (partition.span.begin, partition.span.end) == (start["Orders"][name], 182)
    follower.stop()
