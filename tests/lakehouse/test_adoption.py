"""Exports into tables that their owner made by DDL."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.local.table_log import NeedsSparkError
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import plain, write

COLUMNS = "topic STRING, queue_id INT, physical_offset BIGINT, store_timestamp TIMESTAMP, body BINARY"
ICEBERG = ("--format", "iceberg")


def make(exporter: Exporter, columns: str, clauses: str = "", properties: str = "") -> None:
    """Create a Delta table as its owner does."""
    listed = f"TBLPROPERTIES ({properties})" if properties else ""
    exporter.spark.sql(f"CREATE TABLE delta.`{exporter.table}` ({columns}) USING delta {clauses} {listed}")


def metadata(exporter: Exporter) -> list[str]:
    """List the metadata actions of the Delta table's log."""
    files = sorted(exporter.table.glob("_delta_log/*.json"))
    return [line for file in files for line in file.read_text().splitlines() if '"metaData"' in line[:12]]


@pytest.mark.spark
class TestDelta:
    """Delta tables."""

    def test_generated_identity_and_default_columns_are_filled(self, exporter: Exporter) -> None:
        make(
            exporter,
            "topic STRING NOT NULL, queue_id BIGINT, physical_offset BIGINT, store_timestamp TIMESTAMP, body BINARY, "
            "number BIGINT GENERATED ALWAYS AS IDENTITY, source STRING DEFAULT 'rocketmq', note STRING, "
            "day DATE GENERATED ALWAYS AS (CAST(store_timestamp AS DATE))",
            "PARTITIONED BY (day)",
            "'delta.feature.allowColumnDefaults' = 'supported', 'team' = 'shop'",
        )
        write(exporter.store, plain(4))
        with pytest.raises(StoreError, match="a table that no export wrote; give another --table, or --adopt"):
            exporter.run()
        before = exporter.spark.sql(f"SHOW TBLPROPERTIES delta.`{exporter.table}`").collect()
        assert exporter.run("--adopt")[0]["messages"] == 4
        write(exporter.store, plain(6))
        assert exporter.run("--adopt")[0]["messages"] == 2
        assert exporter.run("--adopt")[0]["messages"] == 0
        rows = exporter.rows()
        assert len({row.number for row in rows}) == 6
        assert {(row.source, row.note, str(row.day)) for row in rows} == {("rocketmq", None, "2023-11-14")}
        assert [row.topic for row in rows] == ["Even", "Odd"] * 3
        assert exporter.spark.sql(f"SHOW TBLPROPERTIES delta.`{exporter.table}`").collect() == before
        with pytest.raises(StoreError, match=r"holds the messages of .*store, not of other"):
            exporter.run("--adopt", "--store-id", "other")

    def test_a_null_struct_with_a_required_member_is_a_dead_letter(self, exporter: Exporter) -> None:
        make(exporter, "physical_offset BIGINT, id BIGINT, place STRUCT<city: STRING NOT NULL, zip: STRING>")
        columns = "id BIGINT, place STRUCT<city: STRING, zip: STRING>"
        topic = {"topic": "T", "format": "json", "schema": columns, "table": str(exporter.table)}
        spec = exporter.work / "spec.json"
        spec.write_text(json.dumps({"topics": [topic]}))
        bodies = [b'{"id":1,"place":{"city":"Rome"}}', b'{"id":2,"place":{"zip":"1"}}', b'{"id":3}']
        write(exporter.store, [("T", body) for body in bodies])
        arguments = ("--typed", str(spec), "--adopt", "--dlq-table", str(exporter.work / "dead"))
        report, code = exporter.run(*arguments, table=False)
        assert (report["messages"], report["undecoded"], code) == (1, 2, 0)
        assert [row.reason for row in exporter.rows("dead")] == ["column place.city: null, wanted NOT NULL"] * 2

    def test_a_constraint_on_an_owner_s_own_column_logs_no_error(
        self, exporter: Exporter, capfd: pytest.CaptureFixture[str]
    ) -> None:
        make(exporter, f"{COLUMNS}, note VARCHAR(3)")
        write(exporter.store, plain(2))
        assert exporter.run("--adopt")[0]["messages"] == 2
        assert "ERROR" not in capfd.readouterr().err

    def test_constraints_hold_and_nothing_of_the_owner_s_changes(self, exporter: Exporter) -> None:
        make(exporter, COLUMNS)
        exporter.spark.sql(f"ALTER TABLE delta.`{exporter.table}` ADD CONSTRAINT known CHECK (topic <> 'Odd')")
        before = metadata(exporter)
        write(exporter.store, plain(4))
        report, code = exporter.run("--adopt")
        assert (report["messages"], report["undecoded"], code) == (2, 2, 1)
        assert metadata(exporter) == before
        table = DeltaTable(str(exporter.table)).to_pyarrow_dataset().to_table()
        assert table.column_names == ["topic", "queue_id", "physical_offset", "store_timestamp", "body"]
        assert table.num_rows == 2

    @pytest.mark.long
    def test_a_clustered_table_with_renamed_columns_goes_on(self, exporter: Exporter) -> None:
        make(exporter, COLUMNS, "CLUSTER BY (topic)", "'delta.columnMapping.mode' = 'name'")
        exporter.spark.sql(f"ALTER TABLE delta.`{exporter.table}` RENAME COLUMN body TO payload")
        write(exporter.store, plain(4))
        assert exporter.run("--adopt", "--optimize")[0]["messages"] == 4
        assert [bytes(row.payload) for row in exporter.rows()] == [body for _, body in plain(4)]
        (detail,) = exporter.spark.sql(f"DESCRIBE DETAIL delta.`{exporter.table}`").collect()
        assert detail.clusteringColumns == ["topic"]

    @pytest.mark.parametrize(
        ("columns", "clauses", "reason"),
        [
            ("topic STRING, body BINARY", "", "has no column physical_offset, which identifies its rows"),
            (f"{COLUMNS}, team STRING NOT NULL", "", "its column team is NOT NULL"),
            (f"{COLUMNS}, team STRING", "PARTITIONED BY (team)", "is partitioned by team, and the export has no"),
            (f"{COLUMNS}, keys STRING", "", "its column keys is string, not array<string>"),
            (COLUMNS.replace("BIGINT", "BIGINT GENERATED ALWAYS AS IDENTITY"), "", "Delta fills its column physical_"),
        ],
    )
    def test_what_an_export_cannot_fill_is_refused(
        self, exporter: Exporter, columns: str, clauses: str, reason: str
    ) -> None:
        make(exporter, columns, clauses)
        write(exporter.store, plain(2))
        with pytest.raises(StoreError, match=reason):
            exporter.run("--adopt")

    @pytest.mark.long
    def test_a_typed_table_with_a_key_takes_upserts(self, exporter: Exporter, tmp_path: Path) -> None:
        make(
            exporter,
            "id BIGINT, name STRING, physical_offset BIGINT, store_timestamp TIMESTAMP, "
            "letter STRING GENERATED ALWAYS AS (substring(name, 1, 1)), note STRING",
        )
        spec = tmp_path / "spec.toml"
        spec.write_text(
            f'[[topics]]\ntopic = "Orders"\nformat = "json"\nschema = "id BIGINT, name STRING"\nkey = ["id"]\n'
            f'table = "{exporter.table}"\n'
        )
        arguments = ("--typed", str(spec), "--adopt")
        bodies = [("Orders", b'{"id":1,"name":"alpha"}'), ("Orders", b'{"id":2,"name":"beta"}')]
        write(exporter.store, bodies)
        assert exporter.run(*arguments, table=False)[0]["messages"] == 2
        exporter.spark.sql(f"UPDATE delta.`{exporter.table}` SET note = 'mine'")
        write(exporter.store, [*bodies, ("Orders", b'{"id":1,"name":"gamma"}')])
        exporter.run(*arguments, table=False)
        rows = sorted((row.id, row.name, row.letter, row.note) for row in exporter.rows())
        assert rows == [(1, "gamma", "g", "mine"), (2, "beta", "b", "mine")]


