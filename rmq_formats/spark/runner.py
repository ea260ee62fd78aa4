"""Runs tasks on a Spark cluster: one Spark task each."""

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from rmq_formats.offline.runner import Argument, Result


class SparkRunner:
    """Tasks as an RDD of one partition each; the results are small and come back to the driver."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.parallelism = self._context.defaultParallelism

    def map(
        self,
        function: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        on_done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Apply ``function`` to each argument; ``on_done`` is told when all are done."""
        if not arguments:
            return []
        results: list[Result] = self._context.parallelize(arguments, len(arguments)).map(function).collect()
        for result in results:
            if on_done:
                on_done(result)
        return results
