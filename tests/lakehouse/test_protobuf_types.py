"""Values of Protobuf bodies in their columns: enums, names of fields, texts, and messages within themselves."""

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, message_factory, text_format

from rmq_lakehouse.decode import protobuf


def describe(text: str) -> bytes:
    """Serialize a file of package ``shop``, in the text format, and ``google/protobuf/any.proto``."""
    file = text_format.Parse(f'name: "shop.proto" package: "shop" {text}', descriptor_pb2.FileDescriptorProto())
    imported = descriptor_pb2.FileDescriptorProto()
    any_pb2.DESCRIPTOR.CopyToProto(imported)
    return descriptor_pb2.FileDescriptorSet(file=[imported, file]).SerializeToString()


def field(name: str, number: int, kind: str, type_name: str = "", **more: Any) -> str:
    words = {"label": "LABEL_OPTIONAL", "type": f"TYPE_{kind}", **more}
    text = " ".join(f"{key}: {value}" for key, value in words.items())
    return f'field {{ name: "{name}" number: {number} {text} type_name: "{type_name}" }}'


def message_of(schema: bytes, name: str, **fields: Any) -> Any:
    return message_factory.GetMessageClass(protobuf.descriptor(schema, name))(**fields)


STATE = field("state", 1, "ENUM", ".shop.State")
STATES = describe(
    'syntax: "proto3" enum_type { name: "State" options { allow_alias: true } value { name: "NONE" number: 0 } '
    'value { name: "PAID" number: 1 } value { name: "SETTLED" number: 1 } value { name: "CLOSED" number: 1 } } '
    f'message_type {{ name: "Order" {STATE} }}'
)


def test_an_enum_has_the_first_name_of_its_number() -> None:
    body = message_of(STATES, "shop.Order", state=1).SerializeToString()
    assert protobuf.decoder(STATES, "shop.Order")(body) == {"state": "PAID"}
