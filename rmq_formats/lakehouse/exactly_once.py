"""Exactly-once appends of log rows to a table, by transaction versions that hold physical offsets.

A table has the rows of one store, or those of several brokers: then each broker has transaction versions of its own,
and one transaction may land the rows of many.

A transaction version holds the physical offset up to which a selection has landed. It is read in the very
transaction that adds the rows and sets it, and that fails if another export has set it meanwhile: then the rows
are selected again, from where that one ended. So a killed run leaves all or nothing, a run that is repeated adds
only what has not landed, and of two that race each row is landed by one.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.evolution import check_columns, column, current_columns, missing
from rmq_formats.lakehouse.log_notes import note_of, own_note
from rmq_formats.lakehouse.owner import TOPIC_PROPERTY, check_owner, owner_property
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.progress import ExportProgress, last_metadata, read_progress
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.store_log import StoreLog, check_log, fingerprint_end, snapshot_log
from rmq_formats.lakehouse.table_log import (
    UNDECODED,
    CommitResult,
    TableLog,
    TableSnapshot,
    TableSpec,
    TableTransaction,
)
from rmq_formats.lakehouse.watermark import WATERMARK_LOST, WATERMARK_SUFFIX, HighWatermark
from rmq_formats.spark.live.plan import Span
from rmq_formats.spark.options.schemas import BROKER_NAME, CLUSTER

PULLED_END: Final = "pulled_end"
ATTEMPTS: Final = 50  # each lost race is the commit of another writer

BuildColumns = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """One attempt to append the rows of a store that have not landed yet.

    Attributes:
        transaction: transaction that has read up to where the table has landed.
        begin: physical offset where the rows not landed yet begin.
        end: exclusive.
        needs_dedup: whether the table may hold some of the rows already: other selections' exports have landed in it,
            or these are landed again.
        app_id: of the transaction version that tells how far the rows have landed.
        versions: transaction versions to commit.
        metadata: what the commit says of the log; see ``StoreLog.fingerprint``.
        broker: identifier of the broker in a commit's note; None where the table has one store.
        spans: of queues of a running broker, instead of physical offsets.
        watermark: what tells of the newest row, where rows are landed again, and ``WATERMARK_LOST`` if that is gone.
        lost_watermarks: transaction versions that mark the newest rows of other selections as gone, before these
            rows may hide that.
        undecoded_versions: transaction versions that say which messages of the selection are undecoded.
    """

    transaction: TableTransaction
    begin: int
    end: int
    needs_dedup: bool
    app_id: str
    versions: Mapping[str, int]
    metadata: str | None
    broker: str | None
    spans: tuple[Span, ...] = ()
    watermark: int | None = None
    lost_watermarks: Mapping[str, int] = field(default_factory=dict)
    undecoded_versions: Mapping[str, int] = field(default_factory=dict)

    def with_high_watermark(self, last_row: int | None) -> "CommitAttempt":
        """Return the turn with a version that tells of the newest row that has landed, by which a RESTORE is seen.

        Args:
            last_row: physical offset of the last row that is landed, of a table with a key and several brokers its
                store time in ms; None if there are no rows.
        """
        watermark = max((offset for offset in (self.watermark, last_row) if offset is not None), default=None)
        watermark_version = {} if self.spans or watermark is None else {self.app_id + WATERMARK_SUFFIX: watermark}
        return replace(
            self, versions={**self.versions, **self.lost_watermarks, **self.undecoded_versions, **watermark_version}
        )

    @property
    def has_pending_rows(self) -> bool:
        """Whether there may be rows to append."""
        return self.begin < self.end or bool(self.spans)


StartAttempt = Callable[[TableTransaction], CommitAttempt | None]
WriteRows = Callable[[Mapping[int, CommitAttempt]], CommitResult]


def commit_with_retry(path: str, log: TableLog, starts: Sequence[StartAttempt], write: WriteRows) -> CommitResult:
    """Land rows of several brokers in one transaction.

    Args:
        path: of the table.
        log: of the table.
        starts: gives the turn of each broker in a transaction; None if it has nothing to land.
        write: appends the rows of the turns, by their places in ``starts``; called again after a lost race.

    Raises:
        StoreError: each attempt lost a commit conflict, or the table does not hold what has landed in it.
    """
    for _ in range(ATTEMPTS):
        transaction = log.begin_transaction()
        started = ((number, start(transaction)) for number, start in enumerate(starts))
        attempts = {number: attempt for number, attempt in started if attempt is not None}
        if not attempts:
            return CommitResult()
        try:
            return (
                write(attempts)
                if any(attempt.has_pending_rows for attempt in attempts.values())
                else commit_progress(list(attempts.values()))
            )
        except log.conflicts:
            continue
    raise StoreError(f"{path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")


def commit_files(attempts: Sequence[CommitAttempt], files: Sequence[str], metrics: Mapping[str, int]) -> None:
    """Commit files of the rows of several turns of one transaction; see ``TableTransaction.append_files``."""
    versions = {app_id: version for attempt in attempts for app_id, version in attempt.versions.items()}
    attempts[0].transaction.append_files(files, metrics, versions, note_of(attempts))


def commit_progress(attempts: Sequence[CommitAttempt], watermark: int | None = None) -> CommitResult:
    """Commit that the table holds what it is to hold; see ``CommitAttempt.with_high_watermark``."""
    commit_files([attempt.with_high_watermark(watermark) for attempt in attempts], [], {})
    return CommitResult(committed=True)


class ExactlyOnceTable:
    """Table into which rows of one store, or of one of several brokers, are landed exactly once.

    Args:
        path: of the table, or its name in a catalog.
        log: of the table.
        selection: which of the store's messages this export lands in it.
        shape: see ``TableSpec``.
        offset: its column of physical offsets.
        broker_columns: its columns of cluster and broker, where it has those of several brokers.
        later: of a table with a key the first column by which of two rows one is the later: ``offset``, or the store
            time where it has several brokers. A row gives way to a later one alone, so as long as no row is taken
            away, one is there that is as late as any that has landed.
        key: names of its key columns, if it has a key.
    """

    def __init__(
        self,
        path: str,
        log: TableLog,
        selection: ExportSelection,
        table_spec: TableSpec,
        offset: str = "physical_offset",
        broker_columns: tuple[str, str] = (CLUSTER, BROKER_NAME),
        order_column: str | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.selection = selection
        self.app_id = selection.app_id
        self.broker_id = None if selection.broker is None else selection.broker.id
        self._table_spec = table_spec
        self.offset = offset
        self._order_column, self._key = order_column, key
        self.log = log
        self._watermarks = HighWatermark(log, selection, offset, broker_columns, order_column)
        self._progress_cache: dict[tuple[str, int, int], ExportProgress] = {}  # of the version looked at last

    def resume_offset(self) -> int:
        """Return the physical offset where the rows to land begin; -1 if nothing has landed yet.

        Raises:
            StoreError: the table does not hold what has landed in it, and no offset to begin at was asked for.
        """
        return self._resume_offset(self.progress())

    def progress(self, app_id: str | None = None) -> ExportProgress:
        """Find how far the selection has landed in the newest version of the table; see ``progress_in``."""
        snapshot = self.log.snapshot()
        return ExportProgress(-1, -1) if snapshot.version < 0 else self.progress_in(snapshot, app_id or self.app_id)

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log that is not the one that the table was exported from; unless it is to be landed again.

        Raises:
            StoreError: it was cut off, or is another store's; or it is to be landed again where rows of another log
                would be taken for its own as soon as it reaches them.
        """
        progress = self.progress()
        if not self.is_backfill:
            check_log(log, progress.verified_offset, progress.metadata, self.path)
            last_fingerprint = self._last_metadata()
            if last_fingerprint != progress.metadata:
                check_log(log, fingerprint_end(last_fingerprint), last_fingerprint, self.path)
        elif self.log.exists():
            current_log = snapshot_log(log.store)
            if max(
                progress.recorded_offset or 0, fingerprint_end(self._last_metadata())
            ) > current_log.end and self._has_rows_from(current_log.end):
                raise StoreError(
                    f"{self.path}: holds rows behind {current_log.end}, where the CommitLog ends; delete them first"
                )

    def _last_metadata(self) -> str | None:
        """What the last commit of any selection says of the log; they share the table's offsets."""
        snapshot = self.log.snapshot()
        return own_note(last_metadata(snapshot, snapshot.version, f"{self.selection.lock_id}:"), self.broker_id)

    def _has_rows_from(self, end: int) -> bool:
        offsets = self._watermarks.offsets(self.log.snapshot().version)
        return offsets is not None and not offsets.where(column(self.offset) >= end).isEmpty()

    def progress_in(self, snapshot: TableSnapshot, app_id: str) -> ExportProgress:
        """Find how far the selection has landed in a version, by its transaction identifier of stores or of queues."""
        recorded = snapshot.transaction_version(app_id)
        key = (app_id, snapshot.version, recorded)
        if key not in self._progress_cache:
            has_store_ids = any(map(self.is_store_id, snapshot.app_ids()))
            is_complete = has_store_ids and not snapshot.drops_transactions()
            find_lost_row = partial(self._watermarks.find_lost_row, snapshot)
            progress = read_progress(
                snapshot, snapshot.version, app_id, recorded, find_lost_row, is_complete=is_complete
            )
            cached = {
                cached_key: cached_progress
                for cached_key, cached_progress in self._progress_cache.items()
                if cached_key[0] != app_id
            }
            self._progress_cache = {
                **cached,
                key: replace(progress, metadata=own_note(progress.metadata, self.broker_id)),
            }
        return self._progress_cache[key]

    @property
    def watermark_id(self) -> str:
        """Transaction identifier of the selection's newest row; its version is the physical offset."""
        return self.app_id + WATERMARK_SUFFIX

    @property
    def queues_id(self) -> str:
        """Transaction identifier of what was pulled from the selection's queues; see ``cluster.queues``."""
        return f"{self.app_id}:queues"

    def pulled_end(self) -> int:
        """Return a physical offset behind which nothing was pulled from queues; 0 if nothing was at all."""
        snapshot = self.log.snapshot()
        return 0 if snapshot.version < 0 else self._pulled_end(snapshot)

    def _pulled_end(self, snapshot: TableSnapshot) -> int:
        if self.selection.broker is None:
            return 0
        progress = self.progress_in(snapshot, self.queues_id)
        if progress.recorded_offset is not None and progress.recorded_offset < 0:
            return 0
        try:
            return int(json.loads(progress.metadata or "")[PULLED_END])
        except (ValueError, TypeError, KeyError):  # it is unknown
            return 1 << 62

    def is_store_id(self, app_id: str) -> bool:
        """Return whether an application id is that of any selection of the store."""
        return app_id == self.selection.lock_id or app_id.startswith(f"{self.selection.lock_id}:")

    def is_other_selection_id(self, app_id: str, own_ids: Collection[str]) -> bool:
        """Return whether an application id tells that another selection of the store has landed rows."""
        return self.is_store_id(app_id) and app_id not in own_ids and not app_id.endswith(UNDECODED)

    def _resume_offset(self, progress: ExportProgress) -> int:
        from_offset = self.selection.from_offset
        if from_offset is None:
            if progress.fault is not None:
                raise StoreError(f"{self.path}: {progress.fault}")
            return progress.verified_offset
        if progress.recorded_offset is not None and from_offset > max(progress.recorded_offset, 0):
            raise StoreError(
                f"--from-offset {from_offset}: {self.path} has landed up to {max(progress.recorded_offset, 0)} only"
            )
        return from_offset

    @property
    def is_backfill(self) -> bool:
        """Whether rows may be in the table already, and are to be left out then."""
        return self.selection.from_offset is not None

    def check(self, schema: StructType) -> None:
        """Refuse a table of another store, of another layout, or one whose files are gone. Raises StoreError."""
        if not self.log.exists():
            return
        self._check_fit(schema)
        other_table = self.log.other_table()
        if other_table is not None:
            raise StoreError(
                f"{self.path}: its directory has {other_table}, too: move that away, or give another --table"
            )
        missing_path = self.log.missing_file()
        if missing_path is not None:
            raise StoreError(f"{self.path}: its data file {missing_path} is gone: put it back, or give another --table")

    def _check_fit(self, schema: StructType) -> None:
        properties = self.log.configuration()
        check_owner(self.path, properties, self.selection)
        expected_properties = dict(self._table_spec.properties)
        for name in (TOPIC_PROPERTY, *expected_properties):
            expected = expected_properties.get(name)
            if properties.get(name) != expected:
                raise StoreError(
                    f"{self.path}: its {name} is {properties.get(name) or 'none'}, not {expected or 'none'}"
                )
        partitions = ",".join(self.log.partition_columns())
        if partitions != ",".join(self._table_spec.partitions):
            expected = ",".join(self._table_spec.partitions)
            raise StoreError(f"{self.path}: is partitioned by {partitions or 'nothing'}, not {expected or 'nothing'}")
        check_columns(
            self.path, self.log.schema(), self.log.storable_schema(self._current(schema)), [self.offset, *self._key]
        )

    def _current(self, schema: StructType) -> StructType:
        """Return the columns under the names that they have in the table now, without those that were dropped."""
        return current_columns(self.path, schema, self.log.former_columns())

    def prepare(self, schema: StructType) -> None:
        """Create the table if there is none, and add the columns that it lacks."""
        if not self.log.exists():
            properties = {
                **dict(self._table_spec.initial_properties),
                **dict(self._table_spec.properties),
                **dict([owner_property(self.selection)]),
            }
            self.log.create(schema, self._table_spec, properties)
        self._check_fit(schema)
        if any(missing(self.log.schema(), current := self._current(schema))):
            self.log.add_columns(current)

    def start_attempt(self, end: int, log: StoreLog) -> StartAttempt:
        """Return what begins an attempt to land the records that begin before ``end`` in a transaction."""
        return lambda transaction: self._start(transaction, end, log)

    def fsync(self) -> None:
        """Force what was committed by other means than ``land``."""
        self.log.fsync()

    def commit_progress(self, start: StartAttempt, watermark: int | None) -> None:
        """Set the transaction versions of an attempt alone; see ``CommitAttempt.with_high_watermark``."""
        commit_with_retry(
            self.path, self.log, [start], lambda attempts: commit_progress(list(attempts.values()), watermark)
        )

    def _start(self, transaction: TableTransaction, end: int, log: StoreLog) -> CommitAttempt | None:
        """Begin an attempt; None if nothing is left to land."""
        selection = self.selection
        transaction.watch(selection.app_id)
        transaction.watch(selection.lock_id)
        snapshot = transaction.snapshot
        progress = self.progress_in(snapshot, self.app_id)
        first = self._resume_offset(progress)
        if end < first or (end == first and not self.is_backfill):
            return None
        own_ids = {selection.app_id, self.watermark_id, selection.lock_id, self.queues_id}
        has_other_selections = any(self.is_other_selection_id(name, own_ids) for name in snapshot.app_ids())
        pulled_end = self._pulled_end(snapshot)
        needs_dedup = (
            self.is_backfill or has_other_selections or max(first, 0) < pulled_end or snapshot.drops_transactions()
        )
        # Behind the end of a log that is not the one that was exported nothing has landed.
        verified = (
            progress.verified_offset
            if log.reread_if_shorter(progress.verified_offset).matches(progress.verified_offset, progress.metadata)
            else end
        )
        versions = {selection.app_id: max(end, verified), selection.lock_id: snapshot.version + 1}
        begin = max(first, selection.starting_physical_offset)
        watermark = None
        if self.is_backfill:
            is_lost = self._watermarks.find_lost_row(snapshot, self.app_id) is not None
            watermark = WATERMARK_LOST if is_lost else snapshot.transaction_version(self.watermark_id)
        metadata, lost_watermarks = log.fingerprint(end), self._lost_watermarks(snapshot, begin, end)
        return CommitAttempt(
            transaction,
            begin,
            end,
            needs_dedup,
            self.app_id,
            versions,
            metadata,
            self.broker_id,
            watermark=watermark,
            lost_watermarks=lost_watermarks,
        )

    def _lost_watermarks(self, snapshot: TableSnapshot, begin: int, end: int) -> dict[str, int]:
        by_time = self._order_column not in {None, self.offset}  # a row of any broker may be as late as another's
        other_ids = [
            name
            for name in snapshot.app_ids()
            if name.endswith(WATERMARK_SUFFIX) and name != self.watermark_id and (by_time or self.is_store_id(name))
        ]
        return self._watermarks.lost_watermarks(snapshot, other_ids, begin, end) if begin < end else {}

    def append(
        self, attempt: CommitAttempt, frame: DataFrame, build_columns: BuildColumns = lambda frame: frame
    ) -> CommitResult:
        """Append rows by Spark, and commit them with the turn's transaction versions.

        Args:
            attempt: see ``CommitAttempt``.
            frame: the rows that begin at ``turn.begin`` or behind it, with the table's column of physical offsets.
            build_columns: builds the table's columns of the rows to append.
        """
        pending, observation = (
            self._without_committed_rows(frame, attempt) if attempt.needs_dedup else frame,
            Observation(),
        )
        rows = self.with_current_names(build_columns(pending)).observe(
            observation, F.max(column(self.offset)).alias("newest")
        )
        return attempt.transaction.append(
            rows, lambda: attempt.with_high_watermark(observation.get["newest"]).versions, note_of([attempt])
        )

    def with_current_names(self, frame: DataFrame) -> DataFrame:
        """Select columns under the names that they have in the table now, without those that were dropped."""
        former_names = self.log.former_columns()
        if not former_names:
            return frame
        renamed = ((name, former_names.get(name, name)) for name in frame.columns)
        return frame.select(
            *(column(name).alias(current_name) for name, current_name in renamed if current_name is not None)
        )

    def layout(self, codec: str) -> Layout | None:
        """Return how tasks write Parquet files; None if the rows have to go through Spark."""
        if self.log.former_columns():
            return None
        return self.log.layout(self._table_spec, codec)

    def _without_committed_rows(self, frame: DataFrame, attempt: CommitAttempt) -> DataFrame:
        """Remove rows that the table has."""
        store_offsets = self._watermarks.offsets(attempt.transaction.snapshot.version)
        if store_offsets is None:
            return frame
        committed = store_offsets.select(column(self.offset))
        if not attempt.spans:
            committed = committed.where(column(self.offset).between(attempt.begin, attempt.end - 1))
        return frame.join(committed, self.offset, "left_anti").select(*map(column, frame.columns))
