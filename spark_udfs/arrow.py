"""Functions over Arrow columns that become Spark's where they are used: by then there is a session of a known kind.

``pyspark.sql.functions.arrow_udf`` makes a function for sessions of Spark Connect or for others, once and for all,
where it is called; it came with Spark 4.1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, functions
from pyspark.sql.types import DataType

from rmq_formats.spark.versions import SPARK_VERSION, need_spark

ARROW_UDFS: Final = (4, 1)  # the first Spark that has them


@dataclass(frozen=True, slots=True)
class ArrowFunction:
    """A column function.

    Attributes:
        over_arrays: the function of Arrow arrays.
        returns: type of its result.
    """

    over_arrays: Callable[..., Any]
    returns: DataType

    def __call__(self, *columns: Column | str) -> Column:
        """Apply it to columns.

        Raises:
            OptionError: before Spark 4.1.
        """
        column: Column = self.of_spark()(*columns)
        return column

    def of_spark(self) -> Callable[..., Any]:
        """Make Spark's function for the session that there is now. Raises OptionError before Spark 4.1."""
        _need_arrow_udfs()
        made: Callable[..., Any] = functions.arrow_udf(self.over_arrays, self.returns)
        return made

    def for_sql(self) -> Callable[..., Any]:
        """Make the function that SQL finds by its name; before Spark 4.1 one that says so where it is used."""
        return self.of_spark() if SPARK_VERSION >= ARROW_UDFS else functions.udf(_need_arrow_udfs, self.returns)


def arrow_function(returns: DataType) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Decorate a function of Arrow arrays."""
    return lambda over_arrays: ArrowFunction(over_arrays, returns)


def _need_arrow_udfs(*_: object) -> None:
    need_spark(ARROW_UDFS, "a column function of spark_udfs")
