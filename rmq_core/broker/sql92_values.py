"""Values of SQL92 filters: how they are compared and combined.

A property is text. Compared with a number, it is read as one of that number's kind.

Source: ``ComparisonExpression#compare``, ``LogicExpression``.
"""

import operator
import re
from collections.abc import Callable
from typing import Any, Final

from rmq_formats.errors import RmqError

Value = str | int | float | bool | None
_LONG: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"\s*[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?)\s*")


class SqlError(RmqError):
    """An expression that does not compile, or cannot be evaluated for some properties."""


ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def is_number(value: Value) -> bool:
    """Whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def long(text: str) -> int:
    """A text as an integer of 64 bits.

    Raises:
        SqlError: it is none.
    """
    if len(text) > 20 or _LONG.fullmatch(text) is None or not -(1 << 63) <= int(text) < 1 << 63:
        raise SqlError(f"{text[:32]!r} is no integer")
    return int(text)


def double(text: str) -> float:
    """A text as a floating-point number.

    Raises:
        SqlError: it is none.
    """
    if _DOUBLE.fullmatch(text) is None:
        raise SqlError(f"{text[:32]!r} is no number")
    return float(text.strip().rstrip("dDfF") if "inity" not in text else text)


def negative(value: Value) -> Value:
    """A number with the other sign; None of anything else."""
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _matched(one: Value, other: Value) -> tuple[Any, Any] | None:
    """Two values as ones of a kind; None where they cannot be compared."""
    if isinstance(one, str) and not isinstance(other, str):
        return _read_as(other, one), other
    if isinstance(other, str) and not isinstance(one, str):
        return one, _read_as(one, other)
    if is_number(one) != is_number(other):
        return None
    return one, other


def _read_as(kind: Value, text: str) -> Value:
    if isinstance(kind, bool):
        return text.lower() == "true"
    return long(text) if isinstance(kind, int) else double(text)


def equal(one: Value, other: Value) -> Value:
    """Whether two values are equal; None if one is null."""
    if one is None or other is None:
        return None
    pair = _matched(one, other)
    return pair is not None and bool(pair[0] == pair[1])


def unequal(one: Value, other: Value) -> Value:
    """The contrary of ``equal``."""
    return inverse(equal(one, other))


def in_order(order: Callable[[Any, Any], bool], one: Value, other: Value) -> Value:
    """Whether two values are in an order; None if one is null.

    Raises:
        SqlError: texts that are no numbers.
    """
    if one is None or other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        return order(double(one), double(other))
    pair = _matched(one, other)
    return pair is not None and order(*pair)


def inverse(value: Value) -> Value:
    """NOT."""
    return None if value is None else value is not True


def both(left: Value, right: Callable[[], Value]) -> Value:
    """AND: the right side is only asked where it matters."""
    if left is False:
        return False
    other = right()
    if other is False:
        return False
    return None if left is None or other is None else True


def either(left: Value, right: Callable[[], Value]) -> Value:
    """OR: the right side is only asked where it matters."""
    if left is True:
        return True
    other = right()
    if other is True:
        return True
    return None if left is None or other is None else False
