"""Protobuf bodies whose values the library cuts, merges or drops: each is refused, and rescued as it was sent."""

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_lakehouse.decode import protobuf
from rmq_lakehouse.decode.bodies import decoded
from rmq_lakehouse.decode.mismatch import Mismatch

Field = tuple[int, str]  # number and type, as a .proto file has them
KEYWORDS = {
    name.removeprefix("TYPE_").lower(): number for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
SHOP: dict[str, dict[str, Field]] = {
    "Deep": {"z": (1, "int64"), "n": (2, "uint32")},
    "In": {"a": (1, "int32"), "b": (2, "string"), "c": (3, "Deep"), "at": (4, "google.protobuf.Timestamp")},
    "Node": {"n": (1, "int32"), "next": (2, "Node")},
    "Order": {
        "i": (1, "int32"), "u": (2, "uint32"), "s": (3, "sint32"), "flag": (4, "bool"), "kind": (5, "Kind"),
        "name": (6, "string"), "raw": (7, "bytes"), "l": (8, "int64"), "ul": (9, "uint64"), "f": (10, "float"),
        "d": (11, "double"), "sl": (12, "sint64"), "x32": (13, "sfixed32"),
        "ri": (20, "repeated int32"), "rs": (21, "repeated string"), "kinds": (22, "repeated Kind"),
        "m": (23, "map string int32"), "mm": (24, "map string In"), "flags": (25, "map int32 bool"),
        "times": (26, "map string google.protobuf.Timestamp"), "in": (30, "In"), "rin": (31, "repeated In"),
        "ts": (32, "google.protobuf.Timestamp"), "rts": (33, "repeated google.protobuf.Timestamp"),
        "iv": (34, "google.protobuf.Int32Value"), "node": (35, "Node"), "st": (36, "google.protobuf.Struct"),
    },
    "Orders": {"all": (1, "repeated In")},
}  # fmt: skip
OLD: dict[str, dict[str, Field]] = {
    "In": {"n": (1, "uint32")},
    "Order": {
        "i": (1, "int32"), "kind": (2, "Kind"), "kinds": (3, "repeated Kind"), "by": (4, "map string Kind"),
        "in": (5, "group In"), "numbers": (6, "repeated int32"),
    },
}  # fmt: skip


def add_field(message: Any, package: str, name: str, number: int, kind: str) -> None:
    label = 3 if kind.startswith(("repeated ", "map ")) else 1
    kind = kind.removeprefix("repeated ")
    if kind.startswith("map "):
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        for member, member_kind in enumerate(kind.split()[1:], 1):
            add_field(entry, package, ("key", "value")[member - 1], member, member_kind)
        message.field.add(
            name=name,
            number=number,
            label=3,
            type=KEYWORDS["message"],
            type_name=f".{package}.{message.name}.{entry.name}",
        )
        return
    is_group = kind.startswith("group ")
    kind = kind.removeprefix("group ")
    if kind in KEYWORDS:
        message.field.add(name=name, number=number, label=label, type=KEYWORDS[kind])
        return
    keyword = "group" if is_group else "enum" if kind == "Kind" else "message"
    type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    message.field.add(name=name, number=number, label=label, type=KEYWORDS[keyword], type_name=type_name)


def describe(package: str, messages: dict[str, dict[str, Field]], syntax: str = "proto3") -> bytes:
    files = [descriptor_pb2.FileDescriptorProto() for _ in range(3)]
    for file, module in zip(files, (timestamp_pb2, struct_pb2, wrappers_pb2), strict=True):
        module.DESCRIPTOR.CopyToProto(file)
    own = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax=syntax, dependency=[file.name for file in files]
    )
    kinds = own.enum_type.add(name="Kind")
    for number, name in enumerate(("NONE", "BOOK")):
        kinds.value.add(name=name, number=number)
    for name, fields in messages.items():
        message = own.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            add_field(message, package, field, number, kind)
    return descriptor_pb2.FileDescriptorSet(file=[*files, own]).SerializeToString()


