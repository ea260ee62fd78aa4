"""JSON of Java's fastjson, from the network: standard JSON first, which is by far the fastest.

Beside standard JSON fastjson takes bare and single-quoted keys, single-quoted texts, comments, and commas too many
(``AllowUnQuotedFieldNames``, ``AllowSingleQuotes``, ``AllowArbitraryCommas``).

``rmq_formats.codecs.fastjson``, which names the position of a fault and is a hundred times slower than the parsers of
standard JSON, reads files. Here it decodes only JSON with other objects as keys than queues in Java's form.
"""

import json
import re
from typing import Final, NoReturn

import msgspec

from rmq_formats.codecs import fastjson
from rmq_formats.errors import DecodeError

# Of a request: 0.1 s of work. What Java sends has no bare key but for the queues of static topics, 30 bytes for each.
MAX_DIALECT_BYTES: Final = 256 << 10
_MAX_OBJECT_KEYS_BYTES: Final = 32 << 10  # likewise; no request has a map with objects as keys
# A queue as a key, as Java writes it, in standard JSON but for its place; no string holds a quote that is not escaped.
_QUEUE_KEY: Final = re.compile(
    r"""(?<=[{,])(\{"brokerName":"(?:[^"\\]|\\.)*+","queueId":-?[0-9]++,"topic":"(?:[^"\\]|\\.)*+"\})(?=:)"""
)
_STRING: Final = re.compile(r'("(?:[^"\\]++|\\.)*+"?)', re.DOTALL)
_BEFORE_KEY: Final = re.compile(r"(?<![0-9.eE+-])(?=-?[0-9]++\s*+:)")
_AFTER_KEY: Final = re.compile(r"(?<=[0-9])(?=\s*+:)")
# A text or comment without an end extends to the end of the input, so that the match takes linear time.
_TOKEN: Final = re.compile(
    r"""(?P<text>"(?:[^"\\]++|\\.?)*+"?+)|(?P<single>'(?:[^'\\]++|\\.?)*+'?+)"""
    r"""|(?P<gap>\s++|/\*.*?(?:\*/|\Z)|//[^\n]*)"""
    r"""|(?P<key>[A-Za-z_$][\w$]*+(?=\s*+:))|(?P<other>[\w.+-]++|.)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|(.))|\"""", re.DOTALL)
# Escapes of fastjson that standard JSON does not have.
_OTHER_ESCAPES: Final = {"'": "'", "v": r"\u000b", **{str(digit): rf"\u000{digit}" for digit in range(8)}}
_NUMBER: Final = re.compile(r"(-?[0-9]{1,19})(?:\.0*)?")
_TRUE: Final = frozenset({"true", "1", "y", "t"})
_FALSE: Final = frozenset({"false", "0", "n", "f"})
_NULLS: Final = frozenset({"", "null", "NULL"})
_decode = msgspec.json.Decoder().decode
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def loads(data: bytes | memoryview, *, is_request: bool = False) -> object:
    """Decode any JSON, in time that is linear in its size.

    With ``is_request``, non-standard JSON too long to be decoded on the event loop is refused. Raises DecodeError.
    """
    try:
        return _decode(data)
    except NOT_JSON:
        pass
    if is_request and len(data) > MAX_DIALECT_BYTES:
        raise DecodeError("JSON that is not standard and too long", expected=MAX_DIALECT_BYTES, actual=len(data))
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("JSON that is not UTF-8", physical_offset=error.start) from error
    try:
        standard = _QUEUE_KEY.sub(lambda key: json.dumps(key[1], ensure_ascii=False), text)
        return json.loads(_with_quoted_keys(standard), strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        if is_request and len(data) > _MAX_OBJECT_KEYS_BYTES:
            raise DecodeError(f"bad JSON: {error}") from error
    return fastjson.loads(_standard_text(text.removeprefix("\ufeff")))


def _standard_text(dialect: str) -> str:
    """Rewrite quotes, escapes, bare keys, comments and commas of fastjson's dialect as standard JSON."""
    pieces: list[str] = []
    before, comma_at = "", 0  # the last piece that is no gap; index of the last comma
    for token in _TOKEN.finditer(dialect):
        kind, piece = token.lastgroup, token[0]
        if kind == "gap":
            pieces.append(" ")
            continue
        if kind in {"text", "single"} and piece[-1] == piece[0]:
            piece = f'"{_ESCAPE.sub(_standard_escape, piece[1:-1])}"'
        elif kind == "key":
            piece = f'"{piece}"'
        elif piece == "undefined":
            piece = "null"
        elif piece == ",":
            if before in {",", "{", "["}:
                continue
            comma_at = len(pieces)
        elif piece in {"}", "]"} and before == ",":
            pieces[comma_at] = " "
        pieces.append(piece)
        before = piece
    return "".join(pieces)


def _standard_escape(escape: re.Match[str]) -> str:
    hexadecimal, character = escape.groups()
    if hexadecimal:
        return f"\\u00{hexadecimal}"
    return r"\"" if character is None else _OTHER_ESCAPES.get(character, str(escape[0]))


def _with_quoted_keys(text: str) -> str:
    """Quote the bare integers that are keys: numbers before a colon, outside of strings."""
    parts = _STRING.split(text)  # every other one is a string
    between = _BEFORE_KEY.sub('"', "\0".join(parts[::2]))
    parts[::2] = _AFTER_KEY.sub('"', between).split("\0", len(parts) // 2)
    return "".join(parts)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def text(value: object) -> str:
    """Convert a value to Java's text; characters outside UTF-8 become '?', as in Java. Raises RecursionError."""
    encoded = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return encoded.encode("utf-8", "replace").decode()


def integer(value: object) -> object:
    """Convert a value to fastjson's integer; None for its nulls, and others unchanged.

    Source: ``TypeUtils#castToInt``, ``castToLong``.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and abs(value) < 1 << 63:
        return int(value)
    if isinstance(value, str):
        if value in _NULLS:
            return None
        number = _NUMBER.fullmatch(value.replace(",", ""))
        return int(number[1]) if number else value
    return value


def boolean(value: object) -> object:
    """Convert a value to fastjson's boolean; None for its nulls, and others unchanged.

    Source: ``BooleanCodec``, ``TypeUtils#castToBoolean``.
    """
    if isinstance(value, int | float):
        return value == 1
    if isinstance(value, str):
        if value in _NULLS:
            return None
        lower = value.lower()
        return True if lower in _TRUE else False if lower in _FALSE else value
    return value
