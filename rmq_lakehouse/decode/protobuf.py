"""Decodes Protobuf message bodies to columns, by Google's library."""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

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
from rmq_lakehouse.decode.times import YEARS, in_range

Selected = frozenset[str] | None

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_JSON_MESSAGES: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_GROUP: Final = 3
_VARINT: Final = 0
_WIRE_TYPES: Final = {0: "VARINT", 1: "I64", 2: "LEN", 3: "GROUP", 5: "I32"}  # protobuf.dev/programming-guides/encoding
_TYPE_NAMES: Final = {  # of FieldDescriptorProto.Type, as a .proto file has them
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
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
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single(entry["key"], above), _single(entry["value"], above))
    return list_of(_single(field, above)) if field.is_repeated else _single(field, above)


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return pa.string() if _is_json(field.message_type, above) else pa.struct(_fields(field.message_type, above))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _PLAIN[field.cpp_type]


def _is_json(message: Descriptor, above: tuple[str, ...]) -> bool:
    """Return whether a message is a JSON text: it is JSON by itself, or within itself."""
    return message.full_name in _JSON_MESSAGES or message.full_name in above


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


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
        on_mismatch: what a field becomes whose value its column cannot hold: see ``rmq_lakehouse.decode.mismatch``. A
            column is null as a whole if a field of a nested message has another type.
        selected: paths of the columns that are wanted; None is all.
        unknown_fields: whether rows have the column ``UNKNOWN_FIELDS``: fields that the schema lacks, as a JSON text.
        explode: whether a body is a list of messages, see ``list_field``, and becomes a list of rows.
    """
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    body_message = descriptor(descriptors, message)
    row_message = list_field(body_message).message_type if explode else body_message
    kind = message_factory.GetMessageClass(row_message)
    read = _reader(row_message, "", refused, (), selected)

    def decode(body: bytes) -> dict[str, Any]:
        if refused:
            refused.clear()
        parsed = kind.FromString(body)
        if not parsed.IsInitialized():
            raise ValueError(f"required fields are missing: {', '.join(parsed.FindInitializationErrors())}")
        row = read(parsed)
        if _discard_unknown(parsed):
            whole = kind.FromString(body)
            for path, sent in _check_unknown(whole, selected, is_strict=refused is None):
                row[path.partition(".")[0]] = None
                if refused is not None:
                    refused[path] = sent
            if unknown_fields:
                row[UNKNOWN_FIELDS] = _unknown_as_json(whole)
        return with_rescued(row, refused, on_mismatch)

    return _list_decoder(body_message, decode) if explode else decode


def list_field(message: Descriptor) -> FieldDescriptor:
    """Return the only field of a message that is a list of messages. Raises ValueError: it has others, or none."""
    (*fields,) = message.fields
    if len(fields) != 1 or not fields[0].is_repeated or fields[0].message_type is None or _is_map(fields[0]):
        raise ValueError(
            f"explode needs a message with one field, repeated, of messages, and {message.full_name} is none"
        )
    return fields[0]


def _list_decoder(
    message: Descriptor, decode: Callable[[bytes], dict[str, Any]]
) -> Callable[[bytes], list[dict[str, Any]]]:
    """Return a function that decodes each message of a list by itself."""
    field, kind = list_field(message), message_factory.GetMessageClass(message)

    def decode_all(body: bytes) -> list[dict[str, Any]]:
        parsed = kind.FromString(body)
        elements = getattr(parsed, field.name)
        for unknown in UnknownFieldSet(parsed):
            if unknown.field_number == field.number:
                raise mismatch(field.name, _sent(field, unknown), _wanted(field))
            if not elements:
                raise Mismatch(f"the body has none of the fields of {message.full_name}")
        return rows_of_elements(lambda element: decode(element.SerializeToString()), elements)

    return decode_all


def _discard_unknown(parsed: Any) -> bool:
    """Discard unknown fields, and return whether there were any.

    The sizes before and after tell, of nested messages too, in compiled code.
    """
    size = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    return bool(parsed.ByteSize() != size)


def _check_unknown(whole: Any, selected: Selected, *, is_strict: bool) -> list[tuple[str, Any]]:
    """Refuse a body of another message, or of other types: the library takes such fields for unknown ones.

    Where that is not strict, fields of other types are returned: their paths and values. Raises Mismatch.
    """
    mismatches = []
    for path, field, unknown in _mismatched_fields(whole, ""):
        if selected is not None and not _is_selected(path, selected):
            continue
        if is_strict:
            raise mismatch(path, _sent(field, unknown), _wanted(field))
        mismatches.append((path, unknown.data))
    if not whole.ListFields() and not mismatches:
        numbers = shown(
            ", ".join(str(number) for number in sorted({field.field_number for field in UnknownFieldSet(whole)}))
        )
        raise Mismatch(f"the body has none of the fields of {whole.DESCRIPTOR.full_name}; it has numbers {numbers}")
    return mismatches


def _is_selected(path: str, selected: frozenset[str]) -> bool:
    """Return whether a path is a column, or is within a column that is a JSON text."""
    around = path.rpartition(".")[0]
    is_text = around in selected and not any(name.startswith(f"{around}.") for name in selected)
    return path in selected or is_text or (bool(around) and _is_selected(around, selected) and around not in selected)


def _mismatched_fields(message: Any, around: str) -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Yield unknown fields that have the number of one of the schema's, of nested messages too, with their paths."""
    for path, owner, unknown in _all_unknown(message, around):
        field = owner.DESCRIPTOR.fields_by_number.get(unknown.field_number)
        if field is not None:
            yield path + field.name, field, unknown