@pytest.mark.spark
class TestIceberg:
    """Iceberg tables."""

    def make(self, exporter: Exporter, *more: NestedField) -> IcebergLocation:
        """Create a table with required fields, a partition spec and a sort order."""
        place = IcebergLocation(str(exporter.table), {})
        schema = Schema(
            NestedField(1, "topic", StringType(), required=True),
            NestedField(2, "physical_offset", LongType(), required=True),
            NestedField(3, "queue_id", LongType()),
            NestedField(4, "store_timestamp", TimestamptzType()),
            NestedField(5, "body", BinaryType()),
            *more,
        )
        catalog = place.catalog()
        catalog.create_namespace_if_not_exists(place.identifier[:-1])
        catalog.create_table(
            place.identifier,
            schema,
            str(exporter.table),
            PartitionSpec(
                PartitionField(1, 1000, IdentityTransform(), "kind"),
                PartitionField(2, 1001, BucketTransform(2), "part"),
            ),
            SortOrder(SortField(2, IdentityTransform())),
            {"team": "shop"},
        )
        return place

    def test_own_partitions_required_fields_and_properties_stay(self, exporter: Exporter) -> None:
        place = self.make(exporter, NestedField(6, "note", StringType()))
        write(exporter.store, plain(6))
        with pytest.raises(StoreError, match="a table that no export wrote"):
            exporter.run(*ICEBERG)
        assert exporter.run(*ICEBERG, "--adopt")[0]["messages"] == 6
        assert exporter.run(*ICEBERG, "--adopt")[0]["messages"] == 0
        table = place.load()
        assert table is not None
        rows = table.scan().to_arrow()
        assert (rows.num_rows, rows.column("note").null_count, rows.column_names[0]) == (6, 6, "topic")
        assert {name for name in table.properties if not name.startswith("rmq.txn.")} == {"team"}
        assert [field.name for field in table.spec().fields] == ["kind", "part"]
        frame = exporter.spark.createDataFrame(rows.drop_columns(["store_timestamp"]).to_pandas())
        assert frame.where("topic = 'Odd'").count() == 3
        assert len(table.schemas()) == 1

    @pytest.mark.long
    def test_nulls_within_lists_and_maps_whose_elements_are_required_are_dead_letters(self, exporter: Exporter) -> None:
        member = StructType(NestedField(31, "sku", StringType(), required=True))
        schema = Schema(
            NestedField(1, "physical_offset", LongType()),
            NestedField(2, "id", LongType()),
            NestedField(3, "lines", ListType(30, member, element_required=False)),
            NestedField(4, "labels", ListType(40, StringType(), element_required=True)),
            NestedField(5, "counts", MapType(50, StringType(), 51, LongType(), value_required=True)),
            NestedField(6, "place", StructType(NestedField(61, "city", StringType(), required=True))),
        )
        location = IcebergLocation(str(exporter.work / "typed"), {})
        location.create(schema, (), {})
        columns = "id BIGINT, lines ARRAY<STRUCT<sku: STRING>>, labels ARRAY<STRING>, counts MAP<STRING, BIGINT>"
        columns += ", place STRUCT<city: STRING>"
        topic = {"topic": "T", "format": "json", "schema": columns, "table": str(exporter.work / "typed")}
        spec = exporter.work / "spec.json"
        spec.write_text(json.dumps({"topics": [topic]}))
        bodies = [
            b'{"id":1,"lines":[{"sku":"a"},null],"labels":["x"],"counts":{"k":1}}', b'{"id":2,"lines":[{"sku":null}]}',
            b'{"id":3,"labels":["x",null]}', b'{"id":4,"counts":{"k":null}}', b'{"id":5}',
            b'{"id":6,"place":{"city":"Rome"}}',
        ]  # fmt: skip
        write(exporter.store, [("T", body) for body in bodies])
        arguments = ("--typed", str(spec), "--adopt", "--dlq-table", str(exporter.work / "dead"), *ICEBERG)
        report, code = exporter.run(*arguments, table=False)
        assert (report["messages"], report["undecoded"], code) == (3, 3, 0)
        table = location.load()
        assert table is not None
        first, _, last = table.scan().to_arrow().sort_by("id").to_pylist()
        assert (first["lines"], first["place"], last["place"]) == ([{"sku": "a"}, None], None, {"city": "Rome"})
        dead = IcebergLocation(str(exporter.work / "dead"), {}).load()
        assert dead is not None
        reasons = dead.scan().to_arrow().sort_by("physical_offset")["reason"].to_pylist()
        assert reasons == [
            f"column {name}: null in an element, wanted NOT NULL" for name in ("lines", "labels", "counts")
        ]
        write(exporter.store, [("T", body) for body in [*bodies, bodies[0]]])
        with pytest.raises(NeedsSparkError, match=r"its column lines\.element\.sku is NOT NULL"):
            LocalExporter(exporter.store, exporter.table).run(
                *(word for word in arguments if word != "--adopt"), table=False
            )

    def test_a_required_field_that_the_export_lacks_is_refused(self, exporter: Exporter) -> None:
        self.make(exporter, NestedField(6, "note", StringType(), required=True))
        write(exporter.store, plain(2))
        with pytest.raises(StoreError, match="its column note is NOT NULL"):
            exporter.run(*ICEBERG, "--adopt")
