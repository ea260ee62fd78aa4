"""Decodes Protobuf message bodies to columns, by Google's library."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_udfs.mismatch import DEAD_LETTER, Mismatch, Refused, mismatch, null_where_refused, shown, with_rescued
from spark_udfs.times import YEARS, in_range

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_VARINT: Final = 0
_WIRE_TYPES: Final = {0: "VARINT", 1: "I64", 2: "LEN", 3: "GROUP", 5: "I32"}  # protobuf.dev/programming-guides/encoding
_TYPE_NAMES: Final = {  # of FieldDescriptorProto.Type, as a .proto file has them
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_PLAIN: Final[dict[int, DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}


def descriptor(descriptors: bytes, message: str) -> Descriptor:
    """Find a message's descriptor in a FileDescriptorSet.

    Raises:
        ValueError: not such a set, or it lacks the message.
    """
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise ValueError(f"no message {message!r}") from None
    except (DecodeError, TypeError) as error:
        raise ValueError(f"not a FileDescriptorSet with all that it imports ({error})") from error


def columns(message: Descriptor, above: tuple[str, ...] = ()) -> StructType:
    """Convert a message's fields to a Spark schema.

    Raises:
        ValueError: the message contains itself, and would be infinite.
    """
    if message.full_name in above:
        raise ValueError(f"message {message.full_name!r} holds itself")
    above = (*above, message.full_name)
    return StructType([StructField(field.name, _type(field, above)) for field in message.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_single(entry["key"], above), _single(entry["value"], above))
    return ArrayType(_single(field, above)) if field.is_repeated else _single(field, above)


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        return TimestampType() if field.message_type.full_name == _TIMESTAMP else columns(field.message_type, above)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else StringType()
    return _PLAIN[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def decoder(descriptors: bytes, message: str, on_mismatch: str = DEAD_LETTER) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes one body. Fields without presence have their default; others may be null.

    Args:
        descriptors: a FileDescriptorSet.
        message: full name.
        on_mismatch: what a field becomes whose value its column cannot hold: see ``spark_udfs.mismatch``. A
            column is null as a whole if a field of a nested message has another type.
    """
    refused: Refused | None = None if on_mismatch == DEAD_LETTER else {}
    found = descriptor(descriptors, message)
    kind = message_factory.GetMessageClass(found)
    read = _reader(found, "", refused)

    def decode(body: bytes) -> dict[str, Any]:
        if refused:
            refused.clear()
        parsed = kind.FromString(body)
        if not parsed.IsInitialized():
            raise ValueError(f"required fields are missing: {', '.join(parsed.FindInitializationErrors())}")
        row = read(parsed)
        for path, sent in _check_unknown(parsed, kind, body, is_strict=refused is None):
            row[path.partition(".")[0]] = None
            if refused is not None:
                refused[path] = sent
        return with_rescued(row, refused, on_mismatch)

    return decode


def _check_unknown(parsed: Any, kind: Any, body: bytes, *, is_strict: bool) -> list[tuple[str, Any]]:
    """Refuse a body of another message, or of other types: the library takes such fields for unknown ones.

    Unknown fields are counted by the sizes before and after they are discarded, nested ones too, in compiled code.
    Where that is not strict, fields of other types are returned: their paths and values. Raises Mismatch.
    """
    size = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    if parsed.ByteSize() == size:
        return []
    whole = kind.FromString(body)
    mismatches = []
    for path, field, unknown in _mismatched_fields(whole, ""):
        if is_strict:
            raise mismatch(path, _sent(field, unknown), _wanted(field))
        mismatches.append((path, unknown.data))
    if not whole.ListFields() and not mismatches:
        numbers = shown(
            ", ".join(str(number) for number in sorted({one.field_number for one in UnknownFieldSet(whole)}))
        )
        raise Mismatch(f"the body has none of the fields of {kind.DESCRIPTOR.full_name}; it has numbers {numbers}")
    return mismatches


def _mismatched_fields(message: Any, around: str) -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Yield unknown fields that have the number of one of the schema's, of nested messages too, with their paths."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):
        field = known.get(unknown.field_number)
        if field is not None:
            yield around + field.name, field, unknown
    for field, value in message.ListFields():
        path = around + field.name
        if _is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for item in value.values():
                    yield from _mismatched_fields(item, f"{path}.value.")
        elif field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                yield from _mismatched_fields(item, f"{path}.element." if field.is_repeated else f"{path}.")


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


def _reader(message: Descriptor, around: str, refused: Refused | None) -> Callable[[Any], dict[str, Any]]:
    """Build a reader of a message's fields; what each one is, is decided once."""
    fields = []
    for field in message.fields:
        path = around + field.name
        fields.append((field.name, field.has_presence, null_where_refused(_value(field, path, refused), path, refused)))

    def read(parsed: Any) -> dict[str, Any]:
        return {
            name: None if optional and not parsed.HasField(name) else value(getattr(parsed, name))
            for name, optional, value in fields
        }

    return read


def _micros(given: Any, name: str) -> int:
    micros = int(given.seconds * 1_000_000 + given.nanos // 1000)
    if not in_range(micros):
        raise mismatch(name, f"seconds {given.seconds}", f"{_TIMESTAMP} of {YEARS}")
    return micros


def _value(field: FieldDescriptor, path: str, refused: Refused | None) -> Callable[[Any], Any]:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = (_single_value(entry[name], f"{path}.{name}", None) for name in ("key", "value"))
        return lambda given: [(key(name), value(given[name])) for name in given]
    if field.is_repeated:
        element = _single_value(field, f"{path}.element", None)
        return lambda given: [element(item) for item in given]
    return _single_value(field, path, refused)


def _single_value(field: FieldDescriptor, path: str, refused: Refused | None) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda given: _micros(given, path)
        return _reader(field.message_type, f"{path}.", refused)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal
    return lambda value: value
