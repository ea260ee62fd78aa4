"""Upserts rows into a Delta table with one row a key: the last message of a key, by physical offset.

Where the table has those of several brokers, it is the last by store time, then by broker and physical offset.

A merge is idempotent, also after a later one: only a later message replaces a row. So what
two exports both land is landed once, in whatever order they commit.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.changes import MergeRows
from rmq_formats.lakehouse.delta.commit_hook import CommitGuard, commit_hook
from rmq_formats.lakehouse.delta.conflicts import CONFLICTS
from rmq_formats.lakehouse.delta.location import DeltaLocation
from rmq_formats.lakehouse.evolution import column
from rmq_formats.lakehouse.exactly_once import ATTEMPTS, CommitAttempt, ExactlyOnceTable, StartAttempt
from rmq_formats.lakehouse.log_notes import note_of

_ROW = "__rmq_row"  # beside the key, whose columns may have any names of a body's
_WRITE = "spark.databricks.delta.write"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def upsert(
    spark: SparkSession,
    commit_guard: CommitGuard,
    table: ExactlyOnceTable,
    start: StartAttempt,
    rows: Callable[[CommitAttempt], DataFrame],
    merge: MergeRows,
    watermark: int | None,
) -> None:
    """Merge the rows not landed yet, and set the transaction version, in one commit.

    Args:
        spark: the session.
        commit_guard: holds during the commit.
        table: table to merge into.
        start: gives the turn of a transaction; see ``commit_with_retry``.
        rows: gives the rows of a turn, with the table's columns.
        merge: key and order of the rows.
        watermark: see ``CommitAttempt.with_high_watermark``.

    Raises:
        StoreError: each attempt lost a commit conflict.
    """
    for _ in range(ATTEMPTS):
        attempt = start(table.log.begin_transaction())  # which is dropped: the merge has a transaction of its own
        if attempt is None or not attempt.has_pending_rows:
            break
        settings = {f"{_WRITE}.txnAppId": attempt.app_id, f"{_WRITE}.txnVersion": str(attempt.versions[attempt.app_id])}
        metadata = note_of([attempt])
        if metadata is not None:
            settings[_USER_METADATA] = metadata
        if table.is_backfill:  # Delta passes over a merge of a version that was set before; it is set afterwards then
            settings.clear()
        watermark_version = (
            {table.watermark_id: watermark} if settings and watermark is not None and not attempt.spans else {}
        )
        versions = {**attempt.lost_watermarks, **attempt.undecoded_versions, **watermark_version}
        try:
            with _set(spark, settings), commit_hook(spark, commit_guard, versions):
                _merge(spark, table, rows(attempt), merge)
            table.fsync()
        except CONFLICTS:
            continue
        break
    else:
        raise StoreError(f"{table.path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")
    if table.is_backfill:
        table.commit_progress(start, watermark)


def _merge(spark: SparkSession, table: ExactlyOnceTable, frame: DataFrame, merge: MergeRows) -> None:
    row_struct = F.struct(*map(column, frame.columns))
    key = [F.expr(part.sql()).alias(f"key{number}") for number, part in enumerate(merge.key)]
    newest_rows = (
        frame.groupBy(*key).agg(F.max_by(row_struct, F.expr(merge.order_value())).alias(_ROW)).select(f"{_ROW}.*")
    )
    is_later = f"{merge.order_value('here')} > {merge.order_value('there')}"
    builder = (
        DeltaLocation(spark, table.path)
        .open()
        .alias("there")
        .merge(newest_rows.alias("here"), merge.same_key("there", "here"))
        .withSchemaEvolution()
    )
    if merge.deletes:
        builder = builder.whenMatchedDelete(f"{merge.is_deletion('here')} AND {is_later}")
    builder = builder.whenMatchedUpdateAll(is_later)
    inserted = f"NOT ({merge.is_deletion('here')})" if merge.deletes else None
    builder.whenNotMatchedInsertAll(inserted).execute()


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings of the session for a while."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
