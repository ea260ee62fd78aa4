"""SQL92 filters: an expression over a message's properties, compiled to a function.

::

    or       := and { OR and }
    and      := equal { AND equal }
    equal    := compare { ("=" | "<>") compare | IS [NOT] NULL }
    compare  := unary { (">" | ">=" | "<" | "<=") unary | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                      | [NOT] BETWEEN unary AND unary | [NOT] IN "(" string { "," string } ")" }
    unary    := ("+" | "-" | NOT) unary | primary
    primary  := string | integer ["L"] | float | TRUE | FALSE | NULL | name | "(" or ")"

What follows a complete expression is ignored, and only what is looked at has to be made of tokens: both as in
the original. Truth has three values, and None is the third.

Source: ``SelectorParser.jj``, ``ComparisonExpression``, ``UnaryExpression``, ``LogicExpression``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmq_core.broker import sql92_values as values
from rmq_core.broker.sql92_values import SqlError, Value

MAX_EXPRESSION_CHARS: Final = 32_768  # more is no filter; its parse would nest without end
MAX_DEPTH: Final = 100
_TOKEN: Final = re.compile(
    r"(?:\s|--[^\n\r]*|/\*.*?\*/)*"
    r"(?:(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*)[lL]?(?![0-9])|(?P<string>'(?:[^']|'')*')|(?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])|(?P<end>$))",
    re.DOTALL,
)
_KEYWORDS: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905 # as it is read
)
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
Properties = Mapping[str, str]
Expression = Callable[[Properties], bool]


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression.

    Attributes:
        evaluate: gives its value.
        is_constant: whether it is a literal; then ``value`` is it.
        is_truth: whether it can only be a truth value.
        value: of a literal.
    """

    evaluate: Callable[[Properties], Value]
    is_constant: bool = False
    is_truth: bool = False
    value: Value = None


