"""File sizes of exported Delta tables: split sizes of the log and Delta's optimized writes."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_FILE_BYTES: Final = 128 << 20
FEW_TOPICS: Final = 8  # with so few topics each task writes files of the target size without a shuffle
_LEAST_APART_BYTES: Final = 16 << 20
_LEAST_SPLIT_BYTES: Final = 8 << 20  # smaller splits make small files for nothing: a task costs some 100 ms


def may_write_apart(topics: int, span_bytes: int, tasks: int) -> bool:
    """Return whether each task may write its own files without a shuffle, so that they do not become many small ones.

    Args:
        topics: number of topics at most.
        span_bytes: bytes of the log to export.
    """
    return tasks <= 1 or topics <= FEW_TOPICS or span_bytes // (tasks * topics) >= _LEAST_APART_BYTES


def set_file_sizes(spark: "SparkSession", topics: int) -> None:
    """Configure Delta so that it writes files of about the target size.

    Each task writes a file for each topic that it meets. With many topics these files would be many and small:
    Delta then shuffles rows by partition first; for few topics the shuffle is left out.
    """
    spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", str(topics > FEW_TOPICS).lower())
    spark.conf.set("spark.databricks.delta.optimizeWrite.binSize", f"{TARGET_FILE_BYTES >> 20}m")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET_FILE_BYTES))


def split_bytes(topics: int, span_bytes: int, processors: int) -> int:
    """Return the split size in bytes: a file of the target size for each topic, if all processors then have work.

    Args:
        topics: number of topics at most; the more, the more files a task writes.
        processors: parallelism of the session.
    """
    wanted = TARGET_FILE_BYTES * min(max(topics, 1), FEW_TOPICS)
    return max(_LEAST_SPLIT_BYTES, min(wanted, -(-span_bytes // max(1, processors))))
