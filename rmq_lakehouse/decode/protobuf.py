"""Decodes Protobuf message bodies to columns, by Google's library."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rmq_lakehouse.decode.columns import list_of
from rmq_lakehouse.decode.mismatch import (
    DEAD_LETTER,
    UNKNOWN_FIELDS,
    Mismatch,
    Refused,
    mismatch,
    null_where_refused,
    python_values_as_json,
    rows_of_elements,
    shown,
    with_rescued,
)
from rmq_lakehouse.decode.protobuf_wire import (
    TIMESTAMP,
    WireFault,
    WireScan,
    WireScanner,
    collect_by_name,
    describe_wire_type,
    is_map,
    iterate_fields,
    message_value,
    message_values,
    type_name,
    unknown_value,
    wire_type_of,
)
from rmq_lakehouse.decode.times import YEARS, in_range

Selected = frozenset[str] | None

_JSON_MESSAGES: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_NANOS: Final = range(1_000_000_000)
_PLAIN: Final[dict[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def descriptor(descriptors: bytes, message: str) -> Descriptor:
    """Find a message's descriptor in a FileDescriptorSet. Raises ValueError."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise ValueError(f"no message {message!r}") from None
    except (DecodeError, TypeError) as error:
        raise ValueError(f"not a FileDescriptorSet with all that it imports ({error})") from error


def columns(message: Descriptor) -> pa.Schema:
    """Convert a message's fields to columns; a message within itself is a JSON text."""
    return pa.schema(_fields(message, ()))


def _fields(message: Descriptor, above: tuple[str, ...]) -> list[pa.Field]:
    above = (*above, message.full_name)
    return [pa.field(field.name, _type(field, above)) for field in message.fields]


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single(entry["key"], above), _single(entry["value"], above))
    return list_of(_single(field, above)) if field.is_repeated else _single(field, above)


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return pa.string() if _is_json(field.message_type, above) else pa.struct(_fields(field.message_type, above))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _PLAIN[field.cpp_type]


def _is_json(message: Descriptor, above: tuple[str, ...]) -> bool:
    """Return whether a message is a JSON text: it is JSON by itself, or within itself."""
    return message.full_name in _JSON_MESSAGES or message.full_name in above


def decoder(
    descriptors: bytes,
    message: str,
    on_mismatch: str = DEAD_LETTER,
    *,
    selected: Selected = None,
    unknown_fields: bool = False,
    explode: bool = False,
) -> Callable[[bytes], Any]:
    """Return a function that decodes one body. Fields without presence have their default; others may be null.

    Args:
        descriptors: a FileDescriptorSet.
        message: full name.
        on_mismatch: see ``rmq_lakehouse.decode.mismatch``. A column is null as a whole if a field of a nested message
            has another type, a number out of its type's range, or several values instead of one.
        selected: paths of the selected columns; None is all.
        unknown_fields: whether rows have the column ``UNKNOWN_FIELDS``: fields that the schema lacks, as a JSON text.
        explode: whether a body is a list of messages, see ``list_field``, and becomes a list of rows.
    """
    body_message = descriptor(descriptors, message)
    row_message = list_field(body_message).message_type if explode else body_message
    parse = _BodyParser(descriptors, row_message)
    read_row = _row_reader(row_message, parse, on_mismatch, selected, unknown_fields=unknown_fields)
    return _list_decoder(body_message, read_row) if explode else read_row


