"""Tokenizer and recursive descent parser of SQL92 filters, one token ahead.

::

    or       := and { OR and }
    and      := equal { AND equal }
    equal    := compare { ("=" | "<>") compare | IS [NOT] NULL }
    compare  := unary { (">" | ">=" | "<" | "<=") unary | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                      | [NOT] BETWEEN unary AND unary | [NOT] IN "(" string { "," string } ")" }
    unary    := ("+" | "-" | NOT) unary | primary
    primary  := string | integer ["L"] | float | TRUE | FALSE | NULL | name | "(" or ")"

What follows a complete expression is ignored, and only the text that is parsed must consist of tokens: both as in
RocketMQ. A line comment ends with its line: without a line end it is no comment but two signs. An integer has no
leading zeros: what follows a 0 is another token.

Source: ``SelectorParser.jj``.
"""

import re
from dataclasses import dataclass
from typing import Final

from rmq_formats.sql92 import nodes
from rmq_formats.sql92.nodes import Node
from rmq_formats.sql92.values import PARSE_EXCEPTION, SqlError, float_literal, integer_literal

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
_TOKEN_ERROR: Final = "org.apache.rocketmq.filter.parser.TokenMgrError"
MAX_DEPTH: Final = 100  # limit of nested calls in the parser
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_TESTS: Final = (*nodes.TEXT_TESTS, "BETWEEN", "IN")
_ORDER_SIGNS: Final = (">", ">=", "<", "<=")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, text and position.

    Attributes:
        kind: float, integer, string, name, word (a reserved one), sign or end.
        text: that of a word in capitals.
        start: where it begins in the expression, in characters.
        end: where the next one may begin.
    """

    kind: str
    text: str
    start: int
    end: int


def token_at(text: str, position: int) -> Token:
    """Read the next token from a position on. Raises SqlError if no token begins there."""
    match = _TOKEN.match(text, position)
    if match is None:
        raise SqlError(
            f"Lexical error behind {_place(text, position)}: no token in {text[position : position + 16]!r}",
            _TOKEN_ERROR,
        )
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


class Parser:
    """Parser of one expression; ``names`` are the properties named so far."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self._text = text
        self._at = 0
        self._depth = 0
        self._token: Token | None = None

    def _peek(self) -> Token:
        if self._token is None:
            self._token = token_at(self._text, self._at)
            self._at = self._token.end
        return self._token

    def _accept(self, kind: str, *texts: str) -> str | None:
        """Consume the next token and return its text if the token is of this kind; else return None."""
        token = self._peek()
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self._token = None
        return token.text

    def _need(self, kind: str, *texts: str) -> str:
        text = self._accept(kind, *texts)
        if text is None:
            raise unexpected(self._text, self._peek(), " or ".join(texts) or kind)
        return text

    def expression(self) -> Node:
        """Parse the whole expression. Raises SqlError."""
        return nodes.truth(self._or())

    def _or(self) -> Node:
        parts = [self._and()]
        while self._accept("word", "OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else nodes.any_of(parts)

    def _and(self) -> Node:
        parts = [self._equal()]
        while self._accept("word", "AND"):
            parts.append(self._equal())
        return parts[0] if len(parts) == 1 else nodes.all_of(parts)

    def _equal(self) -> Node:
        node = self._compare()
        while True:
            if sign := self._accept("sign", "=", "<>"):
                equal = nodes.equal(node, self._compare())
                node = equal if sign == "=" else nodes.inverse(equal)
            elif self._accept("word", "IS"):
                negated = self._accept("word", "NOT") is not None
                self._need("word", "NULL")
                node = nodes.inverse(nodes.is_null(node)) if negated else nodes.is_null(node)
            else:
                return node

    def _compare(self) -> Node:
        node = self._unary()
        while True:
            if sign := self._accept("sign", *_ORDER_SIGNS):
                node = nodes.ordered(sign, node, self._unary())
                continue
            negated = self._accept("word", "NOT") is not None
            word = self._accept("word", *_TESTS)
            if word is None:
                if negated:
                    raise unexpected(self._text, self._peek(), " or ".join(_TESTS))
                return node
            node = self._test(node, word, negated=negated)

    def _test(self, node: Node, word: str, *, negated: bool) -> Node:
        if word == "BETWEEN":
            low = self._unary()
            self._need("word", "AND")
            return nodes.between(node, low, self._unary(), negated=negated)
        if word == "IN":
            self._need("sign", "(")
            texts = [_unquote(self._need("string"))]
            while self._accept("sign", ","):
                texts.append(_unquote(self._need("string")))
            self._need("sign", ")")
            return nodes.within(node, texts, negated=negated)
        return nodes.text_test(word, node, _unquote(self._need("string")), negated=negated)

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise nodes.too_deep()
        try:
            if self._accept("sign", "+"):
                return self._unary()
            if self._accept("sign", "-"):
                return nodes.negative(self._unary())
            if self._accept("word", "NOT"):
                return nodes.inverse(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        if (text := self._accept("string")) is not None:
            return nodes.constant(_unquote(text))
        if (text := self._accept("float")) is not None:
            return nodes.constant(float_literal(text))
        if (text := self._accept("integer")) is not None:
            return nodes.constant(integer_literal(text.rstrip("lL")))
        if (text := self._accept("word", *_CONSTANTS)) is not None:
            return nodes.constant(_CONSTANTS[text])
        if (text := self._accept("name")) is not None:
            self.names.add(text)
            return nodes.named(text)
        self._need("sign", "(")
        node = self._or()
        self._need("sign", ")")
        return node


def _unquote(literal: str) -> str:
    return literal[1:-1].replace("''", "'")