SCHEMA, CLOSED = describe("shop", SHOP), describe("old", OLD, "proto2")
ORDER = message_factory.GetMessageClass(protobuf.descriptor(SCHEMA, "shop.Order"))


def varint(value: int) -> bytes:
    value, text = value % (1 << 64) if value < 0 else value, bytearray()
    while value > 0x7F:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*text, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def group(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 3) + value + varint(field << 3 | 4)


def entry(field: int, key: bytes, value: bytes) -> bytes:
    return text(field, key + value)


def decode(body: bytes, on_mismatch: str = "dead-letter", **how: Any) -> dict[str, Any]:
    return dict(protobuf.decoder(SCHEMA, "shop.Order", on_mismatch, **how)(body))


def reason(body: bytes, schema: bytes = SCHEMA, message: str = "shop.Order", **how: Any) -> str:
    with pytest.raises(Mismatch) as caught:
        protobuf.decoder(schema, message, **how)(body)
    return str(caught.value)


def rescued(body: bytes) -> Any:
    return json.loads(decode(body, "rescue")["_rescued"], parse_constant=pytest.fail)


KEY = text(1, b"k")
WIDE = 2**40 + 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (number(1, WIDE), "column i: number 1099511627781, wanted int32"),
        (number(1, 3_000_000_000), "column i: number 3000000000, wanted int32"),
        (number(1, -(2**31) - 1), "column i: number -2147483649, wanted int32"),
        (number(2, -1), "column u: number 18446744073709551615, wanted uint32"),
        (number(2, 2**32), "column u: number 4294967296, wanted uint32"),
        (number(3, 2**40), "column s: number 549755813888, wanted sint32"),
        (number(4, 2), "column flag: number 2, wanted bool"),
        (number(4, -1), "column flag: number -1, wanted bool"),
        (number(5, 2**32 + 1), "column kind: number 4294967297, wanted enum shop.Kind"),
        (number(8, 2**64), "column l: number 18446744073709551616, wanted int64"),
        (number(9, 2**69), f"column ul: number {2**69}, wanted uint64"),
        (text(20, varint(1) + varint(WIDE)), "column ri.element: number 1099511627781, wanted int32"),
        (number(20, 1) + number(20, WIDE), "column ri.element: number 1099511627781, wanted int32"),
        (number(22, 2**32), "column kinds.element: number 4294967296, wanted enum shop.Kind"),
        (entry(23, KEY, number(2, WIDE)), "column m.value: number 1099511627781, wanted int32"),
        (entry(25, number(1, 2**32), number(2, 1)), "column flags.key: number 4294967296, wanted int32"),
        (entry(25, number(1, 1), number(2, 2)), "column flags.value: number 2, wanted bool"),
        (entry(24, KEY, text(2, number(1, WIDE))), "column mm.value.a: number 1099511627781, wanted int32"),
        (text(30, number(1, WIDE)), "column in.a: number 1099511627781, wanted int32"),
        (text(30, text(3, number(2, -1))), "column in.c.n: number 18446744073709551615, wanted uint32"),
        (text(31, b"") + text(31, number(1, 2**32)), "column rin.element.a: number 4294967296, wanted int32"),
        (text(34, number(1, WIDE)), "column iv.value: number 1099511627781, wanted int32"),
        (text(35, text(2, number(1, WIDE))), "column node.next.n: number 1099511627781, wanted int32"),
        (text(32, number(2, 2**32 + 5)), "column ts.nanos: number 4294967301, wanted int32"),
    ],
)
def test_a_number_out_of_the_range_of_its_type_is_refused_and_not_cut(body: bytes, said: str) -> None:
    assert reason(body) == said


