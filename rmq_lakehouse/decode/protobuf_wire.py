"""Reads the wire format of Protobuf bodies, for values that Google's library cuts, merges or drops.

The library keeps the low 32 bits of a varint in an ``int32`` field, and the last of several values of one field. Fields
of another wire type become unknown fields. ``WireScanner`` finds these places. The library has parsed a body before:
the functions here rely on its lengths and groups.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Final

from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from rmq_lakehouse.decode.mismatch import NOT_FINITE

TIMESTAMP: Final = "google.protobuf.Timestamp"
# protobuf.dev/programming-guides/encoding
_VARINT, _I64, _LEN, _GROUP, _END_GROUP, _I32 = range(6)
_WIRE_TYPES: Final = {_VARINT: "VARINT", _I64: "I64", _LEN: "LEN", _GROUP: "GROUP", _I32: "I32"}
_TYPE_NAMES: Final = {  # of FieldDescriptorProto.Type, as a .proto file has them
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_WIRE_TYPE_OF: Final[dict[int, int]] = {
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), _I64),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), _I32),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE), _LEN),
    FieldDescriptor.TYPE_GROUP: _GROUP,
}  # all other types are varints
_END: Final = 1 << 64  # varints of 64 bits are below
_INT32: Final = (1 << 31, _END - (1 << 31))
# A varint fits its type if it is below the first number, or from the second number up to ``_END``: negative numbers.
_LIMITS: Final[dict[int, tuple[int, int]]] = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_ENUM: _INT32,
    FieldDescriptor.TYPE_UINT32: (1 << 32, _END),
    FieldDescriptor.TYPE_SINT32: (1 << 32, _END),
    FieldDescriptor.TYPE_BOOL: (2, _END),
}
_ANY_64_BITS: Final = (_END, _END)
_ZIGZAG: Final = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)
_UNSIGNED: Final = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
_FLOATS: Final = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_SIGNED_FIXED: Final = (FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64)

WireField = tuple[int, int, int, int]
"""Tag, varint (0 of other wire types), and the first and last offset of the value in the body."""


def iterate_fields(body: bytes, start: int, end: int) -> Iterator[WireField]:
    """Yield the fields of a message as they are on the wire; the value of a group is between its two tags."""
    position = start
    while position < end:
        tag = body[position]
        position += 1
        if tag > 0x7F:
            tag, position = _read_varint(body, position - 1)
        wire_type, first, value = tag & 7, position, 0
        if wire_type == _VARINT:
            value = body[position]
            position += 1
            if value > 0x7F:
                value, position = _read_varint(body, position - 1)
            yield tag, value, first, position
        elif wire_type == _LEN:
            length = body[position]
            position += 1
            if length > 0x7F:
                length, position = _read_varint(body, position - 1)
            first, position = position, position + length
            yield tag, 0, first, position
        elif wire_type == _GROUP:
            last, position = _skip_group(body, position)
            yield tag, 0, first, last
        else:
            position += 8 if wire_type == _I64 else 4
            yield tag, 0, first, position


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a varint, of more than 64 bits too, and the offset after it."""
    value, shift = 0, 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, position
        shift += 7


