"""Source of exports: the CommitLogs of one store, or of several stores whose messages go into common tables."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Generic

from rmq_formats.errors import OptionError, RmqError, StoreError
from rmq_formats.read.fsync import fsync_log
from rmq_formats.read.query import Include
from rmq_formats.read.ranges import missing_ranges
from rmq_formats.read.stores import BrokerStore, all_stores_failed_error, in_threads
from rmq_lakehouse.exports import AnyExport, ExportCounts, Pending, SourceExports
from rmq_lakehouse.selection import BrokerKey
from rmq_lakehouse.store_log import StoreLog, snapshot_log

_log = logging.getLogger("rmq_lakehouse")


@dataclass(frozen=True, slots=True)
class ExportBounds:
    """Bounds of the exports of logs.

    Attributes:
        ending_physical_offset: exclusive; None is the log's end.
        fail_on_data_loss: whether bytes that were deleted before they were exported are an error.
        max_bytes: limit of bytes of each log in a round.
        follows: whether each round exports up to the log's new end.
    """

    ending_physical_offset: int | None = None
    fail_on_data_loss: bool = True
    max_bytes: int | None = None
    follows: bool = False

    def end(self, log: StoreLog) -> int:
        """Return the physical offset where the exports of a log end."""
        requested_end = self.ending_physical_offset
        return log.end if requested_end is None else min(log.end, requested_end)

    def torn_bytes(self, log: StoreLog) -> int:
        """Return the number of torn bytes after the log's end; 0 if the exports end before."""
        return log.torn if self.ending_physical_offset is None or self.ending_physical_offset > log.end else 0


@dataclass(kw_only=True)
class StoreExports(SourceExports[AnyExport]):
    """Exports of one store, and their results; offsets are physical offsets.

    Attributes:
        broker: None in tables of one store.
        log: newest snapshot of the log; None if the log could not be read.
        torn_bytes: bytes after the log's end that no broker is writing.
        missing_bytes: bytes of the log that were deleted before they were exported.
        leftover_bytes: bytes after the log's end with messages that no queue has, if the exports include them.
    """

    store: BrokerStore
    broker: BrokerKey | None = None
    log: StoreLog | None = None
    torn_bytes: int = 0
    start: int = 0
    end: int = 0
    round_end: int = 0
    missing_bytes: int = 0
    round_missing_bytes: int = 0
    leftover_bytes: int = 0

    @property
    def snapshot(self) -> StoreLog:
        """Newest snapshot of the log of a store without an error."""
        assert self.log is not None
        return self.log

    def set_log(self, log: StoreLog | Exception) -> None:
        """Set a new snapshot of the log, or the error of reading the log."""
        self.log, self.error = (log, None) if isinstance(log, StoreLog) else (None, log)
        self.torn_bytes = 0 if self.log is None else self.log.torn

    @property
    def names(self) -> dict[str, str]:
        assert self.broker is not None  # an export of one store has no report by broker
        return self.broker.to_dict() | {"store": self.store.path}

    @property
    def position(self) -> dict[str, Any]:
        return {"starting_physical_offset": self.start, "ending_physical_offset": self.end}

    @property
    def lost(self) -> dict[str, int]:
        return {
            "missing_bytes": self.missing_bytes, "torn_bytes": self.torn_bytes, "leftover_bytes": self.leftover_bytes,
        }  # fmt: skip

    def begin(self) -> int:
        """Return the smallest physical offset at which an export resumes."""
        return min(map(self.begin_of, self.exports))

    def begin_of(self, export: AnyExport) -> int:
        """Return the physical offset at which an export resumes."""
        resume_offset = export.resume_offset()
        if resume_offset >= 0:
            return resume_offset
        return max(export.selection.starting_physical_offset, self.snapshot.segments[0].start_offset)

    def committed_end(self, export: AnyExport) -> int:
        """Return the offset up to which messages are committed, by an export of the store or else of the cluster."""
        begin, first = self.begin_of(export), export.selection.starting_physical_offset
        if export.resume_offset() >= 0:
            return begin
        pulled_end = min((table.pulled_end() for table in export.exactly_once_tables), default=0)
        return max(first, min(begin, pulled_end)) if pulled_end else begin


