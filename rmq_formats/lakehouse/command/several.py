"""Runs exports of several stores into common tables: a report by broker, one broken store never stops the others."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError, RmqError
from rmq_formats.lakehouse.log import StoreLog, look
from rmq_formats.lakehouse.raw import Export, Landed, land_all
from rmq_formats.lakehouse.records import Records
from rmq_formats.lakehouse.run import Bounds, ExportRun
from rmq_formats.lakehouse.selection import Broker
from rmq_formats.read.stores import BrokerStore, none_done
from rmq_formats.tasks.together import in_threads

_log = logging.getLogger("rmq_formats.lakehouse")


@dataclass(slots=True)
class StoreExports:
    """The exports of one of several stores, or why they have ended.

    Attributes:
        store: the store.
        broker: its broker.
        exports: into the common tables, in the same order for all stores.
        run: of these exports.
        log: as it was when the run began; None if it could not be read.
        error: what has ended them.
    """

    store: BrokerStore
    broker: Broker
    exports: Sequence[Export]
    run: ExportRun
    log: StoreLog | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to the broker's part of the JSON report."""
        names = {"cluster": self.broker.cluster, "broker_name": self.broker.name, "store": self.store.path}
        progress = self.run.progress
        told = {} if self.error is None else {"error": self.error}
        torn = 0 if self.log is None else self.log.torn
        gone = {
            "missing_bytes": progress.missing_bytes, "torn_bytes": torn, "leftover_bytes": progress.leftover_bytes,
        }  # fmt: skip
        return names | told | progress.offsets | progress.total.to_dict() | gone


def brokers_of(stores: Sequence[BrokerStore], cluster: str | None, table_id: str | None) -> list[Broker]:
    """Name the brokers of stores that are exported into one table.

    Args:
        stores: the stores, as ``find_stores`` gives them.
        cluster: name of the cluster of those that do not tell theirs; None is the one that all others tell.
        table_id: identifier of the clusters in the table; None is made of their names.

    Raises:
        OptionError: a store does not tell its cluster.
    """
    told = {store.cluster for store in stores if store.cluster}
    own = cluster or (next(iter(told)) if len(told) == 1 else None)
    for store in stores:
        if not store.cluster and own is None:
            raise OptionError(f"{store}: does not tell its cluster; give --cluster NAME, or name it in a TOML file")
    names = [(store.cluster or str(own), str(store.broker)) for store in stores]  # no two the same: see ``find_stores``
    known = table_id or ",".join(sorted({name for name, _ in names}))
    return [Broker(name, broker, known) for name, broker in names]


def look_at_all(stores: Sequence[BrokerStore]) -> list[StoreLog | str]:
    """Take snapshots of the logs of several stores; of one that cannot be read, the error's text.

    Raises:
        StoreError: none of them can be read.
    """

    def attempt(store: BrokerStore) -> StoreLog | str:
        try:
            return look(store.path)
        except (RmqError, OSError) as error:
            return str(error)

    found = in_threads(attempt, stores)
    _refuse_if_all_failed(stores, [None if isinstance(one, StoreLog) else one for one in found])
    return found


def parts_of(
    spark: SparkSession,
    stores: Sequence[BrokerStore],
    brokers: Sequence[Broker],
    logs: Sequence[StoreLog | str],
    bounds: Bounds,
    make: Callable[[Broker, str], Sequence[Export]],
) -> list[StoreExports]:
    """Make the exports of several stores.

    Args:
        spark: the session.
        stores: the stores.
        brokers: of each.
        logs: of each, or why it cannot be read.
        bounds: of all.
        make: gives the exports of a broker, whose store is at a path.
    """
    parts = []
    for store, broker, log in zip(stores, brokers, logs, strict=True):
        todo = make(broker, store.path)
        own = ExportRun(spark, store.path, todo, bounds)
        found, error = (log, None) if isinstance(log, StoreLog) else (None, log)
        parts.append(StoreExports(store, broker, todo, own, found, error))
    return parts


