"""Avro and Protobuf bodies by ``rmq export`` without Spark, in turns with the job."""

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError
from rmq_lakehouse.decode import protobuf
from rmq_lakehouse.decode.spark import build_body_decoder
from rmq_lakehouse.local.table_log import NeedsSparkError
from rmq_lakehouse.local.typed import build_local_decoder
from rmq_lakehouse.spec import TypedTopic, load_spec
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_json_columns import TREE, tree
from tests.lakehouse.test_json_columns import described as tree_descriptors
from tests.lakehouse.test_local_export import rmq
from tests.lakehouse.test_local_typed import TypedExporter, describe

MS, US = 1_700_000_000_000, 1_700_000_000_000_000
HEADER = b"\0\0\0\0\x07"


def avro_record(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in members.items()]}


LINE = avro_record("Line", sku="string", n=["null", "int"])
MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
ORDER = avro_record(
    "Order",
    id=["int", "long"],
    at=MILLIS,
    day={"type": "int", "logicalType": "date"},
    amount={"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    ok=["null", "boolean"],
    kind={"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]},
    raw={"type": "fixed", "name": "Raw", "size": 2},
    lines={"type": "array", "items": LINE},
    by={"type": "map", "values": "Line"},
    of=["null", "Line"],
    x="float",
)
WHOLE: dict[str, Any] = {
    "id": 1 << 40, "at": MS, "day": 19_675, "amount": b"\x04\xd2", "ok": True, "kind": "OLD", "raw": b"ab",
    "lines": [{"sku": "s", "n": 3}, {"sku": "t", "n": None}], "by": {"k": {"sku": "u", "n": 1}}, "of": None, "x": 0.5,
}  # fmt: skip


def avro_body(schema: Any, value: Any) -> bytes:
    """Encode a value; numbers of times and decimals are those of the body."""
    stream = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
    fastavro.schemaless_writer(stream, plain, value)
    return stream.getvalue()


def orders_descriptors() -> bytes:
    """``message Order { int64 id; Timestamp at; Line of; repeated Line lines; map<string, uint64> by; … }``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="orders.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    line, order, orders = (file.message_type.add(name=name) for name in ("Line", "Order", "Orders"))
    line.field.add(name="sku", number=1, type=9, label=1)
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=4, label=1)
    for number, (name, kind, label, of) in enumerate([
        ("id", 3, 1, None), ("at", 11, 1, ".google.protobuf.Timestamp"), ("of", 11, 1, ".shop.Line"),
        ("lines", 11, 3, ".shop.Line"), ("by", 11, 3, ".shop.Order.ByEntry"), ("raw", 12, 1, None),
        ("n", 13, 1, None), ("ok", 8, 1, None),
    ], 1):  # fmt: skip
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of)
    orders.field.add(name="all", number=1, type=11, label=3, type_name=".shop.Order")
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString()


def message(name: str, **fields: Any) -> bytes:
    kind = message_factory.GetMessageClass(protobuf.descriptor(orders_descriptors(), f"shop.{name}"))
    return bytes(kind(**fields).SerializeToString())


PROTO: dict[str, Any] = {
    "id": 1, "at": {"seconds": MS // 1000, "nanos": 999_999}, "of": {"sku": "s"}, "lines": [{"sku": "t"}, {}],
    "by": {"k": 2**64 - 1}, "raw": b"ab", "n": 2**32 - 1,
}  # fmt: skip
SENT = [
    ("Avro", avro_body(ORDER, WHOLE)),
    ("Avro", avro_body(ORDER, {**WHOLE, "id": 2, "at": US, "of": {"sku": "s", "n": 9}})),  # microseconds
    ("Avro", avro_body(ORDER, WHOLE) + b"more"),
    ("Avro", b""),
    ("Writers", b"\0\0\0\0\x01" + avro_body(avro_record("R", id="int", at=MILLIS), {"id": 5, "at": MS})),
    ("Writers", b"\0\0\0\0\x02" + avro_body(avro_record("R", at=MICROS, id="long"), {"id": 6, "at": US})),
    ("Writers", b"\0\0\0\0\x03" + b"\x02"),
    ("Lists", HEADER + avro_body({"type": "array", "items": TREE}, [])),
    (
        "Lists",
        HEADER
        + avro_body(
            {"type": "array", "items": TREE},
            [{"id": number, "left": None, "all": [], "by": {}} for number in (1, 2)],
        ),
    ),
    ("Lists", HEADER[:3]),
    ("Proto", message("Order", **PROTO)),
    ("Proto", message("Order", id=2) + b"\x78\x05"),  # field 15
    ("Proto", message("Order", at={"seconds": MS})),
    ("Proto", b"\x0a\x01x" + message("Order", ok=True)),  # a text in id
    ("Proto", b"\xff"),
    ("Many", HEADER + message("Orders", all=[PROTO, {"id": 2}])),
    ("Many", message("Orders", all=[PROTO])),
    ("Tree", tree(id=1, left={"id": 2}).SerializeToString()),
]
UNDECODED = {"Avro": 2, "Writers": 1, "Lists": 1, "Proto": 1, "Many": 1, "Tree": 0}


def topics(work: Path) -> list[dict[str, Any]]:
    """Write the schemas of the topics, and return their specs."""
    for name, text in (("orders.desc", orders_descriptors()), ("tree.desc", tree_descriptors())):
        (work / name).write_bytes(text)
    (work / "writers").mkdir(exist_ok=True)
    (work / "writers" / "1.avsc").write_text(json.dumps(avro_record("R", id="int", at=MILLIS)))
    (work / "writers" / "2.avsc").write_text(json.dumps(avro_record("R", at=MICROS, id="long")))
    specs: dict[str, dict[str, Any]] = {
        "Avro": {"schema": json.dumps(ORDER), "on_mismatch": "rescue", "metadata_prefix": "m_"},
        "Writers": {"schema": json.dumps(avro_record("R", id="long", at=MILLIS)), "writer_schemas": "writers"},
        "Lists": {"schema": json.dumps({"type": "array", "items": TREE}), "explode": True, "header_bytes": 5},
        "Proto": {"message": "shop.Order", "on_mismatch": "rescue", "unknown_fields": True},
        "Many": {
            "message": "shop.Orders", "explode": True, "header_bytes": 5, "columns": ["id", "lines.element.sku", "by"],
        },
        "Tree": {"message": "shop.Tree", "schema_file": "tree.desc", "on_mismatch": "null", "partition_by": ["id"]},
    }  # fmt: skip
    return [
        {
            "topic": name,
            "table": name,
            "format": "protobuf" if "message" in spec else "avro",
            **({"schema_file": "orders.desc"} if "message" in spec else {}),
            **spec,
        }
        for name, spec in specs.items()
    ]


@pytest.fixture(params=["delta", "iceberg"])
def local(tmp_path: Path, request: pytest.FixtureRequest) -> TypedExporter:
    return TypedExporter(tmp_path, request.param)


@pytest.mark.long
def test_the_command_needs_neither_pyspark_nor_java(local: TypedExporter) -> None:
    write(local.store, SENT)
    done = rmq("export", local.store, *local.words(*local.dead, topics=topics(local.work)))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["undecoded"] == sum(UNDECODED.values())
    assert [report["exports"][name] for name in UNDECODED] == [2, 2, 2, 4, 1, 1]
    whole, rescued = local.rows("Avro", order="m_physical_offset")
    assert (whole["id"], str(whole["amount"]), whole["kind"], whole["raw"]) == (1 << 40, "12.34", "OLD", b"ab")
    assert (whole["at"].timestamp(), whole["day"].isoformat()) == (MS / 1000, "2023-11-14")
    assert (whole["lines"][1], whole["by"]) == ({"sku": "t", "n": None}, [("k", {"sku": "u", "n": 1})])
    assert (rescued["at"], rescued["of"], json.loads(rescued["_rescued"])) == (None, {"sku": "s", "n": 9}, {"at": US})
    assert [(row["id"], row["at"].timestamp()) for row in local.rows("Writers")] == [(5, MS / 1000), (6, MS / 1000)]
    proto, unknown, no_time, no_id = local.rows("Proto")
    assert (int(proto["by"][0][1]), proto["n"], proto["at"].microsecond) == (2**64 - 1, 2**32 - 1, 999)
    assert unknown["_unknown_fields"] == '{"15": 5}'
    assert [list(json.loads(row["_rescued"])) for row in (no_time, no_id)] == [["at"], ["id"]]
    assert [(row["element_index"], row["id"]) for row in local.rows("Many")] == [(0, 1), (1, 2)]
    assert [(row["id"], row["left"]) for row in local.rows("Tree")] == [(1, '{"id":"2"}')]


def test_what_cannot_be_used_is_refused_before_anything_is_written(local: TypedExporter) -> None:
    write(local.store, SENT)
    avro, *_, many, _ = topics(local.work)
    faulty = avro_record("R", a="int")
    (local.work / "faulty.avsc").write_text(json.dumps({**faulty, "fields": faulty["fields"] * 2}))
    for topic, problem in (
        ({**avro, "schema": '"int"'}, "topic 'Avro': its avro schema cannot be used: it is not a record"),
        ({**avro, "schema": "{"}, "its avro schema cannot be used"),
        (
            {**avro, "schema": None, "schema_file": "faulty.avsc"},
            r"used: .*faulty\.avsc: not .*field a of .* comes twice",
        ),
        ({**avro, "columns": ["no"]}, "columns has 'no', which is no column of the schema"),
        ({**avro, "schema": json.dumps(avro_record("R", a="int", A="int"))}, "comes twice"),
        ({**many, "message": "shop.No"}, "no message 'shop.No'"),
        ({**many, "message": "shop.Order"}, "explode needs a message with one field"),
        ({**many, "schema_file": "none"}, "cannot be read"),
    ):
        with pytest.raises(OptionError, match=problem):
            local.typed(topics=[topic])
    for nested in (
        avro_record("None"), avro_record("Null", b="null"), avro_record("Outer", c=avro_record("None")),
        {"type": "array", "items": "null"}, {"type": "map", "values": "null"},
    ):  # fmt: skip
        problem = r"topic 'Avro': its avro schema cannot be used: column of is .*, which tables have not"
        with pytest.raises(OptionError, match=problem):
            local.typed(topics=[{**avro, "schema": json.dumps(avro_record("R", of=nested))}])
    twice = avro_record("Twice", b="int", B="int")
    for nested, path in ((twice, "of"), ({"type": "array", "items": twice}, "of.element")):
        with pytest.raises(OptionError, match=f"column {path} has members 'b' and 'B': one name to tables"):
            local.typed(topics=[{**avro, "schema": json.dumps(avro_record("R", of=nested))}])
    with pytest.raises(NeedsSparkError, match="topic 'Avro': column of is null, which is for the job"):
        local.typed(topics=[{**avro, "schema": json.dumps(avro_record("R", of="null"))}])
    assert not list(local.work.glob("[AM]*"))


@pytest.mark.spark
def test_the_job_refuses_members_that_differ_only_in_case(spark: SparkSession) -> None:
    for schema in ("id BIGINT, s STRUCT<a: BIGINT, A: BIGINT>", "s MAP<STRING, STRUCT<a: BIGINT, A: BIGINT>>"):
        topic = TypedTopic(topic="T", table="t", format="json", schema=schema)
        with pytest.raises(OptionError, match=r"^topic 'T': its json schema .*: column s.* has members 'a' and 'A'"):
            build_body_decoder(spark, topic)
    topic = TypedTopic(topic="T", table="t", format="json", schema=schema, columns=("s.value.a",))
    assert build_body_decoder(spark, topic).columns.simpleString() == "struct<s:map<string,struct<a:bigint>>>"


def test_decoders_of_all_topics_go_to_other_processes(local: TypedExporter) -> None:
    local.words(topics=topics(local.work))
    for topic in load_spec(str(local.work / "spec.json")):
        decoder = build_local_decoder(topic)
        bodies = pa.record_batch({"body": pa.array([body for name, body in SENT if name == topic.topic], pa.binary())})
        batches = [list(each.decode_batches([bodies])) for each in (decoder, pickle.loads(pickle.dumps(decoder)))]
        assert batches[0] == batches[1]


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_job_and_command_take_turns_and_make_the_same_tables(exporter: Exporter, table_format: str) -> None:
    described = []
    for begun_by in ("job", "command"):
        (exporter.work / begun_by).mkdir()
        local = TypedExporter(exporter.work / begun_by, table_format)
        local.store = exporter.store
        shutil.rmtree(local.store, ignore_errors=True)
        words = local.words(*local.dead, topics=topics(local.work))
        for count in (1, 2):
            write(local.store, SENT * count)
            is_by_job = (begun_by == "job") == (count == 1)
            report, _ = (exporter if is_by_job else local).run(*words, table=False)
            assert report["undecoded"] == sum(UNDECODED.values())
        tables: dict[str, Any] = {"dead": local.rows("dead")}
        for name in UNDECODED:
            offset = "m_physical_offset" if name == "Avro" else "physical_offset"
            rows = sorted(local.rows(name, offset), key=lambda row: (row[offset], row.get("element_index")))
            tables[name] = rows
        described.append([tables, *(describe(local.work / name) for name in tables)])
    assert described[0] == described[1]
