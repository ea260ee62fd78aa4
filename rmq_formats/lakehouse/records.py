"""Records that a run hands to an export: its selection up to an offset, as a DataFrame or as scan tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.lakehouse.files import split_bytes
from rmq_formats.lakehouse.log import StoreLog
from rmq_formats.lakehouse.once import Choose, ExactlyOnceTable, Turn
from rmq_formats.lakehouse.raw_files import StoreRows
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import commitlog_options


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

    def choose(self, table: ExactlyOnceTable) -> Choose:
        """See ``Owed``."""
        return table.choose(self.end, self.log)

    def frame_of(self, turn: Turn) -> DataFrame:
        """See ``Owed``."""
        return self.frame(turn.begin)

    def frame_for(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        """See ``Owed``."""
        begin = min(table.exported_end() for table in tables)
        return self.frame(max(begin, self.selection.starting_physical_offset))

    def is_of(self, turn: Turn) -> Column:
        """See ``Owed``."""
        return F.col("physical_offset") >= turn.begin

    def expected(self, turn: Turn) -> int | None:  # noqa: ARG002 # a range of bytes does not tell
        """See ``Owed``."""
        return None

    def frame(self, first: int) -> DataFrame:
        """Read the records that begin at ``first`` or behind it as a DataFrame."""
        return self.selection.batch(self.spark, first, self.end, self._with_splits(first))

    def tasks(self, turn: Turn) -> tuple[list[StoreRows], int]:
        """See ``Owed``."""
        first = turn.begin
        given = commitlog_options(self.selection.read_options(first, self.end, self._with_splits(first)))
        found = plans_of(given)[0].plan
        assert found is not None  # a store that is missing is an error here
        return [StoreRows(given.path, given.read, task) for task in found.tasks], found.scanned_bytes

    def _with_splits(self, first: int) -> dict[str, str]:
        processors = self.spark.sparkContext.defaultParallelism
        span = self.end - max(first, self.log.segments[0].start_offset)
        return {**self.options, "splitBytes": str(split_bytes(self.topics, span, processors))}
