"""Encoder and decoder of JSON bodies, which accepts fastjson's dialect and fastjson's conversions of values.

Java's fastjson writes two things that are no JSON: bare integers as keys (``{0:5}``) and objects as keys
(``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``, where a map is keyed by a message queue). Both are read;
an object as a key becomes its canonical text here, which ``queue_key`` makes and ``parse_queue_key`` reads.
We write standard JSON, but for queues as keys: those are objects, as Java writes them. Its fastjson took that text as a
string, too, up to 5.3.3; fastjson2, since 5.4, and the Go client do not.

A number may stand as text and a text as number, a boolean as 0, 1 or text, an enum's constant by name in any case or by
ordinal, and a member's name in any case. What fastjson refuses stays as it is, so that msgspec names it.

Source: fastjson 1.2.83 (``EnumDeserializer``, ``TypeUtils``, ``JavaBeanDeserializer#smartMatch``), fastjson2
(``ObjectReaderImplEnum``).
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from rmq_core.remoting import fastjson
from rmq_core.remoting.codes import LanguageCode
from rmq_formats.errors import DecodeError

_T = TypeVar("_T")
Maybe: TypeAlias = _T | msgspec.UnsetType | None  # left out when UNSET, as Java leaves out null
# Numbers that fastjson refuses beyond Java's range.
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_MEMBER_NAME: Final = re.compile(rb'"([A-Za-z_-]++)"\s*+:')
_MAX_NAMED_BYTES: Final = 64 << 10  # of a request whose members' names are looked at: 0.3 ms
_OBJECT_KEY: Final = re.compile(rb'"(\{\\"(?:[^"\\]|\\.)*\})":')

Converter = Callable[[Any], Any]
_CONSTANTS: Final = "constants"
_IS_OPEN: Final = "is_open"


def enum_meta(*constants: str, is_open: bool = False) -> msgspec.Meta:
    """Declare a text as an enum of constants, in the order of their ordinals.

    Other names become empty, as Java's null; with ``is_open`` they stay as they are, for the handler to refuse.
    """
    pattern = None if is_open else f"^(?:|{'|'.join(constants)})$"
    return msgspec.Meta(pattern=pattern, extra={_CONSTANTS: constants, _IS_OPEN: is_open})


# Enums of Java: their constants in the order of their ordinals, by which C++ clients name them.
ConsumeFromWhere = Annotated[
    str,
    enum_meta(
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ),
]  # fmt: skip
ConsumeType = Annotated[str, enum_meta("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")]
MessageModel = Annotated[str, enum_meta("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")]
TOPIC_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
TopicFilterType = Annotated[str, enum_meta(*TOPIC_FILTER_TYPES)]
RequestMode = Annotated[str, enum_meta("PULL", "POP", is_open=True)]
GroupRetryPolicyType = Annotated[str, enum_meta("EXPONENTIAL", "CUSTOMIZED")]
LiteSubscriptionAction = Annotated[
    str, enum_meta("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE", is_open=True)
]
OffsetOptionType = Annotated[str, enum_meta("POLICY", "OFFSET", "TAIL_N", "TIMESTAMP", is_open=True)]
Language = Annotated[str, enum_meta(*(code.name for code in LanguageCode))]


def _list_member_names(kind: Any) -> frozenset[bytes]:
    """List the names of all members of a type, and of the types in it."""
    structs: dict[type[Any], Converter] = {}
    _converter(inspect.type_info(kind), structs)
    return frozenset(field.encode_name.encode() for struct in structs for field in msgspec.structs.fields(struct))


_converter_of: Callable[[Any], Converter] = cache(lambda kind: _converter(inspect.type_info(kind), {}))
_member_names: Callable[[Any], frozenset[bytes]] = cache(_list_member_names)


def _converter(kind: inspect.Type, structs: dict[type[Any], Converter]) -> Converter:
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return (
                _enum(extra[_CONSTANTS], is_open=extra[_IS_OPEN])
                if extra and _CONSTANTS in extra
                else _converter(inner, structs)
            )
        case inspect.StrType():
            return _text
        case inspect.IntType():
            return fastjson.integer
        case inspect.BoolType():
            return fastjson.boolean
        case inspect.ListType(item_type=item):
            return _list(_converter(item, structs))
        case inspect.DictType(key_type=key, value_type=value):
            return _mapping(_converter(key, structs), _converter(value, structs))
        case inspect.StructType(cls=struct):
            if struct not in structs:
                structs[struct] = _struct(kind, structs)
            return structs[struct]
        case inspect.UnionType(types=types):
            inner_types = [member for member in types if not isinstance(member, inspect.NoneType)]
            return _converter(inner_types[0], structs) if len(inner_types) == 1 else _plain
    return _plain


def _struct(kind: inspect.StructType, structs: dict[type[Any], Converter]) -> Converter:
    types = {field.encode_name: field.type for field in kind.fields}
    converters = {name: _converter(field_type, structs) for name, field_type in types.items()}
    names = {_smart(name): name for name in types}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        members: dict[str, Any] = {}
        for key, item in value.items():
            name = key if key in converters else names.get(_smart(key))
            if name is None or (name != key and name in value):
                continue
            converted = None if item is None else converters[name](item)
            if converted is not None:
                members[name] = converted
        return members

    return convert


def _smart(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _enum(constants: tuple[str, ...], *, is_open: bool) -> Converter:
    names = {name.lower(): name for name in constants}

    def convert(value: Any) -> Any:
        ordinal = fastjson.integer(value) if not isinstance(value, bool | float) else value
        if type(ordinal) is int and 0 <= ordinal < len(constants):
            return constants[ordinal]
        return names.get(value.lower(), fastjson.text(value) if is_open else "") if isinstance(value, str) else value

    return convert


def _list(convert: Converter) -> Converter:
    def convert_items(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [item for item in map(convert, value) if item is not None]

    return convert_items


def _mapping(convert_key: Converter, convert: Converter) -> Converter:
    def convert_items(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = ((convert_key(key), convert(item)) for key, item in value.items() if item is not None)
        return {key: item for key, item in items if item is not None}

    return convert_items


def _text(value: Any) -> Any:
    return None if value is None else fastjson.text(value)


def _plain(value: Any) -> Any:
    """Remove members that are null, and halves of surrogate pairs, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return fastjson.text(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


class BodyStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of the bodies: members are declared in the order of their names, which is Java's."""

    # Each body repeats ``frozen`` and ``kw_only`` for the type checker.


class QueueKeyedBody(BodyStruct, frozen=True, kw_only=True):
    """Base of the bodies with tables that are keyed by message queues, as texts of ``queue_key``."""


class MessageQueue(BodyStruct, frozen=True, kw_only=True, order=True):
    """A queue of a topic on a broker."""

    broker_name: str
    queue_id: int
    topic: str


_encode = msgspec.json.Encoder().encode


_decoder: Callable[[Any], Any] = cache(lambda kind: msgspec.json.Decoder(kind).decode)


def decode_body(body: bytes | memoryview, kind: type[_T], *, is_request: bool = False) -> _T:
    """Decode a body, of standard JSON or of fastjson's, with values of other types than declared, as fastjson does.

    Unknown members are ignored; null counts as absent. With ``is_request``, a body that would block the event loop for
    long is refused. Raises DecodeError.
    """
    try:
        decoded: _T = _decoder(kind)(body)
        if not is_request or len(body) > _MAX_NAMED_BYTES or _member_names(kind).issuperset(_MEMBER_NAME.findall(body)):
            return decoded
    except fastjson.NOT_JSON:
        pass
    try:
        value = _converter_of(kind)(fastjson.loads(body, is_request=is_request))
        return msgspec.convert(value, kind, strict=False, str_keys=True)
    except RecursionError as error:
        raise DecodeError("a body that nests too deep") from error
    except msgspec.ValidationError as error:
        raise DecodeError(f"the body is not a valid {kind.__name__}: {error}") from error


def encode_body(body: msgspec.Struct) -> bytes:
    """Encode a body as JSON without spaces: standard, but for message queues as keys, which are objects."""
    encoded = _encode(body)
    if not isinstance(body, QueueKeyedBody):
        return encoded
    return _OBJECT_KEY.sub(lambda key: _decoder(str)(b'"%b"' % key[1]).encode() + b":", encoded)


def queue_key(queue: MessageQueue) -> str:
    """Encode a message queue as the key of a map."""
    return _encode(queue).decode()


def parse_queue_key(key: str) -> MessageQueue:
    """Decode the message queue that is the key of a map. Raises DecodeError."""
    return decode_body(key.encode(), MessageQueue)
