"""Export of messages to a raw table by Spark: the columns of ``rmq_commitlog`` unchanged, and days and hours.

The messages of several brokers are committed to their common tables by ``commit_all``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from rmq_formats.errors import RmqError, StoreError
from rmq_lakehouse.comments import with_comments
from rmq_lakehouse.dead_letters import REFUSED, DeadLetters, table_constraints, with_refusals
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.exports import ExportCounts, ExportTables
from rmq_lakehouse.files import may_write_apart
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.partition_columns import check_partitions, time_column
from rmq_lakehouse.partitions import check_columns_exist
from rmq_lakehouse.raw_files import (
    ERROR,
    PendingTasks,
    RawTask,
    UnreadableMessagesError,
    commit_task_files,
    count_files,
    write_and_commit,
    write_files_of_brokers,
)
from rmq_lakehouse.raw_table import RawTable
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spark_table import SparkExactlyOnceTable
from rmq_lakehouse.table_log import (
    CommitAttempt,
    CommitResult,
    PendingRange,
    SparkTableLog,
    StartAttempt,
    TableSpec,
    TableTransaction,
)
from rmq_lakehouse.undecoded import MESSAGE_COLUMNS, REASON, Undecoded, resolve_undecoded, with_undecoded
from rmq_offline.spark.job import spark_cause
from rmq_offline.spark.runner import SparkRunner

Counted = tuple[CommitResult, ExportCounts]


class PendingMessages(PendingTasks, Protocol):
    """Messages that an export has to commit: records of a store's log, or messages of a broker's queues."""

    @property
    def spark(self) -> SparkSession:
        """The session."""

    @property
    def topics(self) -> int:
        """Largest possible number of topics, which decides the size of files."""

    def attempt_frame(self, attempt: CommitAttempt) -> DataFrame:
        """Read the rows of an attempt as a DataFrame."""

    def union_frame(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        """Read the rows that are pending for any of the tables as one DataFrame."""

    def belongs_to_attempt(self, attempt: CommitAttempt) -> Column:
        """Return the condition that a row of ``union_frame`` belongs to an attempt."""


class Export(ExportTables, Protocol):
    """Export by Spark, which commits a selection of a store's messages to its own tables."""

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        """Commit the messages that the tables lack."""


