"""What holds of the source and the sink ``rmq`` at any cluster; imported by the tests at ours and at Java's."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from rmq_core.client import Admin, Message, Producer, SendResult
from rmq_core.remoting.loop import run
from rmq_formats.spark.progress import lag
from rmq_formats.spark.versions import SPARK_VERSION

MARKS = frozenset({"CLUSTER", "MSG_REGION", "TRACE_ON"})  # properties that brokers add
_NUMBERS = count()


def fresh(name: str) -> str:
    """A topic or group that no other test has."""
    return f"{name}-{next(_NUMBERS)}"


def make_topic(namesrv: str, topic: str, queues: int = 2) -> str:
    """A topic that the name server knows."""

    async def main() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues=queues)
            async with asyncio.timeout(60):
                while topic not in await admin.topics():
                    await asyncio.sleep(0.05)

    run(main())
    return topic


def send(namesrv: str, messages: Sequence[Message], queue_id: int | None = None) -> list[SendResult]:
    """Send messages one after the other; what came of each."""

    async def main() -> list[SendResult]:
        async with Producer(namesrv, "live") as producer:
            results = []
            for message in messages:
                queues = await producer.queues(message.topic)
                queue = None if queue_id is None else next(one for one in queues if one.queue_id == queue_id)
                results.append(await producer.send(message, queue=queue, timeout_s=30))
            return results

    return run(main())


def load(spark: SparkSession, namesrv: str, /, **options: str) -> DataFrame:
    """A read of the cluster."""
    return spark.read.format("rmq").options(**{"namesrv": namesrv} | options).load()


def test_messages_come_as_they_were_sent(spark: SparkSession, namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Sent"))
    messages = [
        Message(topic, b"plain \x00\xff", tags="TagA", keys=["k1", "k2"], properties={"colour": "blau ö"}, flag=7),
        Message(topic, b"large " * 2000, tags="TagB"),  # sent compressed
        Message(topic, b"nothing but a body"),
    ]
    results = send(namesrv, messages)
    rows = {bytes(row.body): row for row in load(spark, namesrv, subscribe=topic).collect()}
    assert set(rows) == {message.body for message in messages}
    for message, result in zip(messages, results, strict=True):
        row = rows[message.body]
        assert (row.topic, row.broker_name, row.queue_id) == (topic, result.queue.broker_name, result.queue.queue_id)
        assert (row.queue_offset, row.uniq_key, row.msg_id) == (
            result.queue_offset, result.msg_id, result.offset_msg_id,
        )  # fmt: skip
        assert (row.tags, row.keys, row.flag) == (message.tags, list(message.keys), message.flag)
        assert row.properties.items() >= message.properties.items()
        assert row.record_error is None


def texts(frame: DataFrame) -> list[str]:
    """The bodies, sorted."""
    return sorted(row.body.decode() for row in frame.select("body").collect())


def numbered(topic: str, begin: int, end: int) -> list[Message]:
    """Messages whose bodies are numbers; odd ones have the tag Odd, and all the property ``number``."""
    return [
        Message(topic, b"%03d" % number, tags=("Even", "Odd")[number % 2], properties={"number": str(number)})
        for number in range(begin, end)
    ]


def expected(numbers: Iterable[int]) -> list[str]:
    """Their bodies."""
    return [f"{number:03d}" for number in numbers]


def test_offsets_times_tags_and_expressions_choose(spark: SparkSession, namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Chosen"))
    first = send(namesrv, numbered(topic, 0, 50), queue_id=0)
    send(namesrv, numbered(topic, 50, 100), queue_id=1)
    broker = first[0].queue.broker_name
    assert texts(load(spark, namesrv, subscribe=topic, minPartitions="5")) == expected(range(100))
    bounds = {"startingOffsets": json.dumps({topic: {f"{broker}:0": 10, "1": -2}}),
              "endingOffsets": json.dumps({topic: {"0": -1, "1": 5}})}  # fmt: skip
    assert texts(load(spark, namesrv, subscribe=topic, **bounds)) == expected([*range(10, 50), *range(50, 55)])
    assert texts(load(spark, namesrv, assign=json.dumps({topic: [1]}))) == expected(range(50, 100))
    assert texts(load(spark, namesrv, subscribe=topic, tags="Odd || Other")) == expected(range(1, 100, 2))
    assert texts(load(spark, namesrv, subscribe=topic, sql="number BETWEEN 20 AND 29")) == expected(range(20, 30))
    times = [
        row.ms
        for row in load(spark, namesrv, subscribe=topic)
        .selectExpr("unix_millis(store_timestamp) ms")
        .orderBy("ms")
        .collect()
    ]
    middle = times[60]
    later = load(spark, namesrv, subscribe=topic, startingTimestamp=str(middle)).count()
    sooner = load(spark, namesrv, subscribe=topic, endingTimestamp=str(middle)).count()
    assert (later, sooner) == (sum(ms >= middle for ms in times), sum(ms < middle for ms in times))
    by_queue = json.dumps({topic: {"1": times[-1] + 1}})
    assert texts(load(spark, namesrv, subscribe=topic, startingOffsetsByTimestamp=by_queue)) == expected(range(50))
    narrow = load(spark, namesrv, subscribePattern=f"{topic[:-1]}.", columns="broker_name,tags")
    assert {tuple(row) for row in narrow.collect()} == {(broker, "Even"), (broker, "Odd")}


def test_ends_are_fixed_by_the_first_action(spark: SparkSession, namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Fixed"))
    send(namesrv, numbered(topic, 0, 10))
    frame = load(spark, namesrv, subscribe=topic)
    assert frame.count() == 10
    send(namesrv, numbered(topic, 10, 20))
    assert frame.count() == (10 if SPARK_VERSION >= (4, 1) else 20)  # Spark 4.0 keeps no plan of a Python source
    assert load(spark, namesrv, subscribe=topic).count() == 20


def test_rows_become_messages(spark: SparkSession, namesrv: str) -> None:
    source, target = make_topic(namesrv, fresh("From")), make_topic(namesrv, fresh("To"))
    more: dict[str, Any] = {"tags": "T", "properties": {"a": "b"}}
    send(namesrv, [Message(source, b"%03d" % one, keys=f"k{one} all", flag=one, **more) for one in range(60)])
    columns = ["body", "keys", "tags", "properties", "flag", "queue_id", "queue_offset", "uniq_key"]
    read = load(spark, namesrv, subscribe=source)
    read.select(*columns[:6]).repartition("queue_id").sortWithinPartitions("queue_id", "flag").write.format("rmq").mode(
        "append"
    ).option("namesrv", namesrv).option("topic", target).save()
    sent = sorted(read.select(*columns).collect(), key=lambda row: row.flag)
    got = sorted(load(spark, namesrv, subscribe=target).select(*columns).collect(), key=lambda row: row.flag)
    for before, after in zip(sent, got, strict=True):
        # The sink sends batches: brokers from 5.4 on put theirs to single messages only (``MessageExtEncoder#encode``).
        unmarked = MARKS - after.properties.keys()
        wanted = {name: text for name, text in before.properties.items() if name not in unmarked}
        assert after.asDict() == before.asDict() | {"properties": wanted}


def run_stream(frame: DataFrame, checkpoint: Path, **options: str) -> list[dict[str, str]]:
    """Run a query until nothing is left, into another topic; how far it was behind after each batch.

    Spark gives the process of a stream's source ten seconds to start, by no setting of ours. A busy machine needs
    longer now and then; the query has done nothing then, and is begun again.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        writer = frame.select("body", "tags").writeStream.format("rmq").options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
            return [lag(progress.sources[0]) for progress in query.recentProgress if progress.numInputRows]
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or not attempts_left:
                raise
    raise AssertionError("it was begun five times")


