"""What needs a Spark later than 4.0, the oldest with which the sources work."""

from typing import Final

import pyspark

from rmq_formats.errors import OptionError

SPARK_VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


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
