"""Filter pushdown of ``rmq_commitlog``, for reads with ``option("pushdown", "true")``.

Spark keeps pushed filters with the ``load()`` and applies them again in every later action on it: after
``df.filter("topic = 'a'").count()`` a ``df.count()`` counts topic a only. So each query needs a ``load()``
of its own, which is why this is off by default. Every filter is also handed back, so that Spark applies it
too: the reader only must not drop a row that the filter keeps.
"""

from collections.abc import Iterable
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

from rmq_formats.arrow.conditions import Comparison, Condition
from rmq_formats.read.narrowing import narrowed
from rmq_formats.spark.commitlog.batch import CommitLogReader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS: Final[dict[type[Filter], Comparison]] = {
    EqualTo: Comparison.IN,
    In: Comparison.IN,
    GreaterThan: Comparison.GREATER,
    GreaterThanOrEqual: Comparison.GREATER_OR_EQUAL,
    LessThan: Comparison.LESS,
    LessThanOrEqual: Comparison.LESS_OR_EQUAL,
}


class PushdownCommitLogReader(CommitLogReader):
    """Batch reader that narrows its query by the filters that Spark offers."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        """Take the filters that a scan can use; hand all of them back for Spark to apply."""
        conditions = [found for given in filters for found in condition(given)]
        self._options = self._options.narrowed(lambda query: narrowed(query, conditions))
        return filters


def condition(given: Filter) -> list[Condition]:
    """Return the condition that a filter of Spark's is, if it is one on a single column that a scan may use."""
    column: tuple[str, ...] = getattr(given, "attribute", ())
    value = getattr(given, "value", None)
    comparison = _COMPARISONS.get(type(given))
    if len(column) != 1 or value is None or comparison is None:
        return []
    values = [_plain(item) for item in (value if isinstance(given, In) else (value,))]
    known = tuple(item for item in values if item is not None)
    return [Condition(column[0], comparison, known)] if len(known) == len(values) else []


def _plain(value: Any) -> str | int | None:
    """Return a text or an integer; of a time the µs since 1970; None for all else."""
    if isinstance(value, datetime):
        return None if value.tzinfo is None else (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, str | int) else None
