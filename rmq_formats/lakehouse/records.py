"""Pending records of a store's log: a selection up to a physical offset, as a DataFrame or as scan tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.lakehouse.exactly_once import ExactlyOnceTable
from rmq_formats.lakehouse.files import split_bytes
from rmq_formats.lakehouse.raw_files import StoreRows
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.store_log import StoreLog
from rmq_formats.lakehouse.table_log import CommitAttempt, StartAttempt
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import commitlog_options


@dataclass(frozen=True, slots=True)
class PendingRecords:
    """Records of a selection that begin before a physical offset.

    Attributes:
        spark: the session.
        selection: selection of the messages.
        options: options of the source, in addition to those of the selection.
        end: physical offset before which the records begin.
        topics: largest possible number of topics, which decides the size of files.
        log: log of the records.
    """

    spark: SparkSession
    selection: ExportSelection
    options: Mapping[str, str]
    end: int
    topics: int
    log: StoreLog

    def start_attempt(self, table: ExactlyOnceTable) -> StartAttempt:
        return table.start_attempt(self.end, self.log)

    def attempt_frame(self, attempt: CommitAttempt) -> DataFrame:
        return self.frame(attempt.begin)

    def union_frame(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        begin = min(table.resume_offset() for table in tables)
        return self.frame(max(begin, self.selection.starting_physical_offset))

    def belongs_to_attempt(self, attempt: CommitAttempt) -> Column:
        return F.col("physical_offset") >= attempt.begin

    def expected_messages(self, attempt: CommitAttempt) -> int | None:  # noqa: ARG002 # a range of bytes does not tell
        return None

    def frame(self, first: int) -> DataFrame:
        """Read the records that begin at ``first`` or after it as a DataFrame."""
        return self.selection.batch(self.spark, first, self.end, self._with_splits(first))

    def tasks(self, attempt: CommitAttempt) -> tuple[list[StoreRows], int]:
        first = attempt.begin
        read_options = commitlog_options(self.selection.read_options(first, self.end, self._with_splits(first)))
        plan = plans_of(read_options)[0].plan
        assert plan is not None  # a store that is missing is an error here
        return [StoreRows(read_options.path, read_options.read, task) for task in plan.tasks], plan.scanned_bytes

    def _with_splits(self, first: int) -> dict[str, str]:
        processors = self.spark.sparkContext.defaultParallelism
        span = self.end - max(first, self.log.segments[0].start_offset)
        return {**self.options, "splitBytes": str(split_bytes(self.topics, span, processors))}
