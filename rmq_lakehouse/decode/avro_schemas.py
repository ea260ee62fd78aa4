"""Parses Avro schemas by fastavro, after the repairs that Java's parser makes, and widens the types of columns."""

import json
import math
from collections.abc import Iterable
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from rmq_lakehouse.decode.avro_resolution import NamedTypes

_MAX_PRECISION: Final = 1000  # limit of a decimal: a schema may claim more digits than memory holds
_WIDE_TYPES: Final = {("int", pa.int64()): "long", ("float", pa.float64()): "double"}  # of a type and its column
_WIDENED: Final = (frozenset(["int", "long"]), frozenset(["float", "double"]))


def parse_schema(text: str, *, has_field_defaults: bool = True) -> Any:
    """Parse a schema to full names of records. Raises ValueError.

    Args:
        has_field_defaults: False drops the defaults of a writer's fields: readers do not use these, and old producers
            have invalid ones.
    """
    try:
        schema = _repair(json.loads(text), "the schema", has_field_defaults=has_field_defaults)
        parsed: Any = fastavro.parse_schema(schema)
    except (
        ValueError,
        SchemaParseException,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"not an Avro schema ({type(error).__name__}: {error})") from error
    if not isinstance(parsed, dict):
        return parsed
    return {name: part for name, part in parsed.items() if not name.startswith("__")}  # marks of the library


def _repair(schema: Any, place: str, *, has_field_defaults: bool) -> Any:
    """Return a schema in JSON without errors as records, invalid logical types, and unused defaults.

    Raises SchemaParseException where the library does not notice a fault; ``place`` is the schema in its text.
    """
    if isinstance(schema, list):
        if any(isinstance(kind["type"] if isinstance(kind, dict) else kind, list) for kind in schema):
            raise SchemaParseException(f"{place} is a union within a union")
        return [_repair(kind, place, has_field_defaults=has_field_defaults) for kind in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    repaired = {**schema}
    if kind == "error":  # a record of Avro's protocols
        repaired["type"] = "record"
    for name in ("type", "items", "values"):
        if isinstance(schema.get(name), list | dict):
            repaired[name] = _repair(schema[name], place, has_field_defaults=has_field_defaults)
    if kind in ("record", "error"):
        repaired["fields"] = list(_repaired_fields(schema, has_field_defaults=has_field_defaults))
    _check_aliases(schema, place)
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or (logical == "decimal" and not _is_decimal(schema)):
        repaired.pop("logicalType", None)
    if repaired.get("logicalType") == "decimal" and schema["precision"] > _MAX_PRECISION:
        raise SchemaParseException(f"{place} is a decimal of {schema['precision']} digits")
    return repaired


def _repaired_fields(record: dict[str, Any], *, has_field_defaults: bool) -> Iterable[dict[str, Any]]:
    names = set()
    for field in record["fields"]:
        place = f"field {field['name']} of record {record['name']}"
        if not isinstance(field["name"], str):
            raise SchemaParseException(f"{place} has a name that is no text")
        if field["name"] in names:
            raise SchemaParseException(f"{place} comes twice")
        names.add(field["name"])
        _check_aliases(field, place)
        kind = _repair(field["type"], place, has_field_defaults=has_field_defaults)
        yield {name: part for name, part in field.items() if name != "default" or has_field_defaults} | {"type": kind}


def _check_aliases(schema: dict[str, Any], place: str) -> None:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise SchemaParseException(f"{place} has aliases that are no list of names")


def _is_decimal(schema: dict[str, Any]) -> bool:
    """Return whether precision and scale are valid. If not, Avro ignores the logical type."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        return False
    return schema["type"] != "fixed" or precision <= math.log10(2) * (8 * int(schema["size"]) - 1)


def check_unions(schema: Any) -> None:
    """Raise ValueError for a union of several types, which has no column type."""
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) > 1 and not any(all(isinstance(k, str) and k in pair for k in kinds) for pair in _WIDENED):
            raise ValueError(f"a union of several types, {json.dumps(schema)}")
        for kind in schema:
            check_unions(kind)
    elif isinstance(schema, dict):
        for part in ("type", "items", "values"):
            check_unions(schema.get(part))
        for field in schema.get("fields", ()):
            check_unions(field["type"])


def widen_types(schema: Any, kind: pa.DataType, types: NamedTypes) -> Any:
    """Return a parsed schema, without recursion, with the wider types of the table's column."""
    if isinstance(schema, list):
        is_single = sum(branch != "null" for branch in schema) == 1
        return [widen_types(branch, kind, types) if is_single and branch != "null" else branch for branch in schema]
    if isinstance(schema, str):
        resolved = types.resolve(schema)
        wide = _WIDE_TYPES.get((schema, kind), schema)
        return wide if resolved == {"type": schema} else widen_types(resolved, kind, types)
    base = schema["type"]
    if base == "record":
        kinds = {field.name: field.type for field in kind}
        fields = [
            {**field, "type": widen_types(field["type"], kinds[field["name"]], types)} for field in schema["fields"]
        ]
        return {**schema, "fields": fields}
    if base == "array":
        return {**schema, "items": widen_types(schema["items"], kind.value_type, types)}
    if base == "map":
        return {**schema, "values": widen_types(schema["values"], kind.item_type, types)}
    if pa.types.is_decimal(kind):
        return {**schema, "precision": kind.precision, "scale": kind.scale}
    if "logicalType" in schema:
        return schema
    return {**schema, "type": widen_types(base, kind, types)}
