"""Data source ``rmq_offsets``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from rmq_lakehouse.metadata.sources import OffsetsSource as DefaultSource

__all__ = ["DefaultSource"]
