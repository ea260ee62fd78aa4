"""Bodies decoded by msgspec structs: the same values and reasons as by ``json_body``, whatever is sent."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_lakehouse.decode import json_structs
from rmq_lakehouse.decode.bodies import decoded, without_header
from rmq_lakehouse.decode.json_body import decoder
from rmq_lakehouse.decode.json_structs import StructDecoder, decoded_by_structs
from rmq_lakehouse.decode.times import TimeUnits

KINDS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.binary(),
    pa.decimal128(12, 2), pa.decimal128(38, 10), pa.decimal128(5, 0), pa.date32(), pa.timestamp("us", "UTC"),
    pa.timestamp("us"), pa.decimal128(38, 38), pa.decimal128(38, 20),
]  # fmt: skip
# Texts of values, at the edges of what each type is.
VALUES = [
    "null", "true", "false", "0", "-0", "-0.0", "0.0", "0e5", "0E-7", "1", "-1", "127", "128", "-128", "-129", "32767",
    "32768", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "1.0", "1e2", "1E+2", "1.5", "12.340", "12.345", "0.10", "99999", "999999",
    "12345678901234567890.123456789", "0.1", "3.4028235e38", "3.4028236e38", "1e39", "1e-45", "1e-46", "7e-46", "1e-60",
    "5e-324", "2e-324", "1e-400", "1e400", "1.7976931348623157e308", "0." + "0" * 330 + "1", "9007199254740993",
    "123456789012345678901234567890", "1700000000", "1700000000000", "1700000000000000", "1700000000000000000",
    "253402300799", "253402300800", "-62135596800", "-62135596801", "NaN", "Infinity", "-Infinity", "01", "+1", ".5",
    "1.", "1e", "--1", "nul", '""', '"a"', '"0"', '"1"', '"1.50"', '"1_0"', '" 1 "', '"１"', '"NaN"', '"Infinity"',
    '"-INF"', '"true"', '"YWI="', '"YWI"', '"%"', '"a\\ud83d\\ude00b"', '"\\ud800"', '"\\u0000"', '"\\u00e9é"', '"\\x"',
    '"\n"', '"2024-02-03"', '"2024-2-3"', '"2024-02-30"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"',
    '"10000-01-01"', '"2024-02-03T04:05:06Z"', '"2024-02-03 04:05:06.123456Z"', '"2024-02-03T04:05:06.1234567Z"',
    '"2024-02-03T24:00:00Z"', '"2024-02-03T04:05:60Z"', '"0000-12-31T23:59:59Z"', '"0001-01-01T00:00:00Z"',
    '"9999-12-31T23:59:59.999999Z"', '"2024-02-30T00:00:00Z"', '"2024-02-03T04:05:06"', '"2024-02-03T04:05:06+01:00"',
    '"2024-02-03T04:05:06 Europe/Berlin"', '"12:00"', "[]", "[1]", "[null]", "[[1]]", '[{"a":1}]', "[1,]", "{}",
    '{"a":1}', '{"a":null}', '{"A":1}', '{"a":1,"a":2}', '{"a":"x","b":2}', '{"k":0.0,"l":-0}', "{1:2}", "tru",
]  # fmt: skip
UNITS = [TimeUnits(), TimeUnits("ms"), TimeUnits("ns", {"v": "us"}), TimeUnits(None, {"v": "ns"})]


def exact(value: Any) -> Any:
    """Make values comparable: NaN equals NaN, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    return [exact(item) for item in value] if isinstance(value, list | tuple) else value


