"""Decodes Avro message bodies, by fastavro."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from spark_udfs.mismatch import DEAD_LETTER, Mismatch, Refused, mismatch, null_where_refused, with_rescued
from spark_udfs.times import YEARS, in_range, is_date

HEADER_BYTES: Final = 5
"""Bytes of a schema registry's header: a zero, and the schema's id, big-endian."""

# Logical types that fastavro reads as Spark does; of all others the plain type is read, for times are converted here.
_LOGICAL: Final = frozenset(["decimal"])
_MICROS: Final = {
    f"{local}timestamp-{unit}": factor for local in ("", "local-") for unit, factor in (("millis", 1000), ("micros", 1))
}
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


def _times(schema: Any, path: str, named: dict[str, Any], refused: Refused | None) -> Convert | None:
    """Return what converts the times within a value to microseconds, and dates to days; None if there are none.

    Args:
        schema: of the value.
        path: of its column, for errors.
        named: schemas of records by their names, filled by this call; a record within itself is null there.
        refused: takes what a column cannot hold; see ``null_where_refused``.
    """
    if isinstance(schema, str):
        return None if named.get(schema) is None else _nested(named[schema], path, named, refused)
    if isinstance(schema, list):
        within = next(filter(None, (_times(kind, path, named, refused) for kind in schema)), None)
        return None if within is None else _nullable(within)
    kind, logical = schema.get("type"), schema.get("logicalType")
    if kind in {"record", "array", "map"}:
        return _nested(schema, path, named, refused)
    if logical == "date" and kind == "int":
        return _checked(path, "DATE", 1, is_date)
    if logical in _MICROS and kind == "long":
        name = "TIMESTAMP_NTZ" if logical.startswith("local") else "TIMESTAMP"
        return _checked(path, name, _MICROS[logical], in_range)
    return _times(kind if isinstance(kind, list | dict) else str(kind), path, named, refused)


def _nested(schema: dict[str, Any], path: str, named: dict[str, Any], refused: Refused | None) -> Convert | None:
    if schema["type"] == "array":
        element = _times(schema["items"], f"{path}.element", named, None)
        return None if element is None else lambda value: [element(item) for item in value]
    if schema["type"] == "map":
        of_value = _times(schema["values"], f"{path}.value", named, None)
        return None if of_value is None else lambda value: {name: of_value(item) for name, item in value.items()}
    around = f"{path}." if path else ""
    names = (schema["name"], f"{schema.get('namespace')}.{schema['name']}")
    named.update(dict.fromkeys(names))
    members = {}
    for field in schema["fields"]:
        column = around + field["name"]
        convert = _times(field["type"], column, named, refused)
        if convert is not None:
            members[field["name"]] = null_where_refused(convert, column, refused)
    named.update(dict.fromkeys(names, schema))
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
    schema: str, writer_schemas: Mapping[int, str] | None = None, on_mismatch: str = DEAD_LETTER
) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes one body.

    Args:
        schema: of the table, in Avro's JSON.
        writer_schemas: schemas by the id in a registry's header, which each body has then: a zero, and the id in four
            bytes. None decodes bodies by ``schema``, without a header.
        on_mismatch: what a time becomes that its column cannot hold: see ``spark_udfs.mismatch``.

    Raises:
        ValueError: not a schema.
    """
    reader = _parsed(schema)
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    read = _body_reader(reader, None, refused)
    writers = (writer_schemas or {}).items()
    readers = {number: _body_reader(reader, _parsed(text), refused) for number, text in writers}

    def decode(body: bytes) -> dict[str, Any]:
        if refused:
            refused.clear()
        if writer_schemas is None:
            return with_rescued(read(body), refused, on_mismatch)
        if len(body) < HEADER_BYTES or body[0] != 0:
            raise Mismatch(f"the body begins with no registry header: {body[:HEADER_BYTES].hex(' ')}")
        number = int.from_bytes(body[1:HEADER_BYTES], "big")
        if number not in readers:
            raise Mismatch(f"the registry header names schema {number}, which writer_schemas lacks")
        return with_rescued(readers[number](body[HEADER_BYTES:]), refused, on_mismatch)

    return decode


def _parsed(schema: str) -> Any:
    try:
        given = json.loads(schema)
        fastavro.parse_schema(plain(given))
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an Avro schema ({type(error).__name__}: {error})") from error
    return given


def _body_reader(schema: Any, writer: Any | None, refused: Refused | None) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a body of a writer's schema; None is the table's own.

    Numbers of times are in the unit of the writer's schema.
    """
    parsed = fastavro.parse_schema(plain(schema))
    written = parsed if writer is None else fastavro.parse_schema(plain(writer))
    convert = _times(schema if writer is None else _with_units_of(schema, writer), "", {}, refused)

    def read(body: bytes) -> dict[str, Any]:
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, written, None if writer is None else parsed)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the value")
        return value if convert is None else convert(value)  # type: ignore[return-value] # of a record

    return read


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
