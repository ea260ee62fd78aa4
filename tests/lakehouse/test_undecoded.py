"""What a table refuses is a dead letter, and what is undecoded stays reported until somebody has dealt with it."""

import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.errors import OptionError
from rmq_lakehouse.dead_letters import table_constraints
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_iceberg import table_of

SCHEMA = "id BIGINT, ts TIMESTAMP, txt STRING, amount DECIMAL(12,2)"
TOPIC: dict[str, Any] = {"topic": "T", "format": "json", "schema": SCHEMA, "table": "typed"}
SOUND = [b'{"id":1,"ts":"9999-12-31T23:59:59.999999Z","txt":0.10}', b'{"id":2,"ts":1700000000,"amount":12.340}']
LATE = b'{"id":3,"ts":1700000000000}'  # milliseconds


def run(exporter: Exporter, bodies: list[bytes], *arguments: str, **more: Any) -> tuple[dict[str, Any], int]:
    write(exporter.store, [("T", body) for body in bodies])
    spec = exporter.work / "spec.json"
    spec.write_text(json.dumps({"topics": [{**TOPIC, **more}]}))
    return exporter.run("--typed", str(spec), *arguments, table=False)


def rows(exporter: Exporter, table_format: str, name: str) -> list[dict[str, Any]]:
    if table_format == "iceberg":
        found: list[dict[str, Any]] = table_of(exporter, name).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["physical_offset"])
    return [row.asDict() for row in exporter.rows(name)]