def _row_reader(
    message: Descriptor, parse: "_BodyParser", on_mismatch: str, selected: Selected, *, unknown_fields: bool
) -> Callable[[bytes], dict[str, Any]]:
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    read = _reader(message, "", refused, (), selected)
    scanner = WireScanner(message)

    def decode(body: bytes) -> dict[str, Any]:
        if refused:
            refused.clear()
        parsed = parse(body)
        if parse.has_all_of(body, parsed):
            row = read(parsed)
            _restore_map_keys(refused, body, message)
            return with_rescued(row, refused, on_mismatch, _sent_as_json)
        scan = scanner.scan(body)
        faults = [fault for fault in scan.faults if selected is None or _is_selected(fault.path, selected)]
        if faults and refused is None:
            raise mismatch(faults[0].path, faults[0].sent, faults[0].wanted)
        if not scan.has_known_field:
            numbers = shown(", ".join(map(str, sorted(scan.numbers))))
            raise Mismatch(f"the body has none of the fields of {message.full_name}; it has numbers {numbers}")
        row = read(parse.without_unknown(body) if scan.has_extended_map_entry else parsed)
        if faults and refused is not None:
            _empty_columns(row, refused, faults)
            refused.update(_column_values(body, message, faults, selected))
        if unknown_fields:
            row[UNKNOWN_FIELDS] = _unknown_as_json(body, scan)
        _restore_map_keys(refused, body, message)
        return with_rescued(row, refused, on_mismatch, _sent_as_json)

    return decode


class _BodyParser:
    """Parser of the bodies of one message type, by Google's library.

    It calls the methods of the class: a field of a message may have the name of a method, and hides the method.
    """

    def __init__(self, descriptors: bytes, message: Descriptor) -> None:
        self._kind = message_factory.GetMessageClass(message)
        self._kind_of_entries: Any = None
        if _has_maps(message, set()):
            entries = descriptor(_maps_as_lists(descriptors), message.full_name)
            self._kind_of_entries = message_factory.GetMessageClass(entries)

    def __call__(self, body: bytes) -> Any:
        """Return the message of a body. Raises ValueError: required fields are missing."""
        kind = self._kind
        parsed = kind.FromString(body)
        if not kind.IsInitialized(parsed):
            raise ValueError(f"required fields are missing: {', '.join(kind.FindInitializationErrors(parsed))}")
        return parsed

    def has_all_of(self, body: bytes, parsed: Any) -> bool:
        """Return whether a message has all of its body, unchanged. The unknown fields of the message are discarded.

        The library writes the message again, in compiled code. If the bytes are those of the body, each number is in
        the range of its type, and each field was sent once. Maps may be in any order: they are compared as lists. A
        body that was written otherwise, in another order for one, needs a look at each of its fields.
        """
        kind = self._kind
        written = kind.SerializeToString(parsed)
        kind.DiscardUnknownFields(parsed)
        if kind.ByteSize(parsed) != len(written):
            return False
        if written == body:
            return True
        entries = self._kind_of_entries
        return entries is not None and entries.SerializePartialToString(entries.FromString(body)) == body

    def without_unknown(self, body: bytes) -> Any:
        """Return the message of a body without its unknown fields, those in the entries of maps too.

        The library takes an entry with an unknown field for an unknown field of the message as a whole.
        """
        kind = self._kind_of_entries
        entries = kind.FromString(body)
        kind.DiscardUnknownFields(entries)
        return self(kind.SerializePartialToString(entries))


def _has_maps(message: Descriptor, above: set[str]) -> bool:
    if message.full_name in above:
        return False
    above.add(message.full_name)
    return any(
        is_map(field) or (field.message_type is not None and _has_maps(field.message_type, above))
        for field in message.fields
    )


def _maps_as_lists(descriptors: bytes) -> bytes:
    """Return a FileDescriptorSet whose maps are lists of entries: their bytes are the same.

    An entry has key and value on the wire even if they are defaults, so both have presence.
    """
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    pending = [(file, message) for file in files.file for message in file.message_type]
    for file, message in pending:
        pending.extend((file, nested) for nested in message.nested_type)
        if not message.options.map_entry:
            continue
        message.options.ClearField("map_entry")
        if file.syntax == "proto3":
            for index, field in enumerate(message.field):
                field.proto3_optional, field.oneof_index = True, index
                message.oneof_decl.add(name=f"_{field.name}")
    return bytes(files.SerializeToString())


def list_field(message: Descriptor) -> FieldDescriptor:
    """Return the only field of a message that is a list of messages. Raises ValueError: it has others, or none."""
    (*fields,) = message.fields
    if len(fields) != 1 or not fields[0].is_repeated or fields[0].message_type is None or is_map(fields[0]):
        raise ValueError(
            f"explode needs a message with one field, repeated, of messages, and {message.full_name} is none"
        )
    return fields[0]


