"""What a run offers an export: the records of its selection up to an offset, as rows or as tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from rmq_formats.access.plan import Task
from rmq_formats.access.query import ReadOptions
from rmq_formats.lakehouse.files import split_bytes
from rmq_formats.lakehouse.selection import Selection
from rmq_formats.spark.commitlog import plan_of
from rmq_formats.spark.options import commitlog_options


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a selection that begin before a physical offset.

    Attributes:
        spark: the session.
        selection: which messages.
        options: of the source, beyond those of the selection.
        end: the offset.
        topics: how many there may be, for the size of files.
    """

    spark: SparkSession
    selection: Selection
    options: Mapping[str, str]
    end: int
    topics: int

    def frame(self, first: int) -> DataFrame:
        """Those that begin at ``first`` or behind it, as rows."""
        return self.selection.batch(self.spark, first, self.end, self._with_splits(first))

    def tasks(self, first: int) -> tuple[str, ReadOptions, tuple[Task, ...]]:
        """The same as the store's root, what is read, and tasks; the topics that are left out are among them."""
        given = commitlog_options(self.selection.read_options(first, self.end, self._with_splits(first)))
        return given.path, given.read, plan_of(given).tasks

    def _with_splits(self, first: int) -> dict[str, str]:
        processors = self.spark.sparkContext.defaultParallelism
        return {**self.options, "splitBytes": str(split_bytes(self.topics, self.end - first, processors))}
