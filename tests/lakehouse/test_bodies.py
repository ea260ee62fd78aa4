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

from rmq_lakehouse.decode import avro, protobuf
from rmq_lakehouse.decode.bodies import decoded, without_header

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
NOV_14 = datetime.datetime(2023, 11, 14, 22, 13, 20)  # wall clock
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


def test_a_header_is_skipped_where_the_spec_names_it_and_suspected_else() -> None:
    body = b"\0\0\0\0\x07" + avro_body(ORDER)
    decode = avro.decoder(json.dumps(SCHEMA))
    bodies = pa.array([body, b"\0\0\0", b""])
    whole, cut, empty = rows(decoded(bodies, without_header(decode, 5), AVRO_TYPE))
    assert whole == (ORDER, None)
    assert cut == (None, "the body has 3 bytes, wanted a header of 5")
    assert empty == (None, "the body is empty")
    ((_, reason),) = rows(decoded(bodies[:1], decode, AVRO_TYPE))
    assert reason.endswith("; it looks like a registry header: header_bytes = 5")


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
    assert pa.struct(list(protobuf.columns(message))) == protobuf_type()
    bodies = pa.array([protobuf_body(id="a", n=2**64 - 1, lines=["x", "y"]), protobuf_body(amount=1.5)], pa.binary())
    first, second = rows(decoded(bodies, protobuf.decoder(descriptors(), "shop.Order"), protobuf_type()))
    assert first == ({"id": "a", "n": 2**64 - 1, "lines": ["x", "y"], "amount": None}, None)
    assert second == ({"id": "", "n": 0, "lines": [], "amount": 1.5}, None)


def test_messages_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no message 'shop.Nothing'"):
        protobuf.descriptor(descriptors(), "shop.Nothing")
    with pytest.raises(ValueError, match="not a FileDescriptorSet"):
        protobuf.descriptor(b"\xff\xff", "shop.Order")


def test_a_value_that_its_column_cannot_hold_has_a_reason_and_the_others_stay() -> None:
    def decode(body: bytes) -> dict[str, Any]:
        return {"n": int(body)}

    bodies = pa.array([b"1", b"99999999999", b"3"], pa.binary())
    first, second, third = rows(decoded(bodies, decode, pa.struct([("n", pa.int32())])))
    assert (first, third) == (({"n": 1}, None), ({"n": 3}, None))
    assert second[0] is None
    assert second[1].startswith("ArrowInvalid")


@pytest.mark.parametrize(
    ("kind", "value", "back"),
    [
        ({"type": "int", "logicalType": "date"}, 19675, datetime.date(2023, 11, 14)),
        ({"type": "int", "logicalType": "date"}, 1 << 30, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_000_000, None),
        ({"type": "long", "logicalType": "timestamp-micros"}, -(1 << 62), None),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1_700_000_000_000_000, NOV_14),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 253_402_300_800_000, None),
    ],
)
def test_a_time_of_avro_is_of_the_years_1_to_9999_or_a_reason_names_its_column(
    kind: dict[str, Any], value: int, back: object
) -> None:
    inner = {"type": "record", "name": "Inner", "namespace": "shop", "fields": [{"name": "t", "type": ["null", kind]}]}
    fields = [
        {"name": "one", "type": inner}, {"name": "all", "type": {"type": "array", "items": "shop.Inner"}},
        {"name": "by", "type": {"type": "map", "values": "Inner"}}, {"name": "n", "type": "long"},
    ]  # fmt: skip
    schema = {"type": "record", "name": "R", "namespace": "shop", "fields": fields}
    raw = {"type": kind["type"]}
    plain_schema = json.loads(json.dumps(schema).replace(json.dumps(kind), json.dumps(raw)))
    time_type = pa.date32() if kind["type"] == "int" else pa.timestamp("us")
    of_inner = pa.struct([("t", time_type)])
    value_type = pa.struct(
        [("one", of_inner), ("all", pa.list_(of_inner)), ("by", pa.map_(pa.string(), of_inner)), ("n", pa.int64())]
    )
    for where in ("one", "all", "by"):
        row: dict[str, Any] = {"one": {"t": None}, "all": [], "by": {}, "n": 1}
        row[where] = {"one": {"t": value}, "all": [{"t": None}, {"t": value}], "by": {"k": {"t": value}}}[where]
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, plain_schema, row)
        ((found, reason),) = rows(decoded(pa.array([stream.getvalue()]), avro.decoder(json.dumps(schema)), value_type))
        if back is None:
            path = {"one": "one.t", "all": "all.element.t", "by": "by.value.t"}[where]
            assert reason.startswith(f"column {path}: number {value}, wanted ")
            assert reason.endswith("of years 1 to 9999")
        else:
            assert reason is None
            assert {"one": found["one"], "all": found["all"][-1:], "by": dict(found["by"]).get("k")}[where] in (
                {"t": back}, [{"t": back}],
            )  # fmt: skip


