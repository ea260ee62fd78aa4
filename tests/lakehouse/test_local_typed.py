"""Typed tables by ``rmq export`` without Spark: rows, dead letters, what is undecoded, and turns with the job."""

import json
import shutil
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.types import LongType

from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse import typed_table
from rmq_lakehouse.iceberg import table as iceberg_table
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.iceberg.table import IcebergTransaction
from rmq_lakehouse.local.delta_log import DeltaRsTableLog
from rmq_lakehouse.local.table_log import NeedsSparkError
from rmq_lakehouse.typed_files import write_typed_files
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import FILE_BYTES, write
from tests.lakehouse.test_local_export import rmq
from tests.support.stores.store_files import flip

SCHEMA = """id BIGINT COMMENT 'the order', ts TIMESTAMP, txt STRING, amount DECIMAL(12,2), day DATE, ok BOOLEAN,
    x DOUBLE, lines ARRAY<STRUCT<sku: STRING, n: SMALLINT>>, by MAP<STRING, INT>, of STRUCT<a: BINARY, b: FLOAT>"""
TOPIC: dict[str, Any] = {"topic": "T", "format": "json", "schema": SCHEMA, "table": "typed"}
WHOLE = {
    "id": 1, "ts": "9999-12-31T23:59:59.999999Z", "txt": "a", "day": "2024-02-03", "ok": True, "x": 1.5,
    "lines": [{"sku": "s", "n": 3}, None], "by": {"k": 7}, "of": {"a": "YWI=", "b": 0.5}, "more": 1,
}  # fmt: skip
SOUND = [json.dumps(WHOLE).encode(), b'{"id":2,"ts":1700000000,"amount":12.340,"txt":0.10}', b'{"id":3}']
LATE = b'{"id":4,"ts":1700000000000}'  # milliseconds
REASON = "column ts: number 1700000000000, wanted TIMESTAMP: a text, or a number of s, of years 1 to 9999"


class TypedExporter(LocalExporter):
    """Runs ``rmq export --typed`` on one store, in one table format."""

    def __init__(self, work: Path, table_format: str) -> None:
        super().__init__(work / "store", work / "raw")
        self.work, self.format = work, table_format
        self.dead = ("--dlq-table", str(work / "dead"))

    def words(self, *arguments: str, **more: Any) -> list[str]:
        topics = more.pop("topics", [{**TOPIC, **more}])
        spec = self.work / "spec.json"
        spec.write_text(json.dumps({"topics": topics}))
        return ["--typed", str(spec), "--format", self.format, *arguments]

    def send(self, bodies: list[bytes]) -> list[int]:
        return write(self.store, [("T", body) for body in bodies])

    def typed(self, *arguments: str, **more: Any) -> tuple[dict[str, Any], int]:
        return self.run(*self.words(*arguments, **more), table=False)

    def rows(self, name: str = "typed", order: str = "physical_offset") -> list[dict[str, Any]]:
        path = str(self.work / name)
        if self.format == "iceberg":
            table = IcebergLocation(path, {}).load()
            assert table is not None
            arrow = table.scan().to_arrow()
        else:
            arrow = DeltaTable(path).to_pyarrow_table()
        rows: list[dict[str, Any]] = arrow.sort_by(order).to_pylist()
        return rows


@pytest.fixture(params=["delta", "iceberg"])
def local(tmp_path: Path, request: pytest.FixtureRequest) -> TypedExporter:
    return TypedExporter(tmp_path, request.param)


@pytest.mark.parametrize("schema", ["`a b` BIGINT", "id BIGINT, s STRUCT<`x=1`: INT>"])
def test_names_that_delta_refuses_are_told_before_there_is_a_table(tmp_path: Path, schema: str) -> None:
    local = TypedExporter(tmp_path, "delta")
    local.send(SOUND)
    with pytest.raises(
        StoreError, match=r"typed: column '(a b|s\.x=1)': without column mapping Delta allows no spaces"
    ):
        local.typed(schema=schema)
    assert not (tmp_path / "typed" / "_delta_log").exists()


@pytest.mark.long
def test_the_command_needs_neither_pyspark_nor_java(local: TypedExporter) -> None:
    placed = local.send([*SOUND, LATE])
    done = rmq("export", local.store, *local.words(*local.dead))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["messages"], report["undecoded"], report["exports"]) == (3, 1, {"T": 3})
    assert [row["physical_offset"] for row in local.rows()] == placed[:3]


