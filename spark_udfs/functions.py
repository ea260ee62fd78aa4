"""Arrow UDFs of the column functions.

Spark's functions are made at their use: ``arrow_udf``, since Spark 4.1, makes a function either for sessions of Spark
Connect or for others, by the current session. Kernels are imported when a function runs: the driver only needs name and
type. Types are objects, since to parse a text takes a running session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, functions
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType

from rmq_formats.spark.versions import SPARK_VERSION, need_spark

ARROW_UDFS: Final = (4, 1)  # the first Spark that has them


@dataclass(frozen=True, slots=True)
class ArrowFunction:
    """A column function."""

    over_arrays: Callable[..., Any]
    returns: DataType

    def __call__(self, *columns: Column | str) -> Column:
        """Apply the function to columns. Raises OptionError before Spark 4.1."""
        _need_arrow_udfs()
        column: Column = self._arrow_udf()(*columns)
        return column

    def for_sql(self) -> Callable[..., Any]:
        """Make the function for SQL; before Spark 4.1 a function that raises OptionError when it runs."""
        return self._arrow_udf() if SPARK_VERSION >= ARROW_UDFS else functions.udf(_need_arrow_udfs, self.returns)

    def _arrow_udf(self) -> Callable[..., Any]:
        function: Callable[..., Any] = functions.arrow_udf(self.over_arrays, self.returns)
        return function


def arrow_function(returns: DataType) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Decorate a function of Arrow arrays."""
    return lambda over_arrays: ArrowFunction(over_arrays, returns)


def _need_arrow_udfs(*_: object) -> None:
    need_spark(ARROW_UDFS, "a column function of spark_udfs")


@arrow_function(MapType(StringType(), StringType()))
def rmq_properties(block: pa.Array) -> pa.Array:
    """Decode properties from their bytes in a record, ``name 0x01 value 0x02`` repeated; null for null."""
    from rmq_formats.arrow.functions import properties  # noqa: PLC0415

    return properties(block)


@arrow_function(LongType())
def rmq_tags_code(tags: pa.Array) -> pa.Array:
    """Compute the tags code of a ConsumeQueue unit: Java's ``String.hashCode`` with its sign; 0 without tags."""
    from rmq_formats.arrow.functions import tags_codes  # noqa: PLC0415

    return tags_codes(tags)


@arrow_function(IntegerType())
def rmq_key_hash(topic: pa.Array, key: pa.Array) -> pa.Array:
    """Compute the hash of a key of a topic in an IndexFile; null for a null topic or key."""
    from rmq_formats.arrow.functions import key_hashes  # noqa: PLC0415

    return key_hashes(topic, key)


@arrow_function(IntegerType())
def rmq_crc32(body: pa.Array) -> pa.Array:
    """Compute CRC-32 without its highest bit, as in RocketMQ's ``body_crc``; null for null."""
    from rmq_formats.arrow.functions import body_crcs  # noqa: PLC0415

    return body_crcs(body)


@arrow_function(BinaryType())
def rmq_body(body: pa.Array, sys_flag: pa.Array) -> pa.Array:
    """Decompress a body by its ``sys_flag``; a plain body is unchanged, null for null and for a damaged body."""
    from rmq_formats.arrow.functions import plain_bodies  # noqa: PLC0415

    return plain_bodies(body, sys_flag)
