"""Runs exports: as one batch of what is there, or as a stream of micro batches while a log grows."""

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
from rmq_formats.lakehouse.log import StoreLog, look
from rmq_formats.lakehouse.raw import Export, Landed
from rmq_formats.lakehouse.records import Records
from rmq_formats.read.forced import force_log
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
        fail_on_data_loss: whether what was deleted before it was exported is an error.
        topics: number of topics at most, for the size of files.
    """

    ending_physical_offset: int | None = None
    fail_on_data_loss: bool = True
    topics: int = 1


@dataclass(slots=True)
class ExportProgress:
    """Progress of a run: offsets and counts.

    Attributes:
        start: physical offset where it began.
        end: where it stands.
        missing_bytes: bytes of the log that were deleted before they were exported.
        leftover_bytes: bytes behind the log's end that hold messages no queue has, which were asked for.
        landed: counts by export.
        batches: micro batches that landed something.
    """

    start: int = 0
    end: int = 0
    missing_bytes: int = 0
    leftover_bytes: int = 0
    batches: int = 0
    landed: dict[str, Landed] = field(default_factory=dict)

    @property
    def total(self) -> Landed:
        """Counts of all exports together."""
        return sum(self.landed.values(), Landed())

    @property
    def offsets(self) -> dict[str, int]:
        """Where it began and where it stands, as members of a JSON report."""
        return {"starting_physical_offset": self.start, "ending_physical_offset": self.end}


class ExportRun:
    """Exports of one store that run together.

    Args:
        spark: the session.
        store: the store's root.
        exports: the exports.
        bounds: see ``Bounds``.
    """

    def __init__(self, spark: SparkSession, store: str, exports: Sequence[Export], bounds: Bounds) -> None:
        self._spark = spark
        self._store = store
        self._exports = exports
        self._bounds = bounds
        self.still_alone: Callable[[], None] = lambda: None  # raises if another exporter has taken over
        self.progress = ExportProgress(landed={export.name: Landed() for export in exports})

    def check(self, log: StoreLog) -> None:
        """Refuse what does not fit, before anything is written; then set where the run begins.

        Raises:
            StoreError: a table of another store, a log that was cut off, or a part of it that is gone.
        """
        for export in self._exports:
            export.check()
            export.check_log(log)
            self._missing(log, self._held_end(export, log), self.end(log))
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
        """Return the physical offset where the first of the exports stands."""
        return min(self._begin(export, log) for export in self._exports)

    def _begin(self, export: Export, log: StoreLog) -> int:
        landed = export.exported_end()
        return landed if landed >= 0 else max(export.selection.starting_physical_offset, log.segments[0].start_offset)

    def _held_end(self, export: Export, log: StoreLog) -> int:
        """Return where the export stands; where it has not begun, but one of the cluster has, where that one stands."""
        begin, first = self._begin(export, log), export.selection.starting_physical_offset
        if export.exported_end() >= 0:
            return begin
        pulled = min((table.pulled_end() for table in export.exactly_once), default=0)
        return max(first, min(begin, pulled)) if pulled else begin

    def end(self, log: StoreLog) -> int:
        """Return the physical offset where the export ends, by the bounds."""
        asked = self._bounds.ending_physical_offset
        return log.end if asked is None else min(log.end, asked)

    def _missing(self, log: StoreLog, begin: int, end: int) -> int:
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

    def land(self, log: StoreLog, end: int) -> Landed:
        """Land the rows not landed yet of the records that begin before ``end``, in all exports; returns their counts.

        Raises:
            StoreError: the log ends before; nothing is landed.
        """
        gone, landed, done = 0, Landed(), False
        for export in self._exports:
            owed = self.owed(export, log, end)
            if owed is not None:
                records, lost = owed
                gone, done = max(gone, lost), True
                landed += self.count(export, export.land(records))
        self.has_landed(end, gone, done=done)
        return landed

    def owed(self, export: Export, log: StoreLog, end: int) -> tuple[Records, int] | None:
        """Return what an export is to land up to ``end``, and the bytes of it that are gone; None if it is nothing.

        Raises:
            StoreError: the log ends before, or is not the one that was exported.
        """
        self.still_alone()
        export.check_log(log)
        begin = self._begin(export, log)
        if begin > end or (begin == end and export.selection.from_offset is None):
            return None
        if end > log.end:  # records written there later would be taken for landed
            raise StoreError(
                f"{self._store}: the CommitLog ends at {log.end}, but the checkpoint was at {end}: "
                "the log was cut off, or it is another store's; give another --checkpoint"
            )
        gone = self._missing(log, self._held_end(export, log), end)
        force_log(log.storage, log.segments, begin, end)  # before it is read: no loss of power takes it back then
        records = Records(self._spark, export.selection, export.source_options(), end, self._bounds.topics, log)
        return records, gone

    def count(self, export: Export, added: Landed) -> Landed:
        """Count what an export has landed."""
        self.progress.landed[export.name] += added
        return added

    def has_landed(self, end: int, gone: int, *, done: bool) -> None:
        """Note that all exports stand at ``end``, with so many bytes gone, and whether anything was to be landed."""
        progress = self.progress
        progress.missing_bytes += gone
        progress.batches += done
        progress.end = max(progress.end, end)

    def batch(self, log: StoreLog) -> None:
        """Land all records up to the log's end, as one batch."""
        self.land(log, self.end(log))

    def stream(self, checkpoint: ExportCheckpoint, interval: str | None, limits: dict[str, str]) -> None:
        """Land records as they come, until the query ends or a signal stops it.

        A micro batch is a range of the log. Its rows are read from where the table stands, not from where the
        checkpoint stands, which may be lost, or behind the table, or ahead of it.

        Args:
            checkpoint: of the query.
            interval: between micro batches, as ``10 seconds``; None ends the query with what is there now.
            limits: options of the source that bound a micro batch.
        """
        self.land(look(self._store), checkpoint.committed_end())  # a new table has not seen what the checkpoint has
        source = self._spark.readStream.format("rmq_commitlog").options(**limits).option("columns", "physical_offset")
        source = source.option("startingPhysicalOffset", self.progress.start)
        source = source.option("failOnDataLoss", str(self._bounds.fail_on_data_loss).lower())
        writer = source.load(self._store).writeStream.option("checkpointLocation", checkpoint.path)
        with stopping() as stopped:
            landing = threading.Lock()

            def land(_frame: DataFrame, batch_id: int) -> None:
                with landing:
                    if not stopped.is_set():  # else the next run lands it: it begins where the table stands
                        log, end = look(self._store), checkpoint.batch_end(batch_id)
                        _tell(batch_id, self.land(log, end), log.end - end)

            writer = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
            writer = writer.foreachBatch(land)
            for start in range(1, _STARTS + 1):
                try:
                    _await(writer.start(), stopped, landing)
                    break
                except StreamingQueryException as error:
                    if _NOT_STARTED not in str(error) or start == _STARTS:
                        raise
                    _log.warning("the stream's Python process was too slow to start, retrying: %s", error)


def repeat(land: Callable[[], bool], interval_s: float | None) -> None:
    """Land round after round.

    Args:
        land: lands a round; returns whether more is there already.
        interval_s: between rounds that leave nothing, until a signal; None ends with the first of these.
    """
    if interval_s is None:
        while land():
            pass
        return
    with stopping() as stopped:
        while not stopped.is_set():
            if not land():
                stopped.wait(interval_s)


def _tell(batch_id: int, landed: Landed, behind_bytes: int) -> None:
    _log.info(
        "batch %d: %d rows, %d files, %d bytes; %d bytes of the log behind",
        batch_id, landed.messages, landed.files, landed.bytes, behind_bytes,
    )  # fmt: skip


def _await(query: StreamingQuery, stopped: threading.Event, landing: threading.Lock) -> None:
    try:
        while not stopped.is_set() and not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type]
            pass
    finally:
        with landing:  # waits for the batch that is being landed, so that the report includes it
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
