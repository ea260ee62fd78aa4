"""Runs exports of several stores into common tables: a report by broker, one broken store never stops the others."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError, RmqError
from rmq_formats.lakehouse.raw import Export, ExportCounts, commit_all
from rmq_formats.lakehouse.records import PendingRecords
from rmq_formats.lakehouse.run import Bounds, ExportRun
from rmq_formats.lakehouse.selection import BrokerKey
from rmq_formats.lakehouse.store_log import StoreLog, snapshot_log
from rmq_formats.read.stores import BrokerStore, none_done
from rmq_formats.tasks.together import in_threads

_log = logging.getLogger("rmq_formats.lakehouse")


@dataclass(slots=True)
class StoreExports:
    """The exports of one of several stores, or why they have ended.

    Attributes:
        store: the store.
        broker: its broker.
        exports: exports to the common tables, in the same order for all stores.
        run: run of these exports.
        log: as it was when the run began; None if it could not be read.
        error: error that has ended the exports; None without one.
    """

    store: BrokerStore
    broker: BrokerKey
    exports: Sequence[Export]
    run: ExportRun
    log: StoreLog | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to the broker's part of the JSON report."""
        names = {"cluster": self.broker.cluster, "broker_name": self.broker.name, "store": self.store.path}
        progress = self.run.progress
        failure = {} if self.error is None else {"error": self.error}
        torn = 0 if self.log is None else self.log.torn
        lost_bytes = {
            "missing_bytes": progress.missing_bytes, "torn_bytes": torn, "leftover_bytes": progress.leftover_bytes,
        }  # fmt: skip
        return names | failure | progress.offsets | progress.total.to_dict() | lost_bytes


def name_brokers(stores: Sequence[BrokerStore], cluster: str | None, table_id: str | None) -> list[BrokerKey]:
    """Name the brokers of stores that are exported into one table.

    Args:
        stores: stores, as ``find_stores`` returns them.
        cluster: cluster name of stores without one; None is the name that all other stores have.
        table_id: identifier of the clusters in the table; None is made of their names.

    Raises:
        OptionError: the cluster of a store is unknown.
    """
    clusters = {store.cluster for store in stores if store.cluster}
    default_cluster = cluster or (next(iter(clusters)) if len(clusters) == 1 else None)
    for store in stores:
        if not store.cluster and default_cluster is None:
            raise OptionError(f"{store}: cluster unknown; give --cluster NAME, or name it in a TOML file")
    names = [
        (store.cluster or str(default_cluster), str(store.broker)) for store in stores
    ]  # no two the same: see ``find_stores``
    identifier = table_id or ",".join(sorted({name for name, _ in names}))
    return [BrokerKey(name, broker, identifier) for name, broker in names]


def snapshot_logs(stores: Sequence[BrokerStore]) -> list[StoreLog | str]:
    """Take snapshots of the logs of several stores; an unreadable log gives its error's text.

    Raises:
        StoreError: none of them can be read.
    """

    def attempt(store: BrokerStore) -> StoreLog | str:
        try:
            return snapshot_log(store.path)
        except (RmqError, OSError) as error:
            return str(error)

    logs = in_threads(attempt, stores)
    _refuse_if_all_failed(stores, [None if isinstance(log, StoreLog) else log for log in logs])
    return logs


def make_parts(
    spark: SparkSession,
    stores: Sequence[BrokerStore],
    brokers: Sequence[BrokerKey],
    logs: Sequence[StoreLog | str],
    bounds: Bounds,
    make_exports: Callable[[BrokerKey, str], Sequence[Export]],
) -> list[StoreExports]:
    """Make the exports of several stores.

    Args:
        spark: the session.
        stores: the stores.
        brokers: broker of each store.
        logs: log of each store, or the reason why it is unreadable.
        bounds: bounds of all exports.
        make_exports: makes the exports of a broker with a store at a path.
    """
    parts = []
    for store, broker, log in zip(stores, brokers, logs, strict=True):
        exports = make_exports(broker, store.path)
        run = ExportRun(spark, store.path, exports, bounds)
        snapshot, error = (log, None) if isinstance(log, StoreLog) else (None, log)
        parts.append(StoreExports(store, broker, exports, run, snapshot, error))
    return parts


