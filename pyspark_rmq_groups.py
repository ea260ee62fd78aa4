"""Data source ``rmq_groups``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_lakehouse.metadata.sources import GroupsSource as DefaultSource

__all__ = ["DefaultSource"]
