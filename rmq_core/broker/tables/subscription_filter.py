"""Message filters of subscriptions: by tag through tags codes, by SQL92 through the record's properties.

Source: ``FilterAPI#buildSubscriptionData``, ``ExpressionMessageFilter``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.store.consumequeue.ext import MayMatchUnit
from rmq_core.store.read import Matches
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmq_formats.codecs.properties import raw_property
from rmq_formats.codecs.record_frame import record_properties
from rmq_formats.sql92 import Expression, SqlError, compile_expression

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
_END: Final = bytes([PROPERTY_SEPARATOR])
_NAME_END: Final = bytes([NAME_VALUE_SEPARATOR])
_MOST_SHARED_TAGS: Final = 64  # filters of more are not kept for those with the same tags: 4096 would take 3 GiB
_TAG_BYTES: Final = 128  # of a tag in a filter
_MEMO_ENTRIES: Final = 1024
_MEMO_VALUE_BYTES: Final = 256  # of all values together: long ones seldom come twice


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of a subscription: tags codes, or a function of the record.

    Attributes:
        tags_codes: messages with one of these; None lets all through.
        matches: asked with the record; None lets all through.
        may_match_unit: asked before with the store timestamp (ms) and the bit map that ConsumeQueueExt has; None
            lets all through.
    """

    tags_codes: frozenset[int] | None = None
    matches: Matches | None = None
    may_match_unit: MayMatchUnit | None = None

    @property
    def own_bytes(self) -> int:
        """Memory that the filter does not share with others of the same expression, B."""
        tags = 0 if self.tags_codes is None else len(self.tags_codes)
        return _TAG_BYTES * tags if tags > _MOST_SHARED_TAGS else 0

    def may_match(self, tags_codes: list[int] | None) -> bool:
        """Return whether any of some new messages may match, by their tags codes."""
        return self.tags_codes is None or tags_codes is None or not self.tags_codes.isdisjoint(tags_codes)


EVERYTHING: Final = Filter()


def is_tag_type(expression_type: object) -> bool:
    """Return whether an expression type is that of tags."""
    return not isinstance(expression_type, str) or expression_type in ("", TAG)


def subscription(topic: str, expression: str | None, expression_type: str | None, version: int) -> SubscriptionData:
    """Parse an expression into a subscription.

    Raises:
        ValueError: an expression of tags without tags, or an empty one of another type.

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
    """Return the filter of an expression not of tags. Raises SqlError for a syntax error or an unknown type."""
    if expression_type != SQL92:
        raise SqlError(f"unknown filter type {expression_type!r}", "java.lang.NullPointerException")
    return _of_sql(expression)


@lru_cache(maxsize=1024)  # each remembers up to _MEMO_ENTRIES answers
def _of_sql(text: str) -> Filter:
    return Filter(matches=_matcher(compile_expression(text)))


def _matcher(expression: Expression) -> Matches:
    """Evaluate an expression on records, with a memo by the values of the properties that it names."""
    names = [(name, name.encode()) for name in expression.names]
    begins = [_END + name + _NAME_END for _, name in names]
    memo: dict[tuple[bytes, ...], bool] = {}

    def matches(record: memoryview) -> bool:
        properties = record_properties(record)
        if properties is None:
            return False
        properties = _END + properties
        parts = []
        for begin in begins:
            _, is_there, rest = properties.rpartition(begin)
            # If the last property of a name has no value, an earlier one may have.
            parts.append(is_there and (rest.partition(_END)[0] or raw_property(properties, begin[1:-1])))
        values = tuple(parts)
        is_match = memo.get(values)
        if is_match is None:
            decoded = {name: value.decode("utf-8", "replace") for (name, _), value in zip(names, values, strict=True)}
            is_match = expression({name: value for name, value in decoded.items() if value})
            if len(memo) >= _MEMO_ENTRIES:
                memo.clear()
            if sum(map(len, values)) <= _MEMO_VALUE_BYTES:
                memo[values] = is_match
        return is_match

    return matches


def filter_of(data: SubscriptionData) -> Filter:
    """Return the filter of a subscription. Raises SqlError if it does not compile."""
    if data.class_filter_mode:
        return EVERYTHING
    if not is_tag_type(data.expression_type):
        return sql_filter(data.sub_string, data.expression_type or SQL92)
    if data.sub_string == ALL or not data.code_set:
        return EVERYTHING
    codes = tuple(data.code_set)
    return _of_tags(codes) if len(codes) <= _MOST_SHARED_TAGS else Filter(tags_codes=frozenset(codes))