class StoresRun:
    """Run of the exports of several stores.

    Args:
        parts: stores, readable or not.
        find_new: finds stores outside a list of paths; their logs are not read yet.
    """

    def __init__(
        self, parts: Sequence[StoreExports], find_new: Callable[[Collection[str]], Sequence[StoreExports]]
    ) -> None:
        self.parts = list(parts)
        self.rounds = 0
        self.check_lease: Callable[[], None] = lambda: None  # raises if another exporter has taken over
        self._find_new = find_new
        self._last_refusal = ""

    @property
    def _running(self) -> list[StoreExports]:
        return [part for part in self.parts if part.error is None]

    def check(self) -> None:
        """Refuse tables that do not fit; then find out where each store's exports begin.

        Raises:
            StoreError: a table of others, one that was restored, or no store's log fits.
        """
        for part in self.parts:
            for export in part.exports:
                export.check()
                export.resume_offset()
        for part in self._running:
            assert part.log is not None  # of a store without error
            try:
                part.run.check(part.log)
            except RmqError as error:
                part.error = str(error)
        self.refuse_if_all_failed()

    def refuse_if_all_failed(self) -> None:
        """Raise StoreError if no store could be exported."""
        _refuse_if_all_failed([part.store for part in self.parts], [part.error for part in self.parts])

    def prepare(self) -> None:
        """Create the tables. Raises StoreError."""
        for part in self.parts:
            part.run.check_lease = self.check_lease
        self._running[0].run.prepare()

    def follow_round(self, max_bytes: int | None) -> bool:
        """Export one round, see ``export_round``, with new stores and stores that were unreadable before."""
        self._add_new_stores()
        logs = snapshot_logs([part.store for part in self.parts])
        for part, log in zip(self.parts, logs, strict=True):
            part.log, part.error = (log, None) if isinstance(log, StoreLog) else (None, log)
        return self.export_round(max_bytes)

    def _add_new_stores(self) -> None:
        """Add stores that have appeared; an error of theirs does not stop the other stores."""
        try:
            new_parts = self._find_new({part.store.path for part in self.parts})
            for part in new_parts:
                for export in part.exports:
                    export.check()
                part.run.check_lease = self.check_lease
        except RmqError as error:
            if self._last_refusal != str(error):  # each round would say it again
                self._last_refusal = str(error)
                _log.warning("stores that have come since are not exported: %s", error)
            return
        self.parts += new_parts

    def export_round(self, max_bytes: int | None = None) -> bool:
        """Commit the records up to the logs' ends, table after table; return whether more remain.

        Args:
            max_bytes: largest number of bytes of each log; None is no limit.

        Raises:
            StoreError: a table cannot be written, or the exports of all stores failed.
        """
        log_ends = {part.broker: part.run.end(part.log) for part in self._running if part.log is not None}
        ends = dict(log_ends)
        if max_bytes is not None:
            ends = {
                part.broker: min(log_ends[part.broker], part.run.begin(part.log) + max_bytes)
                for part in self._running
                if part.log is not None
            }
        missing_bytes = dict.fromkeys(ends, 0)
        committed: set[BrokerKey] = set()
        for number in range(len(self.parts[0].exports)):
            pending: list[tuple[StoreExports, PendingRecords]] = []
            for part in self._running:
                assert part.log is not None  # of a store without error
                try:
                    unexported = part.run.pending_records(part.exports[number], part.log, ends[part.broker])
                except RmqError as error:
                    part.error = str(error)
                    continue
                if unexported is not None:
                    pending.append((part, unexported[0]))
                    missing_bytes[part.broker] = max(missing_bytes[part.broker], unexported[1])
            outcomes = commit_all([(part.exports[number], records) for part, records in pending])
            for (part, _), outcome in zip(pending, outcomes, strict=True):
                if isinstance(outcome, ExportCounts):
                    part.run.count(part.exports[number], outcome)
                    committed.add(part.broker)
                else:
                    part.error = str(outcome)
        for part in self._running:
            part.run.record_progress(
                ends[part.broker], missing_bytes[part.broker], has_pending=part.broker in committed
            )
        self.rounds += bool(committed)
        self.refuse_if_all_failed()
        return any(ends[part.broker] < log_ends[part.broker] for part in self._running)


def _refuse_if_all_failed(stores: Sequence[BrokerStore], errors: Sequence[str | None]) -> None:
    if all(error is not None for error in errors):
        raise none_done("export", stores, str(errors[0]))
