"""Differences between the versions of Spark, from 4.0 on, the oldest with which the sources work."""

from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError

SPARK_VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
DELTA_VERSION: Final = "4.4.0"  # built for each of these Sparks; a later one takes the last's
DELTA_SPARKS: Final = ("4.0", "4.1", "4.2")
# What the JVM says of classes that were compiled against others than those that are there.
_LINKAGE: Final = tuple(
    f"java.lang.{name}" for name in ("NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError",
                                     "AbstractMethodError", "IncompatibleClassChangeError")
)  # fmt: skip


def need_spark(minor: tuple[int, int], what: str) -> None:
    """Refuse what this Spark cannot do.

    Args:
        minor: the oldest version that can, as ``(4, 2)``.
        what: the feature, for the error.

    Raises:
        OptionError: naming both versions.
    """
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
    """Convert a schema from Spark to Arrow, with timestamps in UTC; 4.2 names the zone, which was a flag before."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 # loads pandas, which few need

    zone: dict[str, object] = {"timezone": "UTC"} if SPARK_VERSION >= (4, 2) else {"timestamp_utc": True}
    return to_arrow_schema(schema, **zone)  # type: ignore[arg-type] # of the installed version
