"""Resolves a writer's schema of Avro to the table's: compiles both, path by path, to a reader of the columns.

The reader of a field ``at`` with alias ``ts``, timestamp-micros, of a writer with ``ts``, timestamp-millis, reads a
number and multiplies it by 1000. Of a record that the schema names twice each use has a reader of its own, for their
columns may come from different types of the writer.
"""

import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from fastavro.read import SchemaResolutionError

from rmq_lakehouse.decode.avro_bytes import (
    BYTES_FAULTS,
    CorruptBytesError,
    Read,
    array_reader,
    enum_reader,
    fault_reason,
    fixed_reader,
    int_reader,
    ints_reader,
    items_reader,
    map_reader,
    read_boolean,
    read_bytes,
    read_double,
    read_float,
    read_long,
    read_null,
    read_string,
    union_reader,
)
from rmq_lakehouse.decode.mismatch import Mismatch, Refused, mismatch, python_values_as_json, shown
from rmq_lakehouse.decode.times import YEARS, in_range, is_date

JSON_TEXT: Final = "rmq-json"
"""Logical type of a text that is the JSON of a record within itself; ``record`` names the record."""
MAX_LEVELS: Final = 100  # limit of records within themselves, as of Protobuf's library
MAX_PARTS: Final = 2 * MAX_LEVELS
"""Limit of records, arrays and maps within a record within itself.

A record has 3 Python frames, an array 3, a map 4: at most 700, of the 1000 that Python allows. So the caller's depth
does not decide what is decoded.
"""

_MICROS: Final = frozenset(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros"))
_NANOS: Final = {"millis": 1_000_000, "micros": 1000, "nanos": 1}
# Logical types of numbers: what they count, and nanoseconds of their unit.
_COUNTS: Final = {
    "date": ("days", 1),
    **{f"time-{unit}": ("time of day", nanos) for unit, nanos in _NANOS.items()},
    **{f"{local}timestamp-{unit}": ("time", nanos) for local in ("", "local-") for unit, nanos in _NANOS.items()},
}
_OF_BYTES: Final = frozenset({"decimal", "big-decimal", "duration", "uuid"})
_INT_TYPES: Final = frozenset({"date", "time-millis"})
_PRIMITIVES: Final[dict[str, Read]] = {
    "null": read_null, "boolean": read_boolean, "int": read_long, "long": read_long, "float": read_float,
    "double": read_double, "bytes": read_bytes, "string": read_string,
}  # fmt: skip
_MIN_BYTES: Final = {"null": 0, "float": 4, "double": 8}  # of a value; of other types 1
_PROMOTIONS: Final = {
    "int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}, "string": {"bytes"},
    "bytes": {"string"},
}  # fmt: skip
_NAMED: Final = frozenset({"record", "enum", "fixed"})
_INT_BITS: Final = 31
_LONG_BITS: Final = 63
_SHOWN_BYTES: Final = 64  # limit of a decimal that a reason, or the JSON of refused values, has as a number


class UndecodableError(Mismatch):
    """Body that does not follow its schema: a dead letter for any ``on_mismatch``."""


class IncompatibleTypesError(Mismatch, SchemaResolutionError):
    """Value whose type in the writer's schema does not become that of its column."""


class Form(Enum):
    """Form of values: of columns; in the JSON of a record within itself; as sent; skipped."""

    COLUMN = auto()
    JSON = auto()
    SENT = auto()
    SKIPPED = auto()


class NamedTypes:
    """Named types of a parsed schema."""

    def __init__(self, schema: Any) -> None:
        self._types = dict(_named_types(schema))

    def resolve(self, schema: Any) -> Any:
        """Return a list of the branches of a union, or a dict with a type that is no name."""
        while not isinstance(schema, list):
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, str) and kind in self._types and (isinstance(schema, str) or "name" not in schema):
                return self._types[kind]
            if isinstance(schema, dict) and isinstance(kind, str):
                return schema
            schema = {"type": kind} if isinstance(kind, str) else kind
        return schema

    def least_bytes(self, schema: Any, within: tuple[str, ...] = ()) -> int:
        kind = self.resolve(schema)
        if isinstance(kind, list):
            return 1
        if kind["type"] == "fixed":
            return int(kind["size"])
        if kind["type"] == "record":
            name = kind["name"]
            if name in within:
                return 0
            return sum(self.least_bytes(field["type"], (*within, name)) for field in kind["fields"])
        return _MIN_BYTES.get(kind["type"], 1)