def test_bodies_become_columns_and_what_does_not_decode_a_dead_letter(local: TypedExporter) -> None:
    placed = local.send([*SOUND, LATE, b"{bad", b"", b'{"ID":5}'])
    how: dict[str, Any] = {"on_mismatch": "rescue", "metadata_prefix": "m_"}
    report, code = local.typed(*local.dead, **how)
    assert (report["messages"], report["undecoded"], report["pending_undecoded"], code) == (4, 3, 0, 0)
    assert report["bytes"] == placed[4] - placed[0]
    first, second, third, late = local.rows(order="m_physical_offset")
    assert (first["id"], first["ts"].year, first["ts"].microsecond) == (1, 9999, 999_999)
    assert (first["lines"], first["by"]) == ([{"sku": "s", "n": 3}, None], [("k", 7)])
    assert (first["of"], first["day"].isoformat()) == ({"a": b"ab", "b": 0.5}, "2024-02-03")
    assert (second["txt"], str(second["amount"]), second["ts"].timestamp()) == ("0.10", "12.34", 1_700_000_000)
    assert (third["id"], third["of"], third["_rescued"]) == (3, None, None)
    assert (late["id"], late["ts"], late["_rescued"]) == (4, None, '{"ts":1700000000000}')
    assert (late["m_topic"], late["m_queue_id"]) == ("T", 0)
    dead = local.rows("dead")
    assert [bytes(row["body"]) for row in dead] == [b"{bad", b"", b'{"ID":5}']
    assert [row["physical_offset"] for row in dead] == placed[4:]
    assert [row["reason"] for row in dead[:2]] == ["the body is not JSON of the schema", "the body is empty"]
    assert local.typed(*local.dead, **how)[0]["files"] == 0


def test_undecoded_messages_are_reported_until_they_are_dealt_with(local: TypedExporter) -> None:
    bodies = [*SOUND, LATE, b'{"id":4,"amount":12.345}']
    local.send(bodies)
    for undecoded in (2, 0, 0):  # and again, with nothing new
        report, code = local.typed()
        assert (report["undecoded"], report["pending_undecoded"], code) == (undecoded, 2, 1)
    bodies += [b'{"ID":5}', SOUND[1]]
    local.send(bodies)
    report, code = local.typed()
    assert (report["undecoded"], report["pending_undecoded"], code) == (1, 3, 1)
    report, code = local.typed("--from-offset", "0", timestamp_unit="ms")
    assert (report["messages"], report["pending_undecoded"], code) == (1, 2, 1)  # a spec that is mended in part
    assert [row["id"] for row in local.rows()] == [1, 2, 3, 4, 2]
    assert local.typed("--accept-undecoded", "T")[0]["pending_undecoded"] == 0
    assert local.typed()[1] == 0
    bodies.append(LATE)
    local.send(bodies)
    assert local.typed()[0]["pending_undecoded"] == 1
    report, code = local.typed(*local.dead)
    assert (report["messages"], report["pending_undecoded"], code) == (0, 0, 0)
    assert [row["reason"] for row in local.rows("dead")] == [
        REASON,
        "column amount: number 12.345, wanted DECIMAL(12,2) without rounding",
        "the body has none of the members amount, by, day, id, lines, of, ok, ts, txt, x; it has ID",
        REASON,
    ]
    assert local.typed()[1] == 0


def test_a_spec_that_is_mended_beside_new_dead_letters_leaves_no_message_in_no_table(local: TypedExporter) -> None:
    placed = local.send([*SOUND, LATE, b'{"id":5,"amount":12.345}'])
    assert local.typed()[0]["pending_undecoded"] == 2
    how: dict[str, Any] = {"timestamp_unit": "ms"}
    for _ in range(2):  # the late one decodes now, but is no row and no dead letter yet
        report, code = local.typed(*local.dead, **how)
        assert (report["pending_undecoded"], code) == (2, 1)
    assert [row["physical_offset"] for row in local.rows("dead")] == placed[4:5]
    report, code = local.typed(*local.dead, "--from-offset", str(placed[3]), **how)
    assert (report["pending_undecoded"], code) == (0, 0)
    assert [row["physical_offset"] for row in local.rows()] == placed[:4]


def test_a_text_whose_cut_bound_would_be_no_text_is_a_row(local: TypedExporter) -> None:
    text = "k" * 15 + "\ud7ff" + "zz"
    local.send([json.dumps({"id": 1, "txt": text}).encode()])
    local.typed(*local.dead, schema="id BIGINT, txt STRING")
    assert [row["txt"] for row in local.rows()] == [text]


def test_half_a_surrogate_pair_is_rescued_as_it_was_sent(local: TypedExporter) -> None:
    local.send([b'{"id":1,"txt":"a\\ud800"}', b'{"id":{"\\udfff":1}}'])
    local.typed(*local.dead, schema="id BIGINT, txt STRING", on_mismatch="rescue")
    rescued = [json.loads(row["_rescued"]) for row in local.rows()]
    assert rescued == [{"txt": "a\ud800"}, {"id": {"\udfff": 1}}]


