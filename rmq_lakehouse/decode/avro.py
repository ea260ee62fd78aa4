"""Decodes Avro message bodies, by fastavro."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from rmq_lakehouse.decode.columns import list_of
from rmq_lakehouse.decode.mismatch import (
    DEAD_LETTER,
    Mismatch,
    Refused,
    mismatch,
    null_where_refused,
    python_values_as_json,
    rows_of_elements,
    with_rescued,
)
from rmq_lakehouse.decode.times import YEARS, in_range, is_date

HEADER_BYTES: Final = 5
"""Bytes of a schema registry's header: a zero, and the schema's id, big-endian."""

# Logical types that fastavro reads as Spark does; of all others the plain type is read, for times are converted here.
_LOGICAL: Final = frozenset(["decimal"])
_MICROS: Final = {
    f"{local}timestamp-{unit}": factor for local in ("", "local-") for unit, factor in (("millis", 1000), ("micros", 1))
}
_JSON: Final = "rmq-json"
"""Logical type of a text that is the JSON of a record within itself."""
_TYPES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "enum": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(),
}  # fmt: skip
_WIDENED: Final = (frozenset(["int", "long"]), frozenset(["float", "double"]))


def plain(schema: Any) -> Any:
    """Remove from the schema the logical types that Spark reads as their plain type.

    Raises:
        ValueError: it has a union of several types, which no column can hold.
    """
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) > 1 and not any(all(isinstance(k, str) and k in pair for k in kinds) for pair in _WIDENED):
            raise ValueError(f"a union of several types, {json.dumps(schema)}")
        return [plain(kind) for kind in schema]
    if isinstance(schema, dict):
        dropped = {"logicalType"} if schema.get("logicalType") not in _LOGICAL else set()
        nested = ("type", "items", "values")
        made = {name: plain(part) if name in nested else part for name, part in schema.items() if name not in dropped}
        if isinstance(schema.get("fields"), list):
            made["fields"] = [plain(field) for field in schema["fields"]]
        return made
    return schema


Convert = Callable[[Any], Any]
Selected = frozenset[str] | None


def _times(
    schema: Any, path: str, named: dict[str, Any], refused: Refused | None, selected: Selected
) -> Convert | None:
    """Return what converts times within a value to microseconds, dates to days, and records to JSON texts; else None.

    Args:
        named: schemas of records by their names, filled by this call.
        selected: paths of the columns wanted; others are left as they are.
    """
    if isinstance(schema, str):
        return _nested(named[schema], path, named, refused, selected) if schema in named else None
    if isinstance(schema, list):
        within = next(filter(None, (_times(kind, path, named, refused, selected) for kind in schema)), None)
        return None if within is None else _nullable(within)
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical == _JSON:
        return python_values_as_json
    if kind in {"record", "array", "map"}:
        return _nested(schema, path, named, refused, selected)
    if logical == "date" and kind == "int":
        return _checked(path, "DATE", 1, is_date)
    if logical in _MICROS and kind == "long":
        name = "TIMESTAMP_NTZ" if logical.startswith("local") else "TIMESTAMP"
        return _checked(path, name, _MICROS[logical], in_range)
    return _times(kind if isinstance(kind, list | dict) else str(kind), path, named, refused, selected)


def _nested(
    schema: dict[str, Any], path: str, named: dict[str, Any], refused: Refused | None, selected: Selected
) -> Convert | None:
    if schema["type"] == "array":
        element = _times(schema["items"], f"{path}.element", named, None, selected)
        return None if element is None else lambda value: [element(item) for item in value]
    if schema["type"] == "map":
        of_value = _times(schema["values"], f"{path}.value", named, None, selected)
        return None if of_value is None else lambda value: {name: of_value(item) for name, item in value.items()}
    around = f"{path}." if path else ""
    members = {}
    for field in schema["fields"]:
        column = around + field["name"]
        if selected is not None and column not in selected:
            continue
        convert = _times(field["type"], column, named, refused, selected)
        if convert is not None:
            members[field["name"]] = null_where_refused(convert, column, refused)
    named[schema["name"]] = schema
    return _record(members) if members else None


def _record(members: dict[str, Convert]) -> Convert:
    return lambda value: {**value, **{name: convert(value[name]) for name, convert in members.items()}}


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _checked(path: str, name: str, factor: int, fits: Callable[[int], bool]) -> Convert:
    def convert(value: int) -> int:
        if not fits(value * factor):
            raise mismatch(path, f"number {value}", f"{name} of {YEARS}")
        return value * factor

    return convert


def decoder(
    schema: str,
    writer_schemas: Mapping[int, str] | None = None,
    on_mismatch: str = DEAD_LETTER,
    *,
    selected: Selected = None,
    explode: bool = False,
) -> Callable[[bytes], Any]:
    """Return a function that decodes one body. Raises ValueError.

    Args:
        schema: of the table, in Avro's JSON.
        writer_schemas: schemas by the id in a registry's header, which each body has then: a zero, and the id in four
            bytes. None decodes bodies by ``schema``, without a header.
        on_mismatch: what a time becomes that its column cannot hold: see ``rmq_lakehouse.decode.mismatch``.
        selected: paths of the columns that are wanted; None is all.
        explode: whether a body may be an array of records, and becomes a list of rows.
    """
    reader = _parsed(schema)
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    read = _body_reader(reader, None, refused, selected)
    writers = (writer_schemas or {}).items()
    readers = {number: _body_reader(reader, _parsed(text), refused, selected) for number, text in writers}

    def reader_of(body: bytes) -> tuple[BodyReader, bytes]:
        if writer_schemas is None:
            return read, body
        if len(body) < HEADER_BYTES or body[0] != 0:
            raise Mismatch(f"the body begins with no registry header: {body[:HEADER_BYTES].hex(' ')}")
        number = int.from_bytes(body[1:HEADER_BYTES], "big")
        if number not in readers:
            raise Mismatch(f"the registry header names schema {number}, which writer_schemas lacks")
        return readers[number], body[HEADER_BYTES:]

    def row(value: Any, convert: Convert | None) -> dict[str, Any]:
        if refused:
            refused.clear()
        return with_rescued(value if convert is None else convert(value), refused, on_mismatch)

    def decode(body: bytes) -> dict[str, Any]:
        (read_value, convert), datum = reader_of(body)
        return row(read_value(datum), convert)

    def decode_all(body: bytes) -> list[dict[str, Any]]:
        (read_value, convert), datum = reader_of(body)
        value = read_value(datum)
        return rows_of_elements(lambda element: row(element, convert), value if isinstance(value, list) else [value])

    return decode_all if explode else decode


def _parsed(schema: str) -> Any:
    """Parse a schema; its records have their full names wherever they are named. Raises ValueError."""
    try:
        given = json.loads(schema)
        fastavro.parse_schema(plain(given))
        parsed: Any = fastavro.parse_schema(given)
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an Avro schema ({type(error).__name__}: {error})") from error
    if not isinstance(parsed, dict):
        return parsed
    return {name: part for name, part in parsed.items() if not name.startswith("__")}  # marks of the library


def columns(schema: str, *, explode: bool = False) -> pa.Schema:
    """Convert the schema of a record to columns; a record within itself is a JSON text. Raises ValueError.

    Args:
        schema: in Avro's JSON.
        explode: whether it may be an array of records, whose columns these are then.
    """
    finite_schema = _without_recursion(_parsed(schema), ())
    if explode and isinstance(finite_schema, dict) and finite_schema["type"] == "array":
        finite_schema = finite_schema["items"]
    kind = _type(finite_schema, {})
    if not pa.types.is_struct(kind):
        raise ValueError("it is not a record" + " or an array of records" * explode)
    return pa.schema(list(kind))


def _type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """Convert a parsed schema to the type that Spark has for it; ``named`` has types by their names."""
    if isinstance(schema, list):
        kinds = [_type(kind, named) for kind in schema if kind != "null"]
        if not kinds:
            raise ValueError("a union without a type")
        return kinds[0] if len(kinds) == 1 else max(kinds, key=lambda kind: kind.bit_width)
    if isinstance(schema, str):
        return _TYPES[schema] if schema in _TYPES else named[schema]
    kind = _type_of(schema, named)
    if "name" in schema:
        named[schema["name"]] = kind
    return kind


def _type_of(schema: dict[str, Any], named: dict[str, pa.DataType]) -> pa.DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return pa.struct([(field["name"], _type(field["type"], named)) for field in schema["fields"]])
    if kind == "array":
        return list_of(_type(schema["items"], named))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], named))
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical == "date" and kind == "int":
        return pa.date32()
    if logical in _MICROS and kind == "long":
        return pa.timestamp("us", None if logical.startswith("local") else "UTC")
    return _type(kind, named)


def _without_recursion(schema: Any, above: tuple[str, ...]) -> Any:
    if isinstance(schema, str):
        return {"type": "string", "logicalType": _JSON} if schema in above else schema
    if isinstance(schema, list):
        return [_without_recursion(kind, above) for kind in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "record":
        within = (*above, schema["name"])
        fields = [{**field, "type": _without_recursion(field["type"], within)} for field in schema["fields"]]
        return {**schema, "fields": fields}
    nested = {name: schema[name] for name in ("items", "values", "type") if isinstance(schema.get(name), dict | list)}
    nested |= {name: schema[name] for name in ("items", "values") if isinstance(schema.get(name), str)}
    return {**schema, **{name: _without_recursion(part, above) for name, part in nested.items()}}


BodyReader = tuple[Callable[[bytes], Any], Convert | None]
"""Reads the value of a body, and converts a record of it to a row."""


def _body_reader(schema: Any, writer: Any | None, refused: Refused | None, selected: Selected) -> BodyReader:
    """Return the reader of bodies of a writer's schema; None is the table's own.

    Numbers of times are in the unit of the writer's schema. Of an array the elements are converted.
    """
    parsed = fastavro.parse_schema(plain(schema))
    written = parsed if writer is None else fastavro.parse_schema(plain(writer))
    described = _without_recursion(schema if writer is None else _with_units_of(schema, writer), ())
    is_array = isinstance(described, dict) and described.get("type") == "array"
    convert = _times(described["items"] if is_array else described, "", {}, refused, selected)

    def read(body: bytes) -> Any:
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, written, None if writer is None else parsed)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the value")
        return value

    return read, convert


def _with_units_of(schema: Any, writer: Any) -> Any:
    """Return a schema whose times have the units that a writer's schema gives them."""
    if isinstance(schema, list):
        kinds = writer if isinstance(writer, list) else [writer]
        return [_with_units_of(kind, next((k for k in kinds if _base(k) == _base(kind)), None)) for kind in schema]
    if isinstance(writer, list):
        return _with_units_of(schema, next((kind for kind in writer if _base(kind) == _base(schema)), None))
    if not isinstance(schema, dict) or not isinstance(writer, dict):
        return schema
    if schema.get("type") == "record" == writer.get("type"):
        types = {field["name"]: field["type"] for field in writer["fields"]}
        fields = [
            {**field, "type": _with_units_of(field["type"], types.get(field["name"]))} for field in schema["fields"]
        ]
        return {**schema, "fields": fields}
    for name in ("items", "values", "type"):
        if isinstance(schema.get(name), dict | list):
            return {**schema, name: _with_units_of(schema[name], writer.get(name))}
    is_time = schema.get("logicalType") in _MICROS and writer.get("logicalType") in _MICROS
    return {**schema, "logicalType": writer["logicalType"]} if is_time else schema


def _base(schema: Any) -> Any:
    """Return the type of a schema without its logical type and its names."""
    return _base(schema["type"]) if isinstance(schema, dict) and "type" in schema else schema
