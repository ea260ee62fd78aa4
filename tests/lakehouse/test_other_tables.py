"""Directories with the metadata of another table: no table is made in them, and no vacuum deletes from them."""

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from rmq_formats.errors import StoreError
from rmq_lakehouse.directories import iceberg_uuid, table_around, table_within
from rmq_lakehouse.iceberg.catalog import CATALOG_FILE, IcebergLocation
from rmq_lakehouse.iceberg.spark_log import IcebergTableLog
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

SCHEMA = Schema(NestedField(1, "offset", LongType()))
ROWS = pa.table({"offset": pa.array([1, 2, 3], pa.int64())})


def load_as_other_programs(place: IcebergLocation) -> Any:
    """Load a table with pyiceberg's own file IO."""
    table = place.load()
    assert table is not None
    table.io.properties.pop("py-io-impl", None)
    table.io = load_file_io(table.io.properties)
    return table


def make(place: IcebergLocation) -> Any:
    place.create(SCHEMA, (), {})
    load_as_other_programs(place).append(ROWS)
    return place.load()


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def vacuum(monkeypatch: pytest.MonkeyPatch, place: IcebergLocation) -> None:
    """Vacuum as if a month had passed."""
    monkeypatch.setattr(IcebergTableLog, "_now_s", lambda _: time.time() + 30 * 86400)
    IcebergTableLog(None, place).vacuum(168)  # type: ignore[arg-type] # no row is read


def test_a_table_that_was_renamed_keeps_its_directory_and_survives_a_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    first = make(place)
    place.catalog().rename_table("rmq.orders", "rmq.orders_2025")
    second = make(place)
    assert second.location() != first.location()
    assert second.location().startswith(f"{tmp_path}/orders-")
    kept = files_below(tmp_path / "orders")
    vacuum(monkeypatch, place)
    assert files_below(tmp_path / "orders") == kept
    assert place.catalog().load_table("rmq.orders_2025").scan().to_arrow().num_rows == 3
    assert place.other_table(second) is None


@pytest.mark.parametrize("other", ["catalog", "compressed", "delta", "within"])
def test_a_vacuum_stops_where_another_table_is_whoever_put_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    table = make(place)
    if other == "delta":
        log = tmp_path / "orders" / "_delta_log"
        log.mkdir()
        (log / "00000000000000000000.json").write_text("{}")
    else:
        location = table.location() + ("/data/eu" if other == "within" else "")
        foreign = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db")
        foreign.create_namespace("shop")
        foreign.create_table("shop.orders", SCHEMA, location).append(ROWS)
    if other == "compressed":
        for path in (tmp_path / "orders" / "metadata").glob("*.json"):
            if iceberg_uuid(path.read_bytes()) != str(table.metadata.table_uuid):
                path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
    kept = files_below(tmp_path / "orders")
    message = "is a Delta table" if other == "delta" else "its directory .* has the Iceberg table"
    with pytest.raises(StoreError, match=message):
        vacuum(monkeypatch, place)
    assert files_below(tmp_path / "orders") == kept


