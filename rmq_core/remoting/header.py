"""Remoting command, a request or a response, and its header in JSON and in binary form.

::

    binary header, big-endian
     0      2        3         5        9      13            17        17+r          21+r
    +------+--------+---------+--------+------+-------------+---------+-------------+------------+
    | code |language| version | opaque | flag | remark size | remark  | fields size | fields     |
    +------+--------+---------+--------+------+-------------+---------+-------------+------------+
    a field: key size 2, key, value size 4, value; texts are UTF-8

A received header keeps its extension fields encoded until they are read: so ``read_fields`` decodes typed values from
the bytes without a dictionary in between.

Source: ``RemotingCommand``, ``RemotingSerializable``, ``RocketMQSerializable``.
"""

from struct import Struct
from struct import error as StructError  # an exception class with a lower-case name
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from rmq_core.remoting import fastjson
from rmq_core.remoting.codes import (
    CURRENT_VERSION,
    JSON,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    ROCKETMQ,
    LanguageCode,
    LanguageName,
)
from rmq_formats.errors import DecodeError, LengthError

if TYPE_CHECKING:
    Fields = dict[str, str] | msgspec.Raw | bytes
    Body = bytes | memoryview
else:
    Fields, Body = msgspec.Raw, Any  # the types that the JSON decoder makes

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]

_LANGUAGES: Final[tuple[LanguageName, ...]] = tuple(code.name for code in LanguageCode)  # type: ignore[misc]
_LANGUAGE_NAMES: Final = {str(name): name for name in _LANGUAGES}
_LANGUAGE_CODES: Final = {code.name: int(code) for code in LanguageCode}
_LANGUAGES_JSON: Final = {code.name: b',"language":"%b"' % code.name.encode() for code in LanguageCode}
_UNKNOWN_LANGUAGE: Final = int(LanguageCode.OTHER)
_BINARY_HEAD = Struct(">hBhiii")  # up to the remark's size
_INT = Struct(">i")
_SHORT = Struct(">h")
_MIN_SHORT, _MAX_SHORT = -(1 << 15), (1 << 15) - 1


class RemotingCommand(
    msgspec.Struct, gc=False, rename={"fields": "extFields", "body": " body", "serialize_type": " type"}
):
    """A request or a response, made by ``request`` and ``response``; defaults are the values of absent members.

    It is not frozen because the connection sets ``opaque`` when it sends a request.

    Attributes:
        flag: bit 0 marks a response, bit 1 a one-way request.
        opaque: number of the request; its response has the same.
        version: version of the sender, an ordinal (see ``codes.Version``).
        fields: extension fields: a dictionary, or JSON that is not decoded. ``ext_fields`` returns the dictionary.
        body: bytes after the header; a view into the received bytes or into a mapped file.
        serialize_type: ``JSON`` or ``ROCKETMQ``; a response has that of its request.
    """

    code: Int32 = 0
    flag: Int32 = 0
    language: LanguageName | None = "JAVA"
    opaque: Int32 = 0
    version: Int32 = 0
    remark: str | None = None
    fields: Fields = msgspec.Raw()
    body: Body = b""
    serialize_type: int = JSON

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = "" if self.remark is None else f" {self.remark!r}"
        return f"<{kind} {self.code} #{self.opaque}{remark} {self.language} {self.version}, {len(self.body)} B of body>"

    @property
    def ext_fields(self) -> dict[str, str]:
        """Extension fields by name. Raises DecodeError."""
        fields = self.fields
        if not isinstance(fields, dict):
            fields = self.fields = _decode_fields(fields)
        return fields

    @property
    def is_response(self) -> bool:
        """Return True for a response."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Return True for a request without a response."""
        return self.flag & ONEWAY_FLAG != 0

    def response(
        self,
        code: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | bytes | None = None,
        body: Body = b"",
    ) -> "RemotingCommand":
        """Build a response to this request, with the same header form."""
        return RemotingCommand(
            code,
            RESPONSE_FLAG,
            "PYTHON",
            self.opaque,
            CURRENT_VERSION,
            remark,
            ext_fields or {},
            body,
            self.serialize_type,
        )


def request(
    code: int, ext_fields: dict[str, str] | bytes | None = None, body: Body = b"", *, serialize_type: int = JSON
) -> RemotingCommand:
    """Build a request; the connection sets its number, and the flag of a one-way request."""
    return RemotingCommand(
        int(code), 0, "PYTHON", 0, CURRENT_VERSION, None, {} if ext_fields is None else ext_fields, body, serialize_type
    )


_decode_command = msgspec.json.Decoder(RemotingCommand).decode
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode
encode_json = msgspec.json.Encoder().encode
_NO_FIELDS: Final = b"{}"


def decode_json_header(header: bytes | memoryview) -> RemotingCommand:
    """Decode a JSON header; the caller sets the body.

    Unknown members are ignored; null, absent members and unknown languages are handled as in Java. Raises DecodeError.
    """
    try:
        command = _decode_command(header)
    except fastjson.NOT_JSON:
        return _decode_leniently(header)
    command.serialize_type = JSON  # even if the header has a member with that name
    command.body = b""
    return command


