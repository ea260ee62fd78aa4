"""``on_mismatch`` and ``writer_schemas``: a value that does not fit, and bodies of older and newer writers."""

import datetime
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from rmq_formats.errors import OptionError
from rmq_lakehouse.decode import avro, json_body, protobuf
from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.decode.times import TimeUnits
from rmq_lakehouse.spec import TypedTopic, load_spec, read_writer_schemas
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.test_bodies import DOUBLE, INT64, STRING, message_class
from tests.lakehouse.test_changes import write
from tests.lakehouse.test_iceberg import table_of

MS = 1_700_000_000_000
INNER = pa.struct([("at", pa.timestamp("us", "UTC")), ("list", pa.list_(pa.int32()))])
COLUMNS = pa.struct([("id", pa.int64()), ("name", pa.string()), ("in", INNER)])


def json_row(body: str, on_mismatch: str) -> dict[str, Any]:
    return json_body.decoder(COLUMNS, TimeUnits(), "UTC", on_mismatch)(body.encode())


def test_json_values_that_do_not_fit_are_null_and_rescued() -> None:
    body = '{"id":"x","name":"n","in":{"at":1700000000000,"list":[1,0.50,NaN]}}'
    fitting = {"id": None, "name": "n", "in": {"at": None, "list": None}}
    assert json_row(body, "null") == fitting
    row = json_row(body, "rescue")
    rescued = row.pop("_rescued")
    assert row == fitting
    assert rescued == '{"id":"x","in.at":1700000000000,"in.list":[1,0.50,"NaN"]}'
    with pytest.raises(Mismatch, match="column id: text 'x', wanted BIGINT"):
        json_row(body, "dead-letter")


def test_json_rows_that_fit_have_nothing_rescued_whatever_came_before() -> None:
    decode = json_body.decoder(COLUMNS, TimeUnits(), "UTC", "rescue")
    assert "_rescued" in decode(b'{"id":1.5}')
    assert decode(b'{"id":7}') == {"id": 7}
    assert decode(b'{"in":{}}') == {"in": {}}


@pytest.mark.parametrize("body", ["[]", "{", '{"other":1}', "x"])
def test_a_body_without_a_known_member_stays_a_dead_letter(body: str) -> None:
    with pytest.raises(Mismatch):
        json_row(body, "rescue")


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind, **more} for name, kind in fields]}


