"""Differences between the versions of Spark, from 4.0 on, the oldest with which the sources work."""

from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError

SPARK_VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
DELTA_VERSION: Final = "4.4.0"  # built for each of these Sparks; a later Spark gets the library of the last
DELTA_SPARKS: Final = ("4.0", "4.1", "4.2")
# Errors of the JVM for classes that were compiled against other versions of their libraries.
_LINKAGE: Final = tuple(
    f"java.lang.{name}" for name in ("NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError",
                                     "AbstractMethodError", "IncompatibleClassChangeError")
)  # fmt: skip


def need_spark(minor: tuple[int, int], what: str) -> None:
    """Refuse a feature, named ``what``, that needs a later Spark, as ``(4, 2)``. Raises OptionError."""
    if minor > SPARK_VERSION:
        needed = ".".join(map(str, minor))
        raise OptionError(f"{what} needs Spark {needed} or later; this is {pyspark.__version__}")


def unfit_library(java_error: str) -> str | None:
    """Describe a Java error (class and message) of a library built for another Spark; None for other errors."""
    line = java_error.strip().splitlines()[0]
    if not line.startswith(_LINKAGE):
        return None
    built = f"Delta {DELTA_VERSION} is built for Spark {DELTA_SPARKS[0]} to {DELTA_SPARKS[-1]}"
    return f"a library in the JVM does not fit Spark {pyspark.__version__} ({built}): {line}"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a schema from Spark to Arrow, with timestamps in UTC; from 4.2 on the flag is the name of a zone."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 # loads pandas, which few need

    zone: dict[str, object] = {"timezone": "UTC"} if SPARK_VERSION >= (4, 2) else {"timestamp_utc": True}
    return to_arrow_schema(schema, **zone)  # type: ignore[arg-type] # of the installed version
