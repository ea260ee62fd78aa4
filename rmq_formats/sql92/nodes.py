"""Parts of a SQL92 filter: each gives its value for the properties of a message.

What may stand where is the original's: texts and truth values have no order, NULL is no operand but of IS, and IN
asks for a property. Texts of nodes are the original's, which stand in its errors.

Source: ``ComparisonExpression``, ``UnaryExpression``, ``LogicExpression``, ``ConstantExpression``.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rmq_formats.sql92 import values
from rmq_formats.sql92.tokens import PARSE_EXCEPTION
from rmq_formats.sql92.values import SqlError, Value

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


_MAX_DEPTH: Final = 200  # an evaluation calls itself so deep


class Kind(Enum):
    """What a node is, which says where it may stand."""

    CONSTANT = auto()
    TRUTH_CONSTANT = auto()  # TRUE, FALSE, NULL
    PROPERTY = auto()
    TRUTH = auto()
    OTHER = auto()  # the negative of something


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression.

    Attributes:
        kind: what it is.
        evaluate: gives its value.
        text: as the original prints it.
        value: of a constant.
        depth: how many parts stand in one another.
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    value: Value = None
    depth: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether it is a literal."""
        return self.kind in (Kind.CONSTANT, Kind.TRUTH_CONSTANT)

    @property
    def is_truth(self) -> bool:
        """Whether its value can only be a truth value."""
        return self.kind in (Kind.TRUTH, Kind.TRUTH_CONSTANT)


def constant(value: Value) -> Node:
    """A literal."""
    if value is None or isinstance(value, bool):
        return Node(Kind.TRUTH_CONSTANT, lambda _: value, "NULL" if value is None else str(value).upper(), value)
    text = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return Node(Kind.CONSTANT, lambda _: value, text, value)


def named(name: str) -> Node:
    """A property."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name), name)


def truth(node: Node) -> Node:
    """A part as a truth value: a property, which is text, is false then.

    Raises:
        SqlError: neither a truth value nor a property.

    Source: ``SelectorParser#asBooleanExpression``, ``UnaryExpression#createBooleanCast``.
    """
    if node.is_truth:
        return node
    if node.kind is not Kind.PROPERTY:
        raise SqlError(f"Expression will not result in a boolean value: {node.text}", PARSE_EXCEPTION)
    evaluate = node.evaluate
    return Node(Kind.TRUTH, lambda properties: None if evaluate(properties) is None else False, node.text)


def too_deep() -> SqlError:
    """The error of an expression that would take too many calls within calls."""
    return SqlError("an expression that nests too deep", "java.lang.StackOverflowError")


def _above(parts: Sequence[Node], kind: Kind, evaluate: Evaluate, text: str) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > _MAX_DEPTH:
        raise too_deep()
    return Node(kind, evaluate, text, depth=depth)


def all_of(parts: list[Node]) -> Node:
    """AND."""
    asked = [truth(part).evaluate for part in parts]
    return _above(parts, Kind.TRUTH, lambda given: values.all_of(one(given) for one in asked), _joined(parts, "&&"))


def any_of(parts: list[Node]) -> Node:
    """OR."""
    asked = [truth(part).evaluate for part in parts]
    return _above(parts, Kind.TRUTH, lambda given: values.any_of(one(given) for one in asked), _joined(parts, "||"))


def _joined(parts: list[Node], sign: str) -> str:
    first, *others = (part.text for part in parts)
    return "(" * len(others) + first + "".join(f" {sign} {text})" for text in others)


def inverse(node: Node) -> Node:
    """NOT."""
    evaluate = truth(node).evaluate
    return _above([node], Kind.TRUTH, lambda given: values.inverse(evaluate(given)), f"(NOT {node.text})")


def negative(node: Node) -> Node:
    """The minus sign. What it stands before is no literal any more."""
    return _above([node], Kind.OTHER, lambda given: values.negative(node.evaluate(given)), f"(- {node.text})")


def equal(left: Node, right: Node) -> Node:
    """The sign =.

    Raises:
        SqlError: NULL is compared, or a truth value with another literal.
    """
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise SqlError(f"'{node.text}' cannot be compared.")
    if left.kind is Kind.TRUTH_CONSTANT and right.kind is Kind.CONSTANT:
        raise SqlError(f"'{left.text}' cannot be compared with '{right.text}'")
    return _equal(left, right)


def _equal(left: Node, right: Node) -> Node:
    one, other = left.evaluate, right.evaluate
    text = f"({left.text} == {right.text})"
    return _above([left, right], Kind.TRUTH, lambda given: values.equal(one(given), other(given)), text)


def is_null(node: Node) -> Node:
    """IS NULL."""
    return _equal(node, constant(None))


def ordered(sign: str, left: Node, right: Node) -> Node:
    """A comparison of order.

    Raises:
        SqlError: a text or a truth value has none.
    """
    for node in (left, right):
        if node.is_truth or (node.is_constant and not values.is_number(node.value)):
            raise SqlError(f"Value '{node.text}' cannot be compared.")
    one, other, order = left.evaluate, right.evaluate, values.ORDERS[sign]
    text = f"({left.text} {sign} {right.text})"
    return _above([left, right], Kind.TRUTH, lambda given: values.in_order(order, one(given), other(given)), text)


def between(node: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """BETWEEN and NOT BETWEEN.

    Raises:
        SqlError: nothing is between two literals, or as ``ordered``.
    """
    if negated:
        return any_of([ordered("<", node, low), ordered(">", node, high)])
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise SqlError("Illegal values of between, values can not be null!")
        if values.compare(high.value, low.value) < 0:
            bounds = f"left value({_shown(low)}) must less than or equal to right value({_shown(high)})"
            raise SqlError(f"Illegal values of between, {bounds}")
    return all_of([ordered(">=", node, low), ordered("<=", node, high)])


def _shown(node: Node) -> str:
    return str(node.value).lower() if isinstance(node.value, bool) else str(node.value)


def within(node: Node, texts: list[str], *, negated: bool) -> Node:
    """IN and NOT IN: of texts only.

    Raises:
        SqlError: not of a property.
    """
    if node.kind is not Kind.PROPERTY:
        raise SqlError(f"Expected a property for In expression, got: {node.text}")
    wanted, property_value = frozenset(texts), node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = property_value(properties)
        return None if value is None else (value in wanted) != negated

    return _above([node], Kind.TRUTH, evaluate, f"{node.text} {'NOT IN' if negated else 'IN'} ( {', '.join(texts)} )")


def text_test(word: str, node: Node, text: str, *, negated: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH, and with NOT: false of what is no text, and for the empty text."""
    test = TEXT_TESTS[word]

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return text != "" and isinstance(value, str) and test(value, text) != negated

    return _above([node], Kind.TRUTH, evaluate, f"({'NOT ' * negated}{word} {node.text})")