def _named_types(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, list):
        for kind in schema:
            yield from _named_types(kind)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "enum", "fixed"):
            yield schema["name"], schema
        for field in schema.get("fields", ()):
            yield from _named_types(field["type"])
        for name in ("type", "items", "values"):
            yield from _named_types(schema.get(name))


class ReaderCompiler:
    """Compiler of a writer's and a table's parsed schemas to readers.

    Args:
        column_schema: schema of the table in which records within themselves are ``JSON_TEXT``.
        refused: collects the values that their columns cannot have, by path; None makes them a ``Mismatch``.
        selected: paths of the selected columns; None is all.
        levels: levels of the calling readers; None counts from 0.
    """

    def __init__(
        self,
        writer: Any,
        schema: Any,
        column_schema: Any,
        refused: Refused | None = None,
        selected: frozenset[str] | None = None,
        levels: "_Levels | None" = None,
    ) -> None:
        self._writer_types = NamedTypes(writer)
        self._types = NamedTypes(schema)
        self._column_types = NamedTypes(column_schema)
        self._writer, self._schema, self._column_schema = writer, schema, column_schema
        self._refused = refused
        self._selected = selected
        self._levels = _Levels() if levels is None else levels
        self._parts_around = 0  # arrays and maps between a record and what is compiled
        self._record_readers: dict[tuple[Form, str, str, str], _LaterReader] = {}
        self._skipping: ReaderCompiler | None = None

    def compile_columns(self) -> Read:
        return self.compile(self._writer, self._column_schema, "", Form.COLUMN)

    def compile_elements(self) -> Callable[[Callable[[Read], Read]], Read] | None:
        """Compile two schemas of arrays to a function from a wrapper of element readers to a reader; else None."""
        writer, kind = self._writer_types.resolve(self._writer), self._column_types.resolve(self._column_schema)
        if not (isinstance(writer, dict) and isinstance(kind, dict) and writer["type"] == kind["type"] == "array"):
            return None
        read_element = self.compile(writer["items"], kind["items"], "", Form.COLUMN)
        least_bytes = self._writer_types.least_bytes(writer["items"])
        return lambda wrap: array_reader(items_reader(wrap(read_element)), least_bytes)

    def compile(self, writer: Any, schema: Any, path: str, form: Form, *, is_repeated: bool = False) -> Read:
        """Compile a type of the writer and of a column ``path``; a value that ``is_repeated`` is refused as a whole."""
        writer = self._writer_types.resolve(writer)
        if isinstance(writer, list):
            return union_reader([self.compile(kind, schema, path, form, is_repeated=is_repeated) for kind in writer])
        kind = self._matching_type(writer, schema, form)
        if kind is None:
            return self._incompatible_reader(writer, schema, path, form)
        if kind.get("logicalType") == JSON_TEXT:
            record = self._types.resolve(kind["record"])
            if form is not Form.COLUMN:
                return self.compile(writer, record, path, form)
            return _converted(self.compile(writer, record, path, Form.JSON), python_values_as_json)
        if writer["type"] == "record":
            if form is Form.COLUMN:
                return self._column_record_reader(writer, kind, path, is_repeated=is_repeated)
            return self._record_reader(writer, kind, path, form)
        if writer["type"] == "array":
            part = f"{path}.element" if form is Form.COLUMN else path
            read_items = items_reader(self._compile_part(writer["items"], kind["items"], part, form))
            if (writer["items"], kind["items"]) == ("int", "int") and form in (Form.COLUMN, Form.JSON):
                read_items = ints_reader(partial(_raise_longer, part))
            return array_reader(read_items, self._writer_types.least_bytes(writer["items"]))
        if writer["type"] == "map":
            part = f"{path}.value" if form is Form.COLUMN else path
            read_value = self._compile_part(writer["values"], kind["values"], part, form)
            return map_reader(read_value, self._writer_types.least_bytes(writer["values"]))
        return self._scalar_reader(writer, kind, path, form)

    def _compile_part(self, writer: Any, schema: Any, path: str, form: Form) -> Read:
        self._parts_around += form is not Form.COLUMN
        read = self.compile(writer, schema, path, form, is_repeated=True)
        self._parts_around -= form is not Form.COLUMN
        return read

    def _matching_type(self, writer: Any, schema: Any, form: Form) -> Any | None:
        """Return the type that a value of the writer's type becomes: of a union the same one, or else the first."""
        types = self._column_types if form is Form.COLUMN else self._types
        schema = types.resolve(schema)
        kinds = [types.resolve(kind) for kind in (schema if isinstance(schema, list) else [schema])]
        matching = [kind for kind in kinds if _is_compatible(writer, self._full_record(kind))]
        same = [kind for kind in matching if kind["type"] == writer["type"]]
        return (same or matching or [None])[0]

    def _full_record(self, kind: Any) -> Any:
        return self._types.resolve(kind["record"]) if kind.get("logicalType") == JSON_TEXT else kind

    def _incompatible_reader(self, writer: Any, schema: Any, path: str, form: Form) -> Read:
        if form in (Form.SENT, Form.SKIPPED):
            return self._writer_compiler().compile(writer, writer, path, form)
        types = self._column_types if form is Form.COLUMN else self._types
        target = _type_name(types.resolve(schema), types)
        if not path:
            return _raising(UndecodableError(f"the writer's schema is {_type_name(writer)}, wanted {target}"))
        read_sent = self._writer_compiler().compile(writer, writer, path, Form.SENT)
        has_parts = writer["type"] in {"record", "array", "map", "null"}

        def read(body: bytes, position: int) -> tuple[Any, int]:
            value, _ = read_sent(body, position)
            sent = _type_name(writer) if has_parts else f"{_type_name(writer)} {shown(value)}"
            raise IncompatibleTypesError(f"column {path}: the writer's {sent}, wanted {target}")

        return read

    def _writer_compiler(self) -> "ReaderCompiler":
        """Return the compiler of skipped values, by the writer's schema alone."""
        if self._writer is self._schema is self._column_schema:
            return self
        if self._skipping is None:
            self._skipping = ReaderCompiler(self._writer, self._writer, self._writer, levels=self._levels)
        return self._skipping

    def _column_record_reader(self, writer: Any, kind: Any, path: str, *, is_repeated: bool) -> Read:
        """Compile a record: fields in the writer's order, then the defaults of fields that the writer lacks."""
        around = f"{path}." if path else ""
        missing = {field["name"]: field for field in kind["fields"]}
        sources = _sources(writer, kind)
        members: list[tuple[str | None, str, Read]] = []
        for field in writer["fields"]:
            target = sources.get(field["name"])
            column = f"{around}{target['name']}" if target is not None else ""
            if target is not None:
                del missing[target["name"]]
            if target is None or not self._is_selected(column):
                read = self._writer_compiler().compile(
                    field["type"], field["type"], around + field["name"], Form.SKIPPED
                )
                place = f"column {column}" if column else f"field {around}{field['name']} of the writer"
                members.append((None, place, read))
                continue
            read = self.compile(field["type"], target["type"], column, Form.COLUMN, is_repeated=is_repeated)
            if self._refused is not None and not is_repeated:
                read_sent = self.compile(field["type"], target["type"], column, Form.SENT)
                read = _refusing(read, read_sent, column, self._refused)
            members.append((target["name"], f"column {column}", read))
        defaults: dict[str, Any] = {}
        of_schema = {field["name"]: field for field in self._types.resolve(kind["name"])["fields"]}
        for name in missing:
            column = around + name
            if not self._is_selected(column):
                continue
            try:
                defaults[name] = self._default(of_schema[name], missing[name]["type"], column, Form.COLUMN)
            except UndecodableError as error:
                members.insert(0, (None, "", _raising(error)))
        return _placing_record_reader(members, defaults)

    def _record_reader(self, writer: Any, kind: Any, path: str, form: Form) -> Read:
        """Compile a record in another form than columns, once for each column; it may be within itself."""
        key = (form, writer["name"], kind["name"], path)
        parts = 1 + self._parts_around
        if key in self._record_readers:
            return _levelled(self._record_readers[key], parts, self._levels)
        later = self._record_readers[key] = _LaterReader()
        self._parts_around = 0
        kind = self._types.resolve(kind["name"])
        sources = _sources(writer, kind)
        members: list[tuple[str | None, Read]] = []
        for field in writer["fields"]:
            target = sources.get(field["name"])
            if target is None:
                skip = self._writer_compiler().compile(field["type"], field["type"], path, Form.SKIPPED)
                members.append((None, skip))
            else:
                members.append((target["name"], self.compile(field["type"], target["type"], path, form)))
        defaults: dict[str, Any] = {}
        of_writer = {source["name"] for source in sources.values()}
        for field in kind["fields"]:
            if field["name"] not in of_writer:
                try:
                    defaults[field["name"]] = self._default(field, field["type"], path, form)
                except UndecodableError as error:
                    members.insert(0, (None, _raising(error)))
        later.read = _plain_record_reader(members, defaults)
        self._parts_around = parts - 1
        return _levelled(later, parts, self._levels)

    def _is_selected(self, column: str) -> bool:
        return self._selected is None or column in self._selected

    def _default(self, field: Any, kind: Any, column: str, form: Form) -> Any:
        """Convert a field's default as if a writer of the table's schema had sent it. Raises UndecodableError."""
        if "default" not in field:
            name = field["name"]
            raise UndecodableError(f"column {column}: the writer's schema lacks {name}, which has no default")
        compiler = ReaderCompiler(self._schema, self._schema, self._column_schema)
        try:
            body = _encoded(field["type"], field["default"], self._types)
            return compiler.compile(field["type"], kind, column, form, is_repeated=True)(body, 0)[0]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error, RecursionError) as error:
            target = _type_name(self._types.resolve(field["type"]), self._types)
            reason = f"column {column}: default {shown(field['default'])}, wanted {target}"
            raise UndecodableError(reason) from error

    def _scalar_reader(self, writer: Any, kind: Any, path: str, form: Form) -> Read:
        """Compile a type without parts. Raises nothing: what does not fit is a reader that raises."""
        base, target = writer["type"], kind["type"]
        if base == "enum":
            return self._enum_reader(writer, kind, path, form)
        if form is Form.SKIPPED:
            return read_bytes if base == "string" else _base_reader(writer)
        read = _base_reader(writer) if base == "fixed" else _PRIMITIVES[target if base in {"string", "bytes"} else base]
        if base == "int" and form is not Form.SENT:
            read = int_reader(partial(_raise_longer, path))
        sent, meant = _logical(writer), _column_logical(kind)
        if form is Form.SENT:
            return _converted(read, _sent_decimal(writer)) if sent == "decimal" else read
        if "decimal" in (sent, meant):
            if sent != meant:
                return self._incompatible_reader(writer, kind, path, form)
            return _converted(read, _decimal(path, writer, kind))
        if meant is not None and sent is not None and sent != meant:
            counts = _COUNTS.get(sent, (sent, 1)), _COUNTS.get(meant, (meant, 1))
            if counts[0][0] != counts[1][0]:
                return self._incompatible_reader(writer, kind, path, form)
        if meant in _COUNTS:
            return _converted(read, _count(path, sent or meant, meant, form))
        if target in {"float", "double"} and base in {"int", "long"}:
            return _converted(read, float)
        return read

    def _enum_reader(self, writer: Any, kind: Any, path: str, form: Form) -> Read:
        if form in (Form.SENT, Form.SKIPPED):
            return enum_reader(writer["symbols"])
        symbols = set(kind["symbols"])
        default = kind.get("default")
        resolved = [symbol if symbol in symbols else default for symbol in writer["symbols"]]
        read = enum_reader(resolved)
        if None not in resolved:
            return read
        read_symbol = enum_reader(writer["symbols"])

        def read_resolved(body: bytes, position: int) -> tuple[str, int]:
            symbol, end = read(body, position)
            if symbol is None:
                symbol, _ = read_symbol(body, position)
                raise mismatch(path, f"symbol {shown(symbol)}", _type_name(kind))
            return symbol, end

        return read_resolved


