"""Data source ``rmq_timers``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_lakehouse.metadata.sources import TimersSource as DefaultSource

__all__ = ["DefaultSource"]
