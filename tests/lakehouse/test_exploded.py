"""``explode = true``: a body that is an array of objects is as many rows, all of them or none."""

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory

from rmq_lakehouse.decode import avro, bodies, json_body, protobuf
from rmq_lakehouse.decode.bodies import exploded
from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.decode.times import TimeUnits
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.test_changes import Sent, write
from tests.lakehouse.test_iceberg import table_of

VALUE = pa.struct([("id", pa.int64()), ("n", pa.int32())])
RECORD: dict[str, Any] = {"type": "record", "name": "Line", "fields": [{"name": "id", "type": "long"}]}


def json_rows(*sent: str, on_mismatch: str = "dead-letter") -> list[tuple[Any, ...]]:
    """Position of the body's message, whether it has the body, element, value and reason of each row."""
    batch = pa.RecordBatch.from_pydict({"at": list(range(len(sent))), "body": [text.encode() for text in sent]})
    decode = json_body.decoder(VALUE, TimeUnits(), "UTC", on_mismatch, explode=True)
    kind = pa.struct([*VALUE, ("_rescued", pa.string())]) if on_mismatch == "rescue" else VALUE
    rows = pa.Table.from_batches(exploded(batch, decode, kind)).to_pylist()
    return [
        (row["at"], row["body"] is not None, row["element_index"], row["decoded"]["value"], row["decoded"]["reason"])
        for row in rows
    ]


def test_each_object_is_a_row_and_a_single_object_is_one() -> None:
    assert json_rows('[{"id":1},{"id":2,"n":3}]', ' {"id":4} ', "[]", "[ ]") == [
        (0, True, 0, {"id": 1, "n": None}, None),
        (0, False, 1, {"id": 2, "n": 3}, None),
        (1, True, 0, {"id": 4, "n": None}, None),
        (2, True, -1, None, None),
        (3, True, -1, None, None),
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('[{"id":1},{"id":"x"}]', "element 1: column id: text 'x', wanted BIGINT"),
        ('[{"id":1},null]', "element 1: null, wanted an object"),
        ('[{"id":1},[{"id":2}]]', "element 1: an array, wanted an object"),
        ('[{"other":1}]', "element 0: the body has none of the members id, n; it has other"),
        ('[{"id":1}] []', "the body is not one JSON object or array of objects"),
        ("7", "the body is not one JSON object or array of objects"),
    ],
)
def test_one_element_that_does_not_fit_sets_the_whole_message_aside(body: str, reason: str) -> None:
    assert json_rows('{"id":9}', body)[1:] == [(1, True, 0, None, reason)]


def test_elements_are_rescued_one_by_one() -> None:
    _, second, third = json_rows('[{"id":1},{"id":"x"},{"n":2}]', on_mismatch="rescue")
    assert second[3] == {"id": None, "n": None, "_rescued": '{"id":"x"}'}
    assert third[3] == {"id": None, "n": 2, "_rescued": None}


def test_rows_of_a_message_stay_together_and_batches_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MAX_ROWS", 3)
    batch = pa.RecordBatch.from_pydict({"at": [0, 1, 2], "body": [b"[1,2]", b"[3,4,5]", b"[6]"]})

    def decode(body: bytes) -> list[dict[str, Any]]:
        return [{"id": number, "n": number * 10**9} for number in json.loads(body)]

    parts = [part.to_pylist() for part in exploded(batch, decode, VALUE)]
    assert [[row["at"] for row in part] for part in parts] == [[0, 0, 1], [2]]
    assert parts[0][2]["decoded"]["reason"].startswith("ArrowInvalid")  # 3 * 10 ** 9 is no INT


