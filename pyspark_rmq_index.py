"""Data source ``rmq_index``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_offline.spark.index_source import IndexSource as DefaultSource

__all__ = ["DefaultSource"]
