"""Avro and Protobuf bodies: what they become, and the reason where they do not."""

import datetime
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_udfs import avro, protobuf
from spark_udfs.bodies import decoded

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
AVRO_TYPE = pa.struct(
    [("id", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("uid", pa.string())]
)
NOW = datetime.datetime(2026, 3, 1, 8, 30, tzinfo=datetime.UTC)
ORDER = {"id": "4711", "amount": 2.5, "at": NOW, "uid": "0a1b2c3d-0000-1111-2222-333344445555"}


def avro_body(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, value)
    return stream.getvalue()


def descriptors() -> bytes:
    """``message Order { string id = 1; uint64 n = 2; repeated string lines = 3; optional double amount = 4; }``."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=9, label=1)
    message.field.add(name="n", number=2, type=4, label=1)
    message.field.add(name="lines", number=3, type=9, label=3)
    message.field.add(name="amount", number=4, type=1, label=1, proto3_optional=True, oneof_index=0)
    message.oneof_decl.add(name="_amount")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf_body(**fields: Any) -> bytes:
    kind = message_factory.GetMessageClass(protobuf.descriptor(descriptors(), "shop.Order"))
    return bytes(kind(**fields).SerializeToString())


def rows(column: pa.Array) -> list[tuple[Any, Any]]:
    return [(row["value"], row["reason"]) for row in column.to_pylist()]


def test_avro_becomes_columns_and_the_rest_has_a_reason() -> None:
    whole = avro_body(ORDER)
    bodies = pa.array([whole, whole + b"x", whole[:-3], b"", None], pa.binary())
    sound, longer, cut, empty, none = rows(decoded(bodies, avro.decoder(json.dumps(SCHEMA)), AVRO_TYPE))
    assert sound == (ORDER, None)
    assert longer == (None, "ValueError: 1 bytes after the value")
    assert cut[0] is None
    assert cut[1]
    assert empty == none == (None, "the body is empty")


def test_a_union_of_several_types_is_refused() -> None:
    field = {"name": "either", "type": ["null", "string", "long"]}
    with pytest.raises(ValueError, match="a union of several types"):
        avro.decoder(json.dumps({"type": "record", "name": "R", "fields": [field]}))


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_there_is_a_value_or_a_reason(body: bytes) -> None:
    for decode, value_type in [
        (avro.decoder(json.dumps(SCHEMA)), AVRO_TYPE),
        (protobuf.decoder(descriptors(), "shop.Order"), protobuf_type()),
    ]:
        ((value, reason),) = rows(decoded(pa.array([body], pa.binary()), decode, value_type))
        assert (value is None) != (reason is None)


def protobuf_type() -> pa.DataType:
    return pa.struct(
        [("id", pa.string()), ("n", pa.decimal128(20)), ("lines", pa.list_(pa.string())), ("amount", pa.float64())]
    )


def test_protobuf_becomes_columns() -> None:
    message = protobuf.descriptor(descriptors(), "shop.Order")
    wanted = "struct<id:string,n:decimal(20,0),lines:array<string>,amount:double>"
    assert protobuf.columns(message).simpleString() == wanted
    bodies = pa.array([protobuf_body(id="a", n=2**64 - 1, lines=["x", "y"]), protobuf_body(amount=1.5)], pa.binary())
    first, second = rows(decoded(bodies, protobuf.decoder(descriptors(), "shop.Order"), protobuf_type()))
    assert first == ({"id": "a", "n": 2**64 - 1, "lines": ["x", "y"], "amount": None}, None)
    assert second == ({"id": "", "n": 0, "lines": [], "amount": 1.5}, None)


def test_messages_that_are_not_there_or_hold_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no message 'shop.Nothing'"):
        protobuf.descriptor(descriptors(), "shop.Nothing")
    with pytest.raises(ValueError, match="not a FileDescriptorSet"):
        protobuf.descriptor(b"\xff\xff", "shop.Order")
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", syntax="proto3")
    file.message_type.add(name="Tree").field.add(name="left", number=1, type=11, label=1, type_name=".Tree")
    tree = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(ValueError, match="'Tree' holds itself"):
        protobuf.columns(protobuf.descriptor(tree, "Tree"))


def test_a_value_that_its_column_cannot_hold_has_a_reason_and_the_others_stay() -> None:
    def decode(body: bytes) -> dict[str, Any]:
        return {"n": int(body)}

    bodies = pa.array([b"1", b"99999999999", b"3"], pa.binary())
    first, second, third = rows(decoded(bodies, decode, pa.struct([("n", pa.int32())])))
    assert (first, third) == (({"n": 1}, None), ({"n": 3}, None))
    assert second[0] is None
    assert second[1].startswith("ArrowInvalid")


@pytest.mark.parametrize("schema", ["{}", '"nothing"', '{"type": "record"}', "{"])
def test_what_is_no_avro_schema_is_told(schema: str) -> None:
    with pytest.raises(ValueError, match=r"not an Avro schema|Expecting|nothing"):
        avro.decoder(schema)