@pytest.mark.parametrize(
    ("body", "column", "value"),
    [
        (number(1, -5), "i", -5),
        (number(1, -(2**31)), "i", -(2**31)),
        (number(1, 2**31 - 1), "i", 2**31 - 1),
        (number(2, 2**32 - 1), "u", 2**32 - 1),
        (number(3, 2**32 - 1), "s", -(2**31)),
        (number(4, 1), "flag", True),
        (number(4, 0), "flag", False),
        (number(5, -1), "kind", "-1"),
        (number(5, 7), "kind", "7"),
        (number(8, -1), "l", -1),
        (number(9, -1), "ul", 2**64 - 1),
        (number(12, 2**64 - 1), "sl", -(2**63)),
        (b"\x08\x85\x80\x80\x00", "i", 5),
        (b"\x88\x80\x00\x05", "i", 5),
        (number(20, 1) + number(20, -2), "ri", [1, -2]),
        (text(20, b"\x01\x02") + number(20, 3), "ri", [1, 2, 3]),
        (text(20, b""), "ri", []),
        (entry(25, number(1, 9), number(2, 0)) + entry(25, number(1, 3), b""), "flags", [(9, False), (3, False)]),
        (text(30, b""), "in", {"a": 0, "b": "", "c": None, "at": None}),
    ],
)
def test_numbers_within_the_range_stay_however_they_are_written(body: bytes, column: str, value: object) -> None:
    found = decode(body)[column]
    assert (sorted(found, reverse=True) if column == "flags" else found) == value


@pytest.mark.parametrize(
    ("body", "path", "count"),
    [
        (number(1, 5) + number(1, 6), "i", 2),
        (number(1, 5) * 3, "i", 3),
        (text(6, b"a") + text(6, b"b"), "name", 2),
        (text(7, b"a") + text(7, b"a"), "raw", 2),
        (number(5, 1) + number(5, 0), "kind", 2),
        (double(11, 1.0) + double(11, 1.0), "d", 2),
        (text(30, number(1, 1)) + text(30, text(2, b"x")), "in", 2),
        (text(32, number(1, 1)) + text(32, number(2, 1)), "ts", 2),
        (text(30, number(1, 1) + number(1, 2)), "in.a", 2),
        (text(31, number(1, 1) * 2), "rin.element.a", 2),
        (entry(23, KEY, number(2, 1) + number(2, 2)), "m.value", 2),
        (text(35, text(2, number(1, 1) * 2)), "node.next.n", 2),
    ],
)
def test_several_values_of_a_field_that_has_one_are_refused(body: bytes, path: str, count: int) -> None:
    assert reason(body) == f"column {path}: {count} values of a field, wanted one"


def test_members_of_a_oneof_may_follow_one_another() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="either.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Either")
    message.oneof_decl.add(name="either")
    message.field.add(name="x", number=1, type=KEYWORDS["int32"], label=1, oneof_index=0)
    message.field.add(name="y", number=2, type=KEYWORDS["string"], label=1, oneof_index=0)
    schema = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    body = number(1, 5) + text(2, b"z")
    assert protobuf.decoder(schema, "shop.Either")(body) == {"x": None, "y": "z"}
    assert reason(body + text(2, b"w"), schema, "shop.Either") == "column y: 2 values of a field, wanted one"


@pytest.mark.parametrize("nanos", [-1, 10**9, 2_000_000_000, -(2**31)])
@pytest.mark.parametrize(("field", "path"), [(32, "ts"), (33, "rts.element"), (26, "times.value"), (30, "in.at")])
def test_nanos_beyond_a_second_are_refused(nanos: int, field: int, path: str) -> None:
    time = number(1, 1) + number(2, nanos)
    body = {26: entry(26, KEY, text(2, time)), 30: text(30, text(4, time))}.get(field, text(field, time))
    assert reason(body) == f"column {path}: nanos {nanos}, wanted google.protobuf.Timestamp of nanos 0 to 999999999"


def test_nanos_within_a_second_stay() -> None:
    assert decode(text(32, number(1, 1) + number(2, 999_999_999)))["ts"] == 1_999_999