class RawExport(RawTable):
    """Export of messages to a raw table, and of messages that constraints refuse to the dead letters, if any."""

    table: SparkExactlyOnceTable

    def __init__(
        self,
        path: str,
        log: SparkTableLog,
        selection: ExportSelection,
        columns: Sequence[str] | None,
        table_spec: TableSpec,
        *,
        decompresses: bool = False,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(path, selection, columns, table_spec, decompresses=decompresses)
        self._dead_letters = dead_letters
        self._schema = with_comments(from_arrow_schema(self.file_schema))
        check_columns_exist(table_spec.clusters, self._schema.fieldNames())
        check_partitions(table_spec.partitions, self._schema, "--partition-by")
        self.table = SparkExactlyOnceTable(path, log, selection, self.table_spec)

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        dead = self._dead_letters
        return resolve_undecoded(self.table, None if dead is None else dead.table, accepted)

    def _constraints(self) -> dict[str, str]:
        """Return the conditions that the table has for its rows, by the reason of a dead letter."""
        log = self.table.log
        return table_constraints(log) if log.exists() else {}

    def _checked_dead_letters(self) -> DeadLetters | None:
        """Return the dead letters if the table may refuse messages."""
        return None if self._dead_letters is None or not self._constraints() else self._dead_letters

    def source_options(self) -> dict[str, str]:
        dead_columns = MESSAGE_COLUMNS if self._checked_dead_letters() is not None else ()
        return super().source_options() | {"columns": ",".join(dict.fromkeys([*self._source, *dead_columns]))}

    def table_schemas(self) -> Iterator[tuple[ExactlyOnceTable, StructType]]:
        yield self.table, self._schema
        dead = self._checked_dead_letters()  # after the check of the table
        if dead is not None:
            yield dead.table, dead.columns

    def check(self) -> None:
        super().check()
        dead = self._checked_dead_letters()
        if dead is not None:
            self.tables[dead.path] = "store_timestamp"

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        dead_files, dead_letter_range = self._commit_dead_letters(records)
        counts = ExportCounts()
        expected_messages: int | None = None

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            nonlocal counts, expected_messages
            expected_messages = records.expected_messages(attempts[0])
            has_dead_letters = attempts[0].pending_range == dead_letter_range
            result, counts = self._write_by_tasks(records, attempts[0]) or self._write_by_spark(
                records, attempts[0], has_dead_letters=has_dead_letters
            )
            return result

        result = commit_with_retry(self.table.path, self.table.log, [records.start_attempt(self.table)], write)
        total = replace(counts, messages=result.rows, files=result.files + dead_files)
        return total.with_missing_as_damaged(expected_messages) if result.committed else ExportCounts(files=dead_files)

    def _commit_dead_letters(self, records: PendingMessages) -> tuple[int, PendingRange | None]:
        dead = self._checked_dead_letters()
        if dead is None:
            return 0, None
        refused = self._checked(records.union_frame([dead.table])).where(F.col(REFUSED).isNotNull())
        messages = refused.withColumnRenamed(REFUSED, REASON)
        return dead.commit(messages, records.start_attempt(dead.table), records.belongs_to_attempt)

    def _checked(self, frame: DataFrame) -> DataFrame:
        """Add the date, and the column ``REFUSED``: the reason of the condition that a sound message does not meet."""
        dated = frame.withColumns({name: time_column(name) for name in self._time_columns})
        constraints = self._constraints()
        if not constraints:
            return dated.withColumn(REFUSED, F.lit(None).cast(StringType()))
        former = self.table.log.former_columns()
        names = {former.get(name, name): name for name in self._schema.fieldNames()}
        columns = {current: F.col(name) for current, name in names.items() if current is not None}
        checked = with_refusals(dated, columns, constraints)
        return checked.withColumn(REFUSED, F.when(F.col(ERROR).isNull(), F.col(REFUSED)))

    def _write_by_tasks(self, records: PendingMessages, attempt: CommitAttempt) -> Counted | None:
        """Write Parquet files in tasks and commit them; None if Spark has to write the rows."""
        spark, layout = records.spark, None if attempt.needs_dedup else self.layout(records.spark)
        if layout is None:
            return None
        rows, scanned_bytes = records.tasks(attempt)
        if not may_write_apart(records.topics, scanned_bytes, len(rows)):
            return None
        return write_and_commit(SparkRunner(spark), attempt, self.files_tasks(rows, layout), layout)

    def layout(self, spark: SparkSession) -> Layout | None:
        return None if self._constraints() else self.table.layout(spark, self._schema)

    def _write_by_spark(self, records: PendingMessages, attempt: CommitAttempt, *, has_dead_letters: bool) -> Counted:
        """Write the rows by Spark and commit them; their dead letters may have just been committed."""
        observation = Observation()

        def build_columns(frame: DataFrame) -> DataFrame:
            is_record, is_refused = F.col(ERROR).isNull(), F.col(REFUSED).isNotNull()
            sound = is_record & ~is_refused
            counted = [
                F.sum(F.when(sound, F.col("size"))).alias("bytes"),
                F.count_if(~is_record).alias("damaged"),
                F.count_if(is_refused).alias("refused"),
                F.min(F.when(is_refused, F.col("physical_offset"))).alias("first_refused"),
                F.max(F.when(is_refused, F.col("physical_offset"))).alias("last_refused"),
            ]
            rows = self._checked(frame).observe(observation, *counted).where(sound)
            return rows.select(*self._schema.fieldNames())

        def complete(attempt: CommitAttempt) -> CommitAttempt:
            if has_dead_letters or not observation.get["refused"]:
                return attempt
            count, first, last = (int(observation.get[f"{name}refused"]) for name in ("", "first_", "last_"))
            added = Undecoded.of_offsets(count, first, last)
            return with_undecoded(attempt, self.table, added)

        committed = self.table.append(attempt, records.attempt_frame(attempt), build_columns, complete)
        return committed, ExportCounts(
            bytes=int(observation.get["bytes"] or 0),
            damaged=int(observation.get["damaged"]),
            undecoded=int(observation.get["refused"]),
        )


def commit_all(parts: Sequence[tuple[Export, PendingMessages]]) -> list[ExportCounts | RmqError]:
    """Commit the messages of several brokers to their common tables: in one job and one commit if tasks write files.

    Returns counts, or the error of a broker: an unreadable log does not stop the other brokers. Raises StoreError: the
    table cannot be written, or lacks rows that were committed.
    """
    raw = [(export, pending) for export, pending in parts if isinstance(export, RawExport)]
    outcomes = _commit_files(raw) if raw else {}
    return [outcomes[number] if number in outcomes else _commit_or_error(*part) for number, part in enumerate(parts)]


def _commit_or_error(export: Export, pending: PendingMessages) -> ExportCounts | RmqError:
    """Commit the messages of one broker; return an error of its tasks, so that the other brokers go on."""
    try:
        return export.commit_pending(pending)
    except PySparkException as error:
        return StoreError(spark_cause(error))
    except UnreadableMessagesError as error:
        return error


def _commit_files(parts: Sequence[tuple[RawExport, PendingMessages]]) -> dict[int, ExportCounts | RmqError]:
    """Commit the rows that tasks may write, in one job and one commit; skip brokers whose rows Spark has to write."""
    first, first_pending = parts[0]
    spark, outcomes = first_pending.spark, dict[int, ExportCounts | RmqError]()
    if first.layout(spark) is None:
        return outcomes

    def start_without_dedup(export: RawExport, pending: PendingMessages) -> StartAttempt:
        start = pending.start_attempt(export.table)

        def start_if_no_dedup(transaction: TableTransaction) -> CommitAttempt | None:
            attempt = start(transaction)
            return None if attempt is None or attempt.needs_dedup else attempt

        return start_if_no_dedup

    def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
        layout = first.layout(spark)
        if layout is None:  # the owner has changed the table since
            return CommitResult()
        counts: dict[int, ExportCounts | RmqError] = {}
        planned: dict[int, list[RawTask]] = {}
        for number, attempt in attempts.items():
            export, pending = parts[number]
            try:
                rows, scanned_bytes = pending.tasks(attempt)
            except RmqError as error:
                counts[number] = error
                continue
            if may_write_apart(pending.topics, scanned_bytes, len(rows)):
                planned[number] = export.files_tasks(rows, layout)
        written = dict(
            zip(planned, write_files_of_brokers(SparkRunner(spark), list(planned.values()), layout), strict=True)
        )
        written_files = {number: files for number, files in written.items() if not isinstance(files, RmqError)}
        for number, files in written.items():
            expected = parts[number][1].expected_messages(attempts[number])
            counts[number] = (
                files if isinstance(files, RmqError) else count_files(files).with_missing_as_damaged(expected)
            )
        result = commit_task_files(attempts, written_files) if written_files else CommitResult()
        outcomes.update(counts)  # not of an attempt that has lost a race
        return result

    commit_with_retry(first.table.path, first.table.log, [start_without_dedup(*part) for part in parts], write)
    return outcomes