class _LaterReader:
    """Reader of a record within itself, which is compiled after its own fields."""

    read: Read


class _Levels:
    """Numbers of nested records, and of all nested parts, around the value that is being read."""

    records = 0
    parts = 0


def _is_compatible(writer: Any, kind: Any) -> bool:
    """Return whether a type of the writer becomes a type of the table; nested types have readers of their own."""
    sent, target = writer["type"], kind["type"]
    if sent != target:
        return target in _PROMOTIONS.get(sent, ())
    if sent not in _NAMED:
        return True
    if sent == "fixed" and writer["size"] != kind["size"]:
        return False
    name, simple_name = writer["name"], writer["name"].rpartition(".")[2]
    namespace = kind["name"].rpartition(".")[0]
    aliases = set(kind.get("aliases", ()))
    full = {alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases}
    return simple_name == kind["name"].rpartition(".")[2] or name in full or simple_name in aliases


def _sources(writer: Any, kind: Any) -> dict[str, Any]:
    """Return the table's fields by the names that the writer has for them: their own, or an alias."""
    sent = {field["name"] for field in writer["fields"]}
    names = {field["name"] for field in kind["fields"]}
    sources = {field["name"]: field for field in kind["fields"] if field["name"] in sent}
    for field in kind["fields"]:
        if field["name"] not in sent:
            aliases = [alias for alias in field.get("aliases", ()) if alias in sent - names and alias not in sources]
            if aliases:
                sources[aliases[0]] = field
    return sources


