"""Exports of one store: a batch up to the log's end, or a stream of micro batches while the log grows."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from shlex import quote

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.command.checkpoint import ExportCheckpoint
from rmq_formats.lakehouse.raw import Export, ExportCounts
from rmq_formats.lakehouse.records import PendingRecords
from rmq_formats.lakehouse.store_log import StoreLog, snapshot_log
from rmq_formats.read.fsync import fsync_log
from rmq_formats.read.query import Include

_WAIT_S = 0.5  # how long until a signal is noticed
# Spark gives a stream's planning process ten seconds to start, without a setting: a busy machine needs more.
_STARTS = 5
_NOT_STARTED = "Python worker failed to connect back"

_log = logging.getLogger("rmq_formats.lakehouse")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of an export, and its tolerance of data loss.

    Attributes:
        ending_physical_offset: exclusive; None is the log's end.
        fail_on_data_loss: whether bytes that were deleted before they were exported are an error.
        topics: largest possible number of topics, which decides the size of files.
    """

    ending_physical_offset: int | None = None
    fail_on_data_loss: bool = True
    topics: int = 1


@dataclass(slots=True)
class RunProgress:
    """Progress of a run: offsets and counts.

    Attributes:
        start: physical offset where the run began.
        end: physical offset up to which the run has exported.
        missing_bytes: bytes of the log that were deleted before they were exported.
        leftover_bytes: bytes after the log's end with messages that no queue has, if the export includes them.
        counts: counts by export.
        batches: number of micro batches with pending rows.
    """

    start: int = 0
    end: int = 0
    missing_bytes: int = 0
    leftover_bytes: int = 0
    batches: int = 0
    counts: dict[str, ExportCounts] = field(default_factory=dict)

    @property
    def total(self) -> ExportCounts:
        """Counts of all exports together."""
        return sum(self.counts.values(), ExportCounts())

    @property
    def offsets(self) -> dict[str, int]:
        """Offsets where the run began and ended, as members of the JSON report."""
        return {"starting_physical_offset": self.start, "ending_physical_offset": self.end}