def _decode_leniently(header: bytes | memoryview) -> RemotingCommand:
    members = fastjson.loads(header, is_request=True)
    if not isinstance(members, dict):
        raise DecodeError("a header that is no JSON object", actual=type(members).__name__)
    remark = members.get("remark")
    return RemotingCommand(
        code=_integer(members, "code"),
        flag=_integer(members, "flag"),
        language=_language(members.get("language", "JAVA")),
        opaque=_integer(members, "opaque"),
        version=_integer(members, "version"),
        remark=None if remark is None else fastjson.text(remark),
        fields=_strings(members.get("extFields")),
    )


def _integer(members: dict[str, object], name: str) -> int:
    """Convert a member to 32 bits as fastjson does: null is 0, text of digits is a number."""
    value = fastjson.integer(members.get(name))
    if value is None:
        return 0
    if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise DecodeError(f"a header whose {name} is no 32-bit number", actual=repr(value)[:64])
    return value


def _language(value: object) -> LanguageName | None:
    """Find a language by its name or its ordinal; None for others."""
    if isinstance(value, int) and 0 <= value < len(_LANGUAGES):
        return _LANGUAGES[value]
    return _LANGUAGE_NAMES.get(value.upper()) if isinstance(value, str) else None


def _decode_fields(fields: msgspec.Raw | bytes) -> dict[str, str]:
    if not fields:
        return {}
    try:
        return _decode_strings(fields)
    except fastjson.NOT_JSON:
        return _strings(fastjson.loads(memoryview(fields), is_request=True))


def _strings(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DecodeError("extFields that are no JSON object", actual=type(value).__name__)
    try:
        return {fastjson.text(key): fastjson.text(item) for key, item in value.items() if item is not None}
    except RecursionError as error:
        raise DecodeError("an extension field that nests too deep") from error


def decode_binary_header(header: bytes | memoryview) -> RemotingCommand:
    """Decode a binary header; the caller sets the body.

    A field with an empty key or value is left out: Java decodes it as null. Raises DecodeError.
    """
    data = bytes(header)
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(data)
        remark_end = _BINARY_HEAD.size + remark_bytes
        (fields_bytes,) = _INT.unpack_from(data, remark_end) if remark_bytes >= 0 else (-1,)
        if fields_bytes < 0 or remark_end + _INT.size + fields_bytes != len(data):
            raise DecodeError("header sizes are inconsistent", expected=len(data), actual=fields_bytes)
        remark = data[_BINARY_HEAD.size : remark_end].decode() if remark_bytes else None
        fields = _read_fields(data, remark_end + _INT.size)
    except StructError as error:
        raise DecodeError("a header that ends too early", actual=f"{len(data)} bytes") from error
    except UnicodeDecodeError as error:
        raise DecodeError("text in a header that is not UTF-8") from error
    name = _LANGUAGES[language] if language < len(_LANGUAGES) else None
    return RemotingCommand(code, flag, name, opaque, version, remark, fields, b"", ROCKETMQ)


def _read_fields(data: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end, short, integer = len(data), _SHORT.unpack_from, _INT.unpack_from
    while at < end:
        key_at = at + 2
        key_end = key_at + short(data, at)[0]
        value_at = key_end + 4
        at = value_at + integer(data, key_end)[0]
        if not key_at <= key_end < value_at <= at <= end:
            raise DecodeError("a field that ends outside of the header", physical_offset=key_at, actual=at)
        if key_at < key_end and value_at < at:
            fields[data[key_at:key_end].decode()] = data[value_at:at].decode()
    return fields


def encode_json_header(command: RemotingCommand) -> bytes:
    """Encode the JSON header, members in Java's order. Raises DecodeError for fields that are no JSON object."""
    fields = command.fields
    if type(fields) is not bytes:
        fields = encode_json(fields if type(fields) is dict else command.ext_fields)
    remark, language = command.remark, command.language
    return b'{"code":%d%b,"flag":%d%b,"opaque":%d%b,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        command.code,
        b',"extFields":' + fields if fields != _NO_FIELDS else b"",
        command.flag,
        b"" if language is None else _LANGUAGES_JSON[language],
        command.opaque,
        b"" if remark is None else b',"remark":' + encode_json(remark),
        command.version,
    )


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Encode the binary header; the peer ignores fields with an empty key or value.

    Raises DecodeError as ``encode_json_header``, or LengthError for a value that Java would cut off.
    """
    for number in (command.code, command.version):
        if not _MIN_SHORT <= number <= _MAX_SHORT:
            raise LengthError("a number too large for the binary header", expected=_MAX_SHORT, actual=number)
    remark = (command.remark or "").encode()
    pieces: list[bytes] = []
    short, integer = _SHORT.pack, _INT.pack
    for key, value in command.ext_fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > _MAX_SHORT:
            raise LengthError("a key too long for the binary header", expected=_MAX_SHORT, actual=len(key_bytes))
        pieces.append(short(len(key_bytes)) + key_bytes + integer(len(value_bytes)) + value_bytes)
    fields = b"".join(pieces)
    language = _LANGUAGE_CODES.get(command.language or "", _UNKNOWN_LANGUAGE)
    head = _BINARY_HEAD.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((head, remark, _INT.pack(len(fields)), fields))
