"""Upsert into a Delta table with a key: the last message of a key, by physical offset, is the row of this key.

In a table of several brokers the last message is the last by store time, then by broker and physical offset.

A merge is idempotent, since only a later message replaces a row. Two exports may merge the same messages in any order.

Delta's own MERGE writes and commits the rows. A copy on write as in ``iceberg.keyed`` would lose what only MERGE keeps:
values of identity columns, row ids of row tracking, the changes of a change data feed, and members of structs that a
newer message lacks. With deletion vectors it would rewrite whole files, where MERGE writes the new rows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_lakehouse.change_data import MergeRows
from rmq_lakehouse.delta.commit_hook import CommitGuard, TableReplacedError, commit_hook
from rmq_lakehouse.delta.location import DeltaLocation
from rmq_lakehouse.evolution import column
from rmq_lakehouse.exactly_once import commit_progress_with_retry, commit_with_retry, join_metadata
from rmq_lakehouse.table_log import (
    CommitAttempt,
    CommitResult,
    SparkTableLog,
    StartAttempt,
    TableSnapshot,
    TableTransaction,
)
from rmq_lakehouse.watermark import WATERMARK_SUFFIX

_REPLACEMENTS = frozenset({"RESTORE", "CLONE"})
_ROW = "__rmq_row"  # beside the key, whose columns may have any names of a body's
_WRITE = "spark.databricks.delta.write"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_REPARTITION = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"


def upsert(
    spark: SparkSession,
    log: SparkTableLog,
    location: DeltaLocation,
    commit_guard: CommitGuard,
    start: StartAttempt,
    rows: Callable[[CommitAttempt], DataFrame],
    merge: MergeRows,
    last_row: int | None,
    *,
    is_backfill: bool,
) -> None:
    """Merge the pending rows and commit the progress in one Delta MERGE; see ``TableLog.upsert``.

    Delta skips a MERGE whose transaction version was committed before. In a backfill the progress may be ahead of the
    rows, so the MERGE sets no progress, and a second commit sets it.
    """

    def start_if_pending(transaction: TableTransaction) -> CommitAttempt | None:
        attempt = start(transaction)  # MERGE has a transaction of its own
        return None if attempt is None or not attempt.has_pending_rows else attempt

    def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
        (attempt,) = attempts.values()
        # The shuffle before a MERGE writes files splits a column's name at dots and backticks, and does not find it.
        has_parts = any("." in name or "`" in name for name in log.partition_columns())
        settings = {_REPARTITION: "false"} if has_parts else {}
        watermark: dict[str, int] = {}
        if not is_backfill:
            settings[f"{_WRITE}.txnAppId"] = attempt.app_id
            settings[f"{_WRITE}.txnVersion"] = str(attempt.versions[attempt.app_id])
            metadata = join_metadata([attempt])
            if metadata is not None:
                settings[_USER_METADATA] = metadata
            if last_row is not None and not attempt.spans:
                watermark = {attempt.app_id + WATERMARK_SUFFIX: last_row}
        versions = {**attempt.lost_watermarks, **attempt.undecoded_versions, **watermark}
        check_start = partial(_check_not_replaced, attempt.transaction.snapshot)
        with _set(spark, settings), commit_hook(spark, commit_guard, versions, check_start):
            frame = rows(attempt)
            _merge(location.open(), frame, merge)
        log.fsync()
        return CommitResult(committed=True)

    commit_with_retry(location.table, log, [start_if_pending], write)
    if is_backfill:
        commit_progress_with_retry(location.table, log, start, last_row)


def _check_not_replaced(snapshot: TableSnapshot, read_version: int) -> None:
    """Refuse a MERGE into a table that was restored or replaced meanwhile. Raises TableReplacedError."""
    for version in range(snapshot.version + 1, read_version + 1):
        commit = snapshot.read_commit(version)
        if commit is None or commit.operation in _REPLACEMENTS or "REPLACE" in commit.operation:
            raise TableReplacedError


def _merge(table: DeltaTable, frame: DataFrame, merge: MergeRows) -> None:
    row_struct = F.struct(*map(column, frame.columns))
    key = [F.expr(part.sql()).alias(f"key{number}") for number, part in enumerate(merge.key)]
    newest_rows = (
        frame.groupBy(*key).agg(F.max_by(row_struct, F.expr(merge.order_value())).alias(_ROW)).select(f"{_ROW}.*")
    )
    is_later = f"{merge.order_value('here')} > {merge.order_value('there')}"
    builder = (
        table.alias("there").merge(newest_rows.alias("here"), merge.same_key("there", "here")).withSchemaEvolution()
    )
    if merge.deletes:
        builder = builder.whenMatchedDelete(f"{merge.is_deletion('here')} AND {is_later}")
    builder = builder.whenMatchedUpdateAll(is_later)
    inserted = f"NOT ({merge.is_deletion('here')})" if merge.deletes else None
    builder.whenNotMatchedInsertAll(inserted).execute()


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set options of the session for the duration of the context."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
