"""Tokenizer of SQL92 filters.

A line comment ends with its line: without a line end it is no comment but two signs. An integer has no leading
zeros: what follows a 0 is another token.

Source: ``SelectorParser.jj``.
"""

import re
from dataclasses import dataclass
from typing import Final

from rmq_formats.sql92.values import SqlError

_TOKEN: Final = re.compile(
    # No backtracking: an expression comes from a client, and may be all comments.
    r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*(?:[^*]|\*(?!/))*+\*/)*+"
    r"(?:(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)|(?P<string>'(?:[^']|'')*')|(?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])|(?P<end>\Z))"
)
_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_IMAGES: Final = {
    "float": "<FLOATING_POINT_LITERAL>",
    "integer": "<DECIMAL_LITERAL>",
    "string": "<STRING_LITERAL>",
    "name": "<ID>",
}
_NEWLINE: Final = re.compile(r"\r\n|\r|\n")
PARSE_EXCEPTION: Final = "org.apache.rocketmq.filter.parser.ParseException"
_TOKEN_ERROR: Final = "org.apache.rocketmq.filter.parser.TokenMgrError"


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, text and position.

    Attributes:
        kind: float, integer, string, name, word (a reserved one), sign or end.
        text: as it stands there; that of a word in capitals.
        start: where it begins in the expression, in characters.
        end: where the next one may begin.
    """

    kind: str
    text: str
    start: int
    end: int


def token_at(text: str, position: int) -> Token:
    """Read the next token from a position on.

    Raises:
        SqlError: no token begins there.
    """
    match = _TOKEN.match(text, position)
    if match is None:
        raise SqlError(f"Lexical error behind {_place(text, position)}: no token in {text[position : position + 16]!r}",
                       _TOKEN_ERROR)  # fmt: skip
    kind = str(match.lastgroup)
    token_text = match[kind]
    if kind == "name" and token_text.upper() in _KEYWORDS:
        kind, token_text = "word", token_text.upper()
    return Token(kind, token_text, match.start(match.lastgroup or 0), match.end())


def unexpected(text: str, token: Token, expected: str) -> SqlError:
    """Make the error of a token that must not stand where it does."""
    if token.kind == "end":  # it stands where the last character does
        where = _place(text, len(text) - 1) if text else "line 0, column 0"
        return SqlError(f'Encountered "<EOF>" at {where}. Was expecting: {expected}', PARSE_EXCEPTION)
    image = f'{_IMAGES.get(token.kind) or chr(34) + token.text + chr(34)} "{text[token.start : token.end]} "'
    message = f'Encountered " {image}" at {_place(text, token.start)}. Was expecting: {expected}'
    return SqlError(message, PARSE_EXCEPTION)


def _place(text: str, position: int) -> str:
    lines = _NEWLINE.split(text[:position])
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"
