"""Values of Protobuf bodies in their columns: enums, names of fields, texts, and messages within themselves."""

import json
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2, message_factory, text_format
from google.protobuf.message import Message

from rmq_lakehouse.decode import protobuf
from rmq_lakehouse.decode.mismatch import Mismatch
from tests.lakehouse.test_protobuf_wire import text

REPEATED = "LABEL_REPEATED"


def describe(content: str) -> bytes:
    """Serialize a file of package ``shop``, in the text format, and ``google/protobuf/any.proto``."""
    file = text_format.Parse(f'name: "shop.proto" package: "shop" {content}', descriptor_pb2.FileDescriptorProto())
    imported = descriptor_pb2.FileDescriptorProto()
    any_pb2.DESCRIPTOR.CopyToProto(imported)
    return descriptor_pb2.FileDescriptorSet(file=[imported, file]).SerializeToString()


def field(name: str, number: int, kind: str, type_name: str = "", label: str = "LABEL_OPTIONAL") -> str:
    of_type = f'type_name: "{type_name}"' if type_name else ""
    return f'field {{ name: "{name}" number: {number} type: TYPE_{kind} label: {label} {of_type} }}'


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


MESSAGE_OF_ANY = field("any", 2, "MESSAGE", ".google.protobuf.Any") + field("n", 3, "INT64")
NODES = describe(
    'syntax: "proto3" dependency: "google/protobuf/any.proto" '
    f'message_type {{ name: "Node" {field("next", 1, "MESSAGE", ".shop.Node")} {MESSAGE_OF_ANY} }}'
)


def test_an_any_within_a_recursive_message_is_json_of_the_message_that_it_names() -> None:
    node = message_of(NODES, "shop.Node", n=1)
    node.next.any.Pack(type(node)(n=5))
    row = protobuf.decoder(NODES, "shop.Node")(node.SerializeToString())
    named = {"@type": "type.googleapis.com/shop.Node", "n": "5"}
    assert json.loads(row["next"]) == {"any": named}
    node.next.any.type_url = "type.googleapis.com/shop.No"
    with pytest.raises(Mismatch, match=r"^column next: .* wanted shop\.Node that JSON can express"):
        protobuf.decoder(NODES, "shop.Node")(node.SerializeToString())


PAIRS = (
    'nested_type { name: "MEntry" options { map_entry: true } '
    f"{field('key', 1, 'STRING')} {field('value', 2, 'STRING')} }}"
)
TEXTS = describe(
    f'message_type {{ name: "Node" {PAIRS} {field("s", 1, "STRING")} {field("all", 2, "STRING", label=REPEATED)}'
    f"{field('m', 3, 'MESSAGE', '.shop.Node.MEntry', REPEATED)} {field('next', 4, 'MESSAGE', '.shop.Node')}"
    f"{field('n', 5, 'INT32')} }}"
)


@pytest.mark.parametrize(
    ("sent", "path", "column", "rescued"),
    [
        (b"\x0a\x01\xff", "s", "s", "/w=="),
        (b"\x12\x01a\x12\x01\xff", "all.element", "all", ["a", "/w=="]),
        (b"\x1a\x06\x0a\x01\xff\x12\x01b", "m.key", "m", [{"key": "/w==", "value": "b"}]),
        (b"\x1a\x06\x0a\x01a\x12\x01\xff", "m.value", "m", [{"key": "a", "value": "/w=="}]),
        (b"\x22\x03\x0a\x01\xff", "next", "next", {"s": "/w=="}),
        (b"\x22\x08\x1a\x06\x0a\x01\xff\x12\x01b", "next", "next", {"m": [{"key": "/w==", "value": "b"}]}),
        (b"\x22\x08\x22\x06\x12\x01a\x12\x01\xff", "next", "next", {"next": {"all": ["a", "/w=="]}}),
    ],
)
def test_a_text_that_is_no_utf_8_is_refused_by_its_column(sent: bytes, path: str, column: str, rescued: Any) -> None:
    body = sent + b"\x28\x07"  # n = 7
    with pytest.raises(Mismatch, match=rf"^column {path}: bytes ff, no UTF-8, wanted string$"):
        protobuf.decoder(TEXTS, "shop.Node")(body)
    row = protobuf.decoder(TEXTS, "shop.Node", "rescue")(body)
    assert (row[column], row["n"]) == (None, 7)
    values = json.loads(row["_rescued"])
    assert values == {column: rescued}


NAMES = sorted(name for name in dir(Message) if name[0] != "_")
FIELDS = " ".join(field(name, number, "STRING") for number, name in enumerate(NAMES, 1))
METHODS = describe(
    f'message_type {{ name: "Order" {FIELDS} {field("inner", 1000, "MESSAGE", ".shop.Order.In")} '
    f'nested_type {{ name: "In" {FIELDS} }} }}'
)


@pytest.mark.parametrize("on_mismatch", ["dead-letter", "rescue"])
def test_fields_may_have_the_names_of_methods(on_mismatch: str) -> None:
    texts = {name: name.lower() for name in NAMES}
    inner = b"".join(text(number, name.lower().encode()) for number, name in enumerate(NAMES, 1))
    body = inner + text(1000, inner)
    decode = protobuf.decoder(METHODS, "shop.Order", on_mismatch)
    assert decode(body) == {**texts, "inner": texts}
    assert decode(b"\x0a\x01x") == {**dict.fromkeys(NAMES), NAMES[0]: "x", "inner": None}
    twice = b"\x0a\x01x" + body
    assert on_mismatch == "dead-letter" or json.loads(decode(twice)["_rescued"]) == {NAMES[0]: ["x", NAMES[0].lower()]}
