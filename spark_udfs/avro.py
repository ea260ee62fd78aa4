"""Decodes Avro message bodies, by fastavro."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from spark_udfs.mismatch import mismatch
from spark_udfs.times import YEARS, in_range, is_date

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


def _times(schema: Any, path: str, named: dict[str, Any]) -> Convert | None:
    """Return what converts the times within a value to microseconds, and dates to days; None if there are none.

    Args:
        schema: of the value.
        path: of its column, for errors.
        named: schemas of records by their names, filled by this call; a record within itself is null there.
    """
    if isinstance(schema, str):
        return None if named.get(schema) is None else _nested(named[schema], path, named)
    if isinstance(schema, list):
        within = next(filter(None, (_times(kind, path, named) for kind in schema)), None)
        return None if within is None else _nullable(within)
    kind, logical = schema.get("type"), schema.get("logicalType")
    if kind in {"record", "array", "map"}:
        return _nested(schema, path, named)
    if logical == "date" and kind == "int":
        return _checked(path, "DATE", 1, is_date)
    if logical in _MICROS and kind == "long":
        name = "TIMESTAMP_NTZ" if logical.startswith("local") else "TIMESTAMP"
        return _checked(path, name, _MICROS[logical], in_range)
    return _times(kind, path, named) if isinstance(kind, list | dict) else _times(str(kind), path, named)


def _nested(schema: dict[str, Any], path: str, named: dict[str, Any]) -> Convert | None:
    if schema["type"] == "array":
        element = _times(schema["items"], f"{path}.element", named)
        return None if element is None else lambda value: [element(item) for item in value]
    if schema["type"] == "map":
        of_value = _times(schema["values"], f"{path}.value", named)
        return None if of_value is None else lambda value: {name: of_value(item) for name, item in value.items()}
    around = f"{path}." if path else ""
    names = (schema["name"], f"{schema.get('namespace')}.{schema['name']}")
    named.update(dict.fromkeys(names))
    found = {field["name"]: _times(field["type"], around + field["name"], named) for field in schema["fields"]}
    named.update(dict.fromkeys(names, schema))
    members = {name: convert for name, convert in found.items() if convert is not None}
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


def decoder(schema: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes one body.

    Raises:
        ValueError: not a schema.
    """
    try:
        given = json.loads(schema)
        parsed = fastavro.parse_schema(plain(given))
        convert = _times(given, "", {})
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an Avro schema ({type(error).__name__}: {error})") from error

    def decode(body: bytes) -> dict[str, Any]:
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the value")
        return value if convert is None else convert(value)  # type: ignore[return-value] # of a record

    return decode
