"""Commits to catalogs, without Spark: the next one fails if the table is not as it was read; REST and SQLite alike."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.iceberg.snapshot import IcebergSnapshot
from rmq_lakehouse.iceberg.table import IcebergTransaction, table_layout
from rmq_lakehouse.parquet import PartitionedFiles, WrittenFile
from tests.lakehouse.rest_catalog import rest_catalog

SCHEMA = Schema(NestedField(1, "topic", StringType()), NestedField(2, "physical_offset", LongType()))


@pytest.fixture(params=["sqlite", "rest"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergLocation]:
    """A table that is not there yet."""
    if request.param == "sqlite":
        yield IcebergLocation(str(tmp_path / "a table"), {})
        return
    with rest_catalog(tmp_path) as uri:
        yield IcebergLocation("lake.sales.messages", {"type": "rest", "uri": uri})


def begin(place: IcebergLocation) -> IcebergTransaction:
    table = place.load()
    assert table is not None
    return IcebergTransaction(place, table)


def written(place: IcebergLocation, offsets: list[int]) -> list[WrittenFile]:
    table = place.load()
    assert table is not None
    schema = pa.schema([("topic", pa.string()), ("physical_offset", pa.int64())])
    files = PartitionedFiles(table_layout(table, place.table, "zstd"), schema)
    rows = [{"topic": "Odd" if offset % 2 else "Even", "physical_offset": offset} for offset in offsets]
    files.write(pa.RecordBatch.from_pylist(rows, schema))
    return files.close()


def held(place: IcebergLocation) -> list[int]:
    table = place.load()
    assert table is not None
    return sorted(table.scan().to_arrow()["physical_offset"].to_pylist())


def test_of_two_commits_to_one_snapshot_the_second_fails_and_adds_nothing(place: IcebergLocation) -> None:
    assert place.load() is None
    assert IcebergSnapshot(None).version == -1
    for _ in range(2):  # the second finds it there
        place.create(SCHEMA, ("topic",), {"format-version": "2"})
    assert begin(place).snapshot.version == 0
    for first, version in ((0, 1), (10, 2)):
        files = written(place, list(range(first, first + 10)))
        one, other = begin(place), begin(place)
        one.commit(files, {"app": first + 10}, f"mark {first}")
        with pytest.raises(CommitFailedException):
            other.commit(files, {"app": first + 10}, None)
        snapshot = begin(place).snapshot
        assert (snapshot.version, snapshot.transactions.get("app", -1), list(snapshot.transactions)) == (
            version,
            first + 10,
            ["app"],
        )
        commit = snapshot.read_commit(version)
        assert commit is not None
        assert (commit.versions, commit.metadata) == ({"app": first + 10}, f"mark {first}")
    assert held(place) == list(range(20))


def test_a_commit_without_files_is_one(place: IcebergLocation) -> None:
    place.create(SCHEMA, (), {"format-version": "2"})
    first, second = begin(place), begin(place)
    first.commit([], {"app": 7}, None)
    with pytest.raises(CommitFailedException):
        second.commit([], {"app": 7}, None)
    assert begin(place).snapshot.transactions["app"] == 7


def test_a_catalog_that_is_away_is_told_in_a_line() -> None:
    place = IcebergLocation("lake.sales.messages", {"type": "rest", "uri": "http://127.0.0.1:1"})
    with pytest.raises(StoreError, match=r"lake\.sales\.messages: catalog lake: ") as told:
        place.load()
    assert "\n" not in str(told.value)


def test_partitions_that_were_changed_since_the_files_were_written_are_told(place: IcebergLocation) -> None:
    place.create(SCHEMA, ("topic",), {"format-version": "2"})
    files = written(place, [1, 2])
    table = place.load()
    assert table is not None
    with table.update_spec() as update:
        update.remove_field("topic")
    with pytest.raises(StoreError, match="the table is partitioned by nothing since"):
        begin(place).commit(files, {"app": 2}, None)
    assert held(place) == []


def test_a_directory_of_delta_is_no_table_of_iceberg(tmp_path: Path) -> None:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(StoreError, match="is a Delta table"):
        IcebergLocation(str(tmp_path / "table"), {}).load()
    assert not (tmp_path / "iceberg_catalog.db").exists()


def test_a_place_elsewhere_is_refused() -> None:
    with pytest.raises(StoreError, match="its place is hdfs://host/table"):
        IcebergLocation("hdfs://host/table", {})


def test_a_table_in_an_object_store_needs_a_catalog() -> None:
    with pytest.raises(StoreError, match=r"s3://bucket/table: .* give --table catalog\.namespace\.name"):
        IcebergLocation("s3://bucket/table", {})