def _list_decoder(
    message: Descriptor, decode: Callable[[bytes], dict[str, Any]]
) -> Callable[[bytes], list[dict[str, Any]]]:
    """Return a function that decodes each message of a list by itself."""
    field, kind = list_field(message), message_factory.GetMessageClass(message)
    wire_type = wire_type_of(field)

    def decode_all(body: bytes) -> list[dict[str, Any]]:
        kind.FromString(body)  # raises DecodeError
        elements, has_unknown = [], False
        for tag, _, first, last in iterate_fields(body, 0, len(body)):
            if tag >> 3 != field.number:
                has_unknown = True
            elif tag & 7 != wire_type:
                raise mismatch(field.name, describe_wire_type(field, tag & 7), type_name(field))
            else:
                elements.append(body[first:last])
        if has_unknown and not elements:
            raise Mismatch(f"the body has none of the fields of {message.full_name}")
        return rows_of_elements(decode, elements)

    return decode_all


def _column_of(path: str) -> str:
    return path.partition(".")[0]


def _empty_columns(row: dict[str, Any], refused: Refused, faults: list[WireFault]) -> None:
    """Set the outermost columns of faults to null, and discard what was refused within them."""
    columns = {_column_of(fault.path) for fault in faults}
    row.update(dict.fromkeys(columns))
    for path in [path for path in refused if _column_of(path) in columns]:
        del refused[path]


def _column_values(body: bytes, message: Descriptor, faults: list[WireFault], selected: Selected) -> dict[str, Any]:
    """Return all that was sent for the outermost columns of faults, by the paths of columns.

    Members of a nested message are columns by themselves, ``of.id``; see ``message_values`` for the other values.
    """
    sent = message_values(body, message)
    names = dict.fromkeys(_column_of(fault.path) for fault in faults)
    above = (message.full_name,)
    return {
        path: value
        for name in names
        for path, value in _flatten(message.fields_by_name[name], name, sent[name], above)
        if selected is None or _is_selected(path, selected)
    }