STRING, INT64, DOUBLE, MESSAGE, ENUM = 9, 3, 1, 11, 14


def message_class(package: str, fields: dict[str, tuple[int, int]], syntax: str = "proto3") -> tuple[Any, bytes]:
    """A message of fields (number, type), with a member ``of`` of a message, a map and lists of these fields."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    line, order = file.message_type.add(name="Line"), file.message_type.add(name="Order")
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="NONE", number=0)
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=1)
    entry.field.add(name="value", number=2, type=MESSAGE, label=1, type_name=f".{package}.Line")
    for message in (line, order):
        for name, (number, kind) in fields.items():
            of_enum = {"type_name": f".{package}.Kind"} if kind == ENUM else {}
            message.field.add(name=name, number=number, type=kind, label=1, **of_enum)
    order.field.add(name="of", number=50, type=MESSAGE, label=1, type_name=f".{package}.Line")
    order.field.add(name="lines", number=51, type=MESSAGE, label=3, type_name=f".{package}.Line")
    order.field.add(name="by", number=52, type=MESSAGE, label=3, type_name=f".{package}.Order.ByEntry")
    described = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return message_factory.GetMessageClass(protobuf.descriptor(described, f"{package}.Order")), described


class TestProtobufDrift:
    """Bodies that the library takes for messages of defaults."""

    sent, schema = message_class("shop", {"id": (1, INT64), "name": (2, STRING), "sum": (4, DOUBLE)})

    def reason(self, body: bytes, schema: bytes | None = None) -> str | None:
        decode = protobuf.decoder(schema or self.schema, "shop.Order")
        columns = protobuf.columns(protobuf.descriptor(schema or self.schema, "shop.Order"))
        ((value, reason),) = rows(decoded(pa.array([body]), decode, pa.struct(list(columns))))
        assert (value is None) == (reason is not None)
        return None if reason is None else str(reason)

    def test_a_field_whose_type_changed_is_named_wherever_it_is(self) -> None:
        changed, _ = message_class("other", {"id": (1, STRING), "name": (2, STRING), "sum": (4, DOUBLE)})
        inner = {"id": "A-3", "name": "n"}
        for body, path in [
            (changed(**inner), "id"), (changed(name="n", of=inner), "of.id"),
            (changed(name="n", lines=[{"name": "n"}, inner]), "lines.element.id"),
            (changed(name="n", by={"k": inner}), "by.value.id"),
        ]:  # fmt: skip
            wanted = f"column {path}: field 1 of wire type LEN, wanted int64"
            assert self.reason(body.SerializeToString()) == wanted

    def test_a_map_that_was_a_number_is_named(self) -> None:
        body = self.sent(id=1).SerializeToString() + bytes.fromhex("a00305")  # field 52, a varint
        assert self.reason(body) == "column by: field 52 of wire type VARINT, wanted map<string, shop.Line>"

    def test_another_message_is_told_by_its_numbers(self) -> None:
        refund, _ = message_class("other", {"reason": (30, STRING), "cents": (31, INT64)})
        said = "the body has none of the fields of shop.Order; it has numbers 30, 31"
        assert self.reason(refund(reason="r", cents=5).SerializeToString()) == said

    def test_more_fields_than_the_schema_has_are_fine(self) -> None:
        more, _ = message_class("other", {"id": (1, INT64), "extra": (9, STRING)})
        inner = {"id": 1, "extra": "x"}
        assert self.reason(more(**inner, of={"extra": "x"}, lines=[inner], by={"k": inner}).SerializeToString()) is None

    def test_a_number_that_a_closed_enum_lacks_is_named(self) -> None:
        _, closed = message_class("shop", {"id": (1, INT64), "kind": (3, ENUM)}, "proto2")
        assert self.reason(bytes.fromhex("08011807"), closed) == "column kind: number 7, wanted enum shop.Kind"


@pytest.mark.parametrize("schema", ["{}", '"nothing"', '{"type": "record"}', "{"])
def test_what_is_no_avro_schema_is_told(schema: str) -> None:
    with pytest.raises(ValueError, match=r"not an Avro schema|Expecting|nothing"):
        avro.decoder(schema)
