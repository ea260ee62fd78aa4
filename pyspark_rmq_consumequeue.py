"""Data source ``rmq_consumequeue``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_offline.spark.consumequeue_source import ConsumeQueueSource as DefaultSource

__all__ = ["DefaultSource"]
