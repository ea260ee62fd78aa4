"""Data source ``rmq_commitlog``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_offline.spark.commitlog_source import CommitLogSource as DefaultSource

__all__ = ["DefaultSource"]