def _skip_group(body: bytes, position: int) -> tuple[int, int]:
    """Return the offsets of a group's end tag and after it."""
    depth = 1
    while True:
        last = position
        tag, position = _read_varint(body, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _read_varint(body, position)
        elif wire_type == _LEN:
            length, position = _read_varint(body, position)
            position += length
        elif wire_type == _GROUP:
            depth += 1
        elif wire_type == _END_GROUP:
            depth -= 1
            if not depth:
                return last, position
        else:
            position += 8 if wire_type == _I64 else 4


def _iterate_packed(body: bytes, wire_type: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the elements of a packed field: varint (0 of other wire types), first and last offset."""
    position = start
    while position < end:
        first, value = position, 0
        if wire_type == _VARINT:
            value, position = _read_varint(body, position)
        else:
            position += 8 if wire_type == _I64 else 4
        yield value, first, position


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def type_name(field: FieldDescriptor) -> str:
    """Return the type of a field as a .proto file has it."""
    if is_map(field):
        entry = field.message_type.fields_by_name
        return f"map<{type_name(entry['key'])}, {type_name(entry['value'])}>"
    if field.enum_type is not None:
        return f"enum {field.enum_type.full_name}"
    return field.message_type.full_name if field.message_type is not None else str(_TYPE_NAMES[field.type])


def wire_type_of(field: FieldDescriptor) -> int:
    """Return the wire type of a field's values, one by one."""
    return _WIRE_TYPE_OF.get(field.type, _VARINT)


def describe_wire_type(field: FieldDescriptor, wire_type: int) -> str:
    """Return the text of a reason for a field that another wire type was sent for."""
    return f"field {field.number} of wire type {_WIRE_TYPES.get(wire_type, wire_type)}"


def _integer(field: FieldDescriptor, varint: int) -> int:
    """Return the number of a varint, however large, by the type of its field."""
    if field.type in _ZIGZAG:
        return (varint >> 1) ^ -(varint & 1)
    is_negative = field.type not in _UNSIGNED and _END >> 1 <= varint < _END
    return varint - _END if is_negative else varint


@dataclass(slots=True)
class _FieldPlan:
    """Check of a field's values.

    Attributes:
        path: path of the values, below the path of the message.
        wire_type: wire type of a value, or of an element of a packed field.
        examined_from: varints below this number fit the type; 0 where each value is examined.
        limits: see ``_LIMITS``.
        numbers: numbers of a closed enum; None for other types.
    """

    field: FieldDescriptor
    path: str
    wire_type: int
    is_packed: bool
    is_repeated: bool
    examined_from: float
    limits: tuple[int, int]
    numbers: frozenset[int] | None
    message: Descriptor | None

    def out_of_range(self, body: bytes, varint: int, start: int, end: int) -> int | None:
        """Return the first number outside of the field's type; None if all are within the type."""
        if not self.is_packed:
            return None if self._fits(varint) else _integer(self.field, varint)
        for element, _, _ in _iterate_packed(body, self.wire_type, start, end):
            if not self._fits(element):
                return _integer(self.field, element)
        return None

    def _fits(self, varint: int) -> bool:
        below, first_negative = self.limits
        is_in_range = varint < below or first_negative <= varint < _END
        return is_in_range and (self.numbers is None or _integer(self.field, varint) in self.numbers)


@dataclass(slots=True)
class _MessagePlan:
    """Checks of a message's fields by tag; a field that may be packed has two tags, an extension has no column."""

    by_tag: dict[int, _FieldPlan]
    by_number: dict[int, FieldDescriptor]
    extension_tags: frozenset[int]
    is_map_entry: bool


@dataclass(frozen=True, slots=True)
class WireFault:
    """Value outside of its field's type: ``sent`` is its kind and the value, ``wanted`` the type."""

    path: str
    sent: str
    wanted: str


@dataclass(slots=True)
class WireScan:
    """Findings in a body.

    Attributes:
        unknown: fields whose numbers the schema lacks: path with the number, tag, varint, and offsets of the value.
        numbers: of all fields of the outermost message that are unknown, or of another type.
        has_known_field: whether the outermost message has a field of the schema, of the schema's type.
        has_extended_map_entry: whether an entry of a map has unknown fields: the library takes it for unknown itself.
    """

    faults: list[WireFault] = dataclass_field(default_factory=list)
    unknown: list[tuple[str, WireField]] = dataclass_field(default_factory=list)
    numbers: set[int] = dataclass_field(default_factory=set)
    has_known_field: bool = False
    has_extended_map_entry: bool = False


class WireScanner:
    """Scanner of the bodies of one message type."""

    def __init__(self, message: Descriptor) -> None:
        self.message = message
        self._plans: dict[str, _MessagePlan] = {}

    def scan(self, body: bytes) -> WireScan:
        """Find what the library does not decode as it was sent, in nested messages too; the outermost come first."""
        scan = WireScan()
        pending: list[tuple[Descriptor, int, int, str]] = [(self.message, 0, len(body), "")]
        for message, start, end, path in pending:  # nested messages are appended meanwhile
            plan, is_outermost = self._plans.get(message.full_name), not path
            if plan is None:
                plan = self._plans[message.full_name] = _message_plan(message)
            counts: dict[int, int] = {}
            has_known_field = False
            for wire_field in iterate_fields(body, start, end):
                tag, varint, first, last = wire_field
                field_plan = plan.by_tag.get(tag)
                if field_plan is None and tag in plan.extension_tags:
                    has_known_field = True
                    continue
                if field_plan is None:
                    self._add_unexpected(scan, plan, path, wire_field)
                    if is_outermost:
                        scan.numbers.add(tag >> 3)
                    continue
                has_known_field = True
                if not field_plan.is_repeated:
                    counts[tag] = counts.get(tag, 0) + 1
                if field_plan.message is not None:
                    pending.append((field_plan.message, first, last, f"{path}{field_plan.path}."))
                elif varint >= field_plan.examined_from:
                    number = field_plan.out_of_range(body, varint, first, last)
                    if number is not None:
                        wanted = type_name(field_plan.field)
                        scan.faults.append(WireFault(path + field_plan.path, f"number {number}", wanted))
            scan.has_known_field = scan.has_known_field or (is_outermost and has_known_field)
            for tag, count in counts.items():
                if count > 1:
                    scan.faults.append(WireFault(path + plan.by_tag[tag].path, f"{count} values of a field", "one"))
        return scan

    @staticmethod
    def _add_unexpected(scan: WireScan, plan: _MessagePlan, path: str, wire_field: WireField) -> None:
        number, wire_type = wire_field[0] >> 3, wire_field[0] & 7
        field = plan.by_number.get(number)
        if field is not None:
            scan.faults.append(WireFault(path + field.name, describe_wire_type(field, wire_type), type_name(field)))
            return
        scan.unknown.append((f"{path}{number}", wire_field))
        scan.has_extended_map_entry = scan.has_extended_map_entry or plan.is_map_entry


def _message_plan(message: Descriptor) -> _MessagePlan:
    by_tag: dict[int, _FieldPlan] = {}
    for field in message.fields:
        wire_type = wire_type_of(field)
        suffix = ".element" if field.is_repeated and not is_map(field) else ""
        limits = _LIMITS.get(field.type, _ANY_64_BITS)
        is_closed = field.enum_type is not None and field.enum_type.is_closed
        plan = _FieldPlan(
            field=field,
            path=field.name + suffix,
            wire_type=wire_type,
            is_packed=False,
            is_repeated=field.is_repeated,
            examined_from=math.inf if wire_type != _VARINT else 0 if is_closed else limits[0],
            limits=limits,
            numbers=frozenset(field.enum_type.values_by_number) if is_closed else None,
            message=field.message_type,
        )
        single_tag, *packed_tags = _tags(field)
        by_tag[single_tag] = plan
        for tag in packed_tags:
            examined_from = 0 if wire_type == _VARINT else math.inf
            by_tag[tag] = replace(plan, is_packed=True, examined_from=examined_from)
    extensions = message.file.pool.FindAllExtensions(message) if message.is_extendable else ()
    extension_tags = frozenset(tag for extension in extensions for tag in _tags(extension))
    return _MessagePlan(by_tag, dict(message.fields_by_number), extension_tags, bool(message.GetOptions().map_entry))


def _tags(field: FieldDescriptor) -> Iterator[int]:
    """Yield the tag of a field's single values, and of its packed values."""
    wire_type = wire_type_of(field)
    yield field.number << 3 | wire_type
    if field.is_repeated and wire_type not in {_LEN, _GROUP}:
        yield field.number << 3 | _LEN


def message_values(body: bytes, message: Descriptor, start: int = 0, end: int | None = None) -> dict[str, Any]:
    """Return the values of a message's fields by name, as they were sent: values for a JSON text.

    A repeated field is a list, and so is another field that was sent several times; a map is a list of entries. Numbers
    are not cut. A timestamp is a text of RFC 3339, or ``{"seconds": …, "nanos": …}`` if there is none for it.

    The value of another wire type does not say its type. A varint, a double and a fixed number are then the unsigned
    integer of their bits: 1.5 in an ``int32`` field is 4609434218613702656. If the field is a float or a double itself,
    the number of the other width is a floating-point number. A group is an object of its fields by their numbers. Other
    values are bytes.
    """
    values: dict[str, list[Any]] = {}
    repeated = set()
    for tag, varint, first, last in iterate_fields(body, start, len(body) if end is None else end):
        field = message.fields_by_number.get(tag >> 3)
        if field is None:
            continue
        sent = values.setdefault(field.name, [])
        if field.is_repeated:
            repeated.add(field.name)
        wire_type = wire_type_of(field)
        if tag & 7 == _LEN and field.is_repeated and wire_type not in {_LEN, _GROUP}:
            sent.extend(
                _value(body, field, (wire_type, *item)) for item in _iterate_packed(body, wire_type, first, last)
            )
        else:
            sent.append(_value(body, field, (tag & 7, varint, first, last)))
    return {name: sent if name in repeated or len(sent) > 1 else sent[0] for name, sent in values.items()}


def message_value(body: bytes, message: Descriptor, start: int = 0, end: int | None = None) -> Any:
    """Return the values of a message, see ``message_values``; of a timestamp its text."""
    values = message_values(body, message, start, end)
    if message.full_name != TIMESTAMP:
        return values
    try:
        return timestamp_pb2.Timestamp(**values).ToJsonString()
    except (TypeError, ValueError):
        return values


def _value(body: bytes, field: FieldDescriptor, wire_field: WireField) -> Any:
    """Return a value for a JSON text; the first member of ``wire_field`` is the wire type."""
    wire_type, varint, first, last = wire_field
    if wire_type in {_I32, _I64} and field.type in _FLOATS:
        number = struct.unpack("<f" if wire_type == _I32 else "<d", body[first:last])[0]
        return number if math.isfinite(number) else NOT_FINITE[str(number)]
    if wire_type != wire_type_of(field):
        return unknown_value(body, wire_field)
    if field.message_type is not None:
        return message_value(body, field.message_type, first, last)
    if wire_type in {_I32, _I64}:
        return int.from_bytes(body[first:last], "little", signed=field.type in _SIGNED_FIXED)
    if wire_type == _LEN:
        return _text(body[first:last]) if field.type == FieldDescriptor.TYPE_STRING else body[first:last]
    number = _integer(field, varint)
    if field.enum_type is not None:
        value = field.enum_type.values_by_number.get(number) if -(1 << 31) <= number < 1 << 31 else None
        return number if value is None else value.name
    return bool(number) if field.type == FieldDescriptor.TYPE_BOOL and number in {0, 1} else number


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def unknown_value(body: bytes, wire_field: WireField) -> Any:
    """Return the value of a field that the schema lacks: an unsigned integer, bytes, or a group's fields by number."""
    tag, varint, first, last = wire_field
    wire_type = tag & 7
    if wire_type == _VARINT:
        return varint
    if wire_type == _LEN:
        return body[first:last]
    if wire_type != _GROUP:
        return int.from_bytes(body[first:last], "little")
    members = ((str(member[0] >> 3), unknown_value(body, member)) for member in iterate_fields(body, first, last))
    return collect_by_name(members)


def collect_by_name(values: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Collect values by their names; several values of a name are a list."""
    lists: dict[str, list[Any]] = {}
    for name, value in values:
        lists.setdefault(name, []).append(value)
    return {name: sent if len(sent) > 1 else sent[0] for name, sent in lists.items()}