def test_seconds_out_of_range_are_refused_as_before() -> None:
    said = "column ts: seconds 253402300800, wanted google.protobuf.Timestamp of years 1 to 9999"
    assert reason(text(32, number(1, 253_402_300_800))) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (number(2, 7), "column kind: number 7, wanted enum old.Kind"),
        (number(2, 2**32 + 1), "column kind: number 4294967297, wanted enum old.Kind"),
        (number(3, 1) + number(3, 7), "column kinds.element: number 7, wanted enum old.Kind"),
        (text(3, b"\x01\x07"), "column kinds.element: number 7, wanted enum old.Kind"),
        (entry(4, KEY, number(2, 7)), "column by.value: number 7, wanted enum old.Kind"),
        (group(5, number(1, -1)), "column in.n: number 18446744073709551615, wanted uint32"),
        (group(5, b"") + group(5, b""), "column in: 2 values of a field, wanted one"),
        (text(5, b""), "column in: field 5 of wire type LEN, wanted old.In"),
        (number(6, 1) + number(6, WIDE), "column numbers.element: number 1099511627781, wanted int32"),
    ],
)
def test_proto2_bodies_are_refused_likewise(body: bytes, said: str) -> None:
    assert reason(body, CLOSED, "old.Order") == said


def test_numbers_of_a_closed_enum_and_groups_stay() -> None:
    body = number(1, 1) + number(2, 1) + number(3, 0) + entry(4, KEY, number(2, 1)) + group(5, number(1, 3))
    row = protobuf.decoder(CLOSED, "old.Order")(body)
    assert row == {"i": 1, "kind": "BOOK", "kinds": ["NONE"], "by": [("k", "BOOK")], "in": {"n": 3}, "numbers": []}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (number(23, 5), "column m: field 23 of wire type VARINT, wanted map<string, int32>"),
        (number(24, 5), "column mm: field 24 of wire type VARINT, wanted map<string, shop.In>"),
        (entry(23, KEY, text(2, b"x")), "column m.value: field 2 of wire type LEN, wanted int32"),
        (entry(23, number(1, 5), number(2, 5)), "column m.key: field 1 of wire type VARINT, wanted string"),
        (entry(24, KEY, number(2, 5)), "column mm.value: field 2 of wire type VARINT, wanted shop.In"),
    ],
)
def test_the_part_of_a_map_that_has_another_type_is_named(body: bytes, said: str) -> None:
    assert reason(body) == said


def test_more_fields_than_a_map_entry_has_are_fine() -> None:
    body = number(1, 4) + entry(23, KEY, number(2, 1) + number(3, 9))
    more = body + entry(24, KEY + text(9, b"new"), text(2, number(1, 7) + number(50, 2)))
    wrapped = more + text(36, text(1, text(1, b"a") + text(2, double(2, 1.5)) + number(7, 1)))
    row = decode(wrapped, unknown_fields=True)
    assert (row["i"], row["m"], row["st"]) == (4, [("k", 1)], '{"a":1.5}')
    assert row["mm"] == [("k", {"a": 7, "b": "", "c": None, "at": None})]
    unknown = {"m.3": 9, "mm.9": "bmV3", "mm.value.50": 2, "st.fields.7": 1}
    assert json.loads(row["_unknown_fields"]) == unknown


def test_an_entry_of_wrong_type_beside_one_with_more_fields_empties_its_column_only() -> None:
    body = entry(23, KEY, number(2, 1) + number(3, 9)) + entry(25, number(1, 1), text(2, b"x"))
    row = decode(body, "rescue")
    assert (row["m"], row["flags"]) == ([("k", 1)], None)
    assert json.loads(row["_rescued"]) == {"flags": [{"key": 1, "value": "eA=="}]}