def _type_name(kind: Any, types: NamedTypes | None = None) -> str:
    if isinstance(kind, list):
        names = [_type_name(types.resolve(branch) if types else branch) for branch in kind]
        return " or ".join(name for name in names if name != "null")
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("logicalType") == JSON_TEXT:
        return f"record {kind['record']}"
    logical = _logical(kind)
    if logical == "decimal":
        return f"decimal({kind['precision']},{kind.get('scale', 0)})"
    if logical is not None:
        return logical
    return f"{kind['type']} {kind['name']}" if kind["type"] in _NAMED else str(kind["type"])


def _logical(kind: Any) -> str | None:
    """Return the logical type of a number or of bytes; None for other types."""
    logical = kind.get("logicalType")
    of_numbers = kind["type"] in {"int", "long"} and logical in _COUNTS
    of_bytes = kind["type"] in {"bytes", "fixed"} and logical in _OF_BYTES
    return logical if of_numbers or of_bytes else None


def _column_logical(kind: Any) -> str | None:
    """Return the logical type as of a column, where dates and times have one physical type each."""
    logical = _logical(kind)
    if logical in _COUNTS and (kind["type"] == "int") != (logical in _INT_TYPES):
        return None
    return logical


def _converted(read: Read, convert: Callable[[Any], Any]) -> Read:
    def read_converted(body: bytes, position: int) -> tuple[Any, int]:
        value, position = read(body, position)
        return convert(value), position

    return read_converted


