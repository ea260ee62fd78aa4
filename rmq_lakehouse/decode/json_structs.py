"""Decodes JSON bodies by msgspec structs, straight to Arrow columns, where their meaning is certain.

``json_body`` decides what a body means. This module is several times as fast, and decodes only what ``json_body``
certainly decodes to the same values. It leaves every other body to ``json_body``: bodies that do not decode, numbers in
columns of texts, floats that may have underflowed.

Example: of ``id BIGINT, at TIMESTAMP`` the struct has the types ``int | None`` and ``str | int | None``. The body
``{"id":1.0}`` is an error of msgspec, so ``json_body`` refuses it and gives the reason.
"""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial, reduce
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_lakehouse.decode.bodies import Decode, DecodeBodies, decoded
from rmq_lakehouse.decode.json_body import FLOAT_BOUNDS, INTEGER_BITS
from rmq_lakehouse.decode.times import TimeUnits, in_range, text_days, text_us

_UNIT_US: Final = {"s": 1_000_000, "ms": 1000, "us": 1}
_DAY_US: Final = 86_400_000_000
# In a body with a zero: a negative zero, an exponent or so many digits that the number was none.
_NO_CERTAIN_ZERO: Final = re.compile(rb"[:,\[\s]-0|[eE]-|0{300}")
_DECIMAL: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,40})(?:\.[0-9]{1,40})?")
_ISO_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z$"
_ISO_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_NULL: Final = msgspec.Raw(b"null")


@dataclass(slots=True)
class _Doubts:
    """Bodies of a batch, and the rows whose meaning is not certain."""

    bodies: Sequence[bytes]
    rows: set[int] = field(default_factory=set)


Build = Callable[[Sequence[Any], Sequence[int], _Doubts], pa.Array]
"""Builds a column of values of Python: values, the row of each, and the doubts, to which it adds."""


class StructDecoder:
    """Decoder of the bodies of one schema. Raises ValueError."""

    def __init__(self, columns: pa.StructType, units: TimeUnits, zone: str) -> None:
        kind, self._build = _struct(columns, "", units, zone)
        self._decode = msgspec.json.Decoder(kind).decode

    def certain(self, bodies: pa.Array) -> tuple[pa.StructArray, list[int]]:
        """Decode bodies; return the values of all rows, and the rows whose values are not certain."""
        texts = bodies.to_pylist()
        is_text = all(text is not None and text.isascii() for text in texts) or _is_utf8(bodies)
        doubts = _Doubts(texts)
        structs: list[Any] = []
        for text in texts:
            try:
                structs.append(self._decode(text) if is_text or text.isascii() else None)
            except Exception:  # whatever it is, json_body has the reason
                structs.append(None)
        doubts.rows.update(row for row, struct in enumerate(structs) if struct is None)
        return self._build(structs, range(len(structs)), doubts), sorted(doubts.rows)


def bodies_decoder(
    columns: pa.StructType, units: TimeUnits, zone: str, decode: Decode, value_type: pa.StructType, header_bytes: int
) -> DecodeBodies:
    """Return the function that decodes JSON bodies, by structs if msgspec has structs for the columns."""
    try:
        structs = StructDecoder(columns, units, zone)
    except ValueError:
        return partial(decoded, decode=decode, value_type=value_type)
    return partial(decoded_by_structs, structs=structs, decode=decode, value_type=value_type, header_bytes=header_bytes)


def decoded_by_structs(
    bodies: pa.Array, structs: StructDecoder, decode: Decode, value_type: pa.StructType, header_bytes: int = 0
) -> pa.Array:
    """Decode bodies to a struct of ``value`` and ``reason`` each, as ``bodies.decoded`` does.

    ``structs`` decodes the bodies whose meaning is certain, ``decode`` the other bodies, with their headers.
    """
    texts = bodies
    if header_bytes:
        texts = pa.array([None if body is None else body[header_bytes:] for body in bodies.to_pylist()], pa.binary())
    values, doubtful = structs.certain(texts)
    rescued = [pa.nulls(len(bodies), field.type) for field in list(value_type)[values.type.num_fields :]]
    columns = [*values.flatten(), *rescued]
    certain = pa.StructArray.from_arrays(
        [pa.StructArray.from_arrays(columns, fields=list(value_type)), pa.nulls(len(bodies), pa.string())],
        names=["value", "reason"],
    )
    if not doubtful:
        return certain
    by_json_body = decoded(bodies.take(pa.array(doubtful)), decode, value_type)
    order = np.arange(len(bodies))
    order[doubtful] = len(bodies) + np.arange(len(doubtful))
    return pa.concat_arrays([certain, by_json_body]).take(pa.array(order))