def compile_expression(text: str) -> Expression:
    """A function that says whether properties fulfil an expression; what cannot be evaluated does not.

    Raises:
        SqlError: not an expression.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise SqlError("an expression that is too long")
    evaluate = _as_truth(_Parser(text).or_()).evaluate

    def holds(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except SqlError:
            return False

    return holds


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._token: tuple[str, str] | None = None

    def _peek(self) -> tuple[str, str]:
        """Kind and text of the next token."""
        if self._token is None:
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise SqlError(f"no token at {self._at}: {self._text[self._at : self._at + 16]!r}")
            kind = str(match.lastgroup)
            text = match[kind]
            if kind == "name" and text.upper() in _KEYWORDS:
                kind, text = "word", text.upper()
            self._at = match.end()
            self._token = kind, text
        return self._token

    def _take(self, kind: str, *texts: str) -> str | None:
        """The next token's text if it is one of these; else it stays."""
        found_kind, text = self._peek()
        if found_kind != kind or (texts and text not in texts):
            return None
        self._token = None
        return text

    def _need(self, kind: str, *texts: str) -> str:
        text = self._take(kind, *texts)
        if text is None:
            raise SqlError(f"{' or '.join(texts) or kind} expected, {self._peek()[1]!r} found")
        return text

    def or_(self) -> _Node:
        node = self._and()
        while self._take("word", "OR"):
            node = _logic(values.either, _as_truth(node), _as_truth(self._and()))
        return node

    def _and(self) -> _Node:
        node = self._equal()
        while self._take("word", "AND"):
            node = _logic(values.both, _as_truth(node), _as_truth(self._equal()))
        return node

    def _equal(self) -> _Node:
        node = self._compare()
        while True:
            sign = self._take("sign", "=", "<>")
            if sign:
                node = _binary(values.equal if sign == "=" else values.unequal, node, self._compare())
            elif self._take("word", "IS"):
                negated = self._take("word", "NOT") is not None
                self._need("word", "NULL")
                node = _is_null(node, negated)
            else:
                return node

    def _compare(self) -> _Node:
        node = self._unary()
        while True:
            sign = self._take("sign", ">", ">=", "<", "<=")
            if sign:
                node = _ordered(values.ORDERS[sign], node, self._unary())
                continue
            before = self._at, self._token
            negated = self._take("word", "NOT") is not None
            word = self._take("word", *values.TEXT_TESTS, "BETWEEN", "IN")
            if word is None:
                self._at, self._token = before
                return node
            node = self._test(node, word, negated)

    def _test(self, node: _Node, word: str, negated: bool) -> _Node:
        if word == "BETWEEN":
            low = self._unary()
            self._need("word", "AND")
            return _between(node, low, self._unary(), negated)
        if word == "IN":
            self._need("sign", "(")
            texts = {_unquote(self._need("string"))}
            while self._take("sign", ","):
                texts.add(_unquote(self._need("string")))
            self._need("sign", ")")
            return _within(node, frozenset(texts), negated)
        return _text_test(values.TEXT_TESTS[word], node, _unquote(self._need("string")), negated)

    def _unary(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SqlError("an expression that nests too deep")
        try:
            if self._take("sign", "+"):
                return self._unary()
            if self._take("sign", "-"):
                return _negated(self._unary())
            if self._take("word", "NOT"):
                operand = _as_truth(self._unary())
                return _Node(lambda properties: values.inverse(operand.evaluate(properties)), is_truth=True)
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> _Node:
        if (text := self._take("string")) is not None:
            return _constant(_unquote(text))
        if (text := self._take("float")) is not None:
            return _constant(float(text))
        if (text := self._take("integer")) is not None:
            return _constant(values.long(text))
        if (text := self._take("word", *_CONSTANTS)) is not None:
            return _constant(_CONSTANTS[text])
        if (text := self._take("name")) is not None:
            return _Node(lambda properties, name=text: properties.get(name))  # type: ignore[misc] # a default binds
        self._need("sign", "(")
        node = self.or_()
        self._need("sign", ")")
        return node


def _unquote(literal: str) -> str:
    return literal[1:-1].replace("''", "'")


def _constant(value: Value) -> _Node:
    return _Node(lambda _: value, is_constant=True, is_truth=isinstance(value, bool), value=value)


def _as_truth(node: _Node) -> _Node:
    """A part as a truth value: what is none, such as the text "true", is false. Source: ``BooleanCastExpression``."""
    if node.is_truth:
        return node
    if node.is_constant and node.value is not None:
        raise SqlError(f"{node.value!r} is no truth value")

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return value if value is None else value is True

    return _Node(evaluate, is_truth=True)


def _logic(combine: Callable[[Value, Callable[[], Value]], Value], left: _Node, right: _Node) -> _Node:
    return _Node(
        lambda properties: combine(left.evaluate(properties), lambda: right.evaluate(properties)), is_truth=True
    )


def _binary(compare: Callable[[Any, Any], Value], left: _Node, right: _Node) -> _Node:
    return _Node(lambda properties: compare(left.evaluate(properties), right.evaluate(properties)), is_truth=True)


def _ordered(order: Callable[[Any, Any], bool], left: _Node, right: _Node) -> _Node:
    """A comparison of order, which literals that are no numbers do not have."""
    for node in (left, right):
        if node.is_truth or (node.is_constant and not values.is_number(node.value)):
            raise SqlError(f"{node.value!r} cannot be compared")
    return _binary(lambda one, other: values.in_order(order, one, other), left, right)


def _is_null(node: _Node, negated: bool) -> _Node:
    return _Node(lambda properties: (node.evaluate(properties) is None) != negated, is_truth=True)


def _between(node: _Node, low: _Node, high: _Node, negated: bool) -> _Node:
    if low.is_constant and high.is_constant and values.in_order(values.ORDERS[">"], low.value, high.value):
        raise SqlError(f"between {low.value} and {high.value} is nothing")
    if negated:
        return _logic(values.either, _ordered(values.ORDERS["<"], node, low), _ordered(values.ORDERS[">"], node, high))
    return _logic(values.both, _ordered(values.ORDERS[">="], node, low), _ordered(values.ORDERS["<="], node, high))


def _within(node: _Node, texts: frozenset[str], negated: bool) -> _Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return (value in texts) != negated if isinstance(value, str) else None

    return _Node(evaluate, is_truth=True)


def _text_test(test: Callable[[str, str], bool], node: _Node, text: str, negated: bool) -> _Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return isinstance(value, str) and test(value, text) != negated

    return _Node(evaluate, is_truth=True)


def _negated(node: _Node) -> _Node:
    if node.is_constant and values.is_number(node.value):
        return _constant(values.negative(node.value))
    return _Node(lambda properties: values.negative(node.evaluate(properties)))