@pytest.mark.parametrize("explode", [False, True])
def test_texts_that_are_no_partitions_of_delta_are_dead_letters(local: TypedExporter, explode: bool) -> None:
    texts = ["a", "", None, "__HIVE_DEFAULT_PARTITION__", "a\0b", "L" * 251, "L" * 252, "%" * 83, "%" * 84, "é" * 126]
    rows = [{"id": number, "txt": text} for number, text in enumerate(texts)]
    local.send([json.dumps([row] if explode else row).encode() for row in rows])
    local.typed(*local.dead, schema="id BIGINT, txt STRING", partition_by=["txt"], explode=explode)
    kept = [(row["id"], row["txt"]) for row in local.rows()]
    reasons = [row["reason"] for row in local.rows("dead")]
    if local.format == "iceberg":
        assert (kept, reasons) == (list(enumerate(texts)), [])
    else:
        element = "element 0: " if explode else ""
        assert kept == [(number, texts[number]) for number in (0, 2, 5, 7)]
        assert reasons[:3] == [
            f"{element}column txt: an empty text, which a partition of a Delta table makes null",
            f"{element}column txt: the text __HIVE_DEFAULT_PARTITION__, which stands for null in a partition",
            f"{element}column txt: a text with the character U+0000, which no partition can have",
        ]
        long = f"{element}column txt: a text whose partition's directory has a name of 256 bytes, wanted at most 255"
        assert reasons[3:] == [long] * 3


def test_a_table_made_anew_with_another_spec_counts_what_the_dead_letters_lack(local: TypedExporter) -> None:
    placed = local.send([b'{"id":1,"day":"7"}', b'{"id":2,"day":"x"}', b'{"id":3,"day":"9"}'])
    local.typed(*local.dead, schema="id BIGINT, day STRING")
    how: dict[str, Any] = {"schema": "id BIGINT, day DATE", "table": "again"}
    for undecoded in (3, 0):
        report, code = local.typed(*local.dead, **how)
        assert (report["undecoded"], report["pending_undecoded"], code) == (undecoded, 3, 1)
    report, code = local.typed(*local.dead, "--from-offset", "0", **how)
    assert (report["pending_undecoded"], code) == (0, 0)
    assert [row["physical_offset"] for row in local.rows("dead")] == placed


def test_a_backfill_behind_the_undecoded_messages_adds_to_them(local: TypedExporter) -> None:
    bodies = [b"{bad", b"{bad", SOUND[2]]
    local.send(bodies)
    assert local.typed()[0]["pending_undecoded"] == 2
    bodies += [b"{bad"]
    placed = local.send(bodies)
    report, code = local.typed("--from-offset", str(placed[2]))
    assert (report["pending_undecoded"], code) == (3, 1)


def test_damaged_records_are_dead_letters_and_counted_as_damaged(local: TypedExporter) -> None:
    placed = local.send(SOUND)
    flip(local.store, placed[1] + 88, FILE_BYTES)  # the body
    report, code = local.typed(*local.dead)
    assert (report["messages"], report["damaged"], report["undecoded"], code) == (2, 1, 0, 1)
    assert [row["id"] for row in local.rows()] == [1, 3]
    assert [row["reason"] for row in local.rows("dead")] == ["body CRC does not match"]


def test_topics_share_the_dead_letters_beside_a_raw_table(local: TypedExporter) -> None:
    topics = [{**TOPIC, "topic": name, "table": name} for name in ("A", "B")]
    sent = [(name, body) for body in (SOUND[2], b"x") for name in ("A", "B")]
    words = local.words(*local.dead, topics=topics)
    write(local.store, [*sent, ("C", b"y")])
    assert local.run(*words)[0]["exports"] == {"raw": 5, "A": 1, "B": 1}
    write(local.store, [*sent, ("C", b"y"), ("B", SOUND[1]), ("A", b"z")])
    report, code = local.run(*words, "--mode", "available-now")
    assert (report["exports"], report["undecoded"], code) == ({"raw": 2, "A": 0, "B": 1}, 1, 0)
    assert [row["id"] for row in local.rows("B")] == [3, 2]
    assert [(row["topic"], bytes(row["body"])) for row in local.rows("dead")] == [("A", b"x"), ("B", b"x"), ("A", b"z")]


