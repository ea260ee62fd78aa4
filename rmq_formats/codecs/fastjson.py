"""Parser of JSON as fastjson 1.2.83 writes it in config files, in two places not strict JSON.

Keys of a map may be bare integers (``{0:5}``), and they may be objects
(``{{"brokerName":"b","queueId":0,"topic":"T"}:1}``). Java reads standard JSON just as well, so
writing needs nothing special.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Final, TypeVar

from rmq_formats.errors import DecodeError

MAX_DEPTH: Final = 64  # RocketMQ's own files nest five deep
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![0-9])")
_BARE_KEY = re.compile(r"-?[0-9]+")
LONG = re.compile(r"-?[0-9]{1,19}")
_STRINGS = json.JSONDecoder(strict=False)  # fastjson takes control characters as they are
_WORDS: Final = {"true": True, "false": False, "null": None}
_WORD = re.compile("|".join(_WORDS))
_T = TypeVar("_T", int, str, bool)


def loads(text: str) -> object:
    """Parse one JSON value. Raises DecodeError, whose offset counts characters; also for more than 64 levels.

    Bare integer keys become strings; an object as a key becomes its canonical JSON: members sorted, no
    spaces, as fastjson would write it. Of a repeated key the last counts.
    """
    parser = _JsonParser(text)
    value, at = parser.value(parser.skip(0), MAX_DEPTH)
    if parser.skip(at) != len(text):
        raise parser.error("more text after the value", at)
    return value


class _JsonParser:
    """Recursive descent over one text; each method reads at a position, and returns the position after its value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, reason: str, at: int) -> DecodeError:
        excerpt = self.text[at : at + 16]
        return DecodeError(f"bad JSON: {reason}", physical_offset=at, actual=repr(excerpt) if excerpt else "the end")

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def starts(self, token: str, at: int) -> bool:
        return self.text.startswith(token, at)

    def value(self, at: int, depth: int) -> tuple[object, int]:
        if self.starts("{", at):
            return self.members(at, depth)
        if self.starts("[", at):
            return self.elements(at, depth)
        if self.starts('"', at):
            return self.string(at)
        word = _WORD.match(self.text, at)
        return (_WORDS[word[0]], word.end()) if word else self.number(at)

    def string(self, at: int) -> tuple[str, int]:
        try:
            text, at = _STRINGS.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            raise self.error(error.msg, error.pos) from error
        return str(text), at

    def number(self, at: int) -> tuple[int | float, int]:
        match = _NUMBER.match(self.text, at)
        if match is None:
            raise self.error("no value", at)
        if match[1] is None and match[2] is None:
            return int(match[0]), match.end()
        number = float(match[0])
        if not isfinite(number):
            raise self.error("number out of range", at)
        return number, match.end()

    def elements(self, at: int, depth: int) -> tuple[list[object], int]:
        if depth == 0:
            raise self.error("nested too deep", at)
        elements: list[object] = []
        at = self.skip(at + 1)
        if self.starts("]", at):
            return elements, at + 1
        while True:
            element, at = self.value(at, depth - 1)
            elements.append(element)
            at, more = self.separator(at, "]")
            if not more:
                return elements, at

    def members(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        if depth == 0:
            raise self.error("nested too deep", at)
        members: dict[str, object] = {}
        at = self.skip(at + 1)
        if self.starts("}", at):
            return members, at + 1
        while True:
            key, at = self.key(at, depth)
            at = self.skip(at)
            if not self.starts(":", at):
                raise self.error("no ':' after a key", at)
            members[key], at = self.value(self.skip(at + 1), depth - 1)
            at, more = self.separator(at, "}")
            if not more:
                return members, at

    def key(self, at: int, depth: int) -> tuple[str, int]:
        if self.starts('"', at):
            return self.string(at)
        if self.starts("{", at):
            members, at = self.members(at, depth - 1)
            return json.dumps(members, ensure_ascii=False, sort_keys=True, separators=(",", ":")), at
        bare = _BARE_KEY.match(self.text, at)
        if bare is None:
            raise self.error("no key", at)
        return bare[0], bare.end()

    def separator(self, at: int, end: str) -> tuple[int, bool]:
        """Read what follows an element: the position after the comma or the end, and whether it was a comma."""
        at = self.skip(at)
        if self.starts(end, at):
            return at + 1, False
        if not self.starts(",", at):
            raise self.error(f"neither ',' nor '{end}'", at)
        return self.skip(at + 1), True


def as_integer(name: str, value: object) -> int:
    """Convert a number, or a text as fastjson accepts, to an integer of 64 bits. Raises DecodeError."""
    if isinstance(value, str) and LONG.fullmatch(value):
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise DecodeError(f"{name} has a bad value", expected="an integer", actual=value)
    return value


def as_mapping(value: object, what: str) -> Mapping[str, object]:
    """Return a JSON object; None is an empty one. Raises DecodeError for another type."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DecodeError(f"{what} is not a JSON object")
    return value


def read_member(members: Mapping[str, object], name: str, default: _T) -> _T:
    """Return a member of the default's type; the default if the member is missing or null. Raises DecodeError."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not type(default):
        raise DecodeError(f"{name} has a bad value", expected=type(default).__name__, actual=value)
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise DecodeError(f"{name} has a bad value", expected="an int of Java", actual=value)
    return value