def check_equal(
    columns: pa.StructType,
    bodies: Sequence[bytes | None],
    units: TimeUnits | None = None,
    on_mismatch: str = "dead-letter",
    header_bytes: int = 0,
) -> pa.Array:
    """Check that both ways decode bodies to the same values and reasons."""
    rescued = [pa.field("_rescued", pa.string())] if on_mismatch == "rescue" else []
    value_type = pa.struct([*columns, *rescued])
    by_json_body = decoder(columns, units or TimeUnits(), "UTC", on_mismatch)
    decode = without_header(by_json_body, header_bytes)
    sent = pa.array(bodies, pa.binary())
    expected = decoded(sent, decode, value_type)
    by_structs = StructDecoder(columns, units or TimeUnits(), "UTC")
    result = decoded_by_structs(sent, by_structs, decode, value_type, header_bytes)
    result.validate(full=True)
    assert result.type == expected.type
    assert [exact(row) for row in result.to_pylist()] == [exact(row) for row in expected.to_pylist()]
    return result


def around(kind: pa.DataType) -> list[tuple[pa.DataType, str]]:
    element = pa.field("element", kind)
    return [
        (kind, "%s"),
        (pa.list_(element), "[null,%s]"),
        (pa.map_(pa.string(), kind), '{"k":%s,"n":null}'),
        (pa.struct([("a", kind), ("b", pa.int32())]), '{"a":%s}'),
        (pa.list_(pa.field("element", pa.struct([("a", kind)]))), '[{"a":%s},null]'),
    ]


