"""Recursive descent parser of SQL92 filters, one token ahead.

::

    or       := and { OR and }
    and      := equal { AND equal }
    equal    := compare { ("=" | "<>") compare | IS [NOT] NULL }
    compare  := unary { (">" | ">=" | "<" | "<=") unary | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                      | [NOT] BETWEEN unary AND unary | [NOT] IN "(" string { "," string } ")" }
    unary    := ("+" | "-" | NOT) unary | primary
    primary  := string | integer ["L"] | float | TRUE | FALSE | NULL | name | "(" or ")"

What follows a complete expression is ignored, and only the text that is parsed must consist of tokens: both as in
RocketMQ.

Source: ``SelectorParser.jj``.
"""

from typing import Final

from rmq_formats.sql92 import nodes
from rmq_formats.sql92.nodes import Node
from rmq_formats.sql92.tokens import Token, token_at, unexpected
from rmq_formats.sql92.values import float_literal, integer_literal

MAX_DEPTH: Final = 100  # limit of nested calls in the parser
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_TESTS: Final = (*nodes.TEXT_TESTS, "BETWEEN", "IN")
_ORDER_SIGNS: Final = (">", ">=", "<", "<=")


class Parser:
    """Parser of one expression.

    Attributes:
        names: properties named so far.
    """

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
        """Parse the whole expression.

        Raises:
            SqlError: the text is no expression.
        """
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