def test_extensions_are_fields_of_the_schema_without_a_column() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(CLOSED)
    files.file[-1].message_type[1].extension_range.add(start=100, end=200)
    files.file[-1].extension.add(name="more", number=100, type=KEYWORDS["int32"], label=1, extendee=".old.Order")
    decoder = protobuf.decoder(files.SerializeToString(), "old.Order", unknown_fields=True)
    assert decoder(number(100, 5)).get("_unknown_fields") is None
    row = decoder(number(100, WIDE) + number(101, 6) + text(100, b"x"))
    assert json.loads(row["_unknown_fields"]) == {"101": 6, "100": "eA=="}


def test_a_known_field_with_its_default_is_a_field_of_the_schema() -> None:
    assert decode(number(1, 0) + number(99, 5))["i"] == 0
    assert decode(text(20, b"") + number(99, 5))["ri"] == []
    assert (
        reason(number(99, 5) + number(98, 5)) == "the body has none of the fields of shop.Order; it has numbers 98, 99"
    )


@pytest.mark.parametrize("on_mismatch", ["null", "rescue"])
@pytest.mark.parametrize("columns", [None, frozenset(["l"]), frozenset(["name"])])
def test_a_body_of_another_message_is_refused_for_any_on_mismatch(on_mismatch: str, columns: Any) -> None:
    refusal = reason(number(6, 1) + number(99, 1), on_mismatch=on_mismatch, selected=columns)
    assert refusal == "the body has none of the fields of shop.Order; it has numbers 6, 99"
    assert decode(number(6, 1) + number(8, 1), on_mismatch)["l"] == 1


def test_lists_of_messages_are_checked_message_by_message() -> None:
    explode = protobuf.decoder(SCHEMA, "shop.Orders", explode=True)
    default = {"a": 0, "b": "", "c": None, "at": None}
    assert explode(text(1, number(1, 1)) + number(9, 1) + text(1, b"")) == [{**default, "a": 1}, default]
    for body, said in [
        (text(1, b"") + text(1, number(1, WIDE)), "element 1: column a: number 1099511627781, wanted int32"),
        (text(1, number(1, 1) * 2), "element 0: column a: 2 values of a field, wanted one"),
        (text(1, b"") + number(1, 5), "column all: field 1 of wire type VARINT, wanted shop.In"),
    ]:
        assert reason(body, SCHEMA, "shop.Orders", explode=True) == said


def test_columns_that_are_not_selected_are_not_looked_at() -> None:
    body = number(1, WIDE) + text(30, number(1, 5) + text(2, b"x") * 2)
    assert decode(body, selected=frozenset(["in", "in.a"])) == {"in": {"a": 5}}
    assert reason(body, selected=frozenset(["in", "in.b"])) == "column in.b: 2 values of a field, wanted one"
    assert reason(body, selected=frozenset(["i"])) == "column i: number 1099511627781, wanted int32"


