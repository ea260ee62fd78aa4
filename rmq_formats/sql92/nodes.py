"""Syntax tree nodes of a SQL92 filter, which evaluate to a value for a message's properties.

The rules of what may stand where are Java's: texts and truth values have no order, NULL is an operand of IS only,
and IN takes a property. Texts of nodes are printed as in Java, as they occur in its errors.

Source: ``ComparisonExpression``, ``UnaryExpression#createBooleanCast``, ``LogicExpression``, ``ConstantExpression``,
``SelectorParser#asBooleanExpression``.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rmq_formats.sql92 import values
from rmq_formats.sql92.values import PARSE_EXCEPTION, SqlError, Value

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


_MAX_DEPTH: Final = 200  # limit of nested calls in an evaluation


class NodeKind(Enum):
    """Kind of a node, which decides where the node may stand."""

    CONSTANT = auto()
    TRUTH_CONSTANT = auto()  # TRUE, FALSE, NULL
    PROPERTY = auto()
    TRUTH = auto()
    OTHER = auto()  # a negated value


@dataclass(frozen=True, slots=True)
class Node:
    """Node of the syntax tree: a part of an expression, with its text as Java prints it, and the value of a literal."""

    kind: NodeKind
    evaluate: Evaluate
    text: str
    value: Value = None
    depth: int = 1

    @property
    def is_constant(self) -> bool:
        """True if the node is a literal."""
        return self.kind in (NodeKind.CONSTANT, NodeKind.TRUTH_CONSTANT)

    @property
    def is_truth(self) -> bool:
        """True if the node's value can only be a truth value."""
        return self.kind in (NodeKind.TRUTH, NodeKind.TRUTH_CONSTANT)


def constant(value: Value) -> Node:
    """Make the node of a literal."""
    if value is None or isinstance(value, bool):
        return Node(NodeKind.TRUTH_CONSTANT, lambda _: value, "NULL" if value is None else str(value).upper(), value)
    text = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return Node(NodeKind.CONSTANT, lambda _: value, text, value)


def named(name: str) -> Node:
    """Make the node of a property."""
    return Node(NodeKind.PROPERTY, lambda properties: properties.get(name), name)


def truth(node: Node) -> Node:
    """Make a node a condition: a property, which is text, is false then. Raises SqlError for other values."""
    if node.is_truth:
        return node
    if node.kind is not NodeKind.PROPERTY:
        raise SqlError(f"Expression will not result in a boolean value: {node.text}", PARSE_EXCEPTION)
    evaluate = node.evaluate
    return Node(NodeKind.TRUTH, lambda properties: None if evaluate(properties) is None else False, node.text)


def too_deep() -> SqlError:
    """Make the error of an expression that nests too deep for Java's stack."""
    return SqlError("an expression that nests too deep", "java.lang.StackOverflowError")


def _above(parts: Sequence[Node], kind: NodeKind, evaluate: Evaluate, text: str) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > _MAX_DEPTH:
        raise too_deep()
    return Node(kind, evaluate, text, depth=depth)


def all_of(parts: list[Node]) -> Node:
    """Make the node of AND."""
    return _combined(parts, values.all_of, "&&")


def any_of(parts: list[Node]) -> Node:
    """Make the node of OR."""
    return _combined(parts, values.any_of, "||")


def _combined(parts: list[Node], combine: Callable[[Iterable[Value]], Value], sign: str) -> Node:
    terms = [truth(part).evaluate for part in parts]
    first, *other_texts = (part.text for part in parts)
    text = "(" * len(other_texts) + first + "".join(f" {sign} {text})" for text in other_texts)
    return _above(parts, NodeKind.TRUTH, lambda row: combine(term(row) for term in terms), text)


def inverse(node: Node) -> Node:
    """Make the node of NOT."""
    evaluate = truth(node).evaluate
    return _above([node], NodeKind.TRUTH, lambda row: values.inverse(evaluate(row)), f"(NOT {node.text})")


def negative(node: Node) -> Node:
    """Make the node of the minus sign. What it stands before is no literal any more."""
    return _above([node], NodeKind.OTHER, lambda row: values.negative(node.evaluate(row)), f"(- {node.text})")


def equal(left: Node, right: Node) -> Node:
    """Make the node of ``=``. Raises SqlError if NULL is compared, or a truth value with another literal."""
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise SqlError(f"'{node.text}' cannot be compared.")
    if left.kind is NodeKind.TRUTH_CONSTANT and right.kind is NodeKind.CONSTANT:
        raise SqlError(f"'{left.text}' cannot be compared with '{right.text}'")
    return _equal(left, right)


def _equal(left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate
    text = f"({left.text} == {right.text})"
    return _above([left, right], NodeKind.TRUTH, lambda row: values.equal(first(row), second(row)), text)


def is_null(node: Node) -> Node:
    """Make the node of IS NULL."""
    return _equal(node, constant(None))


def ordered(sign: str, left: Node, right: Node) -> Node:
    """Make the node of ``<``, ``<=``, ``>`` or ``>=``. Raises SqlError: texts and truth values have no order."""
    for node in (left, right):
        if node.is_truth or (node.is_constant and not values.is_number(node.value)):
            raise SqlError(f"Value '{node.text}' cannot be compared.")
    first, second, order = left.evaluate, right.evaluate, values.ORDERS[sign]
    text = f"({left.text} {sign} {right.text})"
    return _above([left, right], NodeKind.TRUTH, lambda row: values.in_order(order, first(row), second(row)), text)


def between(node: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """Make the node of BETWEEN or NOT BETWEEN. Raises SqlError, also for literals that nothing is between."""
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
    """Make the node of IN or NOT IN, of texts only. Raises SqlError if the operand is not a property."""
    if node.kind is not NodeKind.PROPERTY:
        raise SqlError(f"Expected a property for In expression, got: {node.text}")
    listed_texts, property_value = frozenset(texts), node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = property_value(properties)
        return None if value is None else (value in listed_texts) != negated

    return _above(
        [node], NodeKind.TRUTH, evaluate, f"{node.text} {'NOT IN' if negated else 'IN'} ( {', '.join(texts)} )"
    )


def text_test(word: str, node: Node, text: str, *, negated: bool) -> Node:
    """Make the node of [NOT] CONTAINS, STARTSWITH, ENDSWITH: false of what is no text, and for the empty text."""
    test = TEXT_TESTS[word]

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return text != "" and isinstance(value, str) and test(value, text) != negated

    return _above([node], NodeKind.TRUTH, evaluate, f"({'NOT ' * negated}{word} {node.text})")