def _raising(error: Mismatch) -> Read:
    def read(_body: bytes, _position: int) -> tuple[Any, int]:
        raise type(error)(str(error))

    return read


def _refusing(read: Read, read_sent: Read, path: str, refused: Refused) -> Read:
    """Return a reader that replaces a value that does not fit by null, and adds the sent value to ``refused``."""

    def attempt(body: bytes, position: int) -> tuple[Any, int]:
        try:
            return read(body, position)
        except UndecodableError:
            raise
        except Mismatch:
            refused[path], position = read_sent(body, position)
            return None, position

    return attempt


def _placing_record_reader(members: list[tuple[str | None, str, Read]], defaults: dict[str, Any]) -> Read:
    has_skipped = any(name is None for name, _, _ in members)

    def read(body: bytes, position: int) -> tuple[dict[Any, Any], int]:
        row: dict[Any, Any] = {}
        place = ""
        try:
            for name, place, read_member in members:  # noqa: B007 # for the reason
                row[name], position = read_member(body, position)
        except BYTES_FAULTS as error:
            raise UndecodableError(f"{place}: {fault_reason(error)}") from None
        if has_skipped:
            del row[None]
        if defaults:
            row.update(defaults)
        return row, position

    return read


def _plain_record_reader(members: list[tuple[str | None, Read]], defaults: dict[str, Any]) -> Read:
    def read(body: bytes, position: int) -> tuple[dict[Any, Any], int]:
        row: dict[Any, Any] = {}
        for name, read_member in members:
            row[name], position = read_member(body, position)
        row.pop(None, None)
        row.update(defaults)
        return row, position

    return read


