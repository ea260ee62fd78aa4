"""Decodes JSON message bodies: each value is unchanged in its column, or the body has a reason.

Spark's ``from_json`` keeps no digits (``0.10`` becomes ``0.1``), rounds DECIMAL, multiplies times without a check, and
takes ``1e400`` for Infinity. Here numbers stay texts until their column is known.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, Final

import pyarrow as pa

from rmq_lakehouse.decode.mismatch import (
    DEAD_LETTER,
    Mismatch,
    Refused,
    mismatch,
    null_where_refused,
    rows_of_elements,
    shown,
    with_rescued,
)
from rmq_lakehouse.decode.times import YEARS, TimeUnits, number_days, number_us, text_days, text_us

Convert = Callable[[Any], Any]

INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_INTEGER_NAMES: Final = {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT"}
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
FLOAT_BOUNDS: Final = (2.0**-150, (2 - 2.0**-24) * 2.0**127)  # what rounds to 0, and to infinity
_DOUBLE_BOUNDS: Final = (0.0, float("inf"))
_DECIMAL_TEXT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_ZERO: Final = re.compile(r"^[^eE]*[1-9]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SYNTAX: Final = "the body is not JSON of the schema"
_NOT_ONE: Final = "the body is not one JSON object"
_NOT_OBJECTS: Final = "the body is not one JSON object or array of objects"
_MAX_INTEGER_CHARS: Final = 20  # limit: of 64 bits, with a sign


class NumberText(str):
    """JSON number as it was sent."""

    __slots__ = ()


class NonFinite(str):
    """NaN, Infinity or -Infinity, as Python's producers send it; it is no JSON."""

    __slots__ = ()


def decoder(
    columns: pa.StructType,
    units: TimeUnits,
    zone: str,
    on_mismatch: str = DEAD_LETTER,
    *,
    schema: pa.StructType | None = None,
    explode: bool = False,
) -> Callable[[bytes], Any]:
    """Return a function that decodes one body; members that the schema does not name are passed over.

    Args:
        zone: time zone of times without a zone.
        on_mismatch: see ``rmq_lakehouse.decode.mismatch``.
        schema: all columns that bodies may have, of which ``columns`` are decoded; None if ``columns`` are all.
        explode: whether a body may be an array of objects, and becomes a list of rows.

    Raises:
        ValueError: a column's type cannot be decoded.
    """
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    scan = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText, parse_constant=NonFinite).raw_decode
    convert_object = _struct(columns, schema or columns, "", units, zone, refused)

    def parse(body: bytes, kinds: tuple[type, ...], otherwise: str) -> Any:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise Mismatch("the body is not UTF-8") from None
        try:
            value, end = scan(text.lstrip(" \t\r\n"))
        except (ValueError, RecursionError):
            raise Mismatch(_SYNTAX) from None
        if type(value) not in kinds or text.lstrip(" \t\r\n")[end:].strip(" \t\r\n"):
            raise Mismatch(otherwise)
        return value

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(f"{described(value)}, wanted an object")
        if refused:
            refused.clear()
        try:
            return with_rescued(convert_object(value), refused, on_mismatch, _written_rescue)
        except RecursionError:
            raise Mismatch("the body is nested too deeply") from None

    def decode(body: bytes) -> dict[str, Any]:
        return convert(parse(body, (dict,), _NOT_ONE))

    def decode_all(body: bytes) -> list[dict[str, Any]]:
        value = parse(body, (dict, list), _NOT_OBJECTS)
        return rows_of_elements(convert, value if type(value) is list else [value])

    return decode_all if explode else decode


def _converter(
    kind: pa.DataType, schema: Any, path: str, units: TimeUnits, zone: str, refused: Refused | None
) -> Convert:
    """Return a converter of JSON values other than null to a column's values. Raises ValueError."""
    if pa.types.is_struct(kind):
        return _struct(kind, schema, path, units, zone, refused)
    if pa.types.is_list(kind):
        return _array(_converter(kind.value_type, schema.value_type, f"{path}.element", units, zone, None), path)
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise ValueError(f"column {path} is {kind}, and keys of JSON are STRING")
        return _map(_converter(kind.item_type, schema.item_type, f"{path}.value", units, zone, None), path)
    plain = _plain(kind, path) or _time(kind, path, units, zone)
    if plain is None:
        raise ValueError(f"column {path} is {kind}, which no JSON body is decoded to")
    return plain


def _plain(kind: pa.DataType, path: str) -> Convert | None:
    if kind in INTEGER_BITS:
        return _integer(INTEGER_BITS[kind], path, _INTEGER_NAMES[kind])
    if pa.types.is_decimal128(kind):
        return _decimal(kind, path)
    converters = {
        pa.string(): _text(path),
        pa.bool_(): _boolean(path),
        pa.float64(): _float(_DOUBLE_BOUNDS, path, "DOUBLE"),
        pa.float32(): _float(FLOAT_BOUNDS, path, "FLOAT"),
        pa.binary(): _binary(path),
    }
    return converters.get(kind)


def _struct(
    kind: pa.StructType, schema: pa.StructType, path: str, units: TimeUnits, zone: str, refused: Refused | None
) -> Convert:
    around = f"{path}." if path else ""
    members = []
    for field in kind:
        column = around + field.name
        convert_member = _converter(field.type, schema.field(field.name).type, column, units, zone, refused)
        members.append((field.name, null_where_refused(convert_member, column, refused)))
    names = frozenset(field.name for field in schema)

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise mismatch(path, described(value), "STRUCT")
        row = {name: to(item) for name, to in members if (item := value.get(name)) is not None}
        if not row and names.isdisjoint(value) and (value or not path):
            raise Mismatch(_unknown_members(path, value, names))
        return row

    return convert