def test_conditions_of_a_table_are_listed_with_what_a_dead_letter_says() -> None:
    inner = StructType([StructField("n`m", StringType(), nullable=False)])
    schema = StructType(
        [
            StructField("a", StringType(), nullable=False),
            StructField("b", StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
            StructField("c", inner, metadata={"delta.invariants": '{"expression":{"expression":"c.x > 3"}}'}),
        ]
    )
    properties = {"delta.constraints.big": "a > 'x'", "delta.other": "1"}

    def constraints(*, null_breaks_members: bool) -> dict[str, str]:
        log: Any = SimpleNamespace(
            schema=lambda: schema, configuration=lambda: properties, null_breaks_members=null_breaks_members
        )
        return table_constraints(log)

    member = "column c.n`m: null, wanted NOT NULL"
    assert constraints(null_breaks_members=True)[member] == "`c`.`n``m` IS NOT NULL"
    assert constraints(null_breaks_members=False) == {
        "the table's constraint big, a > 'x', is not met": "a > 'x'",
        "column a: null, wanted NOT NULL": "`a` IS NOT NULL",
        "column b: a longer text, wanted VARCHAR(3)": "`b` IS NULL OR char_length(`b`) <= 3",
        "column c: the table's c.x > 3 is not met": "c.x > 3",
        member: "`c` IS NULL OR `c`.`n``m` IS NOT NULL",
    }


@pytest.mark.spark
@pytest.mark.parametrize("key", [[], ["id"]], ids=["rows", "keys"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_undecoded_messages_are_reported_until_they_are_dealt_with(
    exporter: Exporter, table_format: str, key: list[str]
) -> None:
    how = ("--format", table_format)
    bodies = [*SOUND, LATE, b'{"id":4,"amount":12.345}']
    for undecoded in (2, 0, 0):  # and again, with nothing new
        report, code = run(exporter, bodies, *how, key=key)
        assert (report["undecoded"], report["pending_undecoded"], code) == (undecoded, 2, 1)
    bodies += [b'{"ID":5}', SOUND[1]]
    report, code = run(exporter, bodies, *how, key=key)
    assert (report["undecoded"], report["pending_undecoded"], code) == (1, 3, 1)
    report, code = run(exporter, bodies, *how, "--from-offset", "0", key=key, timestamp_unit="ms")
    assert (report["pending_undecoded"], code) == (2, 1)  # a spec that is mended in part
    assert [row["id"] for row in rows(exporter, table_format, "typed") if row["ts"]][-1] in {2, 3}
    report, code = run(exporter, bodies, *how, "--accept-undecoded", "T", key=key)
    assert (report["pending_undecoded"], code) == (0, 0)
    assert run(exporter, bodies, *how, key=key)[1] == 0
    bodies.append(LATE)
    assert run(exporter, bodies, *how, key=key)[0]["pending_undecoded"] == 1
    dead = ("--dlq-table", str(exporter.work / "dead"))
    report, code = run(exporter, bodies, *how, *dead, key=key)
    assert (report["pending_undecoded"], code) == (0, 0)
    reasons = [row["reason"] for row in rows(exporter, table_format, "dead")]
    assert reasons == [
        "column ts: number 1700000000000, wanted TIMESTAMP: a text, or a number of s, of years 1 to 9999",
        "column amount: number 12.345, wanted DECIMAL(12,2) without rounding",
        "the body has none of the members amount, id, ts, txt; it has ID",
        "column ts: number 1700000000000, wanted TIMESTAMP: a text, or a number of s, of years 1 to 9999",
    ]
    assert run(exporter, bodies, *how, key=key)[1] == 0
    first = rows(exporter, table_format, "typed")[0]
    assert (first["txt"], first["ts"].year, first["ts"].microsecond) == ("0.10", 9999, 999_999)
    with pytest.raises(OptionError, match="--accept-undecoded X: --typed names no such topic, and --table is another"):
        run(exporter, bodies, "--accept-undecoded", "X")


@pytest.mark.spark
@pytest.mark.long
def test_a_row_for_which_an_expression_of_the_table_cannot_be_computed_is_a_dead_letter(exporter: Exporter) -> None:
    spark, table = exporter.spark, f"delta.`{exporter.work / 'typed'}`"
    columns = "id BIGINT, total INT, s STRING, st STRUCT<a: VARCHAR(3), l: ARRAY<VARCHAR(2)>>"
    spark.sql(
        f"CREATE TABLE {table} (physical_offset BIGINT, {columns}, d DATE GENERATED ALWAYS AS (CAST(s AS DATE))) "
        "USING delta"
    )
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (total / id < 100)")
    bodies = [
        b'{"id":1,"total":5,"s":"2024-01-31","st":{"a":"abc","l":["ab"]}}', b'{"id":0,"total":5}',
        b'{"id":2,"total":5,"s":"abc"}', b'{"id":3,"total":5,"st":{"a":"abcd"}}',
        b'{"id":4,"total":5,"st":{"a":"a","l":["a",null,"abc"]}}', b'{"id":5,"total":5}',
    ]  # fmt: skip
    schema = "id BIGINT, total INT, s STRING, st STRUCT<a: STRING, l: ARRAY<STRING>>"
    report, code = run(exporter, bodies, "--dlq-table", str(exporter.work / "dead"), "--adopt", schema=schema)
    assert (report["messages"], report["undecoded"], code) == (2, 4, 0)
    assert [row.id for row in exporter.rows("typed")] == [1, 5]
    reasons = [row.reason for row in exporter.rows("dead")]
    assert reasons[0] == "the table's constraint small, total / id < 100, is not met"
    assert reasons[1].startswith("column d: cannot be computed by CAST(s AS DATE)")
    assert [reason.partition(",")[0] for reason in reasons[2:]] == ["column st: a longer text"] * 2


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("key", [[], ["id"]], ids=["rows", "keys"])
def test_texts_that_spark_s_writer_cannot_have_in_partitions_are_dead_letters(
    exporter: Exporter, key: list[str]
) -> None:
    texts = ["a", "__HIVE_DEFAULT_PARTITION__", "a\0b", "L" * 300, "", "b"]
    bodies = [json.dumps({"id": number, "region": text}).encode() for number, text in enumerate(texts)]
    columns = "physical_offset BIGINT, id BIGINT, at TIMESTAMP_NTZ, region STRING"
    exporter.spark.sql(
        f"CREATE TABLE delta.`{exporter.work / 'typed'}` ({columns}) USING delta PARTITIONED BY (region)"
    )
    how = {"schema": "id BIGINT, region STRING, at TIMESTAMP_NTZ", "key": key, "partition_by": ["region"]}
    report, code = run(exporter, bodies, "--adopt", "--dlq-table", str(exporter.work / "dead"), **how)
    assert (report["messages"], report["undecoded"], code) == (2, 4, 0)
    assert sorted((row.id, row.region) for row in exporter.spark_rows("typed")) == [(0, "a"), (5, "b")]
    reasons = [row.reason for row in exporter.rows("dead")]
    assert [reason.partition(":")[0] for reason in reasons] == ["column region"] * 4


@pytest.mark.spark
@pytest.mark.long
def test_what_a_constraint_of_the_table_refuses_is_a_dead_letter(exporter: Exporter) -> None:
    run(exporter, SOUND[:1])
    table = f"delta.`{exporter.work / 'typed'}`"
    exporter.spark.sql(f"ALTER TABLE {table} ADD COLUMNS (other INT)")
    exporter.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < 100)")
    exporter.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT whose CHECK (topic = 'T' AND other IS NULL)")
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT"):  # Delta takes null for not met, too
        exporter.spark.sql(f"INSERT INTO {table} (topic) VALUES ('T')")
    bodies = [*SOUND, b'{"id":100}', b'{"txt":"x"}', b'{"id":7}']
    report, code = run(exporter, bodies, "--dlq-table", str(exporter.work / "dead"))
    assert (report["messages"], report["undecoded"], code) == (2, 2, 0)
    assert [row.id for row in exporter.rows("typed")] == [1, 2, 7]
    assert {row.reason for row in exporter.rows("dead")} == {"the table's constraint small, id < 100, is not met"}
    assert [bytes(row.body) for row in exporter.rows("dead")] == bodies[2:4]


def files_of(table: Path) -> list[str]:
    return sorted(map(str, table.rglob("*.parquet")))


@pytest.mark.spark
@pytest.mark.long
def test_each_engine_reads_the_edges_of_time_and_number(exporter: Exporter) -> None:
    duckdb, polars, deltalake = map(pytest.importorskip, ("duckdb", "polars", "deltalake"))
    edges = [
        b'{"id":-9223372036854775808,"ts":"0001-01-01T00:00:00Z","amount":-9999999999.99}',
        b'{"id":9223372036854775807,"ts":"9999-12-31T23:59:59.999999Z","amount":9999999999.99}',
    ]
    wanted = [(-(1 << 63), "0001-01-01 00:00:00"), ((1 << 63) - 1, "9999-12-31 23:59:59.999999")]
    for table_format in ("delta", "iceberg"):
        where = ("--format", table_format, "--table", str(exporter.work / f"raw_{table_format}"))
        assert run(exporter, edges, *where, table=f"typed_{table_format}")[1] == 0
    raw, typed = exporter.work / "raw_delta", exporter.work / "typed_delta"

    def text(time: Any) -> str:
        return str(time.replace(tzinfo=None)).zfill(19)

    spark = exporter.spark.read.format("delta").load(str(typed)).orderBy("id")
    assert [tuple(row) for row in spark.selectExpr("id", "cast(ts AS STRING)").collect()] == wanted
    for name in ("typed_delta", "typed_iceberg"):
        found = duckdb.execute(
            "SELECT id, strftime(ts AT TIME ZONE 'UTC', '%Y-%m-%d %H:%M:%S'), amount::VARCHAR FROM read_parquet(?) "
            "ORDER BY id",
            [files_of(exporter.work / name)],
        ).fetchall()
        assert [row[0] for row in found] == [row[0] for row in wanted]
        assert [row[1][-14:] for row in found] == [row[1][5:19] for row in wanted]
        assert [row[2] for row in found] == ["-9999999999.99", "9999999999.99"]
    frame = polars.scan_delta(str(typed)).select("id", polars.col("ts").cast(polars.Int64)).sort("id").collect()
    assert frame.rows() == [(wanted[0][0], -62135596800000000), (wanted[1][0], 253402300799999999)]
    for table in (raw, typed):
        times = deltalake.DeltaTable(str(table)).to_pyarrow_table()
        assert str(times.schema.field("store_timestamp").type) == "timestamp[us, tz=UTC]"
    arrow = deltalake.DeltaTable(str(typed)).to_pyarrow_table().sort_by("id")
    for held in (arrow, table_of(exporter, "typed_iceberg").scan().to_arrow().sort_by("id")):
        assert [(row["id"], text(row["ts"])) for row in held.to_pylist()] == wanted


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("more", [{}, {"key": ["id"]}, {"cluster_by": ["odd-name"]}])
def test_filters_of_delta_rs_find_rows_by_columns_without_bounds(exporter: Exporter, more: dict[str, Any]) -> None:
    schema = "id BIGINT, amount DECIMAL(12,2), ok BOOLEAN, `odd-name` STRING"
    rows = [{"id": number, "amount": number, "ok": number % 2 == 0, "odd-name": "x"} for number in range(4)]
    bodies = [json.dumps(row).encode() for row in rows]
    assert run(exporter, bodies, schema=schema, **more)[1] == 0
    table = DeltaTable(str(exporter.work / "typed"))
    for condition, count in ((("amount", "=", Decimal(1)), 1), (("ok", "=", True), 2), (("odd-name", "=", "x"), 4)):
        assert table.to_pyarrow_table(filters=[condition]).num_rows == count, condition


@pytest.mark.long
@pytest.mark.spark
def test_a_message_that_a_raw_table_refuses_does_not_end_the_run(exporter: Exporter) -> None:
    def export(bodies: list[bytes], *arguments: str) -> dict[str, Any]:
        write(exporter.store, [("T", body) for body in bodies])
        report, code = exporter.run(*arguments)
        assert code == (1 if report["pending_undecoded"] else 0)
        return {name: report[name] for name in ("messages", "undecoded", "pending_undecoded")}

    bodies = [b"1", b"2"]
    assert export(bodies) == {"messages": 2, "undecoded": 0, "pending_undecoded": 0}
    table = f"delta.`{exporter.table}`"
    exporter.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (octet_length(body) < 3)")
    bodies += [b"long", b"3"]
    assert export(bodies) == {"messages": 1, "undecoded": 1, "pending_undecoded": 1}
    assert export(bodies) == {"messages": 0, "undecoded": 0, "pending_undecoded": 1}
    bodies += [b"4", b"longer"]
    assert export(bodies, "--accept-undecoded", str(exporter.table))["pending_undecoded"] == 0
    bodies += [b"5", b"longest"]
    dead = exporter.work / "dead"
    assert export(bodies, "--dlq-table", str(dead)) == {"messages": 1, "undecoded": 1, "pending_undecoded": 0}
    assert export(bodies, "--dlq-table", str(dead))["messages"] == 0
    assert [bytes(row.body) for row in exporter.rows()] == [b"1", b"2", b"3", b"4", b"5"]
    assert [bytes(row.body) for row in exporter.rows("dead")] == [b"long", b"longer", b"longest"]
    reasons = {row.reason for row in exporter.rows("dead")}
    assert reasons == {"the table's constraint small, octet_length ( body ) < 3, is not met"}