def test_each_object_of_an_array_is_a_row(local: TypedExporter) -> None:
    bodies = [
        b'[{"id":1},{"id":2}]', b'{"id":3}', b"[]", b'[{"id":9},{"id":"x"}]', b'[{"id":4,"txt":0.10},{"id":5}]', b"7",
    ]  # fmt: skip
    placed = local.send(bodies)
    how: dict[str, Any] = {"explode": True, "partition_by": ["queue_id", "date"]}
    report, code = local.typed(*local.dead, **how)
    # A message without elements is exported, and has no row.
    assert (report["messages"], report["undecoded"], code) == (4, 2, 0)
    assert report["bytes"] == placed[3] - placed[0] + placed[5] - placed[4]
    rows = sorted((row["physical_offset"], row["element_index"], row["id"], row["txt"]) for row in local.rows())
    assert rows == [
        (placed[0], 0, 1, None), (placed[0], 1, 2, None), (placed[1], 0, 3, None), (placed[4], 0, 4, "0.10"),
        (placed[4], 1, 5, None),
    ]  # fmt: skip
    assert [(row["reason"], bytes(row["body"])) for row in local.rows("dead")] == [
        ("element 1: column id: text 'x', wanted BIGINT", bodies[3]),
        ("the body is not one JSON object or array of objects", bodies[5]),
    ]
    local.send([*bodies, b'[{"id":6},{"id":7}]'])
    assert local.typed(*local.dead, "--from-offset", "0", **how)[0]["undecoded"] == 2
    assert len(local.rows()) == 7
    assert len(local.rows("dead")) == 2


def test_a_stream_of_typed_tables_needs_no_checkpoint(local: TypedExporter) -> None:
    placed = local.send([*SOUND, LATE] * 10)
    report, code = local.typed(*local.dead, "--mode", "available-now", "--max-bytes-per-trigger", "3000")
    assert report["batches"] > 1
    assert (report["messages"], report["undecoded"], code) == (30, 10, 0)
    assert sorted(row["physical_offset"] for row in (*local.rows(), *local.rows("dead"))) == placed


def test_partitions_and_new_columns_are_those_of_the_spec(local: TypedExporter) -> None:
    how = {"schema": "id BIGINT, kind STRING", "partition_by": ["kind", "hour"]}
    local.send([b'{"id":1,"kind":"a b"}', b'{"id":2}'])
    assert local.typed(**how)[0]["files"] == 2
    local.send([b'{"id":1,"kind":"a b"}', b'{"id":2}', b'{"id":3,"kind":"c","s":{"n":1}}'])
    assert local.typed(**{**how, "schema": f"{how['schema']}, s STRUCT<n: INT>"})[0]["messages"] == 1
    rows = local.rows()
    assert [(row["id"], row["kind"], row["s"]) for row in rows] == [
        (1, "a b", None), (2, None, None), (3, "c", {"n": 1}),
    ]  # fmt: skip
    assert {str(row["hour"]) for row in rows} == {"2023-11-14 22:00:00+00:00"}
    with pytest.raises(StoreError, match="is partitioned by kind,hour, not nothing"):
        local.typed(schema=how["schema"])
    with pytest.raises(OptionError, match="unknown column 'no'"):
        local.typed(partition_by=["no"])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"key": ["id"]}, "key is for the job"),
        ({"schema": "id VARIANT"}, "type variant in the schema is for the job"),
        ({"partition_by": ["ok"]}, "partition_by ok is for the job"),
    ],
    ids=str,
)
def test_what_only_the_job_can_is_refused_before_anything_is_written(
    local: TypedExporter, more: dict[str, Any], problem: str
) -> None:
    local.send(SOUND)
    with pytest.raises(NeedsSparkError, match=problem):
        local.typed(**more)
    assert not (local.work / "typed").exists()


def test_properties_for_delta_s_own_writer_are_left_to_the_job(tmp_path: Path) -> None:
    local = TypedExporter(tmp_path, "delta")
    local.send(SOUND)
    for name, value in (
        ("delta.columnMapping.mode", "name"), ("delta.checkpointInterval", "0"), ("delta.appendOnly", "yes"),
        ("delta.logRetentionDuration", "a week"), ("delta.logRetentionDuration", "interval 6 days"),
        ("delta.other", ""),
    ):  # fmt: skip
        with pytest.raises(NeedsSparkError, match=f"property {name} = {value} is for the job"):
            local.typed(properties={name: value})
    assert not (tmp_path / "typed").exists()


def test_schemas_that_cannot_be_used_are_refused(local: TypedExporter) -> None:
    local.send(SOUND)
    for more, problem in (
        ({"schema": "m MAP<INT, INT>"}, "keys of JSON are STRING"),
        ({"timestamp_unit": {"id": "ms"}}, "timestamp_unit names id, which is no column of times"),
        ({"timestamp_unit": {"tS": "ms"}}, "timestamp_unit names tS, which is no column of the schema"),
        ({"columns": ["ids"]}, "topic 'T': columns has 'ids', which is no column of the schema"),
        ({"schema": "keys STRING"}, "column 'keys' of the schema is a column of the message or comes twice"),
    ):
        with pytest.raises(OptionError, match=problem):
            local.typed(**more)


