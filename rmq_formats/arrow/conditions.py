"""Reads conditions on single columns out of a ``pyarrow.compute.Expression``.

pyarrow has no access to the parts of an expression, but writes Substrait, in protobuf. This module reads the few
messages of a filter. The conditions follow from the expression, which may demand more: whoever narrows a read by the
conditions still has to apply the expression. Unknown messages are no condition.

Source: ``substrait/extended_expression.proto``, ``substrait/algebra.proto``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

# Numbers of fields, message by message.
_EXTENSIONS, _EXPRESSIONS = 2, 3  # ExtendedExpression
_DECLARED_FUNCTION, _ANCHOR, _NAME = 3, 2, 3  # SimpleExtensionDeclaration
_EXPRESSION = 1  # ExpressionReference
_LITERAL, _SELECTION, _FUNCTION, _IF, _LIST = 1, 2, 3, 6, 8  # Expression
_REFERENCE, _ARGUMENTS, _VALUE = 1, 4, 3  # ScalarFunction, FunctionArgument
_IFS, _ELSE, _THEN = 1, 2, 2  # IfThen, IfClause
_LISTED, _OPTIONS = 1, 2  # SingularOrList
_DIRECT, _STRUCT_FIELD, _FIELD, _CHILD = 1, 2, 1, 2  # FieldReference, ReferenceSegment, StructField
_INTEGERS, _STRING, _TIMESTAMP_US, _NULL = (2, 3, 5, 7), 12, 27, 29  # Literal

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MIRRORED: Final = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte", "equal": "equal"}
# pyarrow's Substrait of nested calls doubles with each: 12 of them are a megabyte. A filter of more narrows nothing.
_MAX_CALLS: Final = 12

_Message = Mapping[int, list[Any]]


class Comparison(StrEnum):
    """Comparison of a column with values."""

    IN = "equal"
    LESS = "lt"
    LESS_OR_EQUAL = "lte"
    GREATER = "gt"
    GREATER_OR_EQUAL = "gte"


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on one column."""

    column: str
    comparison: Comparison
    values: tuple[str | int, ...]  # a single value, or with IN several; times are in µs since 1970


def conditions(expression: Any, schema: pa.Schema) -> list[Condition]:
    """Find conditions that follow from a ``pyarrow.compute.Expression``, bound or not."""
    if str(expression).count("(") > _MAX_CALLS:
        return []
    try:
        plan = _message(bytes(expression.to_substrait(schema)))
        functions = _functions(plan)
        root = _message(_first(_message(_first(plan, _EXPRESSIONS)), _EXPRESSION))
        return list(_Reader(schema, functions).conditions(root))
    except (pa.ArrowException, ImportError, IndexError, KeyError, ValueError):
        return []  # pyarrow has no Substrait of the expression, or writes unknown messages


def _functions(plan: _Message) -> dict[int, str]:
    """Return the names of the functions that a plan declares, by their anchors."""
    names = {}
    for declaration in plan.get(_EXTENSIONS, []):
        for declared in _message(declaration).get(_DECLARED_FUNCTION, []):
            function = _message(declared)
            names[function.get(_ANCHOR, [0])[0]] = _first(function, _NAME).decode().partition(":")[0]
    return names


class _Reader:
    def __init__(self, schema: pa.Schema, functions: Mapping[int, str]) -> None:
        self._schema = schema
        self._functions = functions

    def conditions(self, expression: _Message) -> Iterator[Condition]:
        if _LIST in expression:
            yield from self._listed(_message(_first(expression, _LIST)))
        elif _IF in expression:  # DuckDB's IN: if the column is not null then the condition else null
            choice = _message(_first(expression, _IF))
            if len(choice[_IFS]) == 1 and _is_null(_message(_first(choice, _ELSE))):
                then = _message(_first(_message(_first(choice, _IFS)), _THEN))
                yield from self.conditions(then)
        elif _FUNCTION in expression:
            function = _message(_first(expression, _FUNCTION))
            name = self._functions[function.get(_REFERENCE, [0])[0]]
            arguments = [_message(_first(_message(part), _VALUE)) for part in function.get(_ARGUMENTS, [])]
            if name == "and":
                for argument in arguments:
                    yield from self.conditions(argument)
            elif name == "or":
                yield from self._one_of(arguments)
            elif name in _MIRRORED and len(arguments) == 2:
                yield from self._compared(name, *arguments)

    def _one_of(self, arguments: list[_Message]) -> Iterator[Condition]:
        """Join alternatives that are all values of the same column."""
        values: list[str | int] = []
        columns = set()
        for argument in arguments:
            alternatives = list(self.conditions(argument))
            if len(alternatives) != 1 or alternatives[0].comparison is not Comparison.IN:
                return
            columns.add(alternatives[0].column)
            values += alternatives[0].values
        if len(columns) == 1:
            yield Condition(columns.pop(), Comparison.IN, tuple(values))

    def _compared(self, name: str, left: _Message, right: _Message) -> Iterator[Condition]:
        column, value = self._column(left), self._literal(right)
        if column is None:
            name, column, value = _MIRRORED[name], self._column(right), self._literal(left)
        if column is not None and value is not None:
            yield Condition(column, Comparison(name), (value,))

    def _listed(self, listed: _Message) -> Iterator[Condition]:
        column = self._column(_message(_first(listed, _LISTED)))
        values = [self._literal(_message(option)) for option in listed.get(_OPTIONS, [])]
        known_values = tuple(value for value in values if value is not None)
        if column is not None and len(known_values) == len(values):
            yield Condition(column, Comparison.IN, known_values)

    def _column(self, expression: _Message) -> str | None:
        """Return the name of a column; None for other expressions, such as a field of a struct."""
        if _SELECTION not in expression:
            return None
        direct = _message(_first(expression, _SELECTION)).get(_DIRECT)
        if not direct:
            return None
        field = _message(_first(_message(direct[0]), _STRUCT_FIELD))
        return None if _CHILD in field else str(self._schema.names[field.get(_FIELD, [0])[0]])

    def _literal(self, expression: _Message) -> str | int | None:
        """Return the value of a text, an integer or a time in µs; None for other expressions, such as null."""
        if _LITERAL not in expression:
            return None
        literal = _message(_first(expression, _LITERAL))
        for kind in (*_INTEGERS, _TIMESTAMP_US):
            if kind in literal:
                number: int = literal[kind][0]
                return number - (1 << 64) if number >> 63 else number
        return _first(literal, _STRING).decode() if _STRING in literal else None


def _is_null(expression: _Message) -> bool:
    return _LITERAL in expression and _NULL in _message(_first(expression, _LITERAL))


def _first(message: _Message, field: int) -> Any:
    return message[field][0]


def _message(data: bytes) -> _Message:
    """Read the values of each field of a protobuf message, integers or bytes. Raises ValueError, IndexError."""
    if not isinstance(data, bytes):
        raise ValueError("a number where a message should be")
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            size = 8 if kind == _FIXED64 else 4
            if kind == _BYTES:
                size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError("cut off")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {kind}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[Any, int]:
    value = shift = 0
    while data[at] >> 7:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1
