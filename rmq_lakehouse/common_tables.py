"""Commit of the messages of several brokers to their common tables."""

from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException

from rmq_formats.errors import RmqError, StoreError
from rmq_lakehouse.exactly_once import commit_with_retry
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.files import may_write_apart
from rmq_lakehouse.raw import Export, PendingMessages, RawExport
from rmq_lakehouse.raw_files import FilesTask, commit_task_files, count_files, write_files_of_brokers
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, StartAttempt, TableTransaction
from rmq_offline.spark.job import spark_cause
from rmq_offline.spark.runner import SparkRunner


def commit_all(parts: Sequence[tuple[Export, PendingMessages]]) -> list[ExportCounts | RmqError]:
    """Commit the messages of several brokers to their common tables: in one job and one commit if tasks write files.

    Returns:
        For each broker its counts, or the error that failed it: an unreadable log does not stop the other brokers.

    Raises:
        StoreError: the table cannot be written, or lacks rows that were committed.
    """
    raw = [(export, pending) for export, pending in parts if isinstance(export, RawExport)]
    outcomes = _commit_files(raw) if raw else {}
    return [outcomes[number] if number in outcomes else _attempt(*part) for number, part in enumerate(parts)]


def _attempt(export: Export, pending: PendingMessages) -> ExportCounts | RmqError:
    """Commit the messages of one broker; return an error of its tasks, so that the other brokers go on."""
    try:
        return export.commit_pending(pending)
    except PySparkException as error:
        return StoreError(spark_cause(error))


def _commit_files(parts: Sequence[tuple[RawExport, PendingMessages]]) -> dict[int, ExportCounts | RmqError]:
    """Commit the rows that tasks may write, in one job and one commit; skip brokers whose rows Spark has to write."""
    first, first_pending = parts[0]
    spark, layout = first_pending.spark, first.layout(first_pending.spark)
    outcomes: dict[int, ExportCounts | RmqError] = {}
    if layout is None:
        return outcomes

    def start_without_dedup(export: RawExport, pending: PendingMessages) -> StartAttempt:
        start = pending.start_attempt(export.table)

        def start_if_no_dedup(transaction: TableTransaction) -> CommitAttempt | None:
            attempt = start(transaction)
            return None if attempt is None or attempt.needs_dedup else attempt

        return start_if_no_dedup

    def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
        counts: dict[int, ExportCounts | RmqError] = {}
        planned: dict[int, list[FilesTask]] = {}
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
