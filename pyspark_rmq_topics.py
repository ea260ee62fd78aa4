"""Data source ``rmq_topics``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_lakehouse.metadata.sources import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