class StoreLogs(Generic[AnyExport, Pending]):
    """Message source of the CommitLogs of stores. A broken store never stops the others.

    Args:
        pending_records: returns the records of a log that an export lacks and that begin before a physical offset.
        find_new: finds stores outside a list of paths; None for tables of one store.
    """

    def __init__(
        self,
        parts: Sequence[StoreExports[AnyExport]],
        bounds: ExportBounds,
        pending_records: Callable[[AnyExport, StoreLog, int], Pending],
        find_new: Callable[[Collection[str]], Sequence[StoreExports[AnyExport]]] | None = None,
    ) -> None:
        self.parts = list(parts)
        self.rounds = 0
        self.bounds = bounds
        self.checkpoint_end: int | None = None  # where the next round ends by the checkpoint of a query
        self._pending_records, self._find_new = pending_records, find_new
        self._last_refusal = ""

    @classmethod
    def of_one(
        cls,
        log: StoreLog,
        exports: Sequence[AnyExport],
        bounds: ExportBounds,
        pending_records: Callable[[AnyExport, StoreLog, int], Pending],
    ) -> "StoreLogs[AnyExport, Pending]":
        part = StoreExports(exports, store=BrokerStore(log.store), log=log, torn_bytes=bounds.torn_bytes(log))
        return cls([part], bounds, pending_records)

    @property
    def _running(self) -> list[StoreExports[AnyExport]]:
        return [part for part in self.parts if part.error is None]

    def check(self) -> None:
        """Refuse tables and logs that do not fit; then set where each store's exports begin. Raises StoreError."""
        for part in self.parts:
            for export in part.exports:
                export.check()
                export.resume_offset()
        for part in self._running:
            try:
                self._check_log(part)
            except RmqError as error:
                part.error = error
        self._raise_if_all_failed()

    def _check_log(self, part: StoreExports[AnyExport]) -> None:
        """Refuse a log that was cut off, or has lost pending bytes. Raises StoreError."""
        for export in part.exports:
            export.check_log(part.snapshot)
            self._check_missing_bytes(part, part.committed_end(export), self.bounds.end(part.snapshot))
        if any(export.selection.include == Include.UNQUEUED for export in part.exports):
            _report_leftovers(part)
        part.start = part.end = part.begin()

    def _check_missing_bytes(self, part: StoreExports[AnyExport], begin: int, end: int) -> int:
        gaps = missing_ranges(part.snapshot.segments, begin, end)
        for first, last in gaps:
            message = f"{part.store.path}: bytes {first} to {last} of the CommitLog were deleted before the export"
            if self.bounds.fail_on_data_loss:
                raise StoreError(f"{message}; --fail-on-data-loss false skips them")
            _log.warning("%s", message)
        return sum(last - first for first, last in gaps)

    def _raise_if_all_failed(self) -> None:
        first = self.parts[0].error
        if first is not None and not self._running:
            if self._find_new is None:
                raise first
            raise all_stores_failed_error("export", [part.store for part in self.parts], str(first))

    def prepare(self) -> None:
        for export in self._running[0].exports:
            export.prepare()

    def begin_round(self) -> None:
        """Fix where the round ends in each log; where logs are followed, read them and find new stores first."""
        if self.bounds.follows:
            self._read_logs()
        for part in self._running:
            part.round_missing_bytes = 0
            part.round_end = self.bounds.end(part.snapshot)
            if self.checkpoint_end is not None:
                part.round_end = self.checkpoint_end
            elif self.bounds.max_bytes is not None:
                part.round_end = min(part.round_end, part.begin() + self.bounds.max_bytes)

    def _read_logs(self) -> None:
        if self._find_new is None:
            (part,) = self.parts
            part.set_log(snapshot_log(part.store.path))
            return
        self._add_new_stores(self._find_new)
        for part, log in zip(self.parts, snapshot_logs([part.store for part in self.parts]), strict=True):
            part.set_log(log)

    def _add_new_stores(self, find_new: Callable[[Collection[str]], Sequence[StoreExports[AnyExport]]]) -> None:
        """Add stores that have appeared; an error of theirs does not stop the other stores."""
        try:
            new_parts = find_new({part.store.path for part in self.parts})
            for part in new_parts:
                for export in part.exports:
                    export.check()
        except RmqError as error:
            if self._last_refusal != str(error):  # each round would log it again
                self._last_refusal = str(error)
                _log.warning("new stores are not exported: %s", error)
            return
        self.parts += new_parts

    def pending(self, number: int) -> list[tuple[StoreExports[AnyExport], Pending]]:
        pending = []
        for part in self._running:
            export = part.exports[number]
            try:
                has_pending = self._has_pending(part, export)
            except RmqError as error:
                part.error = error
                continue
            if has_pending:
                pending.append((part, self._pending_records(export, part.snapshot, part.round_end)))
        return pending

    def _has_pending(self, part: StoreExports[AnyExport], export: AnyExport) -> bool:
        """Return whether an export lacks records of the round, and make these durable. Raises StoreError."""
        log, end = part.snapshot, part.round_end
        export.check_log(log)
        begin = part.begin_of(export)
        if begin > end or (begin == end and export.selection.from_offset is None):
            return False
        if end > log.end:  # records written there later would be taken for committed
            raise StoreError(
                f"{log.store}: the CommitLog ends at {log.end}, but the checkpoint was at {end}: "
                "the log was cut off, or it is another store's; give another --checkpoint"
            )
        missing_bytes = self._check_missing_bytes(part, part.committed_end(export), end)
        part.round_missing_bytes = max(part.round_missing_bytes, missing_bytes)
        fsync_log(log.files.storage, log.segments, begin, end)  # before it is read: no loss of power takes it back then
        return True

    def end_round(self, added: Sequence[ExportCounts]) -> bool:
        """Record that the stores have come to the end of the round; return whether more records are pending."""
        for part in self._running:
            part.missing_bytes += part.round_missing_bytes
            part.end = max(part.end, part.round_end)
        self.rounds += bool(added)
        self._raise_if_all_failed()
        return any(part.round_end < self.bounds.end(part.snapshot) for part in self._running)


