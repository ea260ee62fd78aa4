"""Change data capture: keys by paths, messages that delete, tombstones; the table is what the source has."""

import json
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from rmq_formats.codecs.record import MessageToStore
from rmq_formats.errors import OptionError
from rmq_lakehouse.change_data import MergeRows, key_columns
from rmq_lakehouse.spec import TypedTopic, load_spec
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import FILE_BYTES, HOST
from tests.lakehouse.test_iceberg import table_of
from tests.support.stores.store_files import write_commitlog

ROW = StructType([StructField("id", LongType()), StructField("name", StringType())])
ENVELOPE = StructType([StructField("before", ROW), StructField("after", ROW), StructField("op", StringType())])
Sent = tuple[str, bytes, str | None]
"""Topic, body and KEYS."""


def topic_of(*key: str) -> TypedTopic:
    return TypedTopic(topic="T", table="t", format="json", key=key)


def test_the_key_of_an_envelope_is_that_of_before_where_after_is_null() -> None:
    (key,) = key_columns(topic_of("after.id"), ENVELOPE)
    assert (key.paths, key.kind) == ((("after", "id"), ("before", "id")), LongType())
    assert key.sql("there") == "coalesce(there.`after`.`id`, there.`before`.`id`)"
    rows = MergeRows([key], ["ts", "off"], deletes=True)
    offset = "CASE WHEN here.`off` < 0 THEN -1 - here.`off` ELSE here.`off` END AS `offset`"
    assert rows.order_value("here") == f"struct(here.`ts`, {offset})"


def test_a_path_that_leads_nowhere_is_refused_and_a_name_with_dots_is_a_column() -> None:
    columns = StructType([*ENVELOPE, StructField("a.b", IntegerType())])
    assert key_columns(topic_of("a.b"), columns)[0].paths == (("a.b",),)
    for name in ("after", "after.nothing", "op.x", ""):
        with pytest.raises(OptionError, match="is not a primitive column of the schema"):
            key_columns(topic_of(name), columns)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"delete_when": "op = 'd'"}, "delete_when and tombstones need a key"),
        ({"tombstones": True}, "delete_when and tombstones need a key"),
        ({"tombstones": True, "key": ["a", "b"]}, "tombstones need a key of one column"),
    ],
)
def test_rules_of_changes_that_cannot_be_are_refused(tmp_path: Any, more: dict[str, Any], said: str) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"topics": [{"topic": "T", "table": "t", "format": "json", "schema": "a INT", **more}]}))
    with pytest.raises(OptionError, match=said):
        load_spec(str(spec))


def write(exporter: Exporter, sent: list[Sent]) -> None:
    messages = [
        MessageToStore(
            topic=topic,
            queue_id=0,
            body=body,
            born_timestamp_ms=1_700_000_000_000,
            born_host=HOST,
            store_host=HOST,
            properties_bytes=b"" if keys is None else b"KEYS\x01%s\x02" % keys.encode(),
        )
        for topic, body, keys in sent
    ]
    write_commitlog(exporter.store, messages, FILE_BYTES, 1_700_000_000_000)


def event(op: str, before: int | None, after: int | None, name: str = "n") -> Sent:
    def row(id_: int | None) -> dict[str, Any] | None:
        return None if id_ is None else {"id": id_, "name": name}

    key = after if after is not None else before
    return "E", json.dumps({"before": row(before), "after": row(after), "op": op}).encode(), str(key)


def flat(id_: int, name: str | None, deleted: str = "false") -> Sent:
    return "F", json.dumps({"id": id_, "name": name, "__deleted": deleted}).encode(), str(id_)


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_the_table_is_what_the_source_has_in_parts_and_again(exporter: Exporter, table_format: str) -> None:
    spec = exporter.work / "spec.toml"
    spec.write_text(
        """
[[topics]]
topic = "E"
format = "json"
schema = "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING"
table = "envelopes"
key = ["after.id"]
delete_when = "op = 'd'"
tombstones = true

[[topics]]
topic = "F"
format = "json"
schema = "id BIGINT, name STRING, __deleted STRING"
table = "flats"
key = ["id"]
delete_when = "__deleted = 'true'"
tombstones = true
"""
    )
    dead = exporter.work / "dead"

    def run(*more: str) -> dict[str, Any]:
        how = ("--format", table_format, "--typed", str(spec), "--dlq-table", str(dead))
        report, code = exporter.run(*how, *more, table=False)
        assert code == 0
        return report

    def rows(name: str) -> list[dict[str, Any]]:
        if table_format == "iceberg":
            return list(table_of(exporter, name).scan().to_arrow().to_pylist())
        return [row.asDict(recursive=True) for row in exporter.rows(name)]

    def held() -> tuple[dict[int, str], dict[int, str]]:
        envelopes = {row["after"]["id"]: row["after"]["name"] for row in rows("envelopes")}
        found = rows("flats")
        assert all(row["physical_offset"] >= 0 for row in (*found, *rows("envelopes")))
        return envelopes, {row["id"]: row["name"] for row in found}

    parts: list[tuple[list[Sent], dict[int, str]]] = [
        ([event("c", None, 1), event("c", None, 2), event("d", 1, None),
          flat(1, "n"), flat(2, "n"), flat(1, None, "true")], {2: "n"}),
        ([("E", b"", "1"), ("F", b"", "1"), ("E", b"", "77"), ("F", b"", "77")], {2: "n"}),  # tombstones, of no row
        ([event("u", 2, 2, "z"), flat(2, "z"), event("c", None, 3), flat(3, "n"),
          ("E", b"", "2"), ("F", b"", "2")], {3: "n"}),
        ([event("c", None, 2, "again"), flat(2, "again"), event("d", 3, None), flat(3, "x", "true")], {2: "again"}),
        ([event("d", 2, None), event("c", None, 2, "last"), flat(2, "n", "true"), flat(2, "last")], {2: "last"}),
    ]  # fmt: skip
    sent: list[Sent] = []
    for part, wanted in parts:
        sent += part
        write(exporter, sent)
        run()
        assert held() == (wanted, wanted)
    run("--from-offset", "0")
    assert held() == ({2: "last"}, {2: "last"})
    sent += [("E", b"", None), ("F", b"", "no number"), event("t", None, None)]
    write(exporter, sent)
    assert run()["undecoded"] == 3
    assert sorted(row["reason"] for row in rows("dead")) == [
        "column after.id: a tombstone without KEYS, wanted BIGINT",
        "column id: a tombstone with KEYS 'no number', wanted BIGINT",
        "its key after.id is null",
    ]
    assert held() == ({2: "last"}, {2: "last"})
    spec.write_text(spec.read_text().replace("op = 'd'", "op"))
    with pytest.raises(OptionError, match="delete_when 'op': is not a condition"):
        run()
