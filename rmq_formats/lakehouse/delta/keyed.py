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
from rmq_formats.lakehouse.delta.conflicts import CONFLICTS
from rmq_formats.lakehouse.delta.own_commits import Committing, own_commits
from rmq_formats.lakehouse.delta.place import DeltaPlace
from rmq_formats.lakehouse.evolution import column
from rmq_formats.lakehouse.log_notes import note_of
from rmq_formats.lakehouse.once import ATTEMPTS, Choose, ExactlyOnceTable, Turn

_ROW = "__rmq_row"  # beside the key, whose columns may have any names of a body's
_WRITE = "spark.databricks.delta.write"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"


def upsert(
    spark: SparkSession,
    committing: Committing,
    table: ExactlyOnceTable,
    choose: Choose,
    rows: Callable[[Turn], DataFrame],
    merge: MergeRows,
    newest: int | None,
) -> None:
    """Merge the rows not landed yet, and set the transaction version, in one commit.

    Args:
        spark: the session.
        committing: holds during the commit.
        table: table to merge into.
        choose: gives the turn of a transaction; see ``land_together``.
        rows: gives the rows of a turn, with the table's columns.
        merge: key and order of the rows.
        newest: see ``Turn.landing``.

    Raises:
        StoreError: each attempt lost a commit conflict.
    """
    for _ in range(ATTEMPTS):
        turn = choose(table.log.begin_append())  # which is dropped: the merge has a transaction of its own
        if turn is None or not turn.owes:
            break
        settings = {f"{_WRITE}.txnAppId": turn.app_id, f"{_WRITE}.txnVersion": str(turn.versions[turn.app_id])}
        note = note_of([turn])
        if note is not None:
            settings[_NOTE] = note
        if table.lands_again:  # Delta passes over a merge of a version that was set before; it is set afterwards then
            settings.clear()
        own = {table.newest_id: newest} if settings and newest is not None and not turn.spans else {}
        told = {**turn.marks, **turn.state, **own}
        try:
            with _set(spark, settings), own_commits(spark, committing, told):
                _merge(spark, table, rows(turn), merge)
            table.force()
        except CONFLICTS:
            continue
        break
    else:
        raise StoreError(f"{table.path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")
    if table.lands_again:
        table.settle(choose, newest)


def _merge(spark: SparkSession, table: ExactlyOnceTable, frame: DataFrame, merge: MergeRows) -> None:
    every = F.struct(*map(column, frame.columns))
    key = [F.expr(part.sql()).alias(f"key{number}") for number, part in enumerate(merge.key)]
    last = frame.groupBy(*key).agg(F.max_by(every, F.expr(merge.place())).alias(_ROW)).select(f"{_ROW}.*")
    is_later = f"{merge.place('here')} > {merge.place('there')}"
    builder = (
        DeltaPlace(spark, table.path)
        .open()
        .alias("there")
        .merge(last.alias("here"), merge.same_key("there", "here"))
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