def test_metadata_that_lost_a_race_or_was_cut_off_is_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    table = make(place)
    metadata = tmp_path / "orders" / "metadata"
    whole = Path(table.metadata_location).read_bytes()
    (metadata / "00001-lost.metadata.json").write_bytes(whole)
    (metadata / "00001-cut.metadata.json").write_bytes(whole[: len(whole) // 2])
    (metadata / "00001-empty.metadata.json").write_bytes(b"")
    assert place.other_table(table) is None
    vacuum(monkeypatch, place)
    assert {path.name for path in metadata.glob("00001-*")} - {Path(table.metadata_location).name} == {
        "00001-lost.metadata.json"  # which another catalog may name
    }
    (metadata / "00001-unknown.metadata.json").write_bytes(b"{")
    assert "of an unknown uuid" in str(place.other_table(table))


def test_two_catalogs_over_one_warehouse_make_two_directories(tmp_path: Path) -> None:
    warehouse = {"type": "sql", "warehouse": f"file://{tmp_path}/warehouse"}
    locations = set()
    for name in ("a", "b"):
        place = IcebergLocation("lake.shop.orders", {**warehouse, "uri": f"sqlite:///{tmp_path}/{name}.db"})
        table = make(place)
        assert place.other_table(table) is None
        locations.add(table.location())
    assert len(locations) == 2


@pytest.mark.parametrize("commits", [1, 3])
def test_a_vacuum_spares_what_another_catalog_has_committed_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    table = make(place)
    other = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db")
    other.create_namespace("shop")
    registered = other.register_table("shop.orders", table.metadata_location)
    for _ in range(commits):
        registered.append(ROWS)
    table = load_as_other_programs(place)
    table.overwrite(ROWS)  # so that no snapshot of this catalog needs the first file soon
    table.append(ROWS)
    vacuum(monkeypatch, place)
    assert other.load_table("shop.orders").scan().to_arrow().num_rows == 3 * (1 + commits)
    loaded = place.load()
    assert loaded is not None
    assert loaded.scan().to_arrow().num_rows == 6
    assert caplog.text.count("metadata that is not in the table's history: ") == 1


def test_a_vacuum_stops_at_metadata_that_it_cannot_read_but_at_none_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    table = make(place)
    other = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db")
    other.create_namespace("shop")
    registered = other.register_table("shop.orders", table.metadata_location)
    registered.append(ROWS)
    snapshot = registered.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(b"")
    vacuum(monkeypatch, place)
    newer = json.loads(Path(registered.metadata_location).read_text()) | {"format-version": 9}
    path = Path(registered.metadata_location).with_name("00009-newer.metadata.json.gz")
    path.write_bytes(gzip.compress(json.dumps(newer).encode()))
    files_before = files_below(tmp_path / "orders")
    with pytest.raises(StoreError, match=r"00009-newer.metadata.json.gz: metadata that pyiceberg cannot read"):
        vacuum(monkeypatch, place)
    assert files_below(tmp_path / "orders") == files_before


def test_a_vacuum_of_a_table_whose_metadata_moved_reads_each_file_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    make(place)
    table = load_as_other_programs(place)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.path": f"{tmp_path}/orders/later"})
    table.append(ROWS)
    vacuum(monkeypatch, place)
    loaded = place.load()
    assert loaded is not None
    assert loaded.scan().to_arrow().num_rows == 6
    assert not caplog.text


def test_a_vacuum_knows_the_table_s_history_beyond_what_its_metadata_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    make(place)
    table = load_as_other_programs(place)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    for _ in range(6):
        table.overwrite(ROWS)
    before = files_below(tmp_path / "orders" / "data")
    vacuum(monkeypatch, place)
    assert len(files_below(tmp_path / "orders" / "data")) < len(before)
    assert len(list((tmp_path / "orders" / "metadata").glob("*.metadata.json"))) <= 4
    assert not caplog.text


def test_a_table_within_another_one_is_refused(tmp_path: Path) -> None:
    make(IcebergLocation(str(tmp_path / "orders"), {}))
    inner = tmp_path / "orders" / "data" / "dead"
    with pytest.raises(StoreError, match=f"is within the table {tmp_path}/orders; give another --table"):
        IcebergLocation(str(inner), {}).create(SCHEMA, (), {})
    assert not (inner.parent / CATALOG_FILE).exists()
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    assert table_around(tmp_path / "lake" / "a" / "b") == tmp_path / "lake"
    assert table_around(tmp_path / "elsewhere") is None


def test_what_a_vacuum_of_delta_would_delete_of_other_tables_is_described(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "topic=a").mkdir()
    (tmp_path / "_hidden").mkdir()
    assert table_within(tmp_path) is None
    (tmp_path / "_hidden" / "old" / "_delta_log").mkdir(parents=True)
    assert table_within(tmp_path) == f"a Delta table ({tmp_path}/_hidden/old/_delta_log)"
    shutil.rmtree(tmp_path / "_hidden")
    (tmp_path / "topic=a" / "dead" / "_delta_log").mkdir(parents=True)
    assert table_within(tmp_path) == f"a Delta table ({tmp_path}/topic=a/dead/_delta_log)"
    (tmp_path / "topic=a" / "dead" / "_delta_log").rmdir()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "00000-x.metadata.json").write_text("{}")
    assert table_within(tmp_path) == f"an Iceberg table ({tmp_path}/metadata)"
    assert table_within(tmp_path, ignored=("metadata",)) is None


def test_a_copied_directory_of_tables_leaves_the_tables_that_it_was_copied_from(tmp_path: Path) -> None:
    make(IcebergLocation(str(tmp_path / "lake" / "orders"), {}))
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    with pytest.raises(StoreError, match=f"has the table's files in {tmp_path}/lake/orders, as it was copied from"):
        IcebergLocation(str(tmp_path / "copy" / "orders"), {}).load()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert IcebergLocation(str(tmp_path / "link" / "orders"), {}).load() is not None


def test_no_vacuum_follows_a_link_out_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = IcebergLocation(str(tmp_path / "orders"), {})
    make(place)
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept.parquet").write_bytes(b"")
    link = tmp_path / "orders" / "data" / "link"
    link.symlink_to(other)
    assert table_within(tmp_path / "orders") == f"an Iceberg table ({tmp_path}/orders/metadata)"
    assert table_within(tmp_path / "orders", ignored=("metadata",)) == f"a link to another directory ({link})"
    with pytest.raises(StoreError, match=r"has a link to another directory .*; --vacuum deletes nothing there"):
        vacuum(monkeypatch, place)
    assert (other / "kept.parquet").exists()


def test_a_table_is_within_another_one_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake" / "x")
    assert table_around(tmp_path / "link" / "sub") == tmp_path / "lake"


@pytest.mark.long
@pytest.mark.spark
def test_delta_tables_keep_away_from_other_tables(exporter: Exporter) -> None:
    write(exporter.store, plain(4))
    exporter.run()
    within = exporter.table / "more" / "dead"
    with pytest.raises(StoreError, match="is within the table"):
        exporter.run("--table", str(within), table=False)
    (within / "_delta_log").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"has a Delta table .*; --vacuum deletes nothing there"):
        exporter.run("--vacuum", "168")
    (within / "_delta_log").rmdir()
    metadata = exporter.table / "metadata"
    metadata.mkdir()
    (metadata / "00000-x.metadata.json").write_text("{}")
    with pytest.raises(StoreError, match="its directory has an Iceberg table"):
        exporter.run()
    metadata.rename(exporter.work / "metadata")
    exporter.run("--vacuum", "168")
    with pytest.raises(StoreError, match="its directory has an Iceberg table"):
        exporter.run("--table", str(exporter.work), table=False)
