"""Filter pushdown of ``rmq_commitlog``, for reads with ``option("pushdown", "true")``.

Spark keeps pushed filters with the ``load()`` and applies them again in every later action on it: after
``df.filter("topic = 'a'").count()`` a ``df.count()`` counts topic a only. So each query needs a ``load()``
of its own, which is why this is off by default. Every filter is also handed back, so that Spark applies it
too: the reader only must not drop a row that the filter keeps.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.errors import DecodeError
from rmq_formats.read.query import Query
from rmq_formats.spark.commitlog.batch import CommitLogReader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PushdownCommitLogReader(CommitLogReader):
    """Batch reader that narrows its query by the filters that Spark offers."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        """Take the filters that a scan can use; hand all of them back for Spark to apply."""
        query = self._options.query
        for condition in filters:
            query = narrowed(query, condition)
        self._options = replace(self._options, read=replace(self._options.read, query=query))
        return filters


def narrowed(query: Query, condition: Filter) -> Query:
    """Return the query with one more condition; the same query if a scan cannot use the condition."""
    column: tuple[str, ...] = getattr(condition, "attribute", ())
    value = getattr(condition, "value", None)
    if len(column) != 1 or value is None:
        return query
    if isinstance(condition, EqualTo | In):
        return _narrowed_to_values(query, column[0], value if isinstance(condition, In) else (value,))
    if isinstance(condition, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return _narrowed_to_range(query, column[0], condition, value)
    return query


def _narrowed_to_values(query: Query, column: str, values: Iterable[Any]) -> Query:
    wanted = frozenset(values)
    if column == "topic" and all(isinstance(value, str) for value in wanted):
        return replace(query, topic_values=wanted if query.topic_values is None else wanted & query.topic_values)
    if column == "tags" and all(isinstance(value, str) for value in wanted):
        return replace(query, tags=wanted if query.tags is None else wanted & query.tags)
    if len(wanted) == 1 and column == "msg_id" and query.msg_id is None:
        value = next(iter(wanted))
        try:
            return replace(query, msg_id=decode_message_id(value)) if value == value.upper() else query
        except (AttributeError, DecodeError):
            return query
    if len(wanted) == 1 and column in {"physical_offset", "store_timestamp"}:
        value = next(iter(wanted))
        lower = _narrowed_to_range(query, column, GreaterThanOrEqual((column,), value), value)
        return _narrowed_to_range(lower, column, LessThanOrEqual((column,), value), value)
    return query


def _narrowed_to_range(query: Query, column: str, condition: Filter, value: Any) -> Query:
    """Narrow a range; bounds are rounded outwards, to the byte and to the millisecond."""
    is_lower = isinstance(condition, GreaterThan | GreaterThanOrEqual)
    if column == "physical_offset" and isinstance(value, int):
        if is_lower:
            return replace(query, first_physical_offset=max(query.first_physical_offset, value))
        return replace(query, end_physical_offset=min(query.end_physical_offset, value + 1))
    if column == "store_timestamp" and isinstance(value, datetime):
        if value.tzinfo is None:
            return query
        moment_ms = (value - _EPOCH) // timedelta(milliseconds=1)
        first_ms, end_ms = query.time_bounds
        if is_lower:
            return replace(query, first_ms=max(first_ms, moment_ms))
        return replace(query, end_ms=min(end_ms, moment_ms + 1))
    return query