TIME = number(1, 1_700_000_000) + number(2, 5)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (number(1, WIDE), {"i": WIDE}),
        (number(1, 5) + number(1, 6), {"i": [5, 6]}),
        (number(1, 5) + text(1, b"x"), {"i": [5, "eA=="]}),
        (number(2, -1), {"u": 2**64 - 1}),
        (number(4, 2), {"flag": 2}),
        (number(5, 1) + number(5, 2**33), {"kind": ["BOOK", 2**33]}),
        (text(6, "ä".encode()) + text(6, b"b"), {"name": ["ä", "b"]}),
        (number(6, -1), {"name": 2**64 - 1}),
        (number(21, 5) + number(21, 6) + text(21, b"ok"), {"rs": [5, 6, "ok"]}),
        (text(20, varint(1) + varint(WIDE)) + number(20, 2), {"ri": [1, WIDE, 2]}),
        (text(20, b"\x01") + double(20, 1.5), {"ri": [1, 4609434218613702656]}),
        (double(1, 1.5), {"i": 4609434218613702656}),
        (double(10, 1.1), {"f": 1.1}),
        (varint(11 << 3 | 5) + struct.pack("<f", 1.5), {"d": 1.5}),
        (double(10, float("nan")), {"f": "NaN"}),
        (double(11, float("-inf")) + double(11, 2.0), {"d": ["-Infinity", 2.0]}),
        ((varint(13 << 3 | 5) + struct.pack("<i", -7)) * 2, {"x32": [-7, -7]}),
        (group(1, number(1, 1) + number(1, 2) + group(3, text(9, b"x"))), {"i": {"1": [1, 2], "3": {"9": "eA=="}}}),
        (text(30, number(1, 77) + number(2, 5)), {"in.a": 77, "in.b": 5}),
        (text(30, text(3, b"") + number(2, 5)), {"in.c": {}, "in.b": 5}),
        (group(30, b""), {"in": {}}),
        (
            text(30, number(1, 77) + text(3, number(1, -4) + number(2, 2**32)) + text(4, TIME) + number(60, 1)),
            {"in.a": 77, "in.c.z": -4, "in.c.n": 2**32, "in.at": "2023-11-14T22:13:20.000000005Z"},
        ),
        (text(30, number(1, 1)) + text(30, text(2, b"x")), {"in": [{"a": 1}, {"b": "x"}]}),
        (text(30, number(1, 77)) + number(30, 5), {"in": [{"a": 77}, 5]}),
        (
            text(31, number(1, 1) + text(2, b"x")) + text(31, number(2, 9)),
            {"rin": [{"a": 1, "b": "x"}, {"b": 9}]},
        ),
        (
            entry(23, KEY, text(2, b"x")) + entry(23, text(1, b"b"), number(2, 2)),
            {"m": [{"key": "k", "value": "eA=="}, {"key": "b", "value": 2}]},
        ),
        (text(32, number(1, 2**50) + number(2, 5)), {"ts": {"seconds": 2**50, "nanos": 5}}),
        (text(32, number(1, 1) + number(2, -1)), {"ts": {"seconds": 1, "nanos": -1}}),
        (text(32, number(1, 1) + number(2, 2**32 + 5)), {"ts": {"seconds": 1, "nanos": 2**32 + 5}}),
        (text(32, TIME) + text(32, b""), {"ts": ["2023-11-14T22:13:20.000000005Z", "1970-01-01T00:00:00Z"]}),
        (text(32, text(1, b"x")), {"ts": {"seconds": "eA=="}}),
        (text(30, number(1, 7) + text(4, number(1, 2**50))), {"in.at": {"seconds": 2**50}}),
        (text(33, number(1, 2**50)) + text(33, TIME), {"rts": [{"seconds": 2**50}, "2023-11-14T22:13:20.000000005Z"]}),
        (entry(26, KEY, text(2, number(1, 2**50))), {"times": [{"key": "k", "value": {"seconds": 2**50}}]}),
        (
            text(36, text(1, text(1, b"a") + text(2, double(2, float("nan"))))),
            {"st": {"fields": [{"key": "a", "value": {"number_value": "NaN"}}]}},
        ),
        (text(35, number(1, 4) + text(2, text(1, b"x"))), {"node.n": 4, "node.next": {"n": "eA=="}}),
    ],
)
def test_what_does_not_fit_is_rescued_as_it_was_sent(body: bytes, values: dict[str, Any]) -> None:
    body += number(12, 1)  # a body needs a field of the schema
    assert rescued(body) == values
    columns = {path.partition(".")[0] for path in values}
    row = decode(body, "null")
    assert "_rescued" not in row
    if set(values) != {"in.at"}:  # a member that fits no time is empty by itself
        assert {name: row[name] for name in columns} == dict.fromkeys(columns)


def test_a_rescued_column_leaves_the_others() -> None:
    row = decode(number(1, WIDE) + text(6, b"ok") + number(8, 4), "rescue")
    assert (row["i"], row["name"], row["l"]) == (None, "ok", 4)
    assert "_rescued" not in decode(text(6, b"ok"), "rescue")


