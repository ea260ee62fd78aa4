"""Data source ``rmq``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_lakehouse.live.source import ClusterSource as DefaultSource

__all__ = ["DefaultSource"]