def avro_body(schema: dict[str, Any], value: dict[str, Any], schema_id: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return (b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")) + stream.getvalue()


def test_avro_times_that_do_not_fit_are_null_and_rescued() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(("at", millis), ("of", {**record(("at", ["null", millis])), "name": "Of"}))
    plain = record(("at", "long"), ("of", {**record(("at", ["null", "long"])), "name": "Of"}))
    body = avro_body(plain, {"at": MS, "of": {"at": MS * 1000}})
    decode = avro.decoder(json.dumps(schema), on_mismatch="rescue")
    assert decode(body) == {"at": MS * 1000, "of": {"at": None}, "_rescued": '{"of.at": 1700000000000000}'}
    assert avro.decoder(json.dumps(schema), on_mismatch="null")(body) == {"at": MS * 1000, "of": {"at": None}}


def test_bodies_of_older_and_newer_writers_are_resolved() -> None:
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    table = record(("id", "long"), ("at", ["null", micros]), ("note", ["null", "string"]), default=None)
    table["fields"][0].pop("default")
    older, newer = record(("id", "int"), ("at", millis)), record(("extra", "string"), ("at", micros), ("id", "long"))
    writers = {1: json.dumps(older), 300: json.dumps(newer), 7: json.dumps(record(("id", "string")))}
    decode = avro.decoder(json.dumps(table), writers)
    now = datetime.datetime.fromtimestamp(MS / 1000, datetime.UTC)
    fitting = {"id": 5, "at": MS * 1000, "note": None}
    assert decode(avro_body(older, {"id": 5, "at": now}, 1)) == fitting
    assert decode(avro_body(newer, {"extra": "x", "at": now, "id": 5}, 300)) == fitting
    for body, reason in [
        (avro_body(older, {"id": 5, "at": now}, 2), "the registry header names schema 2, which writer_schemas lacks"),
        (avro_body(older, {"id": 5, "at": now}), "the body begins with no registry header: 0a"),
        (b"", "the body begins with no registry header"),
    ]:
        with pytest.raises(Mismatch, match=reason):
            decode(body)
    with pytest.raises(fastavro.read.SchemaResolutionError):
        decode(avro_body(record(("id", "string")), {"id": "5"}, 7))


def test_protobuf_fields_of_another_type_are_null_and_rescued() -> None:
    _, schema = message_class("shop", {"id": (1, INT64), "name": (2, STRING), "sum": (4, DOUBLE)})
    changed, _ = message_class("other", {"id": (1, STRING), "name": (2, STRING), "sum": (4, DOUBLE)})
    body = changed(id="A-3", name="n", of={"id": "A-4"}).SerializeToString()
    row = protobuf.decoder(schema, "shop.Order", "rescue")(body)
    assert (row["id"], row["name"], row["of"]) == (None, "n", None)
    assert json.loads(row["_rescued"]) == {"id": "QS0z", "of.id": "QS00"}  # Base64 of the bytes
    assert "_rescued" not in protobuf.decoder(schema, "shop.Order", "null")(body)
    sound = protobuf.decoder(schema, "shop.Order", "rescue")(changed(name="n").SerializeToString())
    assert (sound["name"], "_rescued" in sound) == ("n", False)


def spec_file(directory: Path, **more: Any) -> str:
    topic = {"topic": "T", "table": "t", "format": "avro", "schema": json.dumps(record(("id", "long"))), **more}
    path = directory / "spec.json"
    path.write_text(json.dumps({"topics": [topic]}))
    return str(path)


def test_writer_schemas_are_read_by_their_ids(tmp_path: Path) -> None:
    schema = json.dumps(record(("id", "int")))
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "1.avsc").write_text(schema)
    (tmp_path / "schemas" / "22.json").write_text(json.dumps({"subject": "s", "id": 22, "schema": schema}))
    (tmp_path / "schemas" / "README.md").write_text("not a schema")
    (topic,) = load_spec(spec_file(tmp_path, writer_schemas="schemas"))
    assert read_writer_schemas(topic) == {1: schema, 22: schema}
    (tmp_path / "schemas" / "01.avsc").write_text(schema)
    with pytest.raises(OptionError, match=r"1\.avsc: another file has schema 1\. Remove one"):
        read_writer_schemas(topic)


def test_a_writer_schema_that_cannot_be_used_is_the_reason_of_its_messages() -> None:
    table = record(("id", "long"))
    references = record(("id", "long"), ("price", "shop.Money"))
    writers = {7: json.dumps(table), 8: json.dumps(references), 9: 'syntax = "proto3";'}
    decode = avro.decoder(json.dumps(table), writers)
    assert decode(avro_body(table, {"id": 5}, 7)) == {"id": 5}
    for number, reason in ((8, r".*shop\.Money"), (9, "not an Avro schema")):
        with pytest.raises(
            Mismatch, match=f"^the registry header names schema {number}, which cannot be used: {reason}"
        ):
            decode(avro_body(table, {"id": 5}, number))


def test_defaults_of_a_writer_may_be_invalid() -> None:
    table, writer = record(("id", "long")), record(("id", "long"), ("inner", record(("name", "string"))), default=None)
    writer["fields"][1]["type"] |= {"name": "Inner"}
    sent = avro_body(record(("id", "long"), ("name", "string")), {"id": 5, "name": "x"}, 7)
    assert avro.decoder(json.dumps(table), {7: json.dumps(writer)})(sent) == {"id": 5}
    with pytest.raises(ValueError, match="not an Avro schema"):
        avro.decoder(json.dumps(writer))


def test_schemas_of_other_types_in_a_registry_are_left_out(tmp_path: Path) -> None:
    schema = json.dumps(record(("id", "int")))
    for number, answer in enumerate(({}, {"schemaType": "AVRO"}, {"schemaType": "PROTOBUF"}, {"schemaType": "JSON"})):
        (tmp_path / f"{number}.json").write_text(json.dumps({**answer, "schema": schema}))
    topic = TypedTopic(topic="T", table="t", format="avro", writer_schemas=str(tmp_path))
    assert read_writer_schemas(topic) == {0: schema, 1: schema}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"writer_schemas": "s", "format": "json", "schema": "id INT"}, "writer_schemas is of format avro"),
        ({"writer_schemas": "s", "header_bytes": 6}, "header_bytes 6 does not go with writer_schemas"),
        ({"on_mismatch": "drop"}, "on_mismatch"),
    ],
)
def test_specs_that_cannot_be_are_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        load_spec(spec_file(tmp_path, **more))


def test_a_directory_without_schemas_is_refused(tmp_path: Path) -> None:
    topic = TypedTopic(topic="T", table="t", format="avro", writer_schemas=str(tmp_path))
    with pytest.raises(OptionError, match=r"has no ID\.avsc or ID\.json"):
        read_writer_schemas(topic)


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_has_what_fits_and_what_was_rescued(exporter: Exporter, table_format: str) -> None:
    spec = exporter.work / "spec.toml"
    spec.write_text(
        """
[[topics]]
topic = "T"
format = "json"
schema = "id BIGINT, amount DECIMAL(10, 2)"
table = "rows"
on_mismatch = "rescue"
"""
    )
    bodies = [b'{"id":1,"amount":1.50}', b'{"id":2,"amount":1.505}', b'{"id":"x","amount":3}', b"no json"]
    write(exporter, [("T", body, None) for body in bodies])
    how = ("--format", table_format, "--typed", str(spec), "--dlq-table", str(exporter.work / "dead"))
    report, code = exporter.run(*how, table=False)
    assert (report["undecoded"], code) == (1, 0)
    if table_format == "iceberg":
        rows = list(table_of(exporter, "rows").scan().to_arrow().to_pylist())
    else:
        rows = [row.asDict(recursive=True) for row in exporter.rows("rows")]
    assert [(row["id"], None if row["amount"] is None else str(row["amount"]), row["_rescued"]) for row in rows] == [
        (1, "1.50", None), (2, None, '{"amount":1.505}'), (None, "3.00", '{"id":"x"}'),
    ]  # fmt: skip
