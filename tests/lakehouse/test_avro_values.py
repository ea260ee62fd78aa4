"""Values of Avro bodies: of every writer, in the unit and type of their columns, or the reason names the column."""

import io
import json
import struct
import time
from decimal import Decimal
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_lakehouse.decode import avro
from rmq_lakehouse.decode.avro_resolution import MAX_LEVELS, MAX_PARTS, UndecodableError
from rmq_lakehouse.decode.bodies import decoded
from rmq_lakehouse.decode.mismatch import Mismatch

T_MS = 1_700_000_000_000  # 2023-11-14
T_US = T_MS * 1000
MILLIS, MICROS, NANOS, LOCAL = (
    {"type": "long", "logicalType": kind}
    for kind in ("timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis")
)
DATE = {"type": "int", "logicalType": "date"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
TIME_MICROS = {"type": "long", "logicalType": "time-micros"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of fields (name, type), or whole fields."""
    named = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": named, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def body(schema: Any, value: Any) -> bytes:
    """Encode a value whose times and dates are numbers, and whose decimals are bytes."""
    stream = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"comment"'))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), value)
    return stream.getvalue()


def of_writer(schema: Any, writer: Any, value: Any, on_mismatch: str = "dead-letter") -> Any:
    """Decode a value that a writer of another schema has sent."""
    decode = avro.decoder(json.dumps(schema), {7: json.dumps(writer)}, on_mismatch)
    return decode(b"\0\0\0\0\7" + (value if isinstance(value, bytes) else body(writer, value)))


def attempt(schema: Any, sent: bytes, on_mismatch: str = "dead-letter") -> tuple[Any, Any]:
    """Decode a body to its column; return value and reason."""
    kind = pa.struct(list(avro.columns(json.dumps(schema))))
    decode = avro.decoder(json.dumps(schema), on_mismatch=on_mismatch)
    (row,) = decoded(pa.array([sent], pa.binary()), decode, kind).to_pylist()
    return row["value"], row["reason"]


NODE = record(("v", "int"), ("next", ["null", "Node"]), name="Node")
TREE = record(("v", "int"), ("all", array("Tree")), ("by", {"type": "map", "values": "Tree"}), name="Tree")


def chain(levels: int) -> bytes:
    return b"\x02\x02" * levels + b"\x02\x00"


class TestRecordsWithinThemselves:
    @pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 1000, 16_000, 20_000, 200_000])
    def test_a_body_that_is_too_deep_is_a_dead_letter_of_its_column(self, levels: int) -> None:
        value, reason = attempt(NODE, chain(levels))
        assert value is None
        assert reason == f"column next: records within themselves, deeper than {MAX_LEVELS} levels"

    def test_a_body_of_the_deepest_level_is_decoded(self) -> None:
        value, reason = attempt(NODE, chain(MAX_LEVELS))
        assert reason is None
        assert value["next"].count('"v": 1') == MAX_LEVELS
        assert attempt(NODE, chain(1)) == ({"v": 1, "next": '{"v": 1, "next": null}'}, None)  # after a deeper one

    def test_depth_of_arrays_and_maps_is_bounded(self) -> None:
        for levels, fits in [(MAX_LEVELS, True), (MAX_LEVELS + 1, False), (50_000, False)]:
            for sent in (
                b"\x02\x02" * levels + b"\x02\0\0" + b"\0\0" * levels,
                b"\x02\0\x02\0" * levels + b"\x02\0\0" + b"\0" * levels,
            ):
                value, reason = attempt(TREE, sent)
                assert (value is not None) == fits
                assert fits or f"deeper than {MAX_LEVELS} levels" in reason

    @pytest.mark.parametrize("on_mismatch", ["dead-letter", "null"])
    def test_depth_of_a_field_that_the_table_lacks_is_bounded(self, on_mismatch: str) -> None:
        writer = record(("x", "int"), ("n", NODE))
        assert of_writer(record(("x", "int")), writer, b"\x02" + chain(50), on_mismatch) == {"x": 1}
        with pytest.raises(Mismatch, match=r"field n of the writer: .* deeper than"):
            of_writer(record(("x", "int")), writer, b"\x02" + chain(100_000), on_mismatch)

    @pytest.mark.parametrize("frames", [0, 200])
    @pytest.mark.parametrize("levels", [49, 50, 51, 70, 99, 100])
    def test_the_depth_of_the_caller_does_not_decide_what_is_decoded(self, frames: int, levels: int) -> None:
        def attempt_below(count: int, *what: Any) -> Any:
            return attempt_below(count - 1, *what) if count else attempt(*what)

        maps = {"type": "map", "values": array({"type": "map", "values": ["null", "Maps"]})}
        schema = record(("v", "int"), ("by", maps), name="Maps")
        sent = b"\x02" + b"\x02\x00\x02\x02\x00\x02\x02" * levels + b"\0" + b"\0\0\0" * levels
        _, reason = attempt_below(frames, schema, sent)
        too_deep = f"column by: records within themselves, deeper than {MAX_PARTS} records, arrays and maps"
        assert reason == (None if levels <= MAX_PARTS // 4 else too_deep)

    def test_depth_of_what_is_left_out_within_a_record_counts(self) -> None:
        table, writer = (record(("next", ["null", "R"]), *more) for more in ((), [("more", ["null", NODE])]))
        sent = b"\x02" * 50 + b"\x00\x02" + chain(60) + b"\0" * 50
        with pytest.raises(Mismatch, match=r"column next: .* deeper than 100 levels"):
            of_writer(table, writer, sent)
        sent = b"\x02" * 40 + b"\x00\x02" + chain(50) + b"\0" * 40
        assert of_writer(table, writer, sent)["next"].count("next") == 40

    def test_a_record_that_is_nothing_but_itself_is_a_dead_letter(self) -> None:
        _, reason = attempt(record(("x", "int"), ("n", record(("n", "N"), name="N"))), b"\x02\x02")
        assert "deeper than" in reason

    def test_numbers_that_json_has_not_are_texts(self) -> None:
        schema = record(("v", "double"), ("next", ["null", "R"]))
        numbers = (1.5, float("nan"), float("inf"), float("-inf"))
        value = None
        for number in reversed(numbers):
            value = {"v": number, "next": value}
        text = attempt(schema, body(schema, {"v": 0.0, "next": value}))[0]["next"]
        assert json.loads(text, parse_constant=pytest.fail)["next"]["v"] == "NaN"
        assert [part for part in text.split('"') if part in {"NaN", "Infinity", "-Infinity"}] == [
            "NaN", "Infinity", "-Infinity",
        ]  # fmt: skip
        sent = of_writer(record(("v", "string")), record(("v", array("float"))), {"v": list(numbers)}, "rescue")
        assert json.loads(sent["_rescued"], parse_constant=pytest.fail) == {"v": [1.5, "NaN", "Infinity", "-Infinity"]}

    def test_times_within_the_json_have_the_unit_of_the_table(self) -> None:
        table, writer = (record(("at", unit), ("next", ["null", "R"])) for unit in (MICROS, MILLIS))
        row = of_writer(table, writer, {"at": T_MS, "next": {"at": T_MS, "next": None}})
        assert row == {"at": T_US, "next": json.dumps({"at": T_US, "next": None})}


ITEM = {unit["logicalType"]: record(("at", unit), name="Item") for unit in (MILLIS, MICROS)}
ITEM_MS, ITEM_US = ITEM["timestamp-millis"], ITEM["timestamp-micros"]
AT_MS, AT_US = {"at": T_MS}, {"at": T_US}


class TestUnitsOfWriters:
    @pytest.mark.parametrize(
        ("table", "writer", "sent", "row"),
        [
            (record({"name": "at", "aliases": ["ts"], "type": MICROS}), record(("ts", MILLIS)), {"ts": T_MS}, AT_US),
            (
                record({"name": "at", "aliases": ["ts"], "type": MICROS}, {"name": "ts", "type": "long", "default": 1}),
                record(("ts", "long")),
                {"ts": 5},
                None,
            ),
            (
                record(("a", ITEM_US), ("b", "Item")),
                record(("b", ITEM_MS), ("a", "Item")),
                {"b": AT_MS, "a": AT_MS},
                {"b": AT_US, "a": AT_US},
            ),
            (
                record(("a", ["null", ITEM_US]), ("b", "Item")),
                record(("b", ITEM_MS), ("a", ["null", "Item"])),
                {"b": AT_MS, "a": AT_MS},
                {"b": AT_US, "a": AT_US},
            ),
            (
                record({"name": "a", "type": ["null", ITEM_US], "default": None}, ("b", "Item")),
                record(("b", ITEM_MS)),
                {"b": AT_MS},
                {"a": None, "b": AT_US},
            ),
            (
                record(("a", {**ITEM_US, "aliases": ["Old"]})),
                record(("a", {**ITEM_MS, "name": "Old"})),
                {"a": AT_MS},
                {"a": AT_US},
            ),
            (  # one type of the table, two of the writer
                record(("a", ITEM_US), ("b", "Item")),
                record(("a", {**ITEM_MS, "namespace": "x"}), ("b", {**ITEM_US, "namespace": "y"})),
                {"a": AT_MS, "b": AT_US},
                {"a": AT_US, "b": AT_US},
            ),
            (
                record(("a", array(MICROS))),
                record(("a", array(["null", MILLIS]))),
                {"a": [T_MS, 7]},
                {"a": [T_US, 7000]},
            ),
            (record(("at", MICROS)), record(("at", NANOS)), {"at": 157_766_400 * 10**9}, {"at": 157_766_400 * 10**6}),
            (record(("at", MILLIS)), record(("at", NANOS)), {"at": 1_234_567_000}, {"at": 1_234_567}),
            (record(("at", MILLIS)), record(("at", MICROS)), {"at": 1_234_567}, {"at": 1_234_567}),
            (record(("at", NANOS)), record(("at", MILLIS)), {"at": T_MS}, {"at": T_MS * 10**6}),
            (record(("at", NANOS)), record(("at", NANOS)), {"at": 5}, {"at": 5}),
            (record(("at", MICROS)), record(("at", LOCAL)), AT_MS, AT_US),
            (record(("at", MICROS)), record(("at", "long")), AT_US, AT_US),
            (record(("at", "long")), record(("at", MILLIS)), AT_MS, AT_MS),
            (record(("at", TIME_MICROS)), record(("at", TIME_MILLIS)), {"at": 5}, {"at": 5000}),
            (record(("at", DATE)), record(("at", DATE)), {"at": 19_675}, {"at": 19_675}),
        ],
    )
    def test_a_time_is_in_the_unit_of_its_column(self, table: Any, writer: Any, sent: Any, row: Any) -> None:
        if row is None:  # the name is another field's: the alias is not used
            with pytest.raises(Mismatch, match="column at: the writer's schema lacks at, which has no default"):
                of_writer(table, writer, sent)
        else:
            assert of_writer(table, writer, sent) == row

    @pytest.mark.parametrize(
        ("target", "sent", "value", "reason"),
        [
            (MILLIS, DATE, 19_700, "the writer's date 19700, wanted timestamp-millis"),
            (DATE, TIME_MILLIS, 3600, "the writer's time-millis 3600, wanted date"),
            (MICROS, TIME_MICROS, 3600, "the writer's time-micros 3600, wanted timestamp-micros"),
            (TIME_MICROS, MICROS, 3600, "the writer's timestamp-micros 3600, wanted time-micros"),
            (MICROS, NANOS, 1001, "timestamp-nanos 1001, wanted timestamp-micros, which has no such digits"),
            (NANOS, MILLIS, 1 << 60, f"timestamp-millis {1 << 60}, wanted timestamp-nanos"),
            (MICROS, MILLIS, 1 << 60, f"timestamp-millis {1 << 60}, wanted TIMESTAMP of years 1 to 9999"),
            (DATE, DATE, 1 << 30, f"number {1 << 30}, wanted DATE of years 1 to 9999"),
        ],
    )
    def test_another_time_is_a_mismatch_that_names_both_types(
        self, target: Any, sent: Any, value: int, reason: str
    ) -> None:
        table, writer = (record(("x", "int"), ("of", record(("at", kind), name="Of"))) for kind in (target, sent))
        row = {"x": 1, "of": {"at": value}}
        with pytest.raises(Mismatch, match=f"^column of.at: {reason}$"):
            of_writer(table, writer, row)
        rescued = {"x": 1, "of": {"at": None}, "_rescued": json.dumps({"of.at": value})}
        assert of_writer(table, writer, row, "rescue") == rescued
        assert of_writer(table, writer, row, "null") == {"x": 1, "of": {"at": None}}


class TestTypesOfWriters:
    @pytest.mark.parametrize(
        ("target", "sent", "value", "result"),
        [
            ("long", "int", 5, 5),
            ("double", "int", 5, 5.0),
            ("float", "long", 5, 5.0),
            ("double", "float", 0.5, 0.5),
            ("bytes", "string", "é", "é".encode()),
            ("string", "bytes", b"a", "a"),
            (["null", "long"], "int", 5, 5),
            ("string", ["null", "string", "int"], "x", "x"),
            (["null", "string"], ["string", "null"], None, None),
            (["int", "long"], "long", 1 << 40, 1 << 40),
            ("E", {**ENUM, "symbols": ["C", "B"]}, "B", "B"),
            ({"type": "map", "values": "double"}, {"type": "map", "values": "int"}, {"k": 1}, {"k": 1.0}),
            (decimal(5, 2), decimal(9, 4), (12_300).to_bytes(2, "big"), Decimal("1.23")),
            (decimal(5, 2), decimal(3, 1), b"\x7b", Decimal("12.30")),
        ],
    )
    def test_a_value_becomes_the_wider_type(self, target: Any, sent: Any, value: Any, result: Any) -> None:
        table = record(("c", ENUM if target == "E" else target))
        assert of_writer(table, record(("c", sent)), {"c": value}) == {"c": result}

    @pytest.mark.parametrize(
        ("target", "sent", "value", "reason"),
        [
            ("int", "long", 1, "the writer's long 1, wanted int"),
            ("long", "string", "5", "the writer's string 5, wanted long"),
            (["null", "string"], ["null", "string", "int"], 5, "the writer's int 5, wanted string"),
            ("string", ["null", "string"], None, "the writer's null, wanted string"),
            (ENUM, {**ENUM, "symbols": ["A", "Z"]}, "Z", "symbol Z, wanted enum E"),
            (decimal(5, 2), decimal(9, 4), (12_345).to_bytes(2, "big"), r"number 1\.2345, wanted decimal\(5,2\)"),
            (decimal(5, 2), "bytes", b"1", r"the writer's bytes b'1', wanted decimal\(5,2\)"),
            ("bytes", decimal(5, 2), b"\x7b", r"the writer's decimal\(5,2\) 1\.23, wanted bytes"),
            (record(("x", "int"), name="A"), record(("x", "int"), name="B"), {"x": 1}, "record B, wanted record A"),
            ("int", array("int"), [1], "the writer's array, wanted int"),
        ],
    )
    def test_a_value_of_another_type_is_a_mismatch(self, target: Any, sent: Any, value: Any, reason: str) -> None:
        table, writer = record(("c", target), ("d", "int")), record(("c", sent), ("d", "int"))
        with pytest.raises(Mismatch, match=f"^column c: .*{reason}$"):
            of_writer(table, writer, {"c": value, "d": 2})
        assert of_writer(table, writer, {"c": value, "d": 2}, "null") == {"c": None, "d": 2}

    def test_a_symbol_that_the_table_lacks_is_its_default(self) -> None:
        table = record(("c", {**ENUM, "symbols": ["A"], "default": "A"}))
        assert of_writer(table, record(("c", ENUM)), {"c": "C"}) == {"c": "A"}

    def test_another_record_and_a_field_without_a_default_are_dead_letters_in_any_case(self) -> None:
        for on_mismatch in ("dead-letter", "null", "rescue"):
            with pytest.raises(Mismatch, match=r"^the writer's schema is record Z, wanted record R$"):
                of_writer(record(("c", "int")), record(("c", "int"), name="Z"), {"c": 1}, on_mismatch)
            with pytest.raises(Mismatch, match=r"^column d: the writer's schema lacks d, which has no default$"):
                of_writer(record(("c", "int"), ("d", "int")), record(("c", "int")), {"c": 1}, on_mismatch)

    def test_fields_that_the_table_lacks_are_passed_over_and_must_be_whole(self) -> None:
        writer = record(
            ("gone", array(record(("s", "string"), ("e", ENUM), name="G"))), ("c", "int"), ("last", "double")
        )
        sent = body(writer, {"gone": [{"s": "x", "e": "B"}], "c": 3, "last": 1.5})
        assert of_writer(record(("c", "int")), writer, sent) == {"c": 3}
        with pytest.raises(Mismatch, match="field last of the writer: the body ends"):
            of_writer(record(("c", "int")), writer, sent[:-1])
        with pytest.raises(Mismatch, match="field gone of the writer: a block has another size"):
            of_writer(record(("c", "int")), writer, b"\x01\x7f" + sent[1:])


class TestDefaults:
    @pytest.mark.parametrize(
        ("kind", "default", "value"),
        [
            ("bytes", "\u00ff\u0001", b"\xff\x01"),
            ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
            (["bytes", "null"], "\u00ff", b"\xff"),
            (record(("y", "bytes"), name="B"), {"y": "\u00fe"}, {"y": b"\xfe"}),
            (record({"name": "y", "type": "bytes", "default": "\u00fd"}, name="B"), {}, {"y": b"\xfd"}),
            (array("bytes"), ["\u00ff"], [b"\xff"]),
            ({"type": "map", "values": "bytes"}, {"\u00ff": "\u00ff"}, {"\u00ff": b"\xff"}),
            (decimal(5, 2), "\u0001", Decimal("0.01")),
            ({**decimal(5, 2), "type": "fixed", "name": "F", "size": 3}, "\u00ff" * 3, Decimal("-0.01")),
            (MILLIS, T_MS, T_US),
            (DATE, 5, 5),
            ("string", "\u00ff", "\u00ff"),
            ("double", 1, 1.0),
            (ENUM, "B", "B"),
            (["null", "int"], None, None),
            (array("int"), [], []),
            (["null", NODE], None, None),
            (NODE, {"v": 1, "next": None}, {"v": 1, "next": None}),
            (["int", "long"], 1 << 40, 1 << 40),
        ],
    )
    def test_a_default_is_as_if_a_body_had_it(self, kind: Any, default: Any, value: Any) -> None:
        table = record(("x", "int"), {"name": "c", "type": kind, "default": default})
        assert of_writer(table, record(("x", "int")), {"x": 1}) == {"x": 1, "c": value}

    def test_a_default_that_its_column_cannot_hold_is_a_dead_letter(self) -> None:
        for kind, default, type_name in [(DATE, 1 << 30, "date"), (decimal(1, 0), "\u007f", "decimal(1,0)")]:
            table = record(("x", "int"), {"name": "c", "type": kind, "default": default})
            with pytest.raises(Mismatch) as raised:
                of_writer(table, record(("x", "int")), {"x": 1}, "null")
            assert str(raised.value) == f"column c: default {default}, wanted {type_name}".replace("\u007f", "?")
            assert (
                of_writer(table, table, body(table, {"x": 1, "c": b"\1" if isinstance(default, str) else 1}))["x"] == 1
            )


LONG_10 = b"\xff" * 9


class TestBytesThatDoNotFollowTheSchema:
    @pytest.mark.parametrize(
        ("kind", "sent", "reason"),
        [
            (["null", "int"], b"\x03", "union index -2, wanted 0 to 1"),
            (["null", "int"], b"\x04", "union index 2"),
            (ENUM, b"\x01", "enum index -1, wanted 0 to 2"),
            (ENUM, b"\x05", "enum index -3"),
            (ENUM, b"\x06", "enum index 3"),
            ("boolean", b"\x02", "byte 02 is no boolean"),
            ("boolean", b"\xff", "byte ff is no boolean"),
            ("long", LONG_10 + b"\xff\x01", "more than 64 bits"),
            ("long", LONG_10 + b"\x02", "more than 64 bits"),
            ("long", b"\x80" * 20 + b"\x01", "more than 64 bits"),
            ("int", b"\x80" * 5 + b"\x40", "wanted int"),
            ("string", b"\x01abc", "length -1"),
            ("string", b"\x0aab", "length 5, and the body has 2 more bytes"),
            ("bytes", b"\xfe" + LONG_10[1:] + b"\x01abc", f"length {2**63 - 1}"),
            ("string", b"\x04\xff\xfe", "no UTF-8"),
            ({"type": "fixed", "name": "F", "size": 3}, b"ab", "length 3, and the body has 2 more"),
            ("double", b"\0" * 7, "the body ends"),
            ("float", b"\0" * 3, "the body ends"),
            ("long", b"\x80", "the body ends"),
            (array("long"), b"\x80\x01" + b"\x80" * 70, "more than 64 bits"),
            (array("long"), b"\x80\x01" + b"\x80\x01" * 40, "the body ends"),
            (array("int"), b"\xfe" * 6 + b"\x01", "items, and the body has room for 0"),
            (array("double"), b"\x04" + b"\0" * 15, "a block of 2 items, and the body has room for 1"),
            (array(record(name="None")), b"\xfe" * 6 + b"\x01\0", "items, and the body has room for 1024"),
            (array("int"), b"\x03\x05\x02\x04\0", "a block has another size"),
            ({"type": "map", "values": "int"}, b"\x04\x02a", "a block of 2 items, and the body has room for 1"),
        ],
    )
    def test_a_body_is_a_dead_letter_that_names_its_column(self, kind: Any, sent: bytes, reason: str) -> None:
        for on_mismatch in ("dead-letter", "null"):
            value, reason_of_body = attempt(record(("x", "int"), ("c", kind)), b"\x02" + sent, on_mismatch)
            if (kind, on_mismatch) == ("int", "null"):
                assert value == {"x": 1, "c": None}
                continue
            assert value is None
            assert reason_of_body.startswith("column c: ")
            assert reason in reason_of_body
        value, reason_of_body = attempt(array_table(kind), b"\x02\x02" + sent)
        assert value is None
        assert reason_of_body.startswith("column all")

    @pytest.mark.parametrize(
        ("kind", "sent", "value"),
        [
            ("long", LONG_10 + b"\x01", -(2**63)),
            ("long", b"\xfe" + LONG_10[1:] + b"\x01", 2**63 - 1),
            ("long", b"\x82\0", 1),
            (["null", "int"], b"\x82\0\x04", 2),
            ("string", b"\x82\0a", "a"),
            (array("int"), b"\x03\x04\x02\x04\0", [1, 2]),
            (array("int"), b"\x02\x02\x04\x04\x06\0", [1, 2, 3]),
            (array("float"), b"\x02" + struct.pack("<f", 1.5) + b"\x02" + struct.pack("<f", 2.5) + b"\0", [1.5, 2.5]),
            ("int", b"\xff\xff\xff\xff\x0f", -(2**31)),
            ("boolean", b"\x01", True),
        ],
    )
    def test_any_encoding_that_the_format_allows_is_decoded(self, kind: Any, sent: bytes, value: Any) -> None:
        assert attempt(record(("c", kind)), sent) == ({"c": value}, None)

    def test_blocks_of_one_item_take_no_longer_than_others(self) -> None:
        schema, count = record(("c", array("int"))), 200_000
        started = time.perf_counter()
        value, _ = attempt(schema, b"\x02\x02" * count + b"\0")
        assert len(value["c"]) == count
        assert time.perf_counter() - started < 10

    def test_a_null_instead_of_a_record_is_a_dead_letter(self) -> None:
        assert attempt(["null", record(("c", "int"))], b"\0") == (None, "the body is null, wanted a record")
        assert attempt(["null", record(("c", "int"))], b"\x02\x02") == ({"c": 1}, None)


def array_table(kind: Any) -> Any:
    return record(("x", "int"), ("all", array(record(("c", kind), name="Inner"))))


class TestReasons:
    @pytest.mark.parametrize(
        ("kind", "sent", "reason", "rescued"),
        [
            (decimal(5, 2), b"\x08\x00\xbc\x61\x4e", "number 123456.78, wanted decimal(5,2)", "123456.78"),
            (decimal(5, 2), b"\x06\x01\x86\xa0", "number 1000.00, wanted decimal(5,2)", "1000.00"),
            ("int", b"\x80\x80\x80\x80\x80\x40", f"number {2**40}, wanted int", 2**40),
        ],
    )
    def test_a_value_out_of_range_has_the_reason_of_its_column(
        self, kind: Any, sent: bytes, reason: str, rescued: Any
    ) -> None:
        schema = record(("x", "int"), ("c", kind))
        assert attempt(schema, b"\x02" + sent) == (None, f"column c: {reason}")
        row = avro.decoder(json.dumps(schema), on_mismatch="rescue")(b"\x02" + sent)
        assert row == {"x": 1, "c": None, "_rescued": json.dumps({"c": rescued})}
        assert attempt(array_table(kind), b"\x02\x02" + sent + b"\0") == (None, f"column all.element.c: {reason}")
        exploding = avro.decoder(json.dumps(array(record(("c", kind)))), explode=True)
        with pytest.raises(Mismatch) as raised:
            exploding(b"\x04" + sent + sent + b"\0")
        assert str(raised.value) == f"element 0: column c: {reason}"

    def test_a_decimal_of_any_length_has_a_reason(self) -> None:
        schema = record(("c", decimal(38, 0)))
        value, reason = attempt(schema, b"\x80\xfa\x01" + b"\x7f" * 16_000)
        assert value is None
        assert reason.startswith("column c: number b'")
        widest = 10**38 - 1
        assert attempt(schema, b"\x20" + widest.to_bytes(16, "big")) == ({"c": Decimal(widest)}, None)

    def test_a_header_is_suspected_where_the_rest_decodes(self) -> None:
        schema = record(("c", "int"), ("d", ["null", "string"]), ("e", "boolean"))
        datum = body(schema, {"c": 1, "d": "x", "e": True})
        _, reason = attempt(schema, b"\0\0\0\0\7" + datum)
        assert reason.endswith("; it looks like a registry header: header_bytes = 5")
        _, reason = attempt(schema, b"\0\0\2\0\7" + datum + b"x")
        assert "header" not in reason
        _, reason = attempt(schema, b"\0\4" + datum)
        assert reason == "column d: union index 2, wanted 0 to 1"

    def test_a_reason_of_a_writer_names_no_header(self) -> None:
        schema = json.dumps(record(("c", "int")))
        decode = avro.decoder(schema, {7: schema})
        kind = pa.struct([("c", pa.int32())])
        for datum, reason in [
            (b"\x80" * 5 + b"\x40", f"column c: number {2**40}, wanted int"),
            (b"\x80", "column c: the body ends before the value does"),
        ]:
            assert decoded(pa.array([b"\0\0\0\0\7" + datum]), decode, kind).to_pylist()[0]["reason"] == reason
        with pytest.raises(UndecodableError, match=r"^1 bytes after the value$") as raised:
            decode(b"\0\0\0\0\7\2x")
        assert raised.value.header_is_known

    def test_columns_that_the_table_lacks_are_no_reason(self) -> None:
        schema = record(
            ("c", "int"),
            ("s", "string"),
            ("n", decimal(1, 0)),
            ("of", record(("s", "string"), ("k", "int"), name="Of")),
        )
        decode = avro.decoder(json.dumps(schema), selected=frozenset(["c", "of", "of.k"]))
        assert decode(b"\x02\x02\xff\x02\x7f\x02\xff\x04") == {"c": 1, "of": {"k": 2}}
        with pytest.raises(Mismatch, match=r"^column of\.s: length 63, and the body has 2 more bytes$"):
            decode(b"\x02\x02\xff\x02\x7f\x7e\xff\x04")


BOUNDS = (2**8, 2**31, 2**55, 2**63)
NUMBERS = st.lists(st.one_of(*(st.integers(-bound, bound - 1) for bound in BOUNDS)), max_size=90)


@settings(deadline=None)
@given(NUMBERS, st.integers(0, 5))
def test_many_numbers_are_those_that_were_sent(numbers: list[int], cut: int) -> None:
    schema = record(("c", array("long")))
    sent = body(schema, {"c": numbers})
    assert attempt(schema, sent) == ({"c": numbers}, None)
    assert attempt(schema, sent[: len(sent) - 1 - cut])[0] is None
    value, reason = attempt(record(("c", array("int"))), sent)
    longer = [number for number in numbers if not -(2**31) <= number < 2**31]
    assert (value is None) == bool(longer)
    assert not longer or reason in {f"column c.element: number {number}, wanted int" for number in longer}


PLAIN = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", MILLIS, DATE, decimal(4, 2)]
KINDS = st.sampled_from(PLAIN)


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, dict):
        return {
            "array": lambda: st.lists(values(kind.get("items")), max_size=3),
            "map": lambda: st.dictionaries(st.text(max_size=3), values(kind.get("values")), max_size=3),
            "bytes": lambda: st.integers(-9999, 9999).map(lambda number: number.to_bytes(2, "big", signed=True)),
        }.get(kind["type"], lambda: st.integers(0, 10_000))()
    if isinstance(kind, list):
        return st.one_of(st.none(), values(kind[1]))
    return {
        "null": st.none(), "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1), "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False), "string": st.text(max_size=5), "bytes": st.binary(max_size=5),
    }[kind]  # fmt: skip


TYPES = st.recursive(
    KINDS,
    lambda inner: st.one_of(
        inner.map(array),
        inner.map(lambda kind: {"type": "map", "values": kind}),
        inner.filter(lambda kind: kind != "null" and not isinstance(kind, list)).map(lambda kind: ["null", kind]),
    ),
    max_leaves=3,
)


@settings(deadline=None)
@given(st.data())
def test_values_are_those_that_fastavro_reads(data: st.DataObject) -> None:
    kind = data.draw(TYPES)
    schema = record(("c", kind), ("d", "long"))
    value_type = pa.struct(list(avro.columns(json.dumps(schema))))
    decode = avro.decoder(json.dumps(schema))
    sent = body(schema, {"c": data.draw(values(kind)), "d": 1})
    expected = fastavro.schemaless_reader(io.BytesIO(sent), schema)
    assert decoded(pa.array([sent]), decode, value_type).field("value") == pa.array([expected], value_type)
    position, byte = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.binary(min_size=1, max_size=1))
    broken = pa.array([sent[:position] + byte + sent[position + 1 :]])
    (row,) = decoded(broken, decode, value_type).to_pylist()  # whatever the bytes are, there is a value or a reason
    assert (row["value"] is None) != (row["reason"] is None)
    assert row["reason"] is None or row["reason"].startswith("column ") or "bytes after the value" in row["reason"]


class TestColumnsThatTheOwnerHasWidened:
    POINT = record(("n", "int"), name="Point")
    TABLE = record(
        ("a", "int"),
        ("f", ["null", "float"]),
        ("d", decimal(5, 2)),
        ("p", POINT),
        ("all", array("Point")),
        ("by", {"type": "map", "values": "int"}),
        {"name": "x", "type": "int", "default": 3},
        ("at", TIME_MILLIS),
        ("next", ["null", "R"]),
        ("day", ["null", DATE]),
    )
    WIDE_POINT = pa.struct({"n": pa.int64()})
    WIDE = pa.schema(
        {
            "a": pa.int64(), "f": pa.float64(), "d": pa.decimal128(12, 4), "p": pa.struct({"n": pa.int32()}),
            "all": pa.list_(pa.field("element", WIDE_POINT)), "by": pa.map_(pa.string(), pa.int64()), "x": pa.int64(),
            "at": pa.int64(), "next": pa.string(), "day": pa.date32(),
        }
    )  # fmt: skip
    BIG = 5_000_000_000
    LONG_POINT = record(("n", "long"), name="newer.Point")
    WRITER = record(
        ("a", "long"),
        ("f", "double"),
        ("d", decimal(12, 4)),
        ("p", POINT),
        ("all", array(LONG_POINT)),
        ("by", {"type": "map", "values": "long"}),
        ("at", TIME_MILLIS),
        ("next", ["null", "R"]),
        ("day", DATE),
    )
    ROW: ClassVar[dict[str, Any]] = {
        "a": BIG, "f": 1e300, "d": Decimal("123.4567"), "p": {"n": 1}, "all": [{"n": BIG}], "by": {"k": BIG},
        "at": 5, "next": None, "day": 1, "x": 3,
    }  # fmt: skip

    def decode(self, writer: Any, on_mismatch: str) -> Any:
        decode = avro.decoder(json.dumps(self.TABLE), {7: json.dumps(writer)}, on_mismatch, table_columns=self.WIDE)
        sent = {**self.ROW, "d": (1_234_567).to_bytes(4)}
        return decode(b"\0\0\0\0\7" + body(writer, sent))

    def test_values_of_their_types_are_decoded(self) -> None:
        assert self.decode(self.WRITER, "dead-letter") == self.ROW

    def test_columns_that_are_not_widened_have_the_types_of_the_schema(self) -> None:
        writer = {**self.WRITER, "fields": [dict(field) for field in self.WRITER["fields"]]}
        writer["fields"][3]["type"] = self.LONG_POINT
        writer["fields"][4]["type"] = array("newer.Point")
        assert self.decode(writer, "rescue") == {**self.ROW, "p": {"n": None}, "_rescued": '{"p.n": 1}'}
        with pytest.raises(Mismatch, match=r"column p\.n: the writer's long 1, wanted int"):
            self.decode(writer, "dead-letter")

    def test_bodies_of_the_schema_itself_are_decoded(self) -> None:
        for explode in (False, True):
            schema = array(record(("a", "int"))) if explode else record(("a", "int"))
            decode = avro.decoder(json.dumps(schema), explode=explode, table_columns=pa.schema({"a": pa.int64()}))
            sent = body(schema, [{"a": 5}] if explode else {"a": 5})
            assert decode(sent) == ([{"a": 5}] if explode else {"a": 5})