@pytest.mark.long
def test_a_stream_goes_on_where_it_stood(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    source, target = make_topic(namesrv, fresh("Stream")), make_topic(namesrv, fresh("Streamed"))
    group = fresh("streamers")
    send(namesrv, numbered(source, 0, 40))
    options = {"subscribe": source, "group": group, "commitOffsetsToGroup": "true", "maxOffsetsPerTrigger": "25"}
    stream = spark.readStream.format("rmq").option("namesrv", namesrv).options(**options).load()
    behind = run_stream(stream, tmp_path / "checkpoint", namesrv=namesrv, topic=target)
    assert [float(one["avgOffsetsBehindLatest"]) * 2 for one in behind] == [15, 0]  # messages in two queues
    assert texts(load(spark, namesrv, subscribe=target)) == expected(range(40))
    send(namesrv, numbered(source, 40, 50))
    run_stream(stream, tmp_path / "checkpoint", namesrv=namesrv, topic=target)
    assert texts(load(spark, namesrv, subscribe=target)) == expected(range(50))
    # What the group has not consumed: Spark commits a batch when it begins the next one.
    left = load(spark, namesrv, subscribe=source, group=group, startingOffsets="group")
    assert texts(left) == expected(range(25, 50)) or texts(left) == expected(range(40, 50))


@pytest.mark.long
def test_what_cannot_be_is_told_in_a_line(spark: SparkSession, namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Told"))
    for told, options in {
        "no topic 'NoSuchTopic' at the name server": {"subscribe": "NoSuchTopic"},
        "unknown option 'subscribed' of rmq": {"subscribed": topic},
        "cannot connect": {"subscribe": topic, "namesrv": "127.0.0.1:1"},
        "queue 7 of": {"assign": json.dumps({topic: [7]})},
    }.items():
        with pytest.raises(Exception, match=told):
            load(spark, namesrv, **options).count()
    body = spark.createDataFrame([("x",)], "body string")
    for told, options in {
        "NoSuchTopic: no name server knows this topic": {"topic": "NoSuchTopic"},
        "needs a topic for each row": {},
        "cannot connect": {"topic": topic, "namesrv": "127.0.0.1:1"},
    }.items():
        with pytest.raises(Exception, match=told):
            body.write.format("rmq").mode("append").options(**{"namesrv": namesrv, **options}).save()
    assert load(spark, namesrv, subscribe=topic).count() == 0
