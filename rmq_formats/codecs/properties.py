r"""Codec of a message's properties: ``name \x01 value \x02``, repeated, in UTF-8.

Source: ``MessageDecoder#messageProperties2String``, ``#string2messageProperties``; ``IndexService#buildIndex``.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from rmq_formats.codecs.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

KEY_SEPARATOR: Final = " "
_D = TypeVar("_D")
_NAME_END = chr(NAME_VALUE_SEPARATOR)
_VALUE_END = chr(PROPERTY_SEPARATOR)
_NAME_END_BYTE = bytes([NAME_VALUE_SEPARATOR])
_VALUE_END_BYTE = bytes([PROPERTY_SEPARATOR])


def encode_properties(properties: Mapping[str, str]) -> bytes:
    r"""Encode properties in the mapping's order, each ended by ``\x02``, the last one too.

    As in Java nothing is checked: a separator in a name or a value is written as it is, and a lone surrogate as ``?``.
    """
    text = "".join([f"{name}{_NAME_END}{value}{_VALUE_END}" for name, value in properties.items()])
    return text.encode("utf-8", "replace")


def decode_properties(properties_bytes: bytes) -> dict[str, str]:
    r"""Decode properties; never fails.

    Of a repeated name the last value counts. An entry without a name or without a value vanishes, and a
    last entry without its ``\x02`` is accepted. A value may hold ``\x01``. Bytes that are not UTF-8 become U+FFFD.
    """
    properties = {}
    for entry in properties_bytes.decode("utf-8", "replace").split(_VALUE_END):
        name, _, value = entry.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def raw_property(properties_bytes: bytes, name: bytes) -> bytes:
    """Return the value of one property, without decoding the others; empty where there is none."""
    begin = len(properties_bytes)
    encoded_name = name + _NAME_END_BYTE
    while (begin := properties_bytes.rfind(encoded_name, 0, begin)) >= 0:
        if begin == 0 or properties_bytes[begin - 1] == PROPERTY_SEPARATOR:
            start = begin + len(encoded_name)
            end = properties_bytes.find(_VALUE_END_BYTE, start)
            if value := properties_bytes[start : end if end >= 0 else None]:
                return value
    return b""


def parse_decimal(text: str | None, default: _D, max_digits: int = 18) -> int | _D:
    """Parse a number of decimal digits; return the default for other text, or more digits.

    Clients write properties freely. Eighteen digits always fit into 64 bits.
    """
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= max_digits else default


def split_keys(keys: str) -> list[str]:
    """Split a KEYS property at spaces; empty parts are left out."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]
