"""Value semantics of SQL92 filters: literals, comparison, three-valued logic.

A property is text. Compared with a number, it is parsed as that number's type; the types are Java's
Integer (int), Long (``Long``) and Double (float).

Source: ``ConstantExpression#createFromDecimal``, ``#createFloat``, ``ComparisonExpression#__compare``,
``#doCreateEqual``, ``#evaluate``, ``LogicExpression``; ``valueOf`` of Integer, Long and Double.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Final

from rmq_formats.errors import RmqError


class Long(int):
    """Literal that does not fit into 32 bits: texts compared with it are read as integers of 64 bits."""


Value = str | int | float | bool | None
INT_BITS: Final = 32
LONG_BITS: Final = 64
PARSE_EXCEPTION: Final = "org.apache.rocketmq.filter.parser.ParseException"
_LEAST_DOUBLE: Final = 4.9e-324
_SPACES: Final = "".join(map(chr, range(0x21)))  # String#trim
_INTEGER: Final = re.compile(r"[+-]?(?P<digits>\d+)")
# Possessive (``++``), no backtracking: a property of thousands of digits is scanned once.
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?(?P<kind>[dDfF]?))"
)
_HEX_DOUBLE: Final = re.compile(
    r"(?P<number>[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[dDfF]?"
)


class SqlError(RmqError):
    """An expression does not compile, or cannot be evaluated; ``exception`` is the class that RocketMQ throws then."""

    def __init__(self, message: str, exception: str = "java.lang.RuntimeException") -> None:
        super().__init__(message)
        self.exception = exception

    @property
    def remark(self) -> str:
        """Remark of a Java broker's response to a client that checks the expression."""
        return f"{self.exception}: {self}"


ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}


def is_number(value: Value) -> bool:
    """Return whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer_literal(text: str) -> int:
    """Parse an integer literal, without its L. Raises SqlError if the number does not fit into 64 bits."""
    value = integer(text, LONG_BITS)
    return value if value < 1 << INT_BITS - 1 else Long(value)


def float_literal(text: str) -> float:
    """Parse a floating-point literal. Raises SqlError if it is too large, or 0, which RocketMQ refuses as too small."""
    value = float(text)
    if math.isinf(value):
        raise SqlError(f"{text} is greater than 1.7976931348623157E308")
    if value < _LEAST_DOUBLE:
        raise SqlError(f"{text} is less than 4.9E-324")
    return value


def integer(text: str, bits: int) -> int:
    """Parse a text as an integer of so many bits. Raises SqlError."""
    match = _INTEGER.fullmatch(text)
    digits = "" if match is None else match["digits"].lstrip("0")
    if match is not None and len(digits) <= bits:
        value = int(digits or "0") * (-1 if text[0] == "-" else 1)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise SqlError(f'For input string: "{text[:64]}"', "java.lang.NumberFormatException")


def double(text: str) -> float:
    """Parse a text as a floating-point number. Raises SqlError."""
    trimmed = text.strip(_SPACES)
    match = _DOUBLE.fullmatch(trimmed)
    if match is not None:
        return float(trimmed[:-1] if match["kind"] else trimmed)
    match = _HEX_DOUBLE.fullmatch(trimmed)
    if match is None:
        raise SqlError(f'For input string: "{text[:64]}"', "java.lang.NumberFormatException")
    try:
        return float.fromhex(match["number"])
    except OverflowError:
        return -math.inf if trimmed.startswith("-") else math.inf


def negative(value: Value) -> Value:
    """Negate a number; None of anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return Long(-value) if isinstance(value, Long) else -value


def compare(left: Value, right: Value) -> int:
    """Compare two values that are not null: below 0, 0, above; -1 if they are of two kinds.

    Raises SqlError if a text is not a number of the other operand's type, or stands right of a truth value.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return _in_order(_read_as(right, left), right)
    if isinstance(right, str):
        if isinstance(left, bool):
            raise SqlError("class java.lang.Boolean cannot be cast to class java.lang.String", "ClassCastException")
        return _in_order(left, _read_as(left, right))
    if isinstance(left, bool) != isinstance(right, bool):
        return -1
    return _in_order(left, right)


def _read_as(kind: Value, text: str) -> Value:
    if isinstance(kind, bool):
        return text.lower() == "true"
    if isinstance(kind, int):
        return integer(text, LONG_BITS if isinstance(kind, Long) else INT_BITS)
    return double(text)


def _in_order(left: Value, right: Value) -> int:
    """Compare two numbers or truth values as ``compareTo``: a Double's NaN is above all, and 0.0 above -0.0."""
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if not isinstance(left, float) and not isinstance(right, float):
        return (left > right) - (left < right)
    left_order, right_order = _sortable(float(left)), _sortable(float(right))
    return (left_order > right_order) - (left_order < right_order)


def _sortable(number: float) -> tuple[bool, float, bool]:
    if math.isnan(number):
        return True, 0.0, False
    return False, number, math.copysign(1.0, number) > 0


def equal(left: Value, right: Value) -> Value:
    """Return whether two values are equal. None if only the left one is null; two nulls are equal. Raises SqlError."""
    if left is None:
        return True if right is None else None
    return right is not None and compare(left, right) == 0


def in_order(order: Callable[[int], bool], left: Value, right: Value) -> Value:
    """Return whether two values are in an order; None if one is null. Raises SqlError if a text is not a number."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return order(_in_order(double(left), double(right)))
    return order(compare(left, right))


def inverse(value: Value) -> Value:
    """Negate a truth value (NOT)."""
    return None if value is None else value is not True


def all_of(parts: Iterable[Value]) -> Value:
    """Evaluate AND of parts, in turn until one is false."""
    is_open = False
    for value in parts:
        if value is False:
            return False
        is_open |= value is None
    return None if is_open else True


def any_of(parts: Iterable[Value]) -> Value:
    """Evaluate OR of parts, in turn until one is true."""
    is_open = False
    for value in parts:
        if value is True:
            return True
        is_open |= value is None
    return None if is_open else False