def _report_leftovers(part: StoreExports[AnyExport]) -> None:
    """Report messages that are not exported: a broker gives their physical offsets to its next messages."""
    log = part.snapshot
    part.leftover_bytes = log.leftover_bytes
    if log.leftover_bytes:
        advice = f"To keep their messages: rmq replay --store {quote(log.store)} --include unqueued --to-store NEW"
        text = "%s: %d bytes after the log's end at %d are not exported: a broker overwrites them. %s"
        _log.warning(text, log.store, log.leftover_bytes, log.end, advice)


def name_brokers(stores: Sequence[BrokerStore], cluster: str | None, table_id: str | None) -> list[BrokerKey]:
    """Name the brokers of stores, as of ``find_stores``, that are exported into one table. Raises OptionError.

    Args:
        cluster: cluster name of stores without a name; None is the name that all other stores have.
        table_id: identifier of the clusters in the table; None is made of their names.
    """
    clusters = {store.cluster for store in stores if store.cluster}
    default_cluster = cluster or (next(iter(clusters)) if len(clusters) == 1 else None)
    for store in stores:
        if not store.cluster and default_cluster is None:
            raise OptionError(f"{store}: cluster unknown; give --cluster NAME, or name it in a TOML file")
    # No two are the same, see ``find_stores``.
    names = [(store.cluster or str(default_cluster), str(store.broker)) for store in stores]
    identifier = table_id or ",".join(sorted({name for name, _ in names}))
    return [BrokerKey(name, broker, identifier) for name, broker in names]


def snapshot_logs(stores: Sequence[BrokerStore]) -> list[StoreLog | Exception]:
    """Take snapshots of the logs of several stores; an unreadable log gives its error. Raises StoreError."""

    def snapshot_or_error(store: BrokerStore) -> StoreLog | Exception:
        try:
            return snapshot_log(store.path)
        except (RmqError, OSError) as error:
            return error

    logs = in_threads(snapshot_or_error, stores)
    if not any(isinstance(log, StoreLog) for log in logs):
        raise all_stores_failed_error("export", stores, str(logs[0]))
    return logs