def test_units_of_a_whole_spec_may_name_columns_of_other_topics(local: TypedExporter) -> None:
    local.send([LATE])
    spec = local.work / "spec.json"
    spec.write_text(json.dumps({"topics": [TOPIC], "timestamp_unit": {"ts": "ms", "placed": "us"}}))
    report, _ = local.run("--typed", str(spec), "--format", local.format, table=False)
    assert (report["messages"], report["undecoded"]) == (1, 0)


def test_a_table_has_the_columns_of_the_spec_only(local: TypedExporter) -> None:
    local.send([*SOUND, b'{"txt":"x"}', b'{"id":4,"ts":"never","lines":[{"sku":7,"n":"no number"}]}', b'{"other":1}'])
    report, _ = local.typed(columns=["id", "lines.element.sku", "of.b"])
    assert (report["messages"], report["undecoded"]) == (5, 1)
    # pyiceberg reads a null list as an empty one.
    columns = [{name: row[name] or None for name in ("id", "lines", "of")} for row in local.rows()]
    assert columns[0] == {"id": 1, "lines": [{"sku": "s"}, None], "of": {"b": 0.5}}
    assert columns[3] == {"id": None, "lines": None, "of": None}
    assert columns[4] == {"id": 4, "lines": [{"sku": "7"}], "of": None}
    assert "ts" not in local.rows()[0]


def test_columns_that_have_to_become_wider_are_left_to_the_job(local: TypedExporter) -> None:
    local.send(SOUND)
    local.typed(schema="id INT, of STRUCT<b: FLOAT>")
    for schema in ("id BIGINT", "id INT, of STRUCT<b: FLOAT, c: INT>", "id INT, of STRUCT<b: DOUBLE>"):
        with pytest.raises(NeedsSparkError, match="its column"):
            local.typed(schema=schema)
    assert local.typed(schema="id INT")[0]["messages"] == 0


def test_a_column_that_must_not_be_null_is_left_to_the_job(tmp_path: Path) -> None:
    local = TypedExporter(tmp_path, "iceberg")
    local.send(SOUND)
    local.typed()
    table = IcebergLocation(str(tmp_path / "typed"), {}).load()
    assert table is not None
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("other", LongType(), required=True, default_value=0)
    with pytest.raises(NeedsSparkError, match="its column other is NOT NULL"):
        local.typed()


_COMMIT: dict[str, tuple[Any, str]] = {
    "delta": (DeltaRsTableLog, "commit"), "iceberg": (IcebergTransaction, "_commit"),
}  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commits", [0, 1], ids=["dead letters", "rows"])
def test_an_export_killed_at_a_commit_is_made_good_by_the_next(
    local: TypedExporter, monkeypatch: pytest.MonkeyPatch, commits: int, after: bool
) -> None:
    owner, name = _COMMIT[local.format]
    commit, made = getattr(owner, name), []

    def die(*arguments: Any) -> None:
        if len(made) < commits or after:
            commit(*arguments)
        made.append(1)
        if len(made) > commits:
            raise KeyboardInterrupt

    placed = local.send([*SOUND, LATE])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(KeyboardInterrupt):
            local.typed(*local.dead)
    assert local.typed(*local.dead)[1] == 0
    assert [row["physical_offset"] for row in (*local.rows(), *local.rows("dead"))] == placed