def test_avro_arrays_and_protobuf_lists_are_rows() -> None:
    array = {"type": "array", "items": RECORD}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, array, [{"id": 1}, {"id": 2}])
    assert avro.decoder(json.dumps(array), explode=True)(stream.getvalue()) == [{"id": 1}, {"id": 2}]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, RECORD, {"id": 3})
    assert avro.decoder(json.dumps(RECORD), explode=True)(stream.getvalue()) == [{"id": 3}]
    file = descriptor_pb2.FileDescriptorProto(name="lines.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Line").field.add(name="id", number=1, type=3, label=1)
    file.message_type.add(name="Lines").field.add(name="all", number=1, type=11, label=3, type_name=".shop.Line")
    described = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    lines = message_factory.GetMessageClass(protobuf.descriptor(described, "shop.Lines"))
    decode = protobuf.decoder(described, "shop.Lines", explode=True)
    assert decode(lines(all=[{"id": 1}, {}]).SerializeToString()) == [{"id": 1}, {"id": 0}]
    assert decode(b"") == []
    for body, reason in [
        (b"\x0a\x03\x0a\x01x", "element 0: column id: field 1 of wire type LEN, wanted int64"),
        (b"\x08\x01", "column all: field 1 of wire type VARINT, wanted shop.Line"),
        (b"\x28\x01", "the body has none of the fields of shop.Lines"),
    ]:
        with pytest.raises(Mismatch, match=reason):
            decode(body)
    with pytest.raises(ValueError, match=r"explode needs a message with one field, .* shop\.Line is none"):
        protobuf.decoder(described, "shop.Line", explode=True)


def table_rows(exporter: Exporter, table_format: str, name: str) -> list[dict[str, Any]]:
    if table_format == "iceberg":
        return list(table_of(exporter, name).scan().to_arrow().to_pylist())
    frame = exporter.spark.read.format("delta").load(str(exporter.work / name))
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_a_message_is_in_the_table_with_all_its_rows_once_or_a_dead_letter(
    exporter: Exporter, table_format: str
) -> None:
    spec = exporter.work / "spec.toml"
    topic = 'format = "json"\nschema = "id BIGINT, n INT, op STRING"\nexplode = true\n'
    spec.write_text(
        f"""
[[topics]]
topic = "R"
table = "rows"
metadata_prefix = "_"
{topic}
[[topics]]
topic = "K"
table = "keys"
key = ["id"]
delete_when = "op = 'd'"
tombstones = true
{topic}"""
    )

    def run(sent: list[Sent], *more: str) -> dict[str, Any]:
        write(exporter, sent)
        dead = str(exporter.work / "dead")
        how = ("--format", table_format, "--typed", str(spec), "--dlq-table", dead)
        report, code = exporter.run(*how, *more, table=False)
        assert code == 0
        return report

    bodies = [
        b'[{"id":1,"n":1},{"id":2,"n":1}]', b'{"id":3,"n":1}', b"[]", b'[{"id":9,"n":1},{"id":"x"}]',
        b'[{"id":1,"n":2},{"id":1,"n":3},{"id":3,"op":"d"}]',
    ]  # fmt: skip
    sent: list[Sent] = [(topic, body, None) for body in bodies for topic in "RK"]
    sent += [("K", b'[{"id":8,"n":1},{"n":1}]', None), ("K", b"", "2")]
    report = run(sent)
    # A message without elements is exported, and has no row; one of two that cannot be is undecoded once.
    assert (report["exports"], report["undecoded"], report["damaged"]) == ({"R": 4, "K": 5}, 3, 0)
    rows = [
        [(row["_element_index"], row["id"], row["n"]) for row in table_rows(exporter, table_format, "rows")],
        [(row["element_index"], row["id"], row["n"]) for row in table_rows(exporter, table_format, "keys")],
    ]
    assert sorted(rows[0]) == [(0, 1, 1), (0, 1, 2), (0, 3, 1), (1, 1, 3), (1, 2, 1), (2, 3, None)]
    assert rows[1] == [(1, 1, 3)]  # the last element of a key; 2 and 3 were deleted
    dead = table_rows(exporter, table_format, "dead")
    assert sorted((row["topic"], row["reason"]) for row in dead) == [
        ("K", "element 1: column id: text 'x', wanted BIGINT"),
        ("K", "element 1: its key id is null"),
        ("R", "element 1: column id: text 'x', wanted BIGINT"),
    ]
    assert all(row["body"] is not None for row in dead)
    sent += [("R", b'[{"id":4},{"id":5}]', None)]
    assert run(sent, "--from-offset", "0")["undecoded"] == 3
    assert len(table_rows(exporter, table_format, "rows")) == 8
    assert len(table_rows(exporter, table_format, "keys")) == 1
    assert len(table_rows(exporter, table_format, "dead")) == 3
