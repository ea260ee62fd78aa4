"""Parts of Avro and Protobuf bodies that become JSON texts: recursive types, ``Struct``, and unknown fields."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, struct_pb2

from rmq_formats.errors import OptionError
from rmq_lakehouse.decode import avro, protobuf
from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.spec import load_spec
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_iceberg import table_of

STRING, INT64, MESSAGE = 9, 3, 11
TREE: dict[str, Any] = {
    "type": "record", "name": "Tree", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "left", "type": ["null", "Tree"], "default": None},
        {"name": "all", "type": {"type": "array", "items": "shop.Tree"}, "default": []},
        {"name": "by", "type": {"type": "map", "values": "Tree"}, "default": {}},
    ],
}  # fmt: skip


def described() -> bytes:
    """``message Tree { int64 id = 1; Tree left = 2; repeated Tree all = 3; Struct more = 4; Value one = 5; }``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tree.proto", package="shop", syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="id", number=1, type=INT64, label=1)
    tree.field.add(name="left", number=2, type=MESSAGE, label=1, type_name=".shop.Tree")
    tree.field.add(name="all", number=3, type=MESSAGE, label=3, type_name=".shop.Tree")
    for number, name in ((4, "Struct"), (5, "Value"), (6, "ListValue")):
        tree.field.add(name=name.lower(), number=number, type=MESSAGE, label=1, type_name=f".google.protobuf.{name}")
    struct = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(struct)
    return descriptor_pb2.FileDescriptorSet(file=[struct, file]).SerializeToString()


def tree(**fields: Any) -> Any:
    return message_factory.GetMessageClass(protobuf.descriptor(described(), "shop.Tree"))(**fields)


def avro_body(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, TREE, value)
    return stream.getvalue()


def test_protobuf_messages_within_themselves_and_struct_are_json() -> None:
    columns = protobuf.columns(protobuf.descriptor(described(), "shop.Tree"))
    texts = dict.fromkeys(["left", "all", "struct", "value", "listvalue"], pa.string())
    assert columns == pa.schema({"id": pa.int64(), **texts, "all": pa.list_(pa.field("element", pa.string()))})
    message = tree(id=1, left={"id": 2**60, "left": {"id": 3}}, all=[{"id": 4}, {}])
    message.struct.update({"b": [1, 2.5, "ä"], "a": None})
    message.value.string_value = "text"
    decode = protobuf.decoder(described(), "shop.Tree")
    assert decode(message.SerializeToString()) == {
        "id": 1, "left": '{"id":"1152921504606846976","left":{"id":"3"}}', "all": ['{"id":"4"}', "{}"],
        "struct": '{"a":null,"b":[1.0,2.5,"ä"]}', "value": '"text"', "listvalue": None,
    }  # fmt: skip
    message.value.number_value = float("nan")
    with pytest.raises(Mismatch, match=r"column value: .*, wanted google\.protobuf\.Value that JSON can express"):
        decode(message.SerializeToString())


def test_unknown_fields_of_protobuf_are_json_by_path_and_number() -> None:
    decode = protobuf.decoder(described(), "shop.Tree", unknown_fields=True)
    inner = bytes.fromhex("080260016002")  # id = 2, twice field 12
    body = bytes.fromhex("08015207") + b"unknown" + b"\x12" + bytes([len(inner)]) + inner
    assert json.loads(decode(body)["_unknown_fields"]) == {"10": "dW5rbm93bg==", "left.12": [1, 2]}
    assert decode(tree(id=1).SerializeToString()).get("_unknown_fields") is None


def test_avro_records_within_themselves_are_json() -> None:
    decode = avro.decoder(json.dumps(TREE))
    leaf: dict[str, Any] = {"id": 2, "left": None, "all": [], "by": {}}
    row = decode(avro_body({"id": 1, "left": leaf, "all": [leaf], "by": {"k": leaf}}))
    assert (row["id"], json.loads(row["left"]), json.loads(row["all"][0])) == (1, leaf, leaf)
    assert {name: json.loads(text) for name, text in row["by"].items()} == {"k": leaf}
    assert avro.columns(json.dumps(TREE)).field("left").type == pa.string()


def test_unknown_fields_are_of_protobuf(tmp_path: Path) -> None:
    topic = {"topic": "T", "table": "t", "format": "json", "schema": "a INT", "unknown_fields": True}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"topics": [topic]}))
    with pytest.raises(OptionError, match="topic 'T': unknown_fields is of format protobuf"):
        load_spec(str(path))


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_recursive_types_become_texts_in_tables(exporter: Exporter, table_format: str) -> None:
    (exporter.work / "tree.desc").write_bytes(described())
    spec = exporter.work / "spec.json"
    topics: list[dict[str, Any]] = [
        {"topic": "A", "format": "avro", "schema": json.dumps(TREE), "table": "avro"},
        {
            "topic": "P", "format": "protobuf", "schema_file": "tree.desc", "message": "shop.Tree", "table": "protobuf",
            "unknown_fields": True,
        },
    ]  # fmt: skip
    spec.write_text(json.dumps({"topics": topics}))
    leaf = {"id": 2, "left": None, "all": [], "by": {}}
    write(
        exporter.store,
        [
            ("A", avro_body({**leaf, "id": 1, "left": leaf})),
            ("P", tree(id=1, left={"id": 2}).SerializeToString() + b"\x60\x05"),
        ],
    )
    report, code = exporter.run("--format", table_format, "--typed", str(spec), table=False)
    assert (report["messages"], code) == (2, 0)

    def only_row(name: str) -> dict[str, Any]:
        if table_format == "iceberg":
            (row,) = table_of(exporter, name).scan().to_arrow().to_pylist()
        else:
            (row,) = (row.asDict(recursive=True) for row in exporter.rows(name))
        return dict(row)

    assert json.loads(only_row("avro")["left"]) == leaf
    row = only_row("protobuf")
    assert (row["left"], row["_unknown_fields"]) == ('{"id":"2"}', '{"12": 5}')