@pytest.mark.parametrize("units", UNITS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_value_in_each_type_is_decoded_as_by_json_body(kind: pa.DataType, units: TimeUnits) -> None:
    for within, template in around(kind):
        columns = pa.struct([("v", within), ("w", pa.int32())])
        bodies = [f'{{"v":{template % text}}}'.encode() for text in VALUES]
        bodies += [f'{{"w":1,"v":{text},"x":{text}}}'.encode() for text in VALUES]
        check_equal(columns, bodies, units)
        for on_mismatch in ("null", "rescue"):
            check_equal(columns, bodies[:: 1 if within == kind else 7], units, on_mismatch)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_batch_of_one_body_is_decoded_as_by_json_body(kind: pa.DataType) -> None:
    for text in VALUES:
        check_equal(pa.struct([("v", kind)]), [f'{{"v":{text}}}'.encode()])


SIMPLE = pa.struct([("v", pa.int64()), ("t", pa.string())])


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"{}",
        b"null",
        b"[]",
        b'[{"v":1}]',
        b'{"v":1}{"v":2}',
        b'{"v":1} \n',
        b'\xef\xbb\xbf{"v":1}',
        b'{"v":1}\x00',
        b'{"V":1}',
        b'{"\\u0076":1}',
        b'{"v":1,"v":2}',
        b'{"v":1,"v":null}',
        b'{"v":"x","v":2}',
        b'{"v":1,"x":"\xff"}',
        b'{"v":1,"\xff":1}',
        b'{"v":1,"x":"\\ud800"}',
        b'{"v":1,"\\ud800":1}',
        b'{"v":1,"x":"\\x"}',
        b'{"v":1,"x":"\n"}',
        b'{"v":1,"x":[1,]}',
        b'{"v":1,"x":01}',
        b'{"v":1,"x":NaN}',
        b'{"v":1,"x":1e999}',
        b'{"v":1,"x":{"y":}}',
        b'{"v":1,}',
        b'{"v" :\t1 , "t"\r\n: "a"}',
        b'{"v":1,"t":"\xc3\xa9"}',
        b'{"v":1,"x":"\xed\xa0\x80"}',
        b"\0\0\0\0\1" + b'{"v":1}',
        b"\0" * 5,
    ],
)
@pytest.mark.parametrize("header_bytes", [0, 5])
def test_each_body_is_decoded_as_by_json_body(body: bytes | None, header_bytes: int) -> None:
    sound = b'{"v":7}'
    for bodies in ([body], [sound, body, sound], [sound, None if body is None else b"\0\0\0\0\2" + body]):
        check_equal(SIMPLE, bodies, header_bytes=header_bytes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "k", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def schemas(draw: st.DrawFn) -> pa.StructType:
    kinds = st.recursive(
        st.sampled_from(KINDS),
        lambda inner: (
            inner.map(lambda kind: pa.list_(pa.field("element", kind)))
            | inner.map(lambda kind: pa.map_(pa.string(), kind))
            | st.tuples(inner, inner).map(lambda pair: pa.struct([("a", pair[0]), ("b", pair[1])]))
        ),
        max_leaves=3,
    )
    names = draw(st.lists(st.sampled_from(["v", "w", "ü", "d e"]), min_size=1, max_size=3, unique=True))
    return pa.struct([(name, draw(kinds)) for name in names])


def made_up(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that fit a type, more or less; or anything."""
    if pa.types.is_struct(kind):
        fitting: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {}, optional={field.name: made_up(field.type) for field in kind}
        )
    elif pa.types.is_list(kind):
        fitting = st.lists(made_up(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        fitting = st.dictionaries(st.text(max_size=2), made_up(kind.item_type), max_size=3)
    elif pa.types.is_floating(kind):
        fitting = st.floats() | st.integers()
    elif pa.types.is_temporal(kind):
        fitting = st.datetimes().map(str) | st.dates().map(str) | st.integers(-(10**13), 10**13)
        fitting |= st.datetimes().map(lambda time: f"{time.isoformat()}Z")
    else:
        fitting = st.integers() | st.integers(-200, 200) | st.text() | st.booleans()
    return st.one_of(*[fitting] * 8, JSON)


@settings(deadline=None)
@given(data=st.data(), columns=schemas(), units=st.sampled_from(UNITS))
def test_made_up_json_is_decoded_as_by_json_body(data: st.DataObject, columns: pa.StructType, units: TimeUnits) -> None:
    rows = data.draw(st.lists(made_up(columns), min_size=1, max_size=5))
    texts = [json.dumps(row, ensure_ascii=data.draw(st.booleans())) for row in rows]
    bodies = [text.encode("utf-8", "surrogatepass") for text in texts]
    check_equal(columns, bodies, units, data.draw(st.sampled_from(["dead-letter", "null", "rescue"])))


@settings(deadline=None)
@given(number=st.floats() | st.floats(width=32), digits=st.integers(1, 40))
def test_floats_are_read_to_the_last_bit(number: float, digits: int) -> None:
    columns = pa.struct([("v", pa.float64()), ("w", pa.float32())])
    texts = [json.dumps(number), f"{number:.{digits}e}" if math.isfinite(number) else "0", f"{number:f}"]
    check_equal(columns, [f'{{"v":{text},"w":{text}}}'.encode() for text in texts])


@settings(deadline=None)
@given(
    texts=st.lists(st.from_regex(r"-?(0|[1-9][0-9]{0,38})(\.[0-9]{1,39})?", fullmatch=True), min_size=1, max_size=3),
    precision=st.integers(1, 38),
    data=st.data(),
)
def test_decimals_keep_their_digits_or_do_not_decode(texts: list[str], precision: int, data: st.DataObject) -> None:
    kind = pa.decimal128(precision, data.draw(st.integers(0, precision)))
    check_equal(pa.struct([("v", kind)]), [f'{{"v":{text}}}'.encode() for text in texts])


def test_only_what_is_not_certain_goes_to_json_body(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.struct([("v", pa.int64()), ("t", pa.string()), ("x", pa.float64())])
    sound = [b'{"v":1,"t":"a","x":0.5,"more":[1,{"y":"z"}]}', b'{"v":2,"x":0}', b'{"t":"2024-02-03"}']
    doubtful = [b'{"v":1.0}', b'{"t":1}', b'{"x":1e-400}', b"{}"]
    counts = []

    def count(bodies: pa.Array, *more: Any) -> pa.Array:
        counts.append(len(bodies))
        return decoded(bodies, *more)

    monkeypatch.setattr(json_structs, "decoded", count)
    check_equal(columns, sound * 3)
    assert counts == []
    check_equal(columns, [*sound, *doubtful, *sound])
    assert counts == [len(doubtful)]