def test_members_that_are_not_selected_are_not_rescued() -> None:
    body = text(30, number(1, 77) + number(2, 5) + text(3, number(1, 1)))
    row = decode(body, "rescue", selected=frozenset(["in", "in.a", "in.b"]))
    assert json.loads(row["_rescued"]) == {"in.a": 77, "in.b": 5}


def test_unknown_groups_are_json_with_all_their_fields() -> None:
    row = decode(number(1, 1) + group(97, number(1, 1) + number(1, 2) + double(2, 1.5)), unknown_fields=True)
    assert json.loads(row["_unknown_fields"]) == {"97": {"1": [1, 2], "2": 4609434218613702656}}


JAVA_ORDER = {"zeta": 1, "alpha": 0, "mid": -3}


def test_maps_in_any_order_are_sound() -> None:
    body = b"".join(entry(23, text(1, key.encode()), number(2, value)) for key, value in JAVA_ORDER.items())
    assert dict(decode(body)["m"]) == JAVA_ORDER


SINGULAR_NUMBERS = {
    "i": st.integers(-(2**31), 2**31 - 1), "u": st.integers(0, 2**32 - 1), "s": st.integers(-(2**31), 2**31 - 1),
    "flag": st.booleans(), "kind": st.integers(0, 1), "l": st.integers(-(2**63), 2**63 - 1),
    "ul": st.integers(0, 2**64 - 1), "sl": st.integers(-(2**63), 2**63 - 1), "name": st.text(), "raw": st.binary(),
    "d": st.floats(allow_nan=False), "x32": st.integers(-(2**31), 2**31 - 1),
    "ri": st.lists(st.integers(-(2**31), 2**31 - 1)), "rs": st.lists(st.text()),
    "m": st.dictionaries(st.text(), st.integers(-(2**31), 2**31 - 1)),
    "in": st.fixed_dictionaries({}, optional={"a": st.integers(-5, 5), "b": st.text()}),
}  # fmt: skip


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional=SINGULAR_NUMBERS), st.binary(max_size=3))
def test_a_body_of_the_library_is_sound_and_stays_so_with_an_unknown_field(fields: dict[str, Any], new: bytes) -> None:
    body = ORDER(**fields).SerializeToString()
    row = decode(body)
    assert all(row[name] == value for name, value in fields.items() if name not in {"kind", "m", "in"})
    assert dict(row["m"]) == fields.get("m", {})
    if body:
        assert decode(body + text(99, new)) == row
        assert decode(text(99, new) + body) == row


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.builds(number, st.integers(1, 37), st.integers(-2, 2**65)),
            st.builds(text, st.integers(1, 37), st.binary(max_size=6)),
            st.builds(text, st.integers(20, 36), st.builds(number, st.integers(1, 4), st.integers(-2, 2**65))),
            st.builds(double, st.integers(1, 37), st.floats()),
            st.builds(group, st.integers(1, 37), st.builds(number, st.integers(1, 4), st.integers(0, 2**64))),
        ),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.long
def test_a_body_has_a_row_whose_columns_hold_it_or_a_reason(parts: list[bytes]) -> None:
    body = b"".join(parts)
    columns = list(protobuf.columns(protobuf.descriptor(SCHEMA, "shop.Order")))
    for on_mismatch in ("dead-letter", "rescue"):
        added = [pa.field("_rescued", pa.string())] * (on_mismatch == "rescue")
        decoder = protobuf.decoder(SCHEMA, "shop.Order", on_mismatch)
        ((value, why),) = [
            (row["value"], row["reason"])
            for row in decoded(pa.array([body], pa.binary()), decoder, pa.struct([*columns, *added])).to_pylist()
        ]
        assert (value is None) != (why is None)
        assert why is None or why.startswith(("column ", "the body has none", "DecodeError", "Mismatch"))
        if value and value.get("_rescued"):
            assert json.loads(value["_rescued"], parse_constant=pytest.fail)
