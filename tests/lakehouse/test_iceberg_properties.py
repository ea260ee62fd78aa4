"""Format versions, properties and types of Iceberg tables that exports, or those without Spark, cannot write to."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse.command import options
from rmq_lakehouse.iceberg import table as iceberg_table
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.local.iceberg_log import LocalIcebergLog
from rmq_lakehouse.local.table_log import NeedsSparkError
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import plain, write

ICEBERG = ("--format", "iceberg")
VERSION_1 = ("--table-property", "format-version=1")


@pytest.fixture
def local(tmp_path: Path) -> LocalExporter:
    exporter = LocalExporter(tmp_path / "store", tmp_path / "table")
    write(exporter.store, plain(10))
    return exporter


@pytest.mark.parametrize("version", ["1", "3"])
def test_a_new_table_of_another_version_is_refused(local: LocalExporter, version: str) -> None:
    with pytest.raises(OptionError, match=f"--table-property format-version={version}: exports write version 2"):
        local.run(*ICEBERG, "--table-property", f"format-version={version}")
    spec = local.store.parent / "spec.json"
    topic = {"topic": "Odd", "format": "json", "schema": "a INT", "table": "typed"}
    spec.write_text(json.dumps({"topics": [{**topic, "properties": {"format-version": version}}]}))
    with pytest.raises(OptionError, match=f"topic 'Odd': property format-version={version}: exports write version 2"):
        local.run(*ICEBERG, "--typed", str(spec), table=False)
    assert not local.table.exists()


def test_a_table_of_version_1_is_refused_until_it_is_upgraded(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # a table of the release 0.2.0
        patch.setattr(options, "_check_properties", lambda *_: None)
        patch.setattr(iceberg_table, "_check_version", lambda *_: None)
        local.run(*ICEBERG, *VERSION_1)
        write(local.store, plain(20))
        local.run(*ICEBERG)
    placed = write(local.store, plain(30))
    with pytest.raises(StoreError, match=r"format version 1, and exports need 2\. Upgrade the table"):
        local.run(*ICEBERG)
    table = IcebergLocation(str(local.table), {}).load()
    assert table is not None
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    assert local.run(*ICEBERG, "--from-offset", "0")[0]["messages"] == 10
    assert local.run(*ICEBERG)[0]["messages"] == 0
    table.refresh()
    assert sorted(table.scan().to_arrow()["physical_offset"].to_pylist()) == placed


@pytest.mark.parametrize("column", ["default", "column.topic"])
def test_an_unknown_mode_of_metrics_is_an_error_in_one_line(local: LocalExporter, column: str) -> None:
    with pytest.raises(StoreError, match=r"Unsupported metrics mode: bogus: set each property write"):
        local.run(*ICEBERG, "--table-property", f"write.metadata.metrics.{column}=bogus")


def test_a_column_that_the_owner_of_a_raw_table_widened_is_left_to_the_job(local: LocalExporter) -> None:
    local.run(*ICEBERG)
    table = IcebergLocation(str(local.table), {}).load()
    assert table is not None
    with table.update_schema() as update:
        update.update_column("queue_id", LongType())
    with pytest.raises(NeedsSparkError, match="its column queue_id is long, not int"):
        local.run(*ICEBERG)
    columns = pa.schema([("physical_offset", pa.int64()), ("queue_id", pa.string())])
    with pytest.raises(StoreError, match="its column queue_id is long, not string") as refusal:
        LocalIcebergLog(IcebergLocation(str(local.table), {})).check_columns("raw", columns, [])
    assert not isinstance(refusal.value, NeedsSparkError)
