"""JSON as Java's fastjson reads and writes it, from the network: standard first, as that is by far the fastest.

Files are read by ``config_json`` alone, which tells where a fault is, and is a hundred times slower than the parsers
of standard JSON. Here it is left with what has other objects as keys than queues, or those in another form.
"""

import json
import re
from typing import Final, NoReturn

import msgspec

from rmq_formats.codecs import config_json
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
_decode = msgspec.json.Decoder().decode
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def loads(data: bytes | memoryview, *, is_request: bool = False) -> object:
    """Decode any JSON, in time that is linear in its size.

    Args:
        data: the text.
        is_request: it comes from a stranger: refuse what is not standard JSON and too long to be read on the loop.

    Raises:
        DecodeError: it is neither standard JSON nor fastjson's.
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
    return config_json.loads(text)


def _with_quoted_keys(text: str) -> str:
    """Quote the bare integers that are keys: numbers before a colon, outside of strings."""
    parts = _STRING.split(text)  # every other one is a string
    between = _BEFORE_KEY.sub('"', "\0".join(parts[::2]))
    parts[::2] = _AFTER_KEY.sub('"', between).split("\0", len(parts) // 2)
    return "".join(parts)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
