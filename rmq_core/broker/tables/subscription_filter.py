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
_MAX_SHARED_TAGS: Final = 64  # filters of more tags are not cached: 4096 tags would take 3 GiB
_TAG_BYTES: Final = 128  # memory of a tag in a filter
_MEMO_ENTRIES: Final = 1024
_MEMO_VALUE_BYTES: Final = 256  # of all values together; long values seldom repeat


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of a subscription: tags codes, or a test of the record; None matches all messages.

    ``may_match_unit`` tests store timestamp (ms) and bit map in ConsumeQueueExt, before the record is read.
    """

    tags_codes: frozenset[int] | None = None
    matches: Matches | None = None
    may_match_unit: MayMatchUnit | None = None

    @property
    def own_bytes(self) -> int:
        """Memory of the filter that it does not share with filters of the same expression, B."""
        tags = 0 if self.tags_codes is None else len(self.tags_codes)
        return _TAG_BYTES * tags if tags > _MAX_SHARED_TAGS else 0

    def may_match(self, tags_codes: list[int] | None) -> bool:
        """Return whether any of some new messages may match, by their tags codes."""
        return self.tags_codes is None or tags_codes is None or not self.tags_codes.isdisjoint(tags_codes)


EVERYTHING: Final = Filter()


def is_tag_type(expression_type: object) -> bool:
    """Return whether an expression type is that of tags."""
    return not isinstance(expression_type, str) or expression_type in ("", TAG)


def subscription(topic: str, expression: str | None, expression_type: str | None, version: int) -> SubscriptionData:
    """Parse an expression into a subscription. Source: ``FilterAPI#build``.

    Raises ValueError for an expression of tags without a tag, or an empty expression of another type.
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
def _filter_of_tags(codes: tuple[int, ...]) -> Filter:
    return Filter(tags_codes=frozenset(codes))


def sql_filter(expression: str, expression_type: str) -> Filter:
    """Return the filter of an SQL92 expression. Raises SqlError for a syntax error or another expression type."""
    if expression_type != SQL92:
        raise SqlError(f"unknown filter type {expression_type!r}", "java.lang.NullPointerException")
    return _filter_of_sql(expression)


@lru_cache(maxsize=1024)  # each filter caches up to _MEMO_ENTRIES results
def _filter_of_sql(text: str) -> Filter:
    return Filter(matches=_compile_matcher(compile_expression(text)))


def _compile_matcher(expression: Expression) -> Matches:
    """Return a function that evaluates an expression on records, and caches results by the used property values."""
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
            _, separator, following = properties.rpartition(begin)
            # If the last property of this name has no value, an earlier one may have one.
            parts.append(separator and (following.partition(_END)[0] or raw_property(properties, begin[1:-1])))
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


def compile_subscription(data: SubscriptionData) -> Filter:
    """Return the filter of a subscription. Raises SqlError if the expression does not compile."""
    if data.class_filter_mode:
        return EVERYTHING
    if not is_tag_type(data.expression_type):
        return sql_filter(data.sub_string, data.expression_type or SQL92)
    if data.sub_string == ALL or not data.code_set:
        return EVERYTHING
    codes = tuple(data.code_set)
    return _filter_of_tags(codes) if len(codes) <= _MAX_SHARED_TAGS else Filter(tags_codes=frozenset(codes))