def _unknown_as_json(whole: Any) -> str | None:
    """Write the fields whose numbers the schema lacks as a JSON text, by path and number; None without such fields."""
    fields: dict[str, list[Any]] = {}
    for path, owner, unknown in _all_unknown(whole, ""):
        if unknown.field_number not in owner.DESCRIPTOR.fields_by_number:
            fields.setdefault(f"{path}{unknown.field_number}", []).append(_unknown_value(unknown))
    values = {path: sent[0] if len(sent) == 1 else sent for path, sent in fields.items()}
    return python_values_as_json(values) if values else None


def _unknown_value(unknown: Any) -> Any:
    """Return the value of an unknown field: a number, bytes, or the fields of a group by their numbers."""
    if unknown.wire_type != _GROUP:
        return unknown.data
    return {str(member.field_number): _unknown_value(member) for member in unknown.data}


def _all_unknown(message: Any, around: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the unknown fields of a message and of nested messages, each with the path around it and its message."""
    for unknown in UnknownFieldSet(message):
        yield around, message, unknown
    for field, value in message.ListFields():
        path = around + field.name
        if _is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for item in value.values():
                    yield from _all_unknown(item, f"{path}.value.")
        elif field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                yield from _all_unknown(item, f"{path}.element." if field.is_repeated else f"{path}.")


def _sent(field: FieldDescriptor, unknown: Any) -> str:
    if field.enum_type is not None and unknown.wire_type == _VARINT:  # a closed enum
        return f"number {unknown.data}"
    return f"field {field.number} of wire type {_WIRE_TYPES.get(unknown.wire_type, unknown.wire_type)}"


def _wanted(field: FieldDescriptor) -> str:
    if _is_map(field):
        return "a map of other types"
    if field.enum_type is not None:
        return f"enum {field.enum_type.full_name}"
    return field.message_type.full_name if field.message_type is not None else str(_TYPE_NAMES[field.type])


def _reader(
    message: Descriptor, around: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], dict[str, Any]]:
    """Build a reader of a message's fields; what each one is, is decided once."""
    fields = []
    above = (*above, message.full_name)
    for field in message.fields:
        path = around + field.name
        if selected is not None and path not in selected:
            continue
        value_of = null_where_refused(_value(field, path, refused, above, selected), path, refused)
        fields.append((field.name, field.has_presence, value_of))

    def read(parsed: Any) -> dict[str, Any]:
        return {
            name: None if optional and not parsed.HasField(name) else value(getattr(parsed, name))
            for name, optional, value in fields
        }

    return read


def _micros(timestamp: Any, name: str) -> int:
    micros = int(timestamp.seconds * 1_000_000 + timestamp.nanos // 1000)
    if not in_range(micros):
        raise mismatch(name, f"seconds {timestamp.seconds}", f"{_TIMESTAMP} of {YEARS}")
    return micros


def _value(
    field: FieldDescriptor, path: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], Any]:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = (_single_value(entry[name], f"{path}.{name}", None, above, selected) for name in ("key", "value"))
        return lambda entries: [(key(name), value(entries[name])) for name in entries]
    if field.is_repeated:
        element = _single_value(field, f"{path}.element", None, above, selected)
        return lambda items: [element(item) for item in items]
    return _single_value(field, path, refused, above, selected)


def _message_as_json(message: Any, path: str) -> str:
    """Write a message as Protobuf's own JSON, its members in the order of their names."""
    try:
        value = json_format.MessageToDict(message, preserving_proto_field_name=True)
    except (json_format.SerializeToJsonError, ValueError, TypeError) as error:
        raise mismatch(path, shown(error), f"{message.DESCRIPTOR.full_name} that JSON can express") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _single_value(
    field: FieldDescriptor, path: str, refused: Refused | None, above: tuple[str, ...], selected: Selected
) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda timestamp: _micros(timestamp, path)
        if _is_json(field.message_type, above):
            return lambda message: _message_as_json(message, path)
        return _reader(field.message_type, f"{path}.", refused, above, selected)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal
    return lambda value: value