def _levelled(record: _LaterReader, parts: int, levels: _Levels) -> Read:
    """Return a reader of records that are at most ``MAX_LEVELS`` within each other.

    Args:
        parts: number of the record, and of the arrays and maps between it and the record around it.
    """

    def read_level(body: bytes, position: int) -> tuple[Any, int]:
        if levels.records >= MAX_LEVELS:
            raise CorruptBytesError(f"records within themselves, deeper than {MAX_LEVELS} levels")
        if levels.parts + parts > MAX_PARTS:
            raise CorruptBytesError(f"records within themselves, deeper than {MAX_PARTS} records, arrays and maps")
        levels.records += 1
        levels.parts += parts
        try:
            return record.read(body, position)
        finally:
            levels.records -= 1
            levels.parts -= parts

    return read_level


def _base_reader(kind: Any) -> Read:
    return fixed_reader(kind["size"]) if kind["type"] == "fixed" else _PRIMITIVES[kind["type"]]


def _raise_longer(path: str, number: int) -> None:
    raise mismatch(path, f"number {number}", "int")


def _count(path: str, sent: str, meant: str, form: Form) -> Callable[[int], int]:
    """Return a converter of a number to microseconds (COLUMN), or to the unit of the table's schema (JSON)."""
    is_time = form is Form.COLUMN and meant in _MICROS
    nanos, wanted_nanos = _COUNTS[sent][1], _NANOS["micros"] if is_time else _COUNTS[meant][1]
    factor, divisor = max(nanos // wanted_nanos, 1), max(wanted_nanos // nanos, 1)
    if is_time:
        target = f"{'TIMESTAMP_NTZ' if meant.startswith('local') else 'TIMESTAMP'} of {YEARS}"
        fits: Callable[[int], bool] = in_range
    elif meant == "date" and form is Form.COLUMN:
        target, fits = f"DATE of {YEARS}", is_date
    else:
        bits = _INT_BITS if meant in _INT_TYPES else _LONG_BITS
        target, fits = meant, lambda number: number >> bits in (0, -1)

    def convert(number: int) -> int:
        result, rest = divmod(number * factor, divisor) if divisor > 1 else (number * factor, 0)
        if rest:
            raise mismatch(path, f"{sent} {number}", f"{meant}, which has no such digits")
        if not fits(result):
            raise mismatch(path, f"number {number}" if sent == meant else f"{sent} {number}", target)
        return result

    return convert


def _decimal(path: str, writer: Any, kind: Any) -> Callable[[bytes], Decimal]:
    """Return a converter of bytes of the writer's scale to a decimal of the column's scale, exactly."""
    scale, wanted_scale = writer.get("scale", 0), kind.get("scale", 0)
    factor, divisor = 10 ** max(wanted_scale - scale, 0), 10 ** max(scale - wanted_scale, 0)
    bound = 10 ** kind["precision"]

    def convert(value: bytes) -> Decimal:
        number, rest = divmod(int.from_bytes(value, "big", signed=True) * factor, divisor)
        if rest or not -bound < number < bound:
            raise mismatch(path, f"number {shown(as_sent(value))}", _type_name(kind))
        return Decimal(f"{number}E{-wanted_scale}")

    as_sent = _sent_decimal(writer)
    return convert


def _sent_decimal(writer: Any) -> Callable[[bytes], Decimal | bytes]:
    scale = writer.get("scale", 0)

    def convert(value: bytes) -> Decimal | bytes:
        return Decimal(f"{int.from_bytes(value, 'big', signed=True)}E{-scale}") if len(value) <= _SHOWN_BYTES else value

    return convert


def _encoded(schema: Any, value: Any, types: NamedTypes) -> bytes:
    """Encode a default in JSON as a body has it. Raises several errors for a value of another type."""
    schema = types.resolve(schema)
    if isinstance(schema, list):
        for index, branch in enumerate(schema):
            try:
                return _encoded_long(index) + _encoded(branch, value, types)
            except (ValueError, TypeError, KeyError, AttributeError, struct.error):
                continue
        raise ValueError("no type of the union has it")
    kind = schema["type"]
    if kind == "record":
        parts = (value[field["name"]] if field["name"] in value else field["default"] for field in schema["fields"])
        return b"".join(
            _encoded(field["type"], part, types) for field, part in zip(schema["fields"], parts, strict=True)
        )
    if kind == "array" and isinstance(value, list):
        items = b"".join(_encoded(schema["items"], item, types) for item in value)
        return (_encoded_long(len(value)) + items if value else b"") + b"\0"
    if kind == "map":
        entries = b"".join(
            _encoded("string", key, types) + _encoded(schema["values"], item, types) for key, item in value.items()
        )
        return (_encoded_long(len(value)) + entries if value else b"") + b"\0"
    if kind == "enum":
        return _encoded_long(schema["symbols"].index(value))
    return _encoded_scalar(schema, value)


def _encoded_scalar(schema: Any, value: Any) -> bytes:
    kind = schema["type"]
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return bytes([value])
    if kind in {"int", "long"} and isinstance(value, int) and not isinstance(value, bool):
        return _encoded_long(value, _INT_BITS if kind == "int" else _LONG_BITS)
    if kind in {"float", "double"} and not isinstance(value, bool):
        return struct.pack("<f" if kind == "float" else "<d", float(value))
    if kind in {"string", "bytes"}:
        text: bytes = value.encode("utf-8" if kind == "string" else "latin-1")
        return _encoded_long(len(text)) + text
    if kind == "fixed" and len(value) == schema["size"]:
        return bytes(value.encode("latin-1"))
    raise ValueError(f"no {kind}")


def _encoded_long(number: int, bits: int = _LONG_BITS) -> bytes:
    if number >> bits not in (0, -1):
        raise ValueError("the number is too large")
    rest = (number << 1) ^ (number >> _LONG_BITS)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])
