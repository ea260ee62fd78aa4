"""The traces of a store as a table, beside the decoder."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.codecs.trace import TRACE_TOPIC, ContextCode, MessageType, TraceRecord, TraceType, encode_trace
from rmq_formats.spark.tables.traces import traces
from tests.codecs.test_trace import AFTER, BEFORE, ENDED, PUB, RECALLED
from tests.support.stores.store_files import write_commitlog

pytestmark = pytest.mark.spark
RECORDS = [PUB, BEFORE, AFTER, ENDED, RECALLED]
OLD = "Pub|1|r|pg|T|M|null|k|h:1|5|12|3|false".replace("|", "\x01").encode()


def store_of(root: Path, bodies: Iterable[bytes], topic: str = TRACE_TOPIC) -> str:
    """A store with trace messages, the second of them compressed."""
    messages = [
        MessageToStore(
            topic=topic,
            queue_id=0,
            flag=0,
            sys_flag=Compression.ZLIB.sys_flag if number == 1 else 0,
            born_timestamp_ms=1,
            born_host=Host.parse("10.0.0.7:4711"),
            store_host=Host.parse("10.0.0.1:10911"),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=compress(body, Compression.ZLIB, 5) if number == 1 else body,
            properties_bytes=encode_properties({"KEYS": "M"}),
        )
        for number, body in enumerate(bodies)
    ]
    write_commitlog(root, messages, 1 << 16)
    return str(root)


def expected(record: TraceRecord) -> dict[str, Any]:
    """What a row has of a record, of those columns that the decoder has too."""
    kind = record.trace_type
    is_sent = kind in (TraceType.PUB, TraceType.END_TRANSACTION)
    return {
        "trace_type": kind.value,
        "group": record.group,
        "topic": record.topic or None,
        "msg_id": record.msg_id,
        "tags": record.tags,
        "keys": record.keys,
        "store_host": record.store_host or None,
        "region_id": record.region_id or None,
        "body_bytes": record.body_bytes if kind is TraceType.PUB else None,
        "cost_ms": record.cost_ms if kind in (TraceType.PUB, TraceType.SUB_AFTER) else None,
        "message_type": MessageType(record.message_type).name.lower() if is_sent else None,
        "offset_msg_id": record.offset_msg_id,
        "request_id": record.request_id or None,
        "retry_times": record.retry_times if kind is TraceType.SUB_BEFORE else None,
        "context": ContextCode(record.context_code).name.lower() if kind is TraceType.SUB_AFTER else None,
        "transaction_id": record.transaction_id,
        "transaction_state": record.transaction_state or None,
        "from_check": record.is_from_check if kind is TraceType.END_TRANSACTION else None,
        "success": None if kind in (TraceType.SUB_BEFORE, TraceType.END_TRANSACTION) else record.is_success,
        "client_host": "10.0.0.7:4711",
    }


def shown(row: Row) -> dict[str, Any]:
    """The same of a row."""
    return {name: value for name, value in row.asDict().items() if name not in _PLACES}


_PLACES = ("timestamp", "store_timestamp", "physical_offset", "cluster", "broker_name")


@pytest.mark.long
def test_rows_are_what_the_decoder_reads(spark: SparkSession, tmp_path: Path) -> None:
    bodies = ["".join(map(encode_trace, RECORDS)).encode(), encode_trace(PUB).encode(), b"Other\x01x\x02\x02"]
    table = traces(spark, store_of(tmp_path, bodies), view="traces")
    rows = table.collect()
    assert [shown(row) for row in rows] == [expected(record) for record in [*RECORDS, PUB]]
    times = spark.sql("SELECT unix_millis(timestamp) AS ms FROM traces ORDER BY physical_offset").collect()
    assert [row.ms for row in times] == [one.timestamp_ms for one in [*RECORDS, PUB]]


def test_the_page_s_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "trace.md").read_text()
    query = re.findall(r'spark\.sql\("""(.*?)"""', page, re.DOTALL)[0]
    traces(spark, store_of(tmp_path, [encode_trace(AFTER).encode()]), view="traces")
    assert [tuple(row) for row in spark.sql(query).collect()] == [("cg", "M", 6, "exception")]


def test_old_and_damaged_records_have_nulls(spark: SparkSession, tmp_path: Path) -> None:
    bad = b"Pub\x01x\x01r\x02SubAfter\x01R\x01M\x01many\x02\xff\x02EndTransaction" + b"\x0199" * 12
    old, short, after, ended = traces(spark, store_of(tmp_path, [OLD, bad], "T"), topic="T").collect()
    assert (old.success, old.offset_msg_id, old.message_type, old.tags) == (False, None, "delay", None)
    assert (short.region_id, short.timestamp, short.msg_id, short.success) == ("r", None, None, None)
    assert (after.msg_id, after.cost_ms, after.context) == ("M", None, None)
    assert (ended.message_type, ended.from_check) == (None, False)


def test_a_store_without_traces_has_none(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    assert traces(spark, str(golden("exotic") / "store")).collect() == []
