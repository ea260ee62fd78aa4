"""Files of a table written from Arrow: every row in its partition's files, and the log told the truth of them."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.arrow.schema import TIMESTAMP
from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.files import DeltaFiles
from rmq_lakehouse.parquet import ColumnStats, Layout, PartitionedFiles, WrittenFile

SCHEMA = pa.schema(
    [("topic", pa.string()), ("queue_id", pa.int32()), ("uniq_key", pa.string()), ("body", pa.binary()),
     ("store_timestamp", TIMESTAMP), ("keys", pa.list_(pa.field("element", pa.string()))),
     ("properties", pa.map_(pa.string(), pa.string()))]
)  # fmt: skip
STATS = ("uniq_key", "store_timestamp")
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
TOPICS = st.one_of(st.none(), st.sampled_from(["", "a", "%RETRY%g", "a/b", "ü", "..", "x" * 300]), st.text(max_size=8))

Row = dict[str, Any]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    number = draw(st.integers(0, 10_000))
    return {
        "topic": draw(TOPICS),
        "queue_id": draw(st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1))),
        "uniq_key": draw(st.one_of(st.none(), st.text(max_size=40))),
        "body": draw(st.binary(max_size=200)),
        "store_timestamp": draw(st.one_of(st.none(), st.just(FIRST + timedelta(milliseconds=number)))),
        "keys": draw(st.lists(st.text(max_size=3), max_size=2)),
        "properties": list(draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)).items()),
    }


def written(table: Path, batches: list[list[Row]], target_bytes: int) -> list[WrittenFile]:
    files = PartitionedFiles(
        Layout(str(table), DeltaFiles(), ("topic", "queue_id"), STATS, "zstd", target_bytes), SCHEMA
    )
    for batch in batches:
        files.write(pa.RecordBatch.from_pylist(batch, SCHEMA))
    return files.close()


def add_of(file: WrittenFile) -> Row:
    found: Row = json.loads(file.action)["add"]
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(rows(), max_size=12), max_size=4), st.sampled_from([1, 500, 1 << 20]))
@pytest.mark.long
def test_each_row_is_in_a_file_of_its_partition(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Row]], target_bytes: int
) -> None:
    table = tmp_path_factory.mktemp("table")
    found: list[Row] = []
    for file in written(table, batches, target_bytes):
        add = add_of(file)
        path = table / unquote(add["path"])
        own = pq.ParquetFile(path).read().to_pylist(maps_as_pydicts=None)
        values = add["partitionValues"]
        queue_id = None if values["queue_id"] is None else int(values["queue_id"])
        found += [{"topic": values["topic"], "queue_id": queue_id, **row} for row in own]
        assert (file.rows, file.bytes, add["size"]) == (len(own), path.stat().st_size, path.stat().st_size)
        check_stats(json.loads(add["stats"]), own)
    sent = [{**row, "topic": row["topic"] or None} for batch in batches for row in batch]  # Delta has no empty value
    assert told(found) == told(sent)
    files = [path for path in table.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(table) and path.suffix == ".parquet" for path in files)


def told(rows: list[Row]) -> Counter[str]:
    """How often each row comes."""
    times = [row["store_timestamp"] for row in rows]
    zoned = [None if time is None else time.astimezone(UTC) for time in times]
    return Counter(
        repr([row[name] for name in SCHEMA.names if name != "store_timestamp"] + [time])
        for row, time in zip(rows, zoned, strict=True)
    )


def check_stats(stats: Row, own: list[Row]) -> None:
    assert stats["numRecords"] == len(own)
    for name in STATS:
        values = [row[name] for row in own if row[name] is not None]
        assert stats["nullCount"][name] == len(own) - len(values)
        if name == "uniq_key" and values:
            assert stats["minValues"][name] == min(values, key=str.encode)[:32]
            largest = max(values, key=str.encode)
            bound = stats["maxValues"][name]
            assert bound == largest if len(largest) <= 32 else bound.encode() >= largest.encode()
        elif values:
            assert datetime.fromisoformat(stats["minValues"][name]) == min(values)
            assert datetime.fromisoformat(stats["maxValues"][name]) == max(values)
        else:
            assert name not in stats["minValues"]
            assert name not in stats["maxValues"]


def row_of(topic: str, body: bytes) -> Row:
    return {"topic": topic, "queue_id": 0, "body": body, "uniq_key": None, "store_timestamp": None}


def test_rows_of_a_partition_keep_their_order_over_files_of_the_target_s_size(tmp_path: Path) -> None:
    bodies = [random.Random(number).randbytes(240) for number in range(400)]
    batches = [[row_of("A", body) for body in bodies[at : at + 50]] for at in range(0, 400, 50)]
    files = written(tmp_path, batches, 20_000)
    assert len(files) > 1
    found = [
        pq.ParquetFile(tmp_path / unquote(add_of(file)["path"])).read().column("body").to_pylist() for file in files
    ]
    assert [body for own in found for body in own] == bodies


def test_more_partitions_than_may_be_open_lose_nothing(tmp_path: Path) -> None:
    topics = [f"T{number}" for number in range(150)]
    files = written(tmp_path, [[row_of(topic, b"%d" % turn) for topic in topics] for turn in range(3)], 1)
    counted = Counter(add_of(file)["partitionValues"]["topic"] for file in files for _ in range(file.rows))
    assert counted == dict.fromkeys(topics, 3)


def test_what_cannot_be_written_is_told_with_its_path_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "topic=B").write_text("a file in the way")
    files = PartitionedFiles(Layout(str(tmp_path), DeltaFiles(), ("topic",), target_bytes=1), SCHEMA)
    files.write(pa.RecordBatch.from_pylist([row_of("A", b"one")], SCHEMA))
    with pytest.raises(StoreError, match=r"topic=B.*(File exists|Not a directory)"):
        files.write(pa.RecordBatch.from_pylist([row_of("B", b"two")], SCHEMA))
    files.abort()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["topic=B"]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("x" * 32, "x" * 32),
        ("x" * 33, "x" * 32 + "\U0010ffff"),
        ("x" * 32 + "\U0010ffffy", "x" * 32 + "\U0010ffff" * 2),
        ("\U0010ffff" * 40, "\U0010ffff" * 40),
    ],
)
def test_a_long_text_has_a_short_upper_bound_that_is_not_less(text: str, bound: str) -> None:
    stats = ColumnStats()
    stats.add(pa.chunked_array([["a", text]]))
    assert stats.bounds() == ("a", bound)
    assert bound.encode() >= text.encode()
