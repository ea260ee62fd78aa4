"""Decodes Avro message bodies: fastavro parses the schemas, the bodies are read by ``avro_resolution``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from rmq_lakehouse.decode.avro_bytes import BYTES_FAULTS, Read, fault_reason
from rmq_lakehouse.decode.avro_resolution import JSON_TEXT, NamedTypes, ReaderCompiler, UndecodableError
from rmq_lakehouse.decode.avro_schemas import check_unions, parse_schema, widen_types
from rmq_lakehouse.decode.columns import list_of
from rmq_lakehouse.decode.mismatch import DEAD_LETTER, Mismatch, Refused, with_rescued
from rmq_lakehouse.spec import REGISTRY_HEADER_BYTES

_TIMESTAMPS: Final = {
    f"{local}timestamp-{unit}": None if local else "UTC" for local in ("", "local-") for unit in ("millis", "micros")
}
_TYPES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "enum": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(),
}  # fmt: skip

ReadRows = Callable[[bytes, int], tuple[Any, int]]
"""Reads a body from a position on: its row, or its rows."""


def decoder(
    schema: str,
    writer_schemas: Mapping[int, str] | None = None,
    on_mismatch: str = DEAD_LETTER,
    *,
    selected: frozenset[str] | None = None,
    explode: bool = False,
    table_columns: pa.Schema | None = None,
) -> Callable[[bytes], Any]:
    """Return a function that decodes one body. Raises ValueError.

    Args:
        schema: of the table, in Avro's JSON.
        writer_schemas: schemas by the id in a registry's header, which each body then has. A schema that cannot be used
            fails its bodies alone. None decodes bodies by ``schema``, without a header.
        on_mismatch: see ``rmq_lakehouse.decode.mismatch``.
        selected: paths of the selected columns; None is all.
        explode: whether a body may be an array of records, and becomes a list of rows.
        table_columns: columns of the schema with the types that the table has; None is the schema's types.
    """
    reader = parse_schema(schema)
    check_unions(reader)
    rows = _BodyRows(reader, on_mismatch, selected, explode=explode)
    if table_columns is not None and not table_columns.equals(columns(schema, explode=explode)):
        rows.widen(table_columns)
    if writer_schemas is None:
        return _without_header(rows.compile(reader))
    readers = {number: _writer_reader(rows, number, text) for number, text in writer_schemas.items()}

    def decode(body: bytes) -> Any:
        if len(body) < REGISTRY_HEADER_BYTES or body[0] != 0:
            raise UndecodableError(f"the body begins with no registry header: {body[:REGISTRY_HEADER_BYTES].hex(' ')}")
        number = int.from_bytes(body[1:REGISTRY_HEADER_BYTES], "big")
        try:
            if number not in readers:
                raise UndecodableError(f"the registry header names schema {number}, which writer_schemas lacks")
            value, end = readers[number](body, REGISTRY_HEADER_BYTES)
            if end != len(body):
                raise UndecodableError(f"{len(body) - end} bytes after the value")
        except UndecodableError as error:
            error.header_is_known = True
            raise
        return value

    return decode


def _writer_reader(rows: "_BodyRows", number: int, text: str) -> ReadRows:
    """Compile the reader of a writer's bodies; the reader raises if the schema cannot be used."""
    try:
        return rows.compile(parse_schema(text, has_field_defaults=False))
    except ValueError as error:
        reason = f"the registry header names schema {number}, which cannot be used: {error}"

    def refuse(_body: bytes, _position: int) -> tuple[Any, int]:
        raise UndecodableError(reason)

    return refuse


def _without_header(read: ReadRows) -> Callable[[bytes], Any]:
    """Return a decoder of bodies without a header; a reason names the header if the rest of the body decodes."""

    def decode(body: bytes) -> Any:
        try:
            value, end = read(body, 0)
        except Mismatch as error:
            if str(error).startswith(("column ", "element ")) and has_header(body):
                reason = f"{error}; it looks like a registry header: header_bytes = {REGISTRY_HEADER_BYTES}"
                raise type(error)(reason) from None
            raise
        if end != len(body):
            raise ValueError(f"{len(body) - end} bytes after the value")
        return value

    def has_header(body: bytes) -> bool:
        if len(body) <= REGISTRY_HEADER_BYTES or body[0] != 0:
            return False
        try:
            _, end = read(body, REGISTRY_HEADER_BYTES)
        except (Mismatch, RecursionError):
            return False
        return end == len(body)

    return decode


