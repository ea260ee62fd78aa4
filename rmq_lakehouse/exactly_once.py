"""Exactly-once commit of log rows to a Delta or Iceberg table.

The steps of a commit, in the order of this module:

1. Begin a transaction on the newest version of the table: ``commit_with_retry``.
2. Watch the transaction versions of the export, read its progress from the snapshot, and find the range of the log
   that is still pending: ``ExactlyOnceTable.start_attempt``.
3. Write the pending rows as data files, without those that the table already contains: the tasks of ``raw_files``, or
   ``spark_table``. In a table with a key, merge them: ``SparkTableLog.upsert``.
4. Add the high watermark to the transaction versions: ``with_high_watermark``.
5. Commit data files, transaction versions and metadata atomically: ``commit_files``, by ``TableTransaction.commit``.
6. If another writer changed a watched version meanwhile, the commit fails. Begin again with step 1.

The transaction version of an export is the physical offset up to which its rows are committed. Rows and offset are one
commit: a killed run leaves both or neither, and a repeated run commits pending rows only. Of two runs that race, one
commits first, and the other begins again after the offset of the first.

A table contains the rows of one store, or of several brokers. Each broker has transaction versions of its own, and one
transaction may commit the rows of many brokers.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.errors import StoreError
from rmq_formats.read.log_fingerprint import fingerprint_end, fingerprint_log
from rmq_lakehouse.parquet import WrittenFile
from rmq_lakehouse.progress import ExportProgress, last_metadata, read_progress
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.store_log import StoreLog, check_log, snapshot_log
from rmq_lakehouse.table_fit import check_files, check_fit, source_property
from rmq_lakehouse.table_log import (
    UNDECODED,
    CommitAttempt,
    CommitResult,
    StartAttempt,
    TableLog,
    TableSnapshot,
    TableSpec,
    TableTransaction,
)
from rmq_lakehouse.watermark import WATERMARK_LOST, WATERMARK_SUFFIX, HighWatermark

PULLED_END: Final = "pulled_end"
ATTEMPTS: Final = 50  # each lost race is the commit of another writer
_BROKERS: Final = "brokers"
_UNKNOWN_OFFSET: Final = 1 << 62  # after the end of any log

WriteRows = Callable[[Mapping[int, CommitAttempt]], CommitResult]
"""Writes and commits the rows of attempts of one transaction, by their positions in the list of ``StartAttempt``."""


def commit_with_retry(
    path: str, log: TableLog, starts: Sequence[StartAttempt], write: WriteRows | None
) -> CommitResult:
    """Commit the pending rows of several brokers in one transaction, and retry after a lost race (steps 1 and 6).

    Args:
        write: writes and commits the rows, again after each lost race. None without rows commits only the progress.

    Raises StoreError: each attempt lost a race, or the table does not contain the rows that were committed to it.
    """
    for _ in range(ATTEMPTS):
        transaction = log.begin_transaction()
        started = ((number, start(transaction)) for number, start in enumerate(starts))
        attempts = {number: attempt for number, attempt in started if attempt is not None}
        if not attempts:
            return CommitResult()
        try:
            if write is not None and any(attempt.has_pending_rows for attempt in attempts.values()):
                return write(attempts)
            return commit_progress(list(attempts.values()))
        except log.conflicts:
            continue
    raise StoreError(f"{path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")


class ExactlyOnceTable:
    """Table to which the rows of one store, or of one broker, are committed exactly once.

    Args:
        path: path of the table, or its name in a catalog.
        offset: name of the column of physical offsets.
        broker_columns: names of the columns of cluster and broker, in a table of several brokers.
        order_column: first column that orders rows in a table with a key: ``offset``, or the store time with several
            brokers. Only a later row replaces a row. So unless rows were removed, the table has a row as late as the
            latest row committed.
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
        broker = selection.broker
        self.broker_id = None if broker is None else broker.id
        self.offset = offset
        self.log = log
        self._table_spec, self._broker_columns = table_spec, broker_columns
        self._order_column, self._identity_columns = order_column, [offset, *key]
        # Values of the columns of cluster and broker in the store's rows; empty in a table of one store.
        self.broker_texts = (
            {} if broker is None else dict(zip(broker_columns, (broker.cluster, broker.name), strict=True))
        )
        self._watermarks = HighWatermark(log, offset, order_column, self.broker_texts)
        # By application id: table version and transaction version, and the progress there.
        self._progress_cache: dict[str, tuple[tuple[int, int], ExportProgress]] = {}

    @property
    def watermark_id(self) -> str:
        """Application id of the high watermark; its version is the physical offset of the newest row committed."""
        return self.app_id + WATERMARK_SUFFIX

    @property
    def queues_id(self) -> str:
        """Application id of the progress by queue offsets; see ``cluster.queues``."""
        return f"{self.app_id}:queues"

    @property
    def is_backfill(self) -> bool:
        """Whether the export begins at ``--from-offset``, so that the table may already contain its rows."""
        return self.selection.from_offset is not None

    def backfill_option(self, offset: int) -> str:
        """Return the options of a backfill from a physical offset; several stores have one by their cluster alone."""
        if self.selection.with_tier:
            return "another table"
        return f"--from-offset {offset}" if self.broker_id is None else "--namesrv with --from-offset 0"

    def is_other_selection_id(self, app_id: str, own_ids: Collection[str]) -> bool:
        """Return whether an application id shows that another selection of the store has committed rows."""
        return self.selection.is_own_id(app_id) and app_id not in own_ids and not app_id.endswith(UNDECODED)

    # Before the first commit: the table and the log must fit.

    def check(self, schema: Any) -> None:
        """Refuse a table of another store or of another layout, or a table with missing files. Raises StoreError."""
        if self.log.exists():
            self._check_fit(schema)
            check_files(self.path, self.log)

    def prepare(self, schema: Any) -> None:
        """Create the table, or add the columns that it lacks, again after a lost race. Raises StoreError."""
        log, table_spec = self.log, self._table_spec
        if not log.exists():
            owner = source_property(self.selection)
            log.create(schema, table_spec, dict([*table_spec.initial_properties, *table_spec.properties, owner]))
        for _ in range(ATTEMPTS):
            self._check_fit(schema)
            try:
                log.add_missing_columns(self.path, schema)
            except log.conflicts:
                continue
            return
        raise StoreError(f"{self.path}: lost {ATTEMPTS} commit conflicts to other writers; run the export again")

    def _check_fit(self, schema: Any) -> None:
        check_fit(self.path, self.log, self.selection, self._table_spec)
        self.log.check_columns(self.path, schema, self._identity_columns)

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log other than the one that the table was exported from, unless the export is a backfill.

        A backfill refuses a table with rows after the end of the log: once the log has grown, they would pass for its
        rows. Raises StoreError.
        """
        progress = self.progress()
        if not self.is_backfill:
            check_log(log, progress.verified_offset, progress.metadata, self.path)
            last_fingerprint = self._last_metadata()
            if last_fingerprint != progress.metadata:
                check_log(log, fingerprint_end(last_fingerprint), last_fingerprint, self.path)
        elif self.log.exists():
            log_end = snapshot_log(log.store).end
            exported_end = max(progress.recorded_offset or 0, fingerprint_end(self._last_metadata()))
            if exported_end > log_end and self._watermarks.has_offsets(self.log.snapshot().version, log_end):
                raise StoreError(
                    f"{self.path}: the table has rows after offset {log_end}, the end of the CommitLog. "
                    "Delete these rows first"
                )

    def _last_metadata(self) -> str | None:
        """Return the metadata of the last commit of any selection: all selections share the offsets of the table."""
        snapshot = self.log.snapshot()
        return broker_metadata(last_metadata(snapshot, snapshot.version, f"{self.selection.lock_id}:"), self.broker_id)

    # Step 2: start an attempt from the progress that the table records.

    def start_attempt(self, end: int, log: StoreLog) -> StartAttempt:
        """Return the function that starts an attempt to commit the records that begin before ``end``."""
        return lambda transaction: self._start(transaction, end, log)

    def _start(self, transaction: TableTransaction, end: int, log: StoreLog) -> CommitAttempt | None:
        selection = self.selection
        transaction.watch(selection.app_id)
        transaction.watch(selection.lock_id)
        snapshot = transaction.snapshot
        progress = self.progress_in(snapshot, self.app_id)
        first = self._resume_offset(progress)
        verified_end = progress.verified_offset
        if self.is_backfill:
            if not log.reread_if_shorter(verified_end).matches(verified_end, progress.metadata):
                verified_end = end  # the log is not the exported one: its offset proves nothing
        else:  # another writer may have committed another store under this store's identifier
            check_log(log, verified_end, progress.metadata, self.path)
        if end < first or (end == first and not self.is_backfill):
            return None
        begin = max(first, selection.starting_physical_offset)
        watermark = None
        if self.is_backfill:
            is_lost = self._watermarks.find_lost_row(snapshot, self.app_id) is not None
            watermark = WATERMARK_LOST if is_lost else snapshot.transactions.get(self.watermark_id, -1)
        versions = {selection.app_id: max(end, verified_end), selection.lock_id: snapshot.version + 1}
        return CommitAttempt(
            transaction,
            begin,
            end,
            needs_dedup=self._needs_dedup(snapshot, first),
            app_id=self.app_id,
            versions=versions,
            metadata=fingerprint_log(log.files.storage, log.segments, end),
            broker_id=self.broker_id,
            watermark=watermark,
            lost_watermarks=self._lost_watermarks(snapshot, begin, end),
        )

    def _needs_dedup(self, snapshot: TableSnapshot, first: int) -> bool:
        """Return whether the table may already contain rows of the log from the offset ``first``."""
        own_ids = {self.app_id, self.watermark_id, self.selection.lock_id, self.queues_id}
        return (
            self.is_backfill
            or any(self.is_other_selection_id(name, own_ids) for name in snapshot.transactions)
            or max(first, 0) < self._pulled_end(snapshot)
            or snapshot.expires_transactions()
        )

    def _lost_watermarks(self, snapshot: TableSnapshot, begin: int, end: int) -> dict[str, int]:
        by_time = self._order_column not in {None, self.offset}  # a row of any broker may be as late as another's
        other_ids = [
            name
            for name in snapshot.transactions
            if name.endswith(WATERMARK_SUFFIX)
            and name != self.watermark_id
            and (by_time or self.selection.is_own_id(name))
        ]
        return self._watermarks.lost_watermarks(snapshot, other_ids, begin, end) if begin < end else {}

    def resume_offset(self) -> int:
        """Return the physical offset of the first pending row; -1 if nothing was committed yet.

        Raises StoreError: without ``--from-offset`` the table does not contain the rows that were committed.
        """
        return self._resume_offset(self.progress())

    def _resume_offset(self, progress: ExportProgress) -> int:
        from_offset = self.selection.from_offset
        if from_offset is None:
            if progress.fault is not None:
                broker_remedy = f"{self.backfill_option(0)} exports missing messages"
                remedy = progress.remedy if self.broker_id is None else broker_remedy
                raise StoreError(f"{self.path}: {progress.fault}; {remedy}")
            return progress.verified_offset
        if progress.recorded_offset is not None and from_offset > max(progress.recorded_offset, 0):
            recorded = max(progress.recorded_offset, 0)
            raise StoreError(f"--from-offset {from_offset}: last export of {self.path} committed {recorded}")
        return from_offset

    def progress(self, app_id: str | None = None) -> ExportProgress:
        """Read the progress of the selection from the newest version of the table; see ``progress_in``."""
        snapshot = self.log.snapshot()
        return ExportProgress(-1, -1) if snapshot.version < 0 else self.progress_in(snapshot, app_id or self.app_id)

    def progress_in(self, snapshot: TableSnapshot, app_id: str) -> ExportProgress:
        """Read the progress of the selection, by physical offsets or by queue offsets, from a snapshot."""
        recorded = snapshot.transactions.get(app_id, -1)
        key = snapshot.version, recorded
        cached_key, progress = self._progress_cache.get(app_id, (None, ExportProgress(-1, -1)))
        if cached_key != key:
            has_store_ids = any(map(self.selection.is_own_id, snapshot.transactions))
            is_complete = has_store_ids and not snapshot.expires_transactions()
            find_lost_row = partial(self._watermarks.find_lost_row, snapshot)
            progress = read_progress(
                snapshot, snapshot.version, app_id, recorded, find_lost_row, is_complete=is_complete
            )
            progress = replace(progress, metadata=broker_metadata(progress.metadata, self.broker_id))
            self._progress_cache[app_id] = key, progress
        return progress

    def pulled_end(self) -> int:
        """Return a physical offset after all messages that were pulled from queues; 0 if none was."""
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
        except (ValueError, TypeError, KeyError):
            return _UNKNOWN_OFFSET


def with_high_watermark(attempt: CommitAttempt, last_row: int | None) -> CommitAttempt:
    """Add the high watermark to the transaction versions of an attempt (step 4).

    Args:
        last_row: physical offset of the last row, None without rows; in a table with a key and several brokers the
            store time of that row, in ms.
    """
    watermark = max((offset for offset in (attempt.watermark, last_row) if offset is not None), default=None)
    watermark_version = {} if attempt.spans or watermark is None else {attempt.app_id + WATERMARK_SUFFIX: watermark}
    versions = {**attempt.versions, **attempt.lost_watermarks, **attempt.undecoded_versions, **watermark_version}
    return replace(attempt, versions=versions)


def commit_files(attempts: Sequence[CommitAttempt], adds: Sequence[WrittenFile] | None) -> CommitResult:
    """Commit files, if there are rows, transaction versions and metadata of attempts of one transaction (step 5).

    Raises one of the log's ``conflicts`` if another writer was faster.
    """
    versions = {app_id: version for attempt in attempts for app_id, version in attempt.versions.items()}
    attempts[0].transaction.commit(adds, versions, join_metadata(attempts))
    files = adds or ()
    return CommitResult(sum(file.rows for file in files), len(files), committed=True)


def commit_progress(attempts: Sequence[CommitAttempt], last_row: int | None = None) -> CommitResult:
    """Commit the transaction versions of attempts without rows; ``last_row`` as in ``with_high_watermark``."""
    return commit_files([with_high_watermark(attempt, last_row) for attempt in attempts], None)


def commit_progress_with_retry(path: str, log: TableLog, start: StartAttempt, last_row: int | None) -> None:
    """Commit the transaction versions of one attempt without rows, and retry after a lost race."""
    commit_with_retry(path, log, [start], lambda attempts: commit_progress(list(attempts.values()), last_row))


def join_metadata(attempts: Sequence[CommitAttempt]) -> str | None:
    """Join the metadata of attempts: that of one store unchanged, that of brokers as JSON by broker."""
    if attempts[0].broker_id is None:
        return attempts[0].metadata
    return json.dumps({_BROKERS: {attempt.broker_id: attempt.metadata for attempt in attempts}})


def broker_metadata(metadata: str | None, broker_id: str | None) -> str | None:
    """Return the part of a commit's metadata that belongs to one broker; see ``join_metadata``."""
    if broker_id is None or metadata is None:
        return metadata
    try:
        part = json.loads(metadata)[_BROKERS][broker_id]
    except (ValueError, TypeError, KeyError):  # metadata of another program
        return None
    return part if isinstance(part, str) else None
