"""Records that a run hands to an export: its selection up to an offset, as a DataFrame or as scan tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from rmq_formats.lakehouse.files import split_bytes
from rmq_formats.lakehouse.log import StoreLog
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.read.plan import ReadPlan
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import SourceOptions, commitlog_options


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a selection that begin before a physical offset.

    Attributes:
        spark: the session.
        selection: which messages.
        options: of the source, beyond those of the selection.
        end: the offset.
        topics: how many there may be, for the size of files.
        log: they are of.
    """

    spark: SparkSession
    selection: ExportSelection
    options: Mapping[str, str]
    end: int
    topics: int
    log: StoreLog

    def frame(self, first: int) -> DataFrame:
        """Read the records that begin at ``first`` or behind it as a DataFrame."""
        return self.selection.batch(self.spark, first, self.end, self._with_splits(first))

    def plan(self, first: int) -> tuple[SourceOptions, ReadPlan]:
        """Plan the same read as options and tasks; topics that are left out are not filtered yet."""
        given = commitlog_options(self.selection.read_options(first, self.end, self._with_splits(first)))
        found = plans_of(given)[0].plan
        assert found is not None  # a store that is missing is an error here
        return given, found

    def _with_splits(self, first: int) -> dict[str, str]:
        processors = self.spark.sparkContext.defaultParallelism
        span = self.end - max(first, self.log.segments[0].start_offset)
        return {**self.options, "splitBytes": str(split_bytes(self.topics, span, processors))}
