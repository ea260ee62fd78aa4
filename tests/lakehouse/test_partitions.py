"""Partitions by columns, by hours and days of times, and by Iceberg's transforms."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampType
from pyspark.sql.types import StringType as SparkString

from jobs import export_delta
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.partition_columns import check_partitions
from rmq_lakehouse.partitions import parse_partition, partition_texts
from rmq_lakehouse.spec import load_spec
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import FILE_BYTES, HOST, write
from tests.support.stores.store_files import write_commitlog

FIRST_MS = 1_700_000_000_000  # 2023-11-14 22:13:20
HOUR_MS = 3_600_000
ICEBERG = ("--format", "iceberg")


def write_hours(store: Path, hours: int) -> None:
    """Write a message each half hour, born a day before it is stored; the topics change each hour."""
    messages = [
        MessageToStore(
            topic=("Orders", "Ordinary", "Clicks")[number // 2 % 3],
            queue_id=0,
            body=b"%d" % number,
            properties_bytes=encode_properties({"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}"}),
            born_timestamp_ms=FIRST_MS + number * HOUR_MS // 2 - 24 * HOUR_MS,
            born_host=HOST,
            store_host=HOST,
        )
        for number in range(2 * hours)
    ]
    write_commitlog(store, messages, FILE_BYTES, FIRST_MS, HOUR_MS // 2)


def hour_of(hour: int, days: int = 0) -> datetime:
    """Return the begin of an hour of ``write_hours``."""
    time = datetime.fromtimestamp(FIRST_MS / 1000, UTC) + timedelta(hours=hour, days=days)
    return time.replace(minute=0, second=0, microsecond=0)


def table_of(exporter: Exporter) -> Any:
    """Load the Iceberg table."""
    return IcebergLocation(str(exporter.table), {}).load()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("topic, date", ("topic", "date")),
        ("hours( store_timestamp )", ("hour(store_timestamp)",)),
        ("topic,bucket(16, uniq_key),truncate(4,topic)", ("topic", "bucket(16, uniq_key)", "truncate(4, topic)")),
        ("identity(topic)", ("topic",)),
    ],
)
def test_partitions_are_columns_and_transforms(text: str, parsed: tuple[str, ...]) -> None:
    assert partition_texts(text) == parsed


@pytest.mark.parametrize("text", ["", "topic,", "hour()", "week(date)", "bucket(uniq_key)", "bucket(0, a)", "hour(a"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|is no transform"):
        partition_texts(text)


def test_partition_fields_have_the_names_of_iceberg_s_alter_table() -> None:
    texts = ("hour(t)", "bucket(16, k)", "truncate(4, k)", "k")
    assert [parse_partition(text).field_name for text in texts] == ["t_hour", "k_bucket_16", "k_trunc_4", "k"]


@pytest.mark.parametrize(
    ("partitions", "reason"),
    [
        (("bucket(16, keys)",), "keys is array<string>. Give bucket a column of single values"),
        (("hour(n)",), "n is bigint. Give hour a column of another type"),
        (("keys",), "its type array<string> makes no partitions"),
        (("day(x)",), "unknown column 'x'"),
    ],
)
def test_a_transform_needs_a_column_of_its_type(partitions: tuple[str, ...], reason: str) -> None:
    columns = {"keys": ArrayType(SparkString()), "n": LongType(), "t": TimestampType()}
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(OptionError) as refused:
        check_partitions(partitions, schema, "--partition-by")
    assert reason in str(refused.value)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_partitions_by_one_thing_are_refused_before_there_is_a_table(tmp_path: Path, table_format: str) -> None:
    exporter, spec = LocalExporter(tmp_path / "store", tmp_path / "table"), tmp_path / "spec.json"
    write(exporter.store, [("T", b'{"a":"x"}')])
    raw = ("date,date", "hour(born_timestamp),day(born_timestamp)") if table_format == "iceberg" else ("date,date",)
    for partitions in raw:
        with pytest.raises(OptionError, match=r"^--partition-by .* already makes such partitions"):
            exporter.run("--format", table_format, "--partition-by", partitions)
    refused = {("a", "a"): "partition_by a: a already makes such", ("date",): "'date' is column 'Date' of the schema"}
    for names, reason in refused.items():
        topic = {"topic": "T", "format": "json", "schema": "a STRING, `Date` STRING", "table": "typed"}
        spec.write_text(json.dumps({"topics": [{**topic, "partition_by": names}]}))
        with pytest.raises(OptionError, match=reason):
            exporter.run("--format", table_format, "--typed", str(spec), table=False)
    assert {path.name for path in tmp_path.iterdir()} <= {"store", "spec.json", "iceberg_catalog.db"}


def test_delta_refuses_a_transform_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / "00000000000000000000").write_bytes(bytes(4096))
    arguments = ["--store", str(tmp_path / "store"), "--table", str(tmp_path / "table"), "--partition-by", "hour(date)"]
    with pytest.raises(OptionError) as refused:
        export_delta.check(export_delta.parser().parse_args(arguments))
    assert str(refused.value) == (
        "--partition-by hour(date): Delta has no partition transforms. "
        "Give columns, such as date, hour, born_date, born_hour"
    )


@pytest.mark.spark
class TestDelta:
    """Delta tables."""

    def test_hours_make_partitions_that_each_reader_prunes(self, exporter: Exporter) -> None:
        write_hours(exporter.store, 3)
        report, code = exporter.run("--partition-by", "hour")
        assert (report["messages"], report["files"], code) == (6, 3, 0)
        table = DeltaTable(str(exporter.table))
        assert table.metadata().partition_columns == ["hour"]
        rows = table.to_pyarrow_dataset().to_table(filter=None).to_pylist()
        assert {row["hour"] for row in rows} == {hour_of(hour) for hour in range(3)}
        condition = f"hour = TIMESTAMP '{hour_of(1):%Y-%m-%d %H:%M:%S}Z'"
        frame = exporter.spark.read.format("delta").load(str(exporter.table)).where(condition)
        assert (frame.count(), len(frame.inputFiles())) == (2, 1)
        scan = pl.scan_delta(str(exporter.table)).filter(pl.col("hour") == hour_of(1)).collect()
        assert scan["store_timestamp"].dt.truncate("1h").unique().to_list() == [hour_of(1)]
        messages = table.to_pyarrow_dataset()
        counted = duckdb.connect().execute("SELECT count(*), min(hour) FROM messages WHERE hour > ?", [hour_of(0)])
        assert counted.fetchone() == (4, hour_of(1))
        assert messages.schema.field("hour").nullable

    @pytest.mark.long
    def test_spark_s_writer_makes_the_partitions_that_tasks_make(self, exporter: Exporter) -> None:
        write_hours(exporter.store, 2)
        exporter.run("--partition-by", "topic,born_hour,born_date", "--topics", "Orders")
        exporter.run("--partition-by", "topic,born_hour,born_date")  # leaves out rows that are there: by Spark
        files = pl.DataFrame(DeltaTable(str(exporter.table)).get_add_actions(flatten=True)).to_dicts()
        assert {(file["partition.topic"], file["partition.born_hour"]) for file in files} == {
            ("Orders", hour_of(0, -1)), ("Ordinary", hour_of(1, -1)),
        }  # fmt: skip
        added = [path.read_text() for path in sorted(exporter.table.glob("_delta_log/*.json"))]
        assert all('"born_hour":"2023-11-13T2' in text for text in added if '"add"' in text.replace(" ", ""))

    def test_a_table_with_other_partitions_is_refused(self, exporter: Exporter) -> None:
        write_hours(exporter.store, 1)
        exporter.run("--partition-by", "hour")
        with pytest.raises(StoreError, match="is partitioned by hour, not topic,date"):
            exporter.run()


@pytest.mark.spark
class TestIceberg:
    """Iceberg tables, whose partitions are hidden."""

    def test_hours_of_the_store_time_are_pruned_by_filters_of_the_time(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        write_hours(exporter.store, 3)
        report, code = exporter.run(*ICEBERG, "--partition-by", "hour(store_timestamp)")
        assert (report["messages"], report["files"], code) == (6, 3, 0)
        table = table_of(exporter)
        assert str(table.spec().fields[0]) == "1000: store_timestamp_hour: hour(12)"
        assert "hour" not in [field.name for field in table.schema().fields]
        condition = And(
            GreaterThanOrEqual("store_timestamp", hour_of(1).isoformat()),
            LessThan("store_timestamp", hour_of(2).isoformat()),
        )
        (task,) = table.scan(row_filter=condition).plan_files()
        assert task.file.partition[0] == int(hour_of(1).timestamp()) // 3600
        assert table.scan(row_filter=condition).to_arrow().num_rows == 2
        frame = pl.scan_iceberg(table).filter(pl.col("store_timestamp") >= hour_of(2)).collect()
        assert frame.height == 2
        with table.scan(row_filter=condition).to_duckdb("messages") as duck:
            assert duck.execute("SELECT count(*) FROM messages").fetchone() == (2,)

    @pytest.mark.parametrize(
        ("partition", "files"),
        [("bucket(4, uniq_key)", 4), ("truncate(3, topic)", 2), ("day(born_timestamp),identity(topic)", 3)],
    )
    def test_transforms_make_partitions(self, exporter: Exporter, partition: str, files: int) -> None:
        write_hours(exporter.store, 3)
        arguments = *ICEBERG, "--partition-by", partition
        report, _ = exporter.run(*arguments)
        tasks = list(table_of(exporter).scan().plan_files())
        assert (report["messages"], len(tasks)) == (6, files)
        write_hours(exporter.store, 5)
        assert exporter.run(*arguments, "--optimize")[0]["messages"] == 4
        table = table_of(exporter)
        assert table.scan().to_arrow().num_rows == 10
        if "bucket" in partition:
            (task,) = table.scan(row_filter=EqualTo("uniq_key", "u3")).plan_files()
            assert task.file.partition[0] == BucketTransform(4).transform(StringType())("u3")

    def test_rows_that_spark_writes_have_the_partitions_too(self, exporter: Exporter) -> None:
        write_hours(exporter.store, 3)
        exporter.run(*ICEBERG, "--partition-by", "hour(store_timestamp)", "--topics", "Orders")
        exporter.run(*ICEBERG, "--partition-by", "hour(store_timestamp)")
        files = [task.file for task in table_of(exporter).scan().plan_files()]
        assert sorted(file.partition[0] for file in files) == [
            int(hour_of(hour).timestamp()) // 3600 for hour in range(3)
        ]

    def test_a_bucket_of_an_array_is_refused(self, exporter: Exporter) -> None:
        write_hours(exporter.store, 1)
        with pytest.raises(OptionError, match=r"bucket\(16, keys\): keys is array<string>. Give bucket a column of"):
            exporter.run(*ICEBERG, "--partition-by", "bucket(16, keys)")


@pytest.mark.spark
@pytest.mark.long
def test_optimize_and_retention_leave_partitions_out_that_spark_would_lose(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    topics = ["__HIVE_DEFAULT_PARTITION__", "%RETRY%" + "g" * 240, "Orders"]
    messages = [(topic, b"x") for topic in topics]
    for count in (1, 2):
        write(exporter.store, messages * count)
        exporter.run()
    exporter.run("--optimize", "--retention", "100000")
    rows = exporter.rows()
    assert [row.topic for row in rows] == topics * 2
    table = DeltaTable(str(exporter.table))
    files = table.get_add_actions(flatten=True).select(["partition.topic"])["partition.topic"].to_pylist()
    assert sorted(map(files.count, topics)) == [1, 2, 2]
    assert caplog.text.count("leaves out partitions of topic whose texts Spark's writer does not keep") == 2


def write_orders(exporter: Exporter, bodies: Sequence[str]) -> None:
    """Write a body an hour to topic Orders, each born a day before."""
    messages = [
        MessageToStore(
            topic="Orders",
            queue_id=0,
            body=body.encode(),
            born_timestamp_ms=FIRST_MS + (number - 24) * HOUR_MS,
            born_host=HOST,
            store_host=HOST,
        )
        for number, body in enumerate(bodies)
    ]
    write_commitlog(exporter.store, messages, FILE_BYTES, FIRST_MS, HOUR_MS)


def write_spec(exporter: Exporter, partition_by: str, key: str = "") -> str:
    """Write the spec of a typed table; return its path."""
    path = exporter.work / "spec.toml"
    schema = "id BIGINT, placed TIMESTAMP"
    path.write_text(
        f'[[topics]]\ntopic = "Orders"\nformat = "json"\nschema = "{schema}"\ntable = "table"\n'
        f"partition_by = {partition_by}\n{key}"
    )
    return str(path)


ORDERS = ('{"id":1,"placed":"2024-01-31T10:00:00Z"}', '{"id":2,"placed":"2024-02-01T10:00:00Z"}')


@pytest.mark.spark
class TestTyped:
    """Typed tables."""

    def test_hours_make_partitions_of_a_delta_table(self, exporter: Exporter) -> None:
        write_orders(exporter, ORDERS)
        exporter.run("--typed", write_spec(exporter, '["hour", "born_date"]'), table=False)
        rows = exporter.rows()
        assert [(row.hour, str(row.born_date)) for row in rows] == [
            (hour_of(number).replace(tzinfo=None), str(hour_of(number, -1).date())) for number in range(2)
        ]
        assert DeltaTable(str(exporter.table)).metadata().partition_columns == ["hour", "born_date"]
        with pytest.raises(StoreError, match="is partitioned by hour,born_date, not nothing"):
            exporter.run("--typed", write_spec(exporter, "[]"), table=False)

    @pytest.mark.long
    def test_a_row_of_a_key_moves_to_another_partition(self, exporter: Exporter) -> None:
        write_orders(exporter, ORDERS)
        spec = write_spec(exporter, '["day(placed)"]', 'key = ["id"]')
        exporter.run(*ICEBERG, "--typed", spec, table=False)
        write_orders(exporter, [*ORDERS, '{"id":1,"placed":"2024-03-01T00:00:00Z"}'])
        exporter.run(*ICEBERG, "--typed", spec, table=False)
        table = table_of(exporter)
        (task,) = table.scan(row_filter=GreaterThanOrEqual("placed", "2024-03-01T00:00:00+00:00")).plan_files()
        assert task.file.partition[0] == (datetime(2024, 3, 1) - datetime(1970, 1, 1)).days
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 2]


@pytest.mark.spark
@pytest.mark.parametrize("is_local", [False, True])
def test_a_vacuum_keeps_files_of_partitions_whose_column_has_any_name(exporter: Exporter, is_local: bool) -> None:
    names, texts = ["gr\u00f6\u00dfe", "\u57ce\u5e02", "a&b'#%+:x", "z"], ["Berlin", "\u6771\u4eac/1 %"]
    bodies = [json.dumps({"id": number, **dict.fromkeys(names, text)}) for number, text in enumerate(texts)]
    write(exporter.store, [("Orders", body.encode()) for body in bodies])
    spec = exporter.work / "spec.json"
    schema = ", ".join(f"`{name}` STRING" for name in names)
    topic = {"topic": "Orders", "format": "json", "schema": f"id BIGINT, {schema}", "table": "table"}
    spec.write_text(json.dumps({"topics": [{**topic, "partition_by": names}]}))
    runner: Any = LocalExporter(exporter.store, exporter.table) if is_local else exporter
    report, _ = runner.run("--typed", str(spec), table=False)
    assert report["messages"] == len(texts)
    exporter.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    exporter.spark.sql(f"VACUUM delta.`{exporter.table}` RETAIN 0 HOURS")
    exporter.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    DeltaTable(exporter.table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    frame = pl.read_delta(str(exporter.table), use_pyarrow=True).sort("id")
    for name in names:
        assert [row[name] for row in exporter.spark_rows("table")] == texts
        assert frame[name].to_list() == texts


@pytest.mark.spark
def test_tags_that_are_no_partition_are_dead_letters_of_a_table_with_a_key(exporter: Exporter) -> None:
    tags = ["blue", "t" * 300, "__HIVE_DEFAULT_PARTITION__", "", "\u6771" * 90, None]
    messages = [
        MessageToStore(
            topic="Orders",
            queue_id=0,
            body=b'{"id":%d}' % number,
            born_timestamp_ms=FIRST_MS,
            born_host=HOST,
            store_host=HOST,
            properties_bytes=encode_properties({} if tag is None else {"TAGS": tag}),
        )
        for number, tag in enumerate(tags)
    ]
    write_commitlog(exporter.store, messages, FILE_BYTES, FIRST_MS, HOUR_MS)
    spec = write_spec(exporter, '["tags"]', 'key = ["id"]')
    report, code = exporter.run("--typed", spec, "--dlq-table", str(exporter.work / "dead"), table=False)
    assert (code, report["messages"], report["undecoded"]) == (0, 3, 3)
    assert [(row.id, row.tags) for row in exporter.rows()] == [(0, "blue"), (3, None), (5, None)]
    too_long, null, wide = (row.reason for row in exporter.rows("dead"))
    assert too_long.endswith("' has 300 characters: the directory name would have 305 bytes, at most 255 are allowed")
    assert (
        null
        == "tags '__HIVE_DEFAULT_PARTITION__' is the text that Spark writes for null, so it cannot be a partition value"
    )
    assert wide.endswith("' has 90 characters: the directory name would have 275 bytes, at most 255 are allowed")


def test_a_spec_has_partitions_or_clusters(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        '[[topics]]\ntopic = "T"\nformat = "json"\nschema = "a INT"\ntable = "t"\n'
        'partition_by = ["a"]\ncluster_by = ["a"]\n'
    )
    with pytest.raises(OptionError, match="partition_by and cluster_by exclude each other"):
        load_spec(str(path))
