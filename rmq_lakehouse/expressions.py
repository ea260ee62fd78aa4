"""Expressions of Spark that users or owners of tables wrote: conditions, constraints, generated columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.logger import PySparkLogger
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from rmq_lakehouse.java import java_class

_QUERY_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # of Spark's errors with their stack


def null_on_error(spark: SparkSession, value: Column) -> Column:
    """Return an expression that is null in rows where a value cannot be computed, as in a division by zero.

    Spark's ``TryEval`` catches the error of a row. Spark may compute a term that occurs twice, such as that of
    ``a / b > 1 AND a / b < 5``, before ``TryEval``. Spark does not do so within a lambda.
    """
    jvm: Any = spark._jvm
    classic = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    java_value: Any = value
    attempt = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")(classic.expression(java_value._jc))
    return F.transform(F.array(F.lit(0)), lambda _: ClassicColumn(classic.column(attempt)))[0]


@contextmanager
def silence_query_logs() -> Iterator[None]:
    """Silence Spark's logs of errors of queries, with their stacks, for the duration of the context."""
    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]
    former = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, former, strict=True):
            logger.disabled = disabled
