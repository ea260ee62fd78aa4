"""Spark data sources over a store's files and over a running cluster, and the session that registers them.

``from rmq_formats.spark import create_views, explain, register_all, session``.
"""

from typing import TYPE_CHECKING

from rmq_formats.spark.session import session as session  # a part of this package's interface, as the next
from rmq_formats.spark.sources import register_all as register_all
from rmq_formats.spark.views import create_views as create_views
from rmq_formats.spark.worker_exit import quiet_planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

quiet_planner()


def explain(frame: "DataFrame") -> str:
    """Explain how the ``rmq_*`` sources of a DataFrame find their records, a line each."""
    from rmq_formats.spark.commitlog.batch import explain as explain_frame  # noqa: PLC0415

    return explain_frame(frame)