class StoresRun:
    """Exports of several stores that run together.

    Args:
        parts: the stores that can be read, and those that cannot.
        appeared: gives those that have come since, whose paths are not the given ones; their logs are not read yet.
    """

    def __init__(
        self, parts: Sequence[StoreExports], appeared: Callable[[Collection[str]], Sequence[StoreExports]]
    ) -> None:
        self.parts = list(parts)
        self.rounds = 0
        self.still_alone: Callable[[], None] = lambda: None  # raises if another exporter has taken over
        self._appeared = appeared
        self._refused = ""

    @property
    def _alive(self) -> list[StoreExports]:
        return [part for part in self.parts if part.error is None]

    def check(self) -> None:
        """Refuse tables that do not fit; then find out where each store's exports begin.

        Raises:
            StoreError: a table of others, one that was restored, or no store's log fits.
        """
        for part in self.parts:
            for export in part.exports:
                export.check()
                export.exported_end()
        for part in self._alive:
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
            part.run.still_alone = self.still_alone
        self._alive[0].run.prepare()

    def follow(self, max_bytes: int | None) -> bool:
        """Land what the logs have now, see ``land``: also of those that could not be read before, and of new ones."""
        self._take_new()
        logs = look_at_all([part.store for part in self.parts])
        for part, log in zip(self.parts, logs, strict=True):
            part.log, part.error = (log, None) if isinstance(log, StoreLog) else (None, log)
        return self.land(max_bytes)

    def _take_new(self) -> None:
        """Take stores that have come since; what is wrong with them does not stop the others."""
        try:
            found = self._appeared({part.store.path for part in self.parts})
            for part in found:
                for export in part.exports:
                    export.check()
                part.run.still_alone = self.still_alone
        except RmqError as error:
            if self._refused != str(error):  # each round would say it again
                self._refused = str(error)
                _log.warning("stores that have come since are not exported: %s", error)
            return
        self.parts += found

    def land(self, max_bytes: int | None = None) -> bool:
        """Land the records up to the logs' ends, table after table; returns whether more is left.

        Args:
            max_bytes: of each log, beyond where its exports stand; None is no limit.

        Raises:
            StoreError: a table cannot be written, or nothing could be landed of any store.
        """
        lasts = {part.broker: part.run.end(part.log) for part in self._alive if part.log is not None}
        ends = dict(lasts)
        if max_bytes is not None:
            ends = {
                part.broker: min(lasts[part.broker], part.run.begin(part.log) + max_bytes)
                for part in self._alive
                if part.log is not None
            }
        gone = dict.fromkeys(ends, 0)
        done: set[Broker] = set()
        for number in range(len(self.parts[0].exports)):
            owed: list[tuple[StoreExports, Records]] = []
            for part in self._alive:
                assert part.log is not None  # of a store without error
                try:
                    found = part.run.owed(part.exports[number], part.log, ends[part.broker])
                except RmqError as error:
                    part.error = str(error)
                    continue
                if found is not None:
                    owed.append((part, found[0]))
                    gone[part.broker] = max(gone[part.broker], found[1])
            landings = land_all([(part.exports[number], records) for part, records in owed])
            for (part, _), landed in zip(owed, landings, strict=True):
                if isinstance(landed, Landed):
                    part.run.count(part.exports[number], landed)
                    done.add(part.broker)
                else:
                    part.error = str(landed)
        for part in self._alive:
            part.run.has_landed(ends[part.broker], gone[part.broker], done=part.broker in done)
        self.rounds += bool(done)
        self.refuse_if_all_failed()
        return any(ends[part.broker] < lasts[part.broker] for part in self._alive)


def _refuse_if_all_failed(stores: Sequence[BrokerStore], errors: Sequence[str | None]) -> None:
    if all(error is not None for error in errors):
        raise none_done("export", stores, str(errors[0]))
