"""The Spark data sources, and their registration with a session."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def data_sources() -> "tuple[type[DataSource], ...]":
    """Return the data sources; Spark registers each by its ``name()``."""
    from rmq_formats.spark.commitlog.source import CommitLogSource  # noqa: PLC0415 # pyarrow, where it is not needed
    from rmq_formats.spark.derived.consumequeue import ConsumeQueueSource  # noqa: PLC0415
    from rmq_formats.spark.derived.index import IndexSource  # noqa: PLC0415
    from rmq_formats.spark.live.source import ClusterSource  # noqa: PLC0415
    from rmq_formats.spark.metadata.sources import (  # noqa: PLC0415
        GroupsSource,
        OffsetsSource,
        TimersSource,
        TopicsSource,
    )

    stores = CommitLogSource, ConsumeQueueSource, IndexSource
    return *stores, ClusterSource, OffsetsSource, TopicsSource, GroupsSource, TimersSource


def register_all(spark: "SparkSession") -> None:
    """Register the sources, and the column functions of ``spark_udfs``, in a session."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from spark_udfs import register_functions  # noqa: PLC0415

    for source in data_sources():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:  # Spark 4.0 keeps one that it has found by itself
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    register_functions(spark)
