"""Decodes Avro message bodies, by fastavro."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

# Logical types that fastavro reads as Spark does; of all others Spark takes the plain type.
_LOGICAL: Final = frozenset(
    ["date", "decimal", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"]
)
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


def decoder(schema: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes one body.

    Raises:
        ValueError: not a schema.
    """
    try:
        parsed = fastavro.parse_schema(plain(json.loads(schema)))
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an Avro schema ({type(error).__name__}: {error})") from error

    def decode(body: bytes) -> dict[str, Any]:
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the value")
        return value  # type: ignore[return-value] # a record's; the spec is refused if it is none

    return decode