def _is_utf8(bodies: pa.Array) -> bool:
    """Return whether all bodies are UTF-8: msgspec does not look at members that it passes over."""
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _column(kind: pa.DataType, path: str, units: TimeUnits, zone: str) -> tuple[Any, Any, Build]:
    """Return the type of a struct's member, its default, and what builds the column."""
    if pa.types.is_struct(kind):
        struct, build = _struct(kind, path, units, zone)
        return struct | None, None, build
    if pa.types.is_list(kind):
        element, _, build = _column(kind.value_type, f"{path}.element", units, zone)
        return GenericAlias(list, (element,)) | None, None, _list(kind, build)
    if pa.types.is_map(kind):
        value, _, build = _column(kind.item_type, f"{path}.value", units, zone)
        return GenericAlias(dict, (str, value)) | None, None, _map(kind, build)
    if pa.types.is_decimal128(kind):
        return msgspec.Raw, _NULL, _decimals(kind)
    if kind in INTEGER_BITS:
        most = 1 << (INTEGER_BITS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None, None, _plain(kind)
    if kind in (pa.string(), pa.bool_()):
        return (str if kind == pa.string() else bool) | None, None, _plain(kind)
    if kind in (pa.float32(), pa.float64()):
        return float | None, None, _floats(kind)
    if kind == pa.binary():
        return str | None, None, _each(kind, _base64)
    return str | int | None, None, _times(kind, path, units, zone)


def _struct(kind: pa.StructType, path: str, units: TimeUnits, zone: str) -> tuple[type[msgspec.Struct], Build]:
    if not kind.num_fields:
        raise ValueError(f"column {path} has no members")
    around = f"{path}." if path else ""
    members = [_column(field.type, around + field.name, units, zone) for field in kind]
    names = [f"member_{number}" for number in range(len(members))]
    struct = msgspec.defstruct(
        "Members",
        [(name, type_, default) for name, (type_, default, _) in zip(names, members, strict=True)],
        rename=dict(zip(names, (field.name for field in kind), strict=True)),
        gc=False,
    )
    nothing, builders = struct(), [build for _, _, build in members]

    def build_struct(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        present = [nothing if value is None else value for value in values]
        members = list(zip(*map(msgspec.structs.astuple, present), strict=True)) or [()] * len(builders)
        columns = [build(column, rows, doubts) for column, build in zip(members, builders, strict=True)]
        is_missing = np.fromiter((value is None for value in values), bool, len(values))
        # An object without a value: json_body knows whether it has a member of the schema.
        is_empty = reduce(np.logical_and, (column.is_null().to_numpy(zero_copy_only=False) for column in columns))
        doubts.rows.update(rows[position] for position in np.flatnonzero(is_empty & ~is_missing).tolist())
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array(is_missing))

    return struct, build_struct


def _list(kind: pa.ListType, build: Build) -> Build:
    def build_list(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        items = [item for value in values if value is not None for item in value]
        offsets, item_rows = _offsets(values, rows)
        return pa.ListArray.from_arrays(offsets, build(items, item_rows, doubts), type=kind)

    return build_list


def _map(kind: pa.MapType, build: Build) -> Build:
    def build_map(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        keys = [key for value in values if value is not None for key in value]
        items = [item for value in values if value is not None for item in value.values()]
        offsets, item_rows = _offsets(values, rows)
        return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), build(items, item_rows, doubts), type=kind)

    return build_map


def _offsets(values: Sequence[Any], rows: Sequence[int]) -> tuple[pa.Array, Sequence[int]]:
    """Return where the items of each value begin, null for no value, and the row of each item."""
    is_missing = [value is None for value in values]
    counts = np.array([0 if value is None else len(value) for value in values], np.int32)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    return pa.array(ends, pa.int32(), mask=np.array([*is_missing, False])), np.repeat(np.array(rows), counts).tolist()


def _plain(kind: pa.DataType) -> Build:
    return lambda values, rows, doubts: pa.array(values, kind)  # noqa: ARG005 # there is no doubt


def _floats(kind: pa.DataType) -> Build:
    least, most = FLOAT_BOUNDS

    def build(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        numbers = pa.array(values, pa.float64())
        sizes = np.abs(numbers.to_numpy(zero_copy_only=False))
        for position in np.flatnonzero(sizes == 0).tolist():
            if _NO_CERTAIN_ZERO.search(doubts.bodies[rows[position]]):
                doubts.rows.add(rows[position])
        if kind == pa.float64():
            return numbers
        outside = (sizes != 0) & ((sizes <= least) | (sizes >= most))
        doubts.rows.update(rows[position] for position in np.flatnonzero(outside).tolist())
        return numbers.cast(kind)

    return build


def _each(kind: pa.DataType, convert: Callable[[Any], Any]) -> Build:
    """Return a builder that converts value by value; a converter returns None for what is not certain."""

    def build(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        converted = [None if value is None else convert(value) for value in values]
        doubts.rows.update(
            rows[position] for position, value in enumerate(converted) if value is None and values[position] is not None
        )
        return pa.array(converted, kind)

    return build


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _decimals(kind: pa.Decimal128Type) -> Build:
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    # Arrow's cast wraps around beyond 38 digits: of the text, or of its integer part and the scale.
    integer_digits = min(20, 38 - kind.scale)
    integer = rf"(?:0|[1-9][0-9]{{0,{integer_digits - 1}}})" if integer_digits else "0"
    plain_pattern = rf"^-?{integer}(?:\.[0-9]{{1,18}})?$"

    def convert(text: bytes) -> Decimal | None:
        if _DECIMAL.fullmatch(text) is None:
            return None
        try:
            return Decimal(text.decode()).quantize(unit, context=context)
        except (InvalidOperation, Inexact):
            return None

    build_each = _each(kind, convert)

    def build(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        texts = pa.array([bytes(value) for value in values], pa.binary())
        is_null = pc.equal(texts, b"null")
        numbers = pc.if_else(is_null, pa.scalar(None, pa.binary()), texts)
        with suppress(pa.ArrowInvalid):
            plain = numbers.cast(pa.string())
            if pc.all(pc.match_substring_regex(plain, plain_pattern)).as_py() in {True, None}:
                return plain.cast(kind)  # an error where digits would be lost
        return build_each(numbers.to_pylist(), rows, doubts)

    return build


def _times(kind: pa.DataType, path: str, units: TimeUnits, zone: str) -> Build:
    column_unit = units.of_column(path)
    if kind == pa.date32():
        return _texts_at_once(kind, _ISO_DATE, _each(kind, lambda value: _days(value, column_unit)))
    if kind.tz is None:
        return _each(kind, lambda value: _time_us(value, column_unit or units.default, None))
    return _texts_at_once(
        kind, _ISO_TIME, _each(kind, lambda value: _time_us(value, column_unit or units.default or "s", zone))
    )


def _texts_at_once(kind: pa.DataType, pattern: str, build_each: Build) -> Build:
    """Return a builder that casts the texts of a column at once, if all have the plainest form."""

    def build(values: Sequence[Any], rows: Sequence[int], doubts: _Doubts) -> pa.Array:
        with suppress(pa.ArrowException, TypeError):  # for numbers, and for days that do not exist
            texts = pa.array(values, pa.string())
            if pc.all(pc.match_substring_regex(texts, pattern)).as_py() and (pc.min(texts).as_py() or "0001") >= "0001":
                return texts.cast(kind)
        return build_each(values, rows, doubts)

    return build


def _time_us(value: str | int, unit: str | None, zone: str | None) -> int | None:
    if isinstance(value, str):
        return text_us(value, zone)
    if unit is None:
        return None
    time_us = value // 1000 if unit == "ns" else value * _UNIT_US[unit]
    return time_us if in_range(time_us) else None


def _days(value: str | int, unit: str | None) -> int | None:
    if isinstance(value, str):
        return text_days(value)
    time_us = _time_us(value, unit, None)
    return None if time_us is None else time_us // _DAY_US