class _BodyRows:
    """Rows of bodies, of the table's parsed schema and of any writer's."""

    def __init__(self, schema: Any, on_mismatch: str, selected: frozenset[str] | None, *, explode: bool) -> None:
        self._schema = schema
        self._column_schema = _without_recursion(schema, ())
        self._on_mismatch = on_mismatch
        self._refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
        self._selected = selected
        self._explode = explode

    def widen(self, columns: pa.Schema) -> None:
        kind = pa.struct(list(columns))
        is_array = self._explode and isinstance(self._column_schema, dict) and self._column_schema["type"] == "array"
        types = NamedTypes(self._column_schema)
        self._column_schema = widen_types(self._column_schema, list_of(kind) if is_array else kind, types)

    def compile(self, writer: Any) -> ReadRows:
        compiler = ReaderCompiler(writer, self._schema, self._column_schema, self._refused, self._selected)
        if self._explode and (compile_array := compiler.compile_elements()) is not None:
            return self._array_rows(compile_array)
        read_row = self._row(compiler.compile_columns())

        def read(body: bytes, position: int) -> tuple[Any, int]:
            try:
                row, position = read_row(body, position)
            except BYTES_FAULTS as error:
                raise UndecodableError(f"the body: {fault_reason(error)}") from None
            return [row] if self._explode else row, position

        return read

    def _row(self, read_value: Read) -> Read:
        refused, on_mismatch = self._refused, self._on_mismatch

        def read(body: bytes, position: int) -> tuple[Any, int]:
            if refused:
                refused.clear()
            value, position = read_value(body, position)
            if value is None:
                raise UndecodableError("the body is null, wanted a record")
            return with_rescued(value, refused, on_mismatch), position

        return read

    def _array_rows(self, compile_array: Callable[[Callable[[Read], Read]], Read]) -> ReadRows:
        element_numbers = [0]

        def number_element(read_element: Read) -> Read:
            read_row = self._row(read_element)

            def read(body: bytes, position: int) -> tuple[Any, int]:
                try:
                    row, position = read_row(body, position)
                except Mismatch as error:
                    raise type(error)(f"element {element_numbers[0]}: {error}") from None
                element_numbers[0] += 1
                return row, position

            return read

        read_array = compile_array(number_element)

        def read_rows(body: bytes, position: int) -> tuple[Any, int]:
            element_numbers[0] = 0
            try:
                return read_array(body, position)
            except BYTES_FAULTS as error:
                raise UndecodableError(f"element {element_numbers[0]}: {fault_reason(error)}") from None

        return read_rows


def columns(schema: str, *, explode: bool = False) -> pa.Schema:
    """Convert the schema of a record, or with ``explode`` of an array of records, to columns. Raises ValueError.

    A record within itself is a JSON text.
    """
    parsed = parse_schema(schema)
    check_unions(parsed)
    finite_schema = _without_recursion(parsed, ())
    if explode and isinstance(finite_schema, dict) and finite_schema["type"] == "array":
        finite_schema = finite_schema["items"]
    kind = _type(finite_schema, {})
    if not pa.types.is_struct(kind):
        raise ValueError("it is not a record" + " or an array of records" * explode)
    return pa.schema(list(kind))


def _type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """Convert a parsed schema to a column's type; ``named`` has types by their names."""
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
    if logical in _TIMESTAMPS and kind == "long":
        return pa.timestamp("us", _TIMESTAMPS[logical])
    return _type(kind, named)


def _without_recursion(schema: Any, above: tuple[str, ...]) -> Any:
    if isinstance(schema, str):
        return {"type": "string", "logicalType": JSON_TEXT, "record": schema} if schema in above else schema
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
