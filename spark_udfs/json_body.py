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

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_udfs.mismatch import DEAD_LETTER, Mismatch, Refused, mismatch, null_where_refused, shown, with_rescued
from spark_udfs.times import YEARS, TimeUnits, number_days, number_us, text_days, text_us

Convert = Callable[[Any], Any]

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
_FLOAT_BOUNDS: Final = (2.0**-150, (2 - 2.0**-24) * 2.0**127)  # what rounds to 0, and to infinity
_DOUBLE_BOUNDS: Final = (0.0, float("inf"))
_DECIMAL_TEXT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_ZERO: Final = re.compile(r"^[^eE]*[1-9]")
_SYNTAX: Final = "the body is not JSON of the schema"
_NOT_ONE: Final = "the body is not one JSON object"
_MAX_INTEGER_CHARS: Final = 20  # limit: of 64 bits, with a sign


class NumberText(str):
    """JSON number as it was sent."""

    __slots__ = ()


class NonFinite(str):
    """NaN, Infinity or -Infinity, as Python's producers send it; it is no JSON."""

    __slots__ = ()


def decoder(
    columns: StructType, units: TimeUnits, zone: str, on_mismatch: str = DEAD_LETTER
) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes one body; members that the schema does not name are passed over.

    Args:
        columns: of the body.
        units: of numbers in columns of times.
        zone: of times without one.
        on_mismatch: what a value becomes that its column cannot hold: see ``spark_udfs.mismatch``.

    Raises:
        ValueError: a column's type cannot be decoded.
    """
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    scan = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText, parse_constant=NonFinite).raw_decode
    convert = _struct(columns, "", units, zone, refused)

    def decode(body: bytes) -> dict[str, Any]:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise Mismatch("the body is not UTF-8") from None
        try:
            value, end = scan(text.lstrip(" \t\r\n"))
        except (ValueError, RecursionError):
            raise Mismatch(_SYNTAX) from None
        if type(value) is not dict or text.lstrip(" \t\r\n")[end:].strip(" \t\r\n"):
            raise Mismatch(_NOT_ONE)
        if refused:
            refused.clear()
        return with_rescued(convert(value), refused, on_mismatch, lambda values: written(_as_json(values)))

    return decode


def _converter(kind: DataType, path: str, units: TimeUnits, zone: str, refused: Refused | None) -> Convert:
    """Return what converts a JSON value, which is not null, to a column's. Raises ValueError."""
    if isinstance(kind, StructType):
        return _struct(kind, path, units, zone, refused)
    if isinstance(kind, ArrayType):
        return _array(_converter(kind.elementType, f"{path}.element", units, zone, None), path)
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise ValueError(f"column {path} is {kind.simpleString()}, and keys of JSON are STRING")
        return _map(_converter(kind.valueType, f"{path}.value", units, zone, None), path)
    plain = _plain(kind, path) or _time(kind, path, units, zone)
    if plain is None:
        raise ValueError(f"column {path} is {kind.simpleString()}, which no JSON body is decoded to")
    return plain


def _plain(kind: DataType, path: str) -> Convert | None:
    if type(kind) in _BITS:
        return _integer(_BITS[type(kind)], path, kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind, path)
    for one, convert in (
        (StringType, _text(path)),
        (BooleanType, _boolean(path)),
        (DoubleType, _float(_DOUBLE_BOUNDS, path, kind)),
        (FloatType, _float(_FLOAT_BOUNDS, path, kind)),
        (BinaryType, _binary(path)),
    ):
        if isinstance(kind, one):
            return convert
    return None


def _struct(kind: StructType, path: str, units: TimeUnits, zone: str, refused: Refused | None) -> Convert:
    around = f"{path}." if path else ""
    members = []
    for field in kind:
        column = around + field.name
        convert_member = _converter(field.dataType, column, units, zone, refused)
        members.append((field.name, null_where_refused(convert_member, column, refused)))
    names = frozenset(kind.fieldNames())

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


def _integer(bits: int, path: str, kind: DataType) -> Convert:
    most = 1 << (bits - 1)
    wanted = kind.simpleString().upper()

    def convert(value: Any) -> int:
        if type(value) is NumberText and len(value) <= _MAX_INTEGER_CHARS:
            try:
                number = int(value)
            except ValueError:  # it has a fraction or an exponent
                raise mismatch(path, described(value), wanted) from None
            if -most <= number < most:
                return number
        raise mismatch(path, described(value), wanted)

    return convert


def _decimal(kind: DecimalType, path: str) -> Convert:
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    wanted = f"{kind.simpleString().upper()} without rounding"

    def convert(value: Any) -> Decimal:
        if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value):
            try:
                return Decimal(value).quantize(unit, context=context)
            except (InvalidOperation, Inexact):
                pass
        raise mismatch(path, described(value), wanted)

    return convert


def _float(bounds: tuple[float, float], path: str, kind: DataType) -> Convert:
    least, most = bounds
    wanted = kind.simpleString().upper()

    def convert(value: Any) -> float:
        if type(value) is NumberText:
            number = float(value)
            if least < abs(number) < most or (number == 0 and not _NOT_ZERO.search(value)):
                return number
        elif isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
        raise mismatch(path, described(value), wanted)

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


def _time(kind: DataType, path: str, units: TimeUnits, zone: str) -> Convert | None:
    """Return the converter of a column of times; None if it is another type."""
    own = units.of_column(path)
    if isinstance(kind, TimestampType):
        unit = own or units.default or "s"
        wanted = f"TIMESTAMP: a text, or a number of {unit}, of {YEARS}"
        return _timed(path, wanted, lambda text: text_us(text, zone), lambda text: number_us(text, unit))
    if isinstance(kind, TimestampNTZType):
        unit_ntz = own or units.default
        numbers = None if unit_ntz is None else (lambda text: number_us(text, unit_ntz))
        wanted = f"TIMESTAMP_NTZ: a text without a zone{_or_number(unit_ntz)}, of {YEARS}"
        return _timed(path, wanted, lambda text: text_us(text, None), numbers)
    if isinstance(kind, DateType):
        days = None if own is None else (lambda text: number_days(text, own))
        return _timed(path, f"DATE: a text{_or_number(own)}, of {YEARS}", text_days, days)
    return None


def _or_number(unit: str | None) -> str:
    return "" if unit is None else f", or a number of {unit}"


def _timed(
    path: str, wanted: str, of_text: Callable[[str], int | None], of_number: Callable[[str], int | None] | None
) -> Convert:
    def convert(value: Any) -> int:
        found = None
        if type(value) is str:
            found = of_text(value)
        elif type(value) is NumberText and of_number is not None:
            found = of_number(value)
        if found is None:
            raise mismatch(path, described(value), wanted)
        return found

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
