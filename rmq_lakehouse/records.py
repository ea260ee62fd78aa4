"""Pending records of a store's log: a selection up to a physical offset, as scan tasks or as a DataFrame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_formats.errors import StoreError
from rmq_formats.read.plan import plan_read
from rmq_formats.spark.options.read import commitlog_options
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.files import split_bytes
from rmq_lakehouse.raw_files import StoreRows
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.store_log import StoreLog
from rmq_lakehouse.table_log import CommitAttempt, StartAttempt

if TYPE_CHECKING:  # exports without Spark have records, too
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class PendingRecords:
    """Records of a selection that begin before a physical offset; ``options`` are more options of the source."""

    selection: ExportSelection
    options: Mapping[str, str]
    log: StoreLog
    end: int
    topics: int
    parallelism: int

    def start_attempt(self, table: ExactlyOnceTable) -> StartAttempt:
        return table.start_attempt(self.end, self.log)

    def expected_messages(self, attempt: CommitAttempt) -> int | None:  # noqa: ARG002 # a range of bytes does not tell
        return None

    def tasks(self, attempt: CommitAttempt, split: int | None = None) -> tuple[list[StoreRows], int]:
        """Plan the rows of an attempt as tasks; also return the bytes that the tasks read.

        Args:
            split: bytes of the log that a task reads, about; None makes files of the target size.

        Raises StoreError: a file of the log was deleted since its snapshot.
        """
        more = self._more_options(attempt.begin, split)
        options = commitlog_options(self.selection.read_options(attempt.begin, self.end, more))
        store = open_store(options.path)
        self._check_segments(store, attempt.begin)
        plan = plan_read(
            store,
            options.query,
            access_path=options.access_path,
            split_bytes=options.split_bytes,
            min_tasks=options.min_partitions,
            logs=options.read.logs,
        )
        return [StoreRows(options.path, options.read, task) for task in plan.tasks], plan.scanned_bytes

    def _check_segments(self, store: StoreFiles, begin: int) -> None:
        starts = {segment.start_offset for segment in store.segments}
        for segment in self.log.segments:
            if begin < segment.end_offset and segment.start_offset < self.end and segment.start_offset not in starts:
                raise StoreError(
                    f"{segment.path}: the segment was deleted before the export read it. "
                    "Run the export again: it reports the deleted bytes"
                )

    def _more_options(self, first: int, split: int | None = None) -> dict[str, str]:
        span = self.end - max(first, self.log.segments[0].start_offset)
        return {**self.options, "splitBytes": str(split or split_bytes(self.topics, span, self.parallelism))}


@dataclass(frozen=True, slots=True)
class SparkPendingRecords(PendingRecords):
    """Records that Spark reads, too; see ``raw.PendingMessages``."""

    spark: "SparkSession"

    def attempt_frame(self, attempt: CommitAttempt) -> "DataFrame":
        return self._frame(attempt.begin)

    def union_frame(self, tables: Sequence[ExactlyOnceTable]) -> "DataFrame":
        begin = min(table.resume_offset() for table in tables)
        return self._frame(max(begin, self.selection.starting_physical_offset))

    def belongs_to_attempt(self, attempt: CommitAttempt) -> "Column":
        from pyspark.sql import functions as F  # noqa: PLC0415 # a second to load

        return F.col("physical_offset") >= attempt.begin

    def _frame(self, first: int) -> "DataFrame":
        return self.selection.batch(self.spark, first, self.end, self._more_options(first))