def _unknown_members(path: str, value: Mapping[str, Any], names: frozenset[str]) -> str:
    which = f"column {path}: the object" if path else "the body"
    sent = f"; it has {shown(', '.join(value))}" if value else ""
    return f"{which} has none of the members {shown(', '.join(sorted(names)))}{sent}"


def _array(convert: Convert, path: str) -> Convert:
    def of(value: Any) -> list[Any]:
        if type(value) is not list:
            raise mismatch(path, described(value), "ARRAY")
        return [None if item is None else convert(item) for item in value]

    return of


def _map(convert: Convert, path: str) -> Convert:
    key = _text(f"{path}.key")

    def of(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise mismatch(path, described(value), "MAP")
        return [(key(name), None if item is None else convert(item)) for name, item in value.items()]

    return of


def _text(path: str) -> Convert:
    def convert(value: Any) -> str:
        text = str(value) if isinstance(value, str) else written(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise mismatch(path, f"text {shown(text)!r} with half a surrogate pair", "STRING") from None
        return text

    return convert


def _boolean(path: str) -> Convert:
    def convert(value: Any) -> bool:
        if type(value) is not bool:
            raise mismatch(path, described(value), "BOOLEAN")
        return value

    return convert


def _integer(bits: int, path: str, expected: str) -> Convert:
    most = 1 << (bits - 1)

    def convert(value: Any) -> int:
        if type(value) is NumberText and len(value) <= _MAX_INTEGER_CHARS:
            try:
                number = int(value)
            except ValueError:  # it has a fraction or an exponent
                raise mismatch(path, described(value), expected) from None
            if -most <= number < most:
                return number
        raise mismatch(path, described(value), expected)

    return convert


def _decimal(kind: pa.Decimal128Type, path: str) -> Convert:
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    expected = f"DECIMAL({kind.precision},{kind.scale}) without rounding"

    def convert(value: Any) -> Decimal:
        if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value):
            try:
                return Decimal(value).quantize(unit, context=context)
            except (InvalidOperation, Inexact):
                pass
        raise mismatch(path, described(value), expected)

    return convert


def _float(bounds: tuple[float, float], path: str, expected: str) -> Convert:
    least, most = bounds

    def convert(value: Any) -> float:
        if type(value) is NumberText:
            number = float(value)
            if least < abs(number) < most or (number == 0 and not _NOT_ZERO.search(value)):
                return number
        elif isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
        raise mismatch(path, described(value), expected)

    return convert


def _binary(path: str) -> Convert:
    def convert(value: Any) -> bytes:
        try:
            if type(value) is str:
                return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
        raise mismatch(path, described(value), "BINARY in Base64")

    return convert


def _time(kind: pa.DataType, path: str, units: TimeUnits, zone: str) -> Convert | None:
    """Return the converter of a column of times; None if it is another type."""
    column_unit = units.of_column(path)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        unit = column_unit or units.default or "s"
        expected = f"TIMESTAMP: a text, or a number of {unit}, of {YEARS}"
        return _timed(path, expected, lambda text: text_us(text, zone), lambda text: number_us(text, unit))
    if pa.types.is_timestamp(kind):
        unit_ntz = column_unit or units.default
        numbers = None if unit_ntz is None else (lambda text: number_us(text, unit_ntz))
        expected = f"TIMESTAMP_NTZ: a text without a zone{_or_number(unit_ntz)}, of {YEARS}"
        return _timed(path, expected, lambda text: text_us(text, None), numbers)
    if kind == pa.date32():
        days = None if column_unit is None else (lambda text: number_days(text, column_unit))
        return _timed(path, f"DATE: a text{_or_number(column_unit)}, of {YEARS}", text_days, days)
    return None


def _or_number(unit: str | None) -> str:
    return "" if unit is None else f", or a number of {unit}"


def _timed(
    path: str, expected: str, of_text: Callable[[str], int | None], of_number: Callable[[str], int | None] | None
) -> Convert:
    def convert(value: Any) -> int:
        time = None
        if type(value) is str:
            time = of_text(value)
        elif type(value) is NumberText and of_number is not None:
            time = of_number(value)
        if time is None:
            raise mismatch(path, described(value), expected)
        return time

    return convert


def described(value: Any) -> str:
    """Describe a JSON value by its kind, and a text or a number by itself."""
    if isinstance(value, NumberText | NonFinite):
        return f"number {shown(value)}"
    if isinstance(value, str):
        return f"text {shown(value)!r}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "an object" if isinstance(value, dict) else "an array" if isinstance(value, list) else "null"


def _as_json(value: Any) -> Any:
    """Return a JSON value with its NaN and Infinity, which are no JSON, as texts."""
    if isinstance(value, NonFinite):
        return "".join(value)
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return {name: _as_json(item) for name, item in value.items()} if isinstance(value, dict) else value


def _written_rescue(values: Refused) -> str:
    """Write refused values as JSON; half a surrogate pair, which is no UTF-8, as its escape."""
    text = written(_as_json(values))
    return text if text.isascii() else _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def written(value: Any) -> str:
    """Write a JSON value without blanks, its numbers as they were sent."""
    if isinstance(value, NumberText | NonFinite):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring(name)}:{written(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else "true" if value else "false"
