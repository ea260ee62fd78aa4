"""Delta tables in a catalog: by name, with comments and properties, and one clear line where the name does not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError
from rmq_formats.spark.options import schemas
from rmq_lakehouse.comments import COMMENTS
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

pytestmark = pytest.mark.spark

JOB = Path(__file__).parents[2] / "jobs" / "export_delta.py"
NAME = "spark_catalog.sales.messages"


def test_every_column_of_a_raw_table_has_a_comment() -> None:
    assert {field.name for field in schemas.COMMITLOG} - {"record_error"} <= COMMENTS.keys()


def test_a_path_has_comments(exporter: Exporter) -> None:
    write(exporter.store, plain(5))
    exporter.run("--table-comment", "all of it", "--table-property", "team=lake")
    fields = exporter.spark.read.format("delta").load(str(exporter.table)).schema
    assert {field.name: field.metadata["comment"] for field in fields} == {
        name: COMMENTS[name] for name in fields.names
    }
    detail = exporter.spark.sql(f"DESCRIBE DETAIL delta.`{exporter.table}`").first()
    assert detail is not None
    assert (detail.description, detail.properties["team"]) == ("all of it", "lake")


@pytest.mark.long
def test_a_name_in_a_catalog_is_a_table_of_it(exporter: Exporter) -> None:
    spark, spec = exporter.spark, exporter.work / "spec.json"
    orders = {
        "topic": "Odd", "format": "json", "schema": "id STRING COMMENT 'number of the order', n INT", "key": ["id"],
        "table": "spark_catalog.sales.orders", "comment": "last state of each order", "properties": {"team": "shop"},
    }  # fmt: skip
    spec.write_text(json.dumps({"topics": [orders]}))
    arguments = ("--table", NAME, "--typed", str(spec), "--dlq-table", "spark_catalog.sales.dead")
    bodies = [("Odd", b'{"id":"a","n":1}'), ("Odd", b'{"id":"a","n":2}'), ("Odd", b"bad"), ("Even", b"")]
    placed = write(exporter.store, bodies)
    with pytest.raises(StoreError, match=r"there is no schema `spark_catalog`.`sales`"):
        exporter.run(*arguments, table=False)
    spark.sql(f"CREATE SCHEMA sales LOCATION '{exporter.work}/sales'")
    try:
        report, _ = exporter.run(*arguments, table=False)
        assert report["exports"] == {"raw": 4, "Odd": 2}
        write(exporter.store, [*bodies, ("Odd", b'{"id":"b","n":3}')])
        assert exporter.run(*arguments, "--retention", "36500", table=False)[0]["exports"] == {"raw": 1, "Odd": 1}
        found = spark.sql(f"SELECT physical_offset FROM {NAME} ORDER BY 1").collect()
        assert [row.physical_offset for row in found][:4] == placed
        assert {row.id: row.n for row in spark.table("sales.orders").collect()} == {"a": 2, "b": 3}
        assert [bytes(row.body) for row in spark.table("sales.dead").collect()] == [b"bad"]
        detail = spark.sql("DESCRIBE DETAIL sales.orders").first()
        assert detail is not None
        assert (detail.description, detail.properties["team"]) == ("last state of each order", "shop")
        assert spark.table("sales.orders").schema["id"].metadata["comment"] == "number of the order"
        assert spark.table("sales.orders").schema["queue_offset"].metadata["comment"] == COMMENTS["queue_offset"]
        spark.sql("CREATE TABLE sales.other USING parquet AS SELECT 1 AS id")
        for table, said in [
            ("spark_catalog.sales.other", "is no Delta table"),
            ("elsewhere.sales.messages", "elsewhere"),
        ]:
            with pytest.raises(StoreError, match=said) as told:
                exporter.run("--table", table, table=False)
            assert "\n" not in str(told.value)
    finally:
        spark.sql("DROP SCHEMA sales CASCADE")


@pytest.mark.long
def test_a_hive_metastore_has_the_table_and_one_that_is_away_is_told(tmp_path: Path) -> None:
    write(tmp_path / "store", plain(5))

    def job(table: str, *confs: str) -> subprocess.CompletedProcess[str]:
        given = ["spark.sql.catalogImplementation=hive", f"spark.sql.warehouse.dir={tmp_path}/warehouse", *confs]
        submitted = [word for conf in given for word in ("--conf", conf)]
        return subprocess.run(
            [sys.executable, JOB, "--store", tmp_path / "store", "--table", table],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": " ".join([*submitted, "pyspark-shell"])},
            cwd=tmp_path,  # Derby writes its log there
            capture_output=True,
            text=True,
            check=False,
        )

    derby = f"spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    for messages in (5, 0):
        done = job("spark_catalog.default.messages", derby)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["messages"] == messages
    assert list((tmp_path / "warehouse" / "messages").glob("topic=*"))
    away = job("spark_catalog.default.messages", "spark.hadoop.hive.metastore.uris=thrift://127.0.0.1:1")
    assert away.returncode == 2
    assert "spark_catalog.default.messages" in away.stderr.splitlines()[-1]
