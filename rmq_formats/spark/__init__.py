"""Spark data sources over a store's segments, and the session that has them.

``from rmq_formats.spark import explain, register_all, session``.
"""

from typing import TYPE_CHECKING

from rmq_formats.spark.session import session as session  # a part of this package's interface
from rmq_formats.spark.worker_exit import quiet_planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

quiet_planner()


def data_sources() -> "tuple[type[DataSource], ...]":
    """The sources, each of which Spark knows by its ``name()``."""
    from rmq_formats.spark.cluster import ClusterSource  # noqa: PLC0415
    from rmq_formats.spark.commitlog import CommitLogSource  # noqa: PLC0415 # pyarrow, where it is not needed
    from rmq_formats.spark.consumequeue import ConsumeQueueSource  # noqa: PLC0415
    from rmq_formats.spark.index import IndexSource  # noqa: PLC0415

    return CommitLogSource, ConsumeQueueSource, IndexSource, ClusterSource


def register_all(spark: "SparkSession") -> None:
    """Register the sources, and the column functions of ``spark_udfs``, with a session."""
    from spark_udfs import register_functions  # noqa: PLC0415

    for source in data_sources():
        spark.dataSource.register(source)
    register_functions(spark)


def explain(frame: "DataFrame") -> str:
    """How the ``rmq_*`` sources of a DataFrame find their records, a line each; see ``explanation``."""
    from rmq_formats.spark.explanation import explain as explain_frame  # noqa: PLC0415

    return explain_frame(frame)
