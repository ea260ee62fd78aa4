"""Encodes and decodes bodies as JSON, fastjson's dialect included.

Java's fastjson writes two things that are no JSON: bare integers as keys (``{0:5}``) and objects as keys
(``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``, where a map is keyed by a message queue). Both are read;
an object as a key becomes its canonical text here, which ``queue_key`` makes and ``parse_queue_key`` reads.
We write standard JSON, but for queues as keys: those are objects, as Java writes them. Its fastjson took that text as a
string, too, up to 5.3.3; fastjson2, since 5.4, and the Go client do not.
"""

import re
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from rmq_core.remoting import fastjson
from rmq_core.remoting.bodies.conversion import converter, member_names
from rmq_formats.errors import DecodeError

_T = TypeVar("_T")
Maybe: TypeAlias = _T | msgspec.UnsetType | None  # left out when UNSET, as Java leaves out null
# Numbers that fastjson refuses beyond Java's range.
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_MEMBER_NAME: Final = re.compile(rb'"([A-Za-z_-]++)"\s*+:')
_MAX_NAMED_BYTES: Final = 64 << 10  # of a request whose members' names are looked at: 0.3 ms
_OBJECT_KEY: Final = re.compile(rb'"(\{\\"(?:[^"\\]|\\.)*\})":')


class BodyStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of the bodies: members are declared in the order of their names, which is Java's.

    (Type checkers want ``frozen`` and ``kw_only`` said again by each.)
    """


class QueueKeyedBody(BodyStruct, frozen=True, kw_only=True):
    """Base of the bodies with tables that are keyed by message queues, as texts of ``queue_key``."""


class MessageQueue(BodyStruct, frozen=True, kw_only=True, order=True):
    """A queue of a topic on a broker."""

    broker_name: str
    queue_id: int
    topic: str


_encode = msgspec.json.Encoder().encode


_decoders: dict[Any, Any] = {}


def _decoder(kind: Any) -> Any:
    decode = _decoders.get(kind)
    if decode is None:
        decode = _decoders[kind] = msgspec.json.Decoder(kind).decode
    return decode


def decode_body(body: bytes | memoryview, kind: type[_T], *, is_request: bool = False) -> _T:
    """Decode a body, of standard JSON or of fastjson's, with values of other types than declared, as fastjson does.

    Unknown members are ignored; null counts as absent.

    Args:
        body: the text.
        kind: what it holds.
        is_request: it comes from a stranger: refuse what would keep the event loop for long.

    Raises:
        DecodeError: it is neither, or a member has a bad value.
    """
    try:
        decoded: _T = _decoder(kind)(body)
        if not is_request or len(body) > _MAX_NAMED_BYTES or member_names(kind).issuperset(_MEMBER_NAME.findall(body)):
            return decoded
    except fastjson.NOT_JSON:
        pass
    try:
        value = converter(kind)(fastjson.loads(body, is_request=is_request))
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
    """Decode the message queue that is the key of a map.

    Raises:
        DecodeError: the key is not a queue.
    """
    return decode_body(key.encode(), MessageQueue)