def _flatten(field: FieldDescriptor, path: str, value: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a message by their paths; another value, or several values, as one value."""
    message = field.message_type
    is_leaf = message is None or message.full_name == TIMESTAMP or _is_json(message, above) or field.is_repeated
    if is_leaf or not isinstance(value, dict) or not value or not value.keys() <= set(message.fields_by_name.keys()):
        yield path, value
        return
    for name, member in value.items():
        member_field = message.fields_by_name[name]
        yield from _flatten(member_field, f"{path}.{name}", member, (*above, message.full_name))


def _restore_map_keys(refused: Refused | None, body: bytes, message: Descriptor) -> None:
    """Read refused maps from the body where a key is no UTF-8: the library finds no value of such a key."""
    if not refused:
        return
    for path, value in refused.items():
        if isinstance(value, Mapping) and not isinstance(value, Message) and bytes in map(type, value):
            sent: Any = message_values(body, message)
            for name in path.split("."):
                sent = sent[name]
            refused[path] = sent


def _sent_as_json(refused: Refused) -> str:
    """Write values as a JSON text by the paths of their columns; messages as ``message_values`` has them."""
    return python_values_as_json({path: _message_as_values(value) for path, value in refused.items()})


def _message_as_values(value: Any) -> Any:
    """Convert a message, or a list or a map of messages, to values for a JSON text; other values stay."""
    if isinstance(value, Message):  # google.protobuf.Struct is a Mapping, too
        return message_value(type(value).SerializeToString(value), type(value).DESCRIPTOR)
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return [{"key": key, "value": _message_as_values(item)} for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_message_as_values(item) for item in value]
    return value


def _unknown_as_json(body: bytes, scan: WireScan) -> str | None:
    """Write the fields whose numbers the schema lacks as a JSON text, by path and number; None without such fields."""
    values = collect_by_name((path, unknown_value(body, wire_field)) for path, wire_field in scan.unknown)
    return python_values_as_json(values) if values else None


def _is_selected(path: str, selected: frozenset[str]) -> bool:
    """Return whether a path is a column, or is within a column that is a JSON text."""
    around = path.rpartition(".")[0]
    is_text = around in selected and not any(name.startswith(f"{around}.") for name in selected)
    return path in selected or is_text or (bool(around) and _is_selected(around, selected) and around not in selected)


def _reader(
    message: Descriptor, around: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], dict[str, Any]]:
    """Build a reader of a message's fields, once for all messages."""
    fields = []
    above = (*above, message.full_name)
    for field in message.fields:
        path = around + field.name
        if selected is not None and path not in selected:
            continue
        value_of = null_where_refused(_value(field, path, refused, above, selected), path, refused)
        fields.append((field.name, field.has_presence, value_of))

    def read(parsed: Any) -> dict[str, Any]:
        has_field = type(parsed).HasField  # a field may have the name of a method
        return {
            name: None if optional and not has_field(parsed, name) else value(getattr(parsed, name))
            for name, optional, value in fields
        }

    return read


def _micros(timestamp: Any, name: str) -> int:
    if timestamp.nanos not in _NANOS:
        raise mismatch(name, f"nanos {timestamp.nanos}", f"{TIMESTAMP} of nanos {_NANOS[0]} to {_NANOS[-1]}")
    micros = int(timestamp.seconds * 1_000_000 + timestamp.nanos // 1000)
    if not in_range(micros):
        raise mismatch(name, f"seconds {timestamp.seconds}", f"{TIMESTAMP} of {YEARS}")
    return micros


def _value(
    field: FieldDescriptor, path: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], Any]:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key, value = (_single_value(entry[name], f"{path}.{name}", None, above, selected) for name in ("key", "value"))
        return lambda entries: [(key(name), value(entries[name])) for name in entries]
    if field.is_repeated:
        element = _single_value(field, f"{path}.element", None, above, selected)
        return lambda items: [element(item) for item in items]
    return _single_value(field, path, refused, above, selected)


def _message_as_json(message: Any, path: str) -> str:
    """Write a message as Protobuf's own JSON, its members in the order of their names."""
    if type(message).DESCRIPTOR.full_name not in _JSON_MESSAGES:  # those are proto3
        _check_texts(message, path)
    try:
        pool = type(message).DESCRIPTOR.file.pool  # has the messages that an Any names
        value = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
    except (json_format.SerializeToJsonError, ValueError, TypeError) as error:
        raise mismatch(path, shown(error), f"{type(message).DESCRIPTOR.full_name} that JSON can express") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _single_value(
    field: FieldDescriptor, path: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return lambda timestamp: _micros(timestamp, path)
        if _is_json(field.message_type, above):
            return lambda message: _message_as_json(message, path)
        return _reader(field.message_type, f"{path}.", refused, above, selected)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}  # of aliases the first
        return lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal
    if field.type == FieldDescriptor.TYPE_STRING:
        return lambda text: _checked_text(text, path)
    return lambda value: value


def _checked_text(text: str | bytes, path: str) -> str:
    """Return a text. The library has bytes where a field of proto2, or one without validation, is no UTF-8."""
    if isinstance(text, bytes):
        raise mismatch(path, f"bytes {shown(text.hex(' '))}, no UTF-8", "string")
    return text


def _check_texts(message: Any, path: str) -> None:
    """Refuse texts that are no UTF-8 in a message and all within it. Raises Mismatch."""
    for field, value in type(message).ListFields(message):
        if is_map(field):
            entry = field.message_type.fields_by_name
            _check_values(entry["key"], value, path)
            _check_values(entry["value"], value.values(), path)
        else:
            _check_values(field, value if field.is_repeated else [value], path)


def _check_values(field: FieldDescriptor, values: Iterable[Any], path: str) -> None:
    for value in values:
        if field.message_type is not None:
            _check_texts(value, path)
        elif field.type == FieldDescriptor.TYPE_STRING:
            _checked_text(value, path)
