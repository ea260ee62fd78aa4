"""How large the files of a table become."""

from typing import Final

from pyspark.sql import SparkSession

TARGET_FILE_BYTES: Final = 128 << 20
FEW_TOPICS: Final = 8  # a task holds so many files of the target's size without a shuffle
_LEAST_APART_BYTES: Final = 16 << 20
_LEAST_SPLIT_BYTES: Final = 8 << 20  # less would make small files for nothing: a task costs some 100 ms


def may_write_apart(topics: int, span_bytes: int, tasks: int) -> bool:
    """Whether files become no swarm where each task writes its own, without a shuffle before.

    Args:
        topics: how many there may be.
        span_bytes: of the log.
        tasks: that read it.
    """
    return tasks <= 1 or topics <= FEW_TOPICS or span_bytes // (tasks * topics) >= _LEAST_APART_BYTES


def set_file_sizes(spark: SparkSession, topics: int) -> None:
    """Have Delta make files of about the target's size.

    Each task writes a file for each topic that it meets. Where these are many, files would be small and a swarm:
    Delta then shuffles rows by partition first, which is left out for few topics.

    Args:
        spark: the session.
        topics: how many there may be.
    """
    spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", str(topics > FEW_TOPICS).lower())
    spark.conf.set("spark.databricks.delta.optimizeWrite.binSize", f"{TARGET_FILE_BYTES >> 20}m")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET_FILE_BYTES))


def split_bytes(topics: int, span_bytes: int, processors: int) -> int:
    """Bytes of the log for a task: a file of the target's size for each topic, if all processors have work then.

    Args:
        topics: how many there may be; the more, the more files a task writes.
        span_bytes: of the log.
        processors: of the session.
    """
    wanted = TARGET_FILE_BYTES * min(max(topics, 1), FEW_TOPICS)
    return max(_LEAST_SPLIT_BYTES, min(wanted, -(-span_bytes // max(1, processors))))