@pytest.mark.parametrize("commits", [0, 1], ids=["dead letters", "rows"])
def test_of_two_exports_that_race_the_later_begins_again_behind_the_other(
    local: TypedExporter, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    owner, name = _COMMIT[local.format]
    commit, made, reports = getattr(owner, name), [], []

    def meanwhile(*arguments: Any) -> None:
        made.append(1)
        if len(made) == commits + 1:
            reports.append(local.typed(*local.dead)[0])
        commit(*arguments)

    placed = local.send([*SOUND, LATE])
    monkeypatch.setattr(owner, name, meanwhile)
    report, code = local.typed(*local.dead)
    assert (reports[0]["messages"], report["messages"], code) == (3, 0, 0)
    assert [row["physical_offset"] for row in (*local.rows(), *local.rows("dead"))] == placed


def test_bodies_are_decoded_once_for_both_tables(local: TypedExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def write_files(*arguments: Any) -> Any:
        decoded.append(1)
        return write_typed_files(*arguments)

    monkeypatch.setattr(typed_table, "write_typed_files", write_files)
    local.send([*SOUND, LATE])
    local.typed(*local.dead)
    local.send([*SOUND, LATE, LATE, SOUND[0]])
    local.typed(*local.dead)
    assert len(decoded) == 2


def test_a_race_over_dead_letters_that_topics_share_makes_nobody_decode_again(
    local: TypedExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = _COMMIT[local.format]
    commit, made, decoded = getattr(owner, name), [], []

    def export_topic(topic: str) -> int:
        return local.typed(*local.dead, topics=[{**TOPIC, "topic": topic, "table": topic}])[1]

    def meanwhile(*arguments: Any) -> None:
        made.append(1)
        if len(made) == 1:
            assert export_topic("U") == 0
        commit(*arguments)

    def write_files(*arguments: Any) -> Any:
        decoded.append(1)
        return write_typed_files(*arguments)

    write(local.store, [("T", SOUND[0]), ("U", LATE), ("T", LATE), ("U", SOUND[2])])
    monkeypatch.setattr(owner, name, meanwhile)
    monkeypatch.setattr(typed_table, "write_typed_files", write_files)
    assert export_topic("T") == 0
    assert [len(local.rows(table)) for table in ("T", "U", "dead")] == [1, 1, 2]
    assert len(decoded) == 2


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_job_and_command_take_turns(exporter: Exporter, table_format: str) -> None:
    local = TypedExporter(exporter.work, table_format)
    local.store = exporter.store

    def by_job() -> dict[str, Any]:
        return exporter.run(*local.words(*local.dead), table=False)[0]

    def by_command() -> dict[str, Any]:
        return local.typed(*local.dead)[0]

    bodies = [*SOUND, LATE, b"{bad"]
    exported = []
    for count, run in ((1, by_command), (2, by_job), (3, by_command), (4, by_job)):
        placed = local.send(bodies * count)
        report = run()
        exported.append((report["messages"], report["undecoded"]))
        assert run()["files"] == 0
    assert exported == [(3, 2)] * 4
    offsets = [row["physical_offset"] for row in (*local.rows(), *local.rows("dead"))]
    assert sorted(offsets) == placed
    rows, dead = local.rows(), local.rows("dead")
    varying = {"physical_offset", "queue_offset", "store_timestamp"}
    for part in range(1, 4):  # the rows of both are equal
        for mine, others in zip(rows[:3], rows[3 * part : 3 * part + 3], strict=True):
            assert {k: v for k, v in mine.items() if k not in varying} == {
                k: v for k, v in others.items() if k not in varying
            }
    assert [row["reason"] for row in dead] == [row["reason"] for row in dead[:2]] * 4


@pytest.mark.long
@pytest.mark.spark
def test_job_and_command_share_tables_with_wall_clock_times_and_properties_of_delta(exporter: Exporter) -> None:
    properties = {
        "delta.appendOnly": "true", "delta.logRetentionDuration": "interval 48 hours", "delta.checkpointInterval": "3",
        "delta.deletedFileRetentionDuration": "interval 2 days", "delta.enableExpiredLogCleanup": "false",
        "delta.setTransactionRetentionDuration": "interval 20 weeks",
    }  # fmt: skip
    wall_clock = b'{"id":1,"at":"2023-11-14 22:13:20","of":{"at":"0001-01-01","all":["9999-12-31 23:59:59.999999"]}}'
    described = []
    for begun_by in ("job", "command"):
        (exporter.work / begun_by).mkdir()
        local = TypedExporter(exporter.work / begun_by, "delta")
        local.store = exporter.store
        shutil.rmtree(local.store, ignore_errors=True)
        for count, late in ((1, ""), (2, ""), (3, ", late TIMESTAMP_NTZ"), (4, ", late TIMESTAMP_NTZ")):
            schema = f"id INT, at TIMESTAMP_NTZ, of STRUCT<at: TIMESTAMP_NTZ, all: ARRAY<TIMESTAMP_NTZ>>{late}"
            words = local.words(schema=schema, properties=properties)
            local.send([wall_clock, b'{"id":2,"late":"2024-02-03 04:05"}'] * count)
            is_by_job = count == 3 or (begun_by == "job" and count == 1) or (begun_by == "command" and count == 2)
            if count == 3:
                with pytest.raises(NeedsSparkError, match="its column late is new in a table with TIMESTAMP_NTZ"):
                    local.run(*words, table=False)
            report, _ = (exporter if is_by_job else local).run(*words, table=False)
            assert (report["messages"], report["undecoded"]) == (2, 0)
        described.append([local.rows(), describe(local.work / "typed")])
        assert properties.items() <= DeltaTable(local.work / "typed").metadata().configuration.items()
    assert described[0] == described[1]
    row, newest = described[0][0][-2:]
    assert (row["at"].isoformat(), row["of"]["at"].year) == ("2023-11-14T22:13:20", 1)
    assert newest["late"].isoformat() == "2024-02-03T04:05:00"


@pytest.mark.spark
@pytest.mark.parametrize("explode", [False, True], ids=["bodies", "elements"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_both_make_the_same_tables(exporter: Exporter, table_format: str, explode: bool) -> None:
    described = []
    for name in ("job", "command"):
        (exporter.work / name).mkdir()
        local = TypedExporter(exporter.work / name, table_format)
        local.store = exporter.store
        local.send([*SOUND, LATE, b"[]", b'[{"id":1},{"id":2}]'])
        words = local.words(*local.dead, on_mismatch="rescue", properties={"made.by": "me"}, explode=explode)
        report, _ = (exporter if name == "job" else local).run(*words, table=False)
        tables = [describe(local.work / table) for table in ("typed", "dead")]
        described.append([{k: v for k, v in report.items() if k not in {"seconds", "bytes_per_second"}}, *tables])
    assert described[0] == described[1]


def describe(path: Path) -> Any:
    """Describe a table's columns, properties and the versions of its newest commit."""
    if not (path / "_delta_log").exists():
        table = IcebergLocation(str(path), {}).load()
        assert table is not None
        return [table.schema().model_dump(), dict(table.properties)]
    delta_table = DeltaTable(path)
    metadata = delta_table.metadata()
    configuration = {k: json.loads(v) if v.startswith("{") else v for k, v in metadata.configuration.items()}
    newest = (path / "_delta_log" / f"{delta_table.version():020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in newest]
    versions = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}
    notes = [a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a]
    schema = json.loads(delta_table.schema().to_json())
    return [schema, configuration, metadata.description, metadata.partition_columns, versions, notes]


def test_a_column_that_the_owner_removed_by_writing_the_table_anew_stays_removed(tmp_path: Path) -> None:
    local = TypedExporter(tmp_path, "delta")
    bodies = [b'{"id":1,"txt":"a"}']
    local.send(bodies)
    how: dict[str, Any] = {"schema": "id BIGINT, txt STRING"}
    local.typed(**how)
    table = DeltaTable(tmp_path / "typed").to_pyarrow_table().drop_columns(["txt"])
    write_deltalake(tmp_path / "typed", table, mode="overwrite", schema_mode="overwrite")
    local.send([*bodies, b'{"id":2,"txt":"b"}'])
    with pytest.raises(NeedsSparkError, match="its column txt was dropped"):
        local.typed(**how)
    local.typed(schema="id BIGINT", columns=["id"])
    assert [row["id"] for row in local.rows()] == [1, 2]


def test_filters_of_delta_rs_find_rows_by_columns_without_bounds(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "delta")
    schema = "d DOUBLE, ok BOOLEAN, amount DECIMAL(10,2), at TIMESTAMP_NTZ, id BIGINT, `odd-name` STRING"
    bodies = [
        {
            "d": number + 0.5,
            "ok": number % 2 == 0,
            "amount": number,
            "at": f"2024-01-0{number + 1}T00:00:00",
            "id": number,
        }
        for number in range(4)
    ]
    exporter.send([json.dumps({**body, "odd-name": "x"}).encode() for body in bodies])
    assert exporter.typed(schema=schema)[0]["messages"] == 4
    table = DeltaTable(str(tmp_path / "typed"))
    for condition, count in (
        (("d", ">", 1.0), 3), (("ok", "=", True), 2), (("amount", "=", Decimal(1)), 1), (("id", ">", 2), 1),
        (("at", "=", datetime(2024, 1, 2)), 1), (("odd-name", "=", "x"), 4),  # of a column without zone
    ):  # fmt: skip
        assert table.to_pyarrow_table(filters=[condition]).num_rows == count, condition


def test_filters_of_delta_rs_find_long_texts_and_dead_letters_by_their_reason(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "delta")
    texts = ["a", "b" * 33, "𠮷野家", "\U0010ffff" * 40]
    exporter.send([*(json.dumps({"txt": text}).encode() for text in texts), LATE])
    assert exporter.typed(*exporter.dead)[0]["messages"] == 4
    found = [
        DeltaTable(str(tmp_path / table)).to_pyarrow_table(filters=[(column, "=", text)]).num_rows
        for table, column, text in [*(("typed", "txt", text) for text in texts), ("dead", "reason", REASON)]
    ]
    assert found == [1] * 5


def test_columns_of_another_case_are_those_of_the_iceberg_table(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "iceberg")
    exporter.send(SOUND[:1])
    exporter.typed(schema="id BIGINT, txt STRING")
    exporter.send([SOUND[0], b'{"id":2,"TXT":"b"}'])
    assert exporter.typed(schema="TXT STRING, id BIGINT")[0]["messages"] == 1
    assert [(row["id"], row["txt"]) for row in exporter.rows()] == [(1, "a"), (2, "b")]


def test_a_partition_of_iceberg_by_the_text_of_hive_s_null_is_that_text(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "iceberg")
    exporter.send([b'{"txt":"__HIVE_DEFAULT_PARTITION__"}', b'{"id":2}'])
    exporter.typed(schema="id BIGINT, txt STRING", partition_by=["txt"])
    table = IcebergLocation(str(tmp_path / "typed"), {}).load()
    assert table is not None
    assert table.scan(row_filter="txt = '__HIVE_DEFAULT_PARTITION__'").to_arrow().num_rows == 1
    assert table.scan(row_filter="txt IS NULL").to_arrow()["id"].to_pylist() == [2]


def test_a_struct_without_members_is_refused_at_the_start(tmp_path: Path) -> None:
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "e", "type": {"type": "record", "name": "E", "fields": []}}],
    }  # fmt: skip
    for table_format in ("delta", "iceberg"):
        exporter = TypedExporter(tmp_path / table_format, table_format)
        exporter.work.mkdir()
        exporter.send([b"\x02"])
        topic = {"format": "avro", "schema": json.dumps(schema)}
        with pytest.raises(OptionError, match=r"topic 'T': .* column e is struct<>, which tables have not"):
            exporter.typed(**topic)
        assert not (exporter.work / "typed").exists()
        assert exporter.typed(**topic, columns=["a"])[0]["messages"] == 1


def test_a_clock_behind_the_table_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = TypedExporter(tmp_path, "iceberg")
    exporter.send(SOUND[:1])
    assert exporter.typed()[0]["messages"] == 1
    exporter.send(SOUND[:2])
    files = sorted(tmp_path.joinpath("typed").rglob("*"))
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() - 120)
    with pytest.raises(StoreError, match=r"the clock says .* UTC, and the table was changed at .*Set the clock right"):
        exporter.typed()
    assert sorted(tmp_path.joinpath("typed").rglob("*")) == files
    monkeypatch.undo()
    assert exporter.typed()[0]["messages"] == 1


def test_bounds_that_only_spark_writes_are_left_to_the_job(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "delta")
    exporter.send(SOUND[:1])
    name = "delta.dataSkippingStatsColumns"
    with pytest.raises(NeedsSparkError, match="typed: only Spark writes the bounds of column 'x'"):
        exporter.typed(properties={name: "id, `x`"})
    assert not (tmp_path / "typed").exists()
    assert exporter.typed(properties={name: "id, `txt`"})[0]["messages"] == 1
    table = DeltaTable(str(tmp_path / "typed"))
    assert table.metadata().configuration[name] == "id, `txt`"
    assert table.to_pyarrow_table(filters=[("x", ">", 1.0)]).num_rows == 1


@pytest.mark.parametrize("other", ["id BIGINT, a STRING", "id BIGINT, b INT"])
def test_two_exports_add_columns_at_once(local: TypedExporter, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = (DeltaRsTableLog, "_commit_guard") if local.format == "delta" else (iceberg_table, "iceberg_schema")
    original, reports = getattr(module, name), []

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()  # once
        reports.append(local.typed(schema=other)[0]["messages"])
        return original(*arguments)

    local.send([b'{"id":1}'])
    local.typed(schema="id BIGINT")
    local.send([b'{"id":1}', b'{"id":2,"a":"x","b":5}'])
    monkeypatch.setattr(module, name, meanwhile)
    assert local.typed(schema="id BIGINT, a STRING")[0]["messages"] == 0
    assert reports == [1]
    rows = local.rows()
    assert [row["id"] for row in rows] == [1, 2]
    assert "a" in rows[1]


def test_bounds_that_an_owner_wants_of_raw_tables_and_dead_letters_are_left_to_the_job(tmp_path: Path) -> None:
    exporter = TypedExporter(tmp_path, "delta")
    exporter.send(SOUND[:1])
    bounds = {"delta.dataSkippingStatsColumns": "physical_offset,body,flag"}
    with pytest.raises(NeedsSparkError, match="raw: only Spark writes the bounds of column 'flag'"):
        exporter.run("--table-property", "delta.dataSkippingStatsColumns=flag")
    assert not exporter.table.exists()
    exporter.run(*exporter.words(*exporter.dead))
    exporter.send([*SOUND[:1], b"none"])
    for name, column in (("raw", "body"), ("dead", "body")):
        DeltaTable(str(tmp_path / name)).alter.set_table_properties(bounds)
        with pytest.raises(NeedsSparkError, match=f"{name}: only Spark writes the bounds of column '{column}'"):
            exporter.run(*exporter.words(*exporter.dead), table=name == "raw")
