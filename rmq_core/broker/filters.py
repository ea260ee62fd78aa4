"""What a subscription lets through: tags by their codes, SQL92 by the record's properties.

Source: ``FilterAPI#buildSubscriptionData``, ``ExpressionMessageFilter``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rmq_core.remoting.bodies import SubscriptionData
from rmq_formats.frame import record_properties
from rmq_formats.hashing import java_string_hash
from rmq_formats.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmq_formats.properties import raw_property
from rmq_formats.sql92 import Expression, SqlError, compile_expression

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
Matches = Callable[[memoryview], bool]
MayMatchUnit = Callable[[int, bytes], bool]
_END: Final = bytes([PROPERTY_SEPARATOR])
_NAME_END: Final = bytes([NAME_VALUE_SEPARATOR])
_MEMO_ENTRIES: Final = 1024
_MEMO_VALUE_BYTES: Final = 256  # of all values together: long ones seldom come twice


@dataclass(frozen=True, slots=True)
class Filter:
    """What is let through.

    Attributes:
        tags_codes: messages with one of these; None lets all through.
        matches: asked with the record; None lets all through.
        may_match_unit: asked before with the store timestamp (ms) and the bit map that ConsumeQueueExt has; None
            lets all through.
    """

    tags_codes: frozenset[int] | None = None
    matches: Matches | None = None
    may_match_unit: MayMatchUnit | None = None

    def may_match(self, tags_codes: list[int]) -> bool:
        """Whether one of some new messages may be let through, as far as their tags codes tell."""
        return self.tags_codes is None or not self.tags_codes.isdisjoint(tags_codes)


EVERYTHING: Final = Filter()


def is_tag_type(expression_type: object) -> bool:
    """Whether an expression is one of tags."""
    return not isinstance(expression_type, str) or expression_type in ("", TAG)


def subscription(topic: str, expression: str | None, expression_type: str | None, version: int) -> SubscriptionData:
    """The subscription that an expression means.

    Raises:
        ValueError: an expression of tags that has none, or another one that is empty.

    Source: ``FilterAPI#build``.
    """
    text = expression or ""
    if not is_tag_type(expression_type):
        if not text:
            raise ValueError("Expression can't be null!")
        return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version)
    tags = [] if text in ("", ALL) else [tag.strip() for tag in text.split("||") if tag.strip()]
    if text not in ("", ALL) and not tags:
        raise ValueError("subString split error")
    return SubscriptionData(
        topic=topic,
        sub_string=text or ALL,
        sub_version=version,
        tags_set=tags,
        code_set=[java_string_hash(tag) for tag in tags],
    )


@lru_cache(maxsize=4096)
def _of_tags(codes: tuple[int, ...]) -> Filter:
    return Filter(tags_codes=frozenset(codes))


def sql_filter(expression: str, expression_type: str) -> Filter:
    """What an expression that is none of tags lets through.

    Raises:
        SqlError: an expression that does not compile, or of a type that is not known.
    """
    if expression_type != SQL92:
        raise SqlError(f"no filter is of the type {expression_type}", "java.lang.NullPointerException")
    return _of_sql(expression)


@lru_cache(maxsize=1024)  # each remembers up to _MEMO_ENTRIES answers
def _of_sql(text: str) -> Filter:
    return Filter(matches=_matcher(compile_expression(text)))


def _matcher(expression: Expression) -> Matches:
    """The expression over records: evaluated once for each combination of values that comes often."""
    names = [(name, name.encode()) for name in expression.names]
    begins = [_END + name + _NAME_END for _, name in names]
    known: dict[tuple[bytes, ...], bool] = {}

    def matches(record: memoryview) -> bool:
        properties = record_properties(record)
        if properties is None:
            return False
        properties = _END + properties
        parts = []
        for begin in begins:
            _, is_there, rest = properties.rpartition(begin)
            # Of one that has no value, one before it may have.
            parts.append(is_there and (rest.partition(_END)[0] or raw_property(properties, begin[1:-1])))
        values = tuple(parts)
        found = known.get(values)
        if found is None:
            given = {name: value.decode("utf-8", "replace") for (name, _), value in zip(names, values, strict=True)}
            found = expression({name: value for name, value in given.items() if value})
            if len(known) >= _MEMO_ENTRIES:
                known.clear()
            if sum(map(len, values)) <= _MEMO_VALUE_BYTES:
                known[values] = found
        return found

    return matches


def filter_of(one: SubscriptionData) -> Filter:
    """What a subscription lets through.

    Raises:
        SqlError: an expression that does not compile.
    """
    if one.class_filter_mode:
        return EVERYTHING
    if not is_tag_type(one.expression_type):
        return sql_filter(one.sub_string, one.expression_type or SQL92)
    return EVERYTHING if one.sub_string == ALL or not one.code_set else _of_tags(tuple(one.code_set))