class ExportRun:
    """Run of the exports of one store.

    Args:
        spark: the session.
        store: root of the store.
        exports: the exports.
        bounds: see ``Bounds``.
    """

    def __init__(self, spark: SparkSession, store: str, exports: Sequence[Export], bounds: Bounds) -> None:
        self._spark = spark
        self._store = store
        self._exports = exports
        self._bounds = bounds
        self.check_lease: Callable[[], None] = lambda: None  # raises if another exporter has taken over
        self.progress = RunProgress(counts={export.name: ExportCounts() for export in exports})

    def check(self, log: StoreLog) -> None:
        """Refuse tables and logs that do not fit, before anything is written; then set where the run begins.

        Raises:
            StoreError: a table of another store, a log that was cut off, or one with deleted bytes that are pending.
        """
        for export in self._exports:
            export.check()
            export.check_log(log)
            self._check_missing_bytes(log, self._held_end(export, log), self.end(log))
        if any(export.selection.include == Include.UNQUEUED for export in self._exports):
            self._report_leftovers(log)
        self.progress.start = self.begin(log)
        self.progress.end = self.progress.start

    def _report_leftovers(self, log: StoreLog) -> None:
        """Report messages that are not exported: a broker gives their physical offsets to its next messages."""
        self.progress.leftover_bytes = log.leftover_bytes
        if log.leftover_bytes:
            _log.warning(
                "%s: %d bytes behind the log's end at %d are not exported: a broker overwrites them. To keep their "
                "messages: rmq replay --store %s --include unqueued --to-store NEW",
                self._store, log.leftover_bytes, log.end, quote(self._store),
            )  # fmt: skip

    def begin(self, log: StoreLog) -> int:
        """Return the smallest physical offset at which an export resumes."""
        return min(self._begin_offset(export, log) for export in self._exports)

    def _begin_offset(self, export: Export, log: StoreLog) -> int:
        resume_offset = export.resume_offset()
        return (
            resume_offset
            if resume_offset >= 0
            else max(export.selection.starting_physical_offset, log.segments[0].start_offset)
        )

    def _held_end(self, export: Export, log: StoreLog) -> int:
        """Return the offset up to which messages are committed, by an export of the store or else of the cluster."""
        begin, first = self._begin_offset(export, log), export.selection.starting_physical_offset
        if export.resume_offset() >= 0:
            return begin
        pulled_end = min((table.pulled_end() for table in export.exactly_once_tables), default=0)
        return max(first, min(begin, pulled_end)) if pulled_end else begin

    def end(self, log: StoreLog) -> int:
        """Return the physical offset where the run ends, by its bounds."""
        requested_end = self._bounds.ending_physical_offset
        return log.end if requested_end is None else min(log.end, requested_end)

    def _check_missing_bytes(self, log: StoreLog, begin: int, end: int) -> int:
        gaps = log.missing(begin, end)
        for first, last in gaps:
            message = f"{self._store}: bytes {first} to {last} of the CommitLog are gone: deleted before the export"
            if self._bounds.fail_on_data_loss:
                raise StoreError(f"{message}; --fail-on-data-loss false skips them")
            _log.warning("%s", message)
        return sum(last - first for first, last in gaps)

    def prepare(self) -> None:
        """Create the tables. Raises StoreError."""
        for export in self._exports:
            export.prepare()

    def export_up_to(self, log: StoreLog, end: int) -> ExportCounts:
        """Commit the pending rows of records that begin before ``end``, in all exports; return their counts.

        Raises:
            StoreError: the log ends before; nothing is committed.
        """
        missing_bytes, counts, has_pending = 0, ExportCounts(), False
        for export in self._exports:
            pending = self.pending_records(export, log, end)
            if pending is not None:
                records, missing = pending
                missing_bytes, has_pending = max(missing_bytes, missing), True
                counts += self.count(export, export.commit_pending(records))
        self.record_progress(end, missing_bytes, has_pending=has_pending)
        return counts

    def pending_records(self, export: Export, log: StoreLog, end: int) -> tuple[PendingRecords, int] | None:
        """Return the records that an export has to commit up to ``end``, and the number of missing bytes; None if none.

        Raises:
            StoreError: the log ends before, or is not the one that was exported.
        """
        self.check_lease()
        export.check_log(log)
        begin = self._begin_offset(export, log)
        if begin > end or (begin == end and export.selection.from_offset is None):
            return None
        if end > log.end:  # records written there later would be taken for committed
            raise StoreError(
                f"{self._store}: the CommitLog ends at {log.end}, but the checkpoint was at {end}: "
                "the log was cut off, or it is another store's; give another --checkpoint"
            )
        missing_bytes = self._check_missing_bytes(log, self._held_end(export, log), end)
        fsync_log(log.storage, log.segments, begin, end)  # before it is read: no loss of power takes it back then
        records = PendingRecords(self._spark, export.selection, export.source_options(), end, self._bounds.topics, log)
        return records, missing_bytes

    def count(self, export: Export, added: ExportCounts) -> ExportCounts:
        """Add the counts of an export to the progress of the run."""
        self.progress.counts[export.name] += added
        return added

    def record_progress(self, end: int, missing_bytes: int, *, has_pending: bool) -> None:
        """Record that all exports have reached ``end``, the missing bytes, and whether rows were pending."""
        progress = self.progress
        progress.missing_bytes += missing_bytes
        progress.batches += has_pending
        progress.end = max(progress.end, end)

    def batch(self, log: StoreLog) -> None:
        """Commit all records up to the log's end, as one batch."""
        self.export_up_to(log, self.end(log))

    def stream(self, checkpoint: ExportCheckpoint, interval: str | None, limits: dict[str, str]) -> None:
        """Commit records as they arrive, until the query ends or a signal stops it.

        A micro batch is a range of the log. Its rows are read from the progress of the table, not from the checkpoint.
        The checkpoint may be lost, or differ from the progress in either direction.

        Args:
            checkpoint: checkpoint of the query.
            interval: time between micro batches, as ``10 seconds``; None ends the query at the current end of the log.
            limits: options of the source that bound a micro batch.
        """
        self.export_up_to(
            snapshot_log(self._store), checkpoint.committed_end()
        )  # a new table has not seen what the checkpoint has
        source = self._spark.readStream.format("rmq_commitlog").options(**limits).option("columns", "physical_offset")
        source = source.option("startingPhysicalOffset", self.progress.start)
        source = source.option("failOnDataLoss", str(self._bounds.fail_on_data_loss).lower())
        writer = source.load(self._store).writeStream.option("checkpointLocation", checkpoint.path)
        with stopping() as stopped:
            commit_lock = threading.Lock()

            def export_batch(_frame: DataFrame, batch_id: int) -> None:
                with commit_lock:
                    if not stopped.is_set():  # else the next run exports it, from the table's progress
                        log, end = snapshot_log(self._store), checkpoint.batch_end(batch_id)
                        _log_batch(batch_id, self.export_up_to(log, end), log.end - end)

            writer = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
            writer = writer.foreachBatch(export_batch)
            for start in range(1, _STARTS + 1):
                try:
                    _await(writer.start(), stopped, commit_lock)
                    break
                except StreamingQueryException as error:
                    if _NOT_STARTED not in str(error) or start == _STARTS:
                        raise
                    _log.warning("the stream's Python process was too slow to start, retrying: %s", error)


def repeat(export_round: Callable[[], bool], interval_s: float | None) -> None:
    """Export round after round.

    Args:
        export_round: exports one round; returns whether more is pending.
        interval_s: time between rounds that leave nothing pending, until a signal; None ends with the first such round.
    """
    if interval_s is None:
        while export_round():
            pass
        return
    with stopping() as stopped:
        while not stopped.is_set():
            if not export_round():
                stopped.wait(interval_s)


def _log_batch(batch_id: int, counts: ExportCounts, lag_bytes: int) -> None:
    _log.info(
        "batch %d: %d rows, %d files, %d bytes; %d bytes of the log behind",
        batch_id, counts.messages, counts.files, counts.bytes, lag_bytes,
    )  # fmt: skip


def _await(query: StreamingQuery, stopped: threading.Event, commit_lock: threading.Lock) -> None:
    try:
        while not stopped.is_set() and not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type]
            pass
    finally:
        with commit_lock:  # waits for the batch that is being committed, so that the report includes it
            pass
        query.stop()


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Return an event that SIGINT and SIGTERM set, instead of ending the process."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
