"""Found by Spark: it imports each top-level module named ``pyspark_*`` and registers its ``DefaultSource``."""

from rmq_formats.spark.metadata.sources import OffsetsSource as DefaultSource

__all__ = ["DefaultSource"]
