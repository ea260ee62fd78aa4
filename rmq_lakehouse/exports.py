"""Exports and their counts, what they read, and the loop that commits it: with Spark, or on one machine without.

A source of messages is the logs of stores, or the queues of brokers.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from rmq_formats.errors import NoTopicError, UnreachableError
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.store_log import StoreLog

_OUTAGE_S: Final = 600.0
_log = logging.getLogger("rmq_lakehouse")
Pending = TypeVar("Pending")
Pending_co = TypeVar("Pending_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """Counts of the messages that an export has committed, and of their bytes in the log.

    Attributes:
        damaged: ranges of the log without a sound record, and bodies that do not inflate.
        undecoded: messages whose body does not decode by the spec, or which the table refuses.
    """

    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    undecoded: int = 0
    files: int = 0

    def to_dict(self) -> dict[str, int]:
        """Convert to the members of the JSON report that a broker and the whole run have in common."""
        return {name: getattr(self, name) for name in ("messages", "bytes", "damaged", "undecoded")}

    def with_missing_as_damaged(self, messages: int | None) -> "ExportCounts":
        """Count expected messages without a record as damaged; None if the expected number is unknown."""
        lost = 0 if messages is None else messages - self.messages - self.damaged - self.undecoded
        return replace(self, damaged=self.damaged + max(0, lost))

    def __add__(self, other: "ExportCounts") -> "ExportCounts":
        return ExportCounts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class ExportTables(Protocol):
    """Tables to which an export commits a selection of a store's messages."""

    name: str
    tables: dict[str, str]
    """Paths of the tables, with their columns of store times."""
    selection: ExportSelection

    def table_schemas(self) -> Iterator[tuple[ExactlyOnceTable, Any]]:
        """Yield the tables, each with the columns of Spark or Arrow that the export writes."""

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        return [table for table, _ in self.table_schemas()]

    def check(self) -> None:
        """Refuse existing tables that do not fit the export. Raises RmqError."""
        for table, schema in self.table_schemas():
            table.check(schema)

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log other than the one that the tables were exported from. Raises StoreError."""
        for table in self.exactly_once_tables:
            table.check_log(log)

    def prepare(self) -> None:
        """Create the tables that do not exist, and add the columns that tables lack. Raises StoreError."""
        for table, schema in self.table_schemas():
            table.prepare(schema)

    def resume_offset(self) -> int:
        """Return the smallest offset of the first pending row; -1 if nothing was committed. Raises StoreError."""
        return min(table.resume_offset() for table in self.exactly_once_tables)

    def source_options(self) -> dict[str, str]:
        """Return options of the source, in addition to the options of the selection."""

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        """Count the undecoded messages of all runs, without those of accepted topics or in the dead-letter table."""


AnyExport = TypeVar("AnyExport", bound=ExportTables)


@dataclass
class SourceExports(Generic[AnyExport]):
    """Exports of one store or broker to the common tables, in the same order for all parts of a source."""

    exports: Sequence[AnyExport]
    error: Exception | None = None
    counts: dict[str, ExportCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = {export.name: ExportCounts() for export in self.exports}

    @property
    def total(self) -> ExportCounts:
        return sum(self.counts.values(), ExportCounts())

    @property
    def position(self) -> dict[str, Any]:
        """Offsets of the exports, as members of the JSON report."""
        return {}

    @property
    def lost(self) -> dict[str, int]:
        """Counts of the messages or bytes that the exports lack, as members of the JSON report."""
        raise NotImplementedError

    @property
    def names(self) -> dict[str, str]:
        """Names of the broker, as members of the JSON report."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Convert to the broker's part of the JSON report."""
        failure = {} if self.error is None else {"error": str(self.error)}
        return self.names | failure | self.position | self.total.to_dict() | self.lost


class MessageSource(Protocol[AnyExport, Pending_co]):
    """Messages that an export reads, of one or several stores or brokers."""

    rounds: int
    """Number of rounds that have committed messages."""

    @property
    def parts(self) -> Sequence[SourceExports[AnyExport]]:
        """The stores or brokers of the source, with their exports."""

    def check(self) -> None:
        """Refuse tables and messages that do not fit, before anything is written. Raises RmqError."""

    def prepare(self) -> None:
        """Create the tables. Raises StoreError."""

    def begin_round(self) -> None:
        """Fix where the next round ends. Raises RmqError if no part can be read."""

    def pending(self, number: int) -> Sequence[tuple[SourceExports[AnyExport], Pending_co]]:
        """Return the messages that the exports of one number lack, by part; the messages are durable.

        A part that cannot be exported gets its error. Raises RmqError: the exports of all parts end.
        """

    def end_round(self, added: Sequence[ExportCounts]) -> bool:
        """Record what the commits of a round have added; return whether more messages are pending. Raises RmqError."""


class ExportLoop(Generic[AnyExport, Pending]):
    """Export of a source in rounds: each round commits the pending messages, table after table.

    ``commit_all`` commits the messages of several parts to one table, and returns counts or the error of each part.
    """

    def __init__(
        self,
        source: MessageSource[AnyExport, Pending],
        commit_all: Callable[[Sequence[tuple[AnyExport, Pending]]], Sequence[ExportCounts | Exception]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source, self._commit_all, self._now_s = source, commit_all, now_s
        self.check_lease: Callable[[], None] = lambda: None  # raises if another exporter has taken over

    def export_round(self) -> tuple[ExportCounts, bool]:
        """Commit the messages that the tables lack; return their counts, and whether more are pending.

        Raises RmqError: a table cannot be written, or the exports of all parts have failed.
        """
        self.source.begin_round()
        added: list[ExportCounts] = []
        for number in range(len(self.source.parts[0].exports)):
            self.check_lease()
            pending = self.source.pending(number)
            outcomes = self._commit_all([(part.exports[number], messages) for part, messages in pending])
            for (part, _), outcome in zip(pending, outcomes, strict=True):
                if isinstance(outcome, ExportCounts):
                    part.counts[part.exports[number].name] += outcome
                    added.append(outcome)
                else:
                    part.error = outcome
        is_more = self.source.end_round(added)
        return sum(added, ExportCounts()), is_more

    def run(self, interval_s: float | None) -> None:
        """Export round after round. An outage of the cluster after the first round may last ten minutes.

        Args:
            interval_s: time between rounds that leave nothing pending, until a signal; None ends with the first of
                these rounds.
        """
        if interval_s is None:
            while self.export_round()[1]:
                pass
            return
        last_s: float | None = None  # time of the last round
        with stop_event_on_signal() as stopped:
            while not stopped.is_set():
                try:
                    _, is_more = self.export_round()
                    last_s = self._now_s()
                except (UnreachableError, NoTopicError) as error:  # a restarting broker has no topics for a moment
                    if last_s is None or self._now_s() - last_s > _OUTAGE_S:
                        raise
                    _log.warning("%s: trying again", error)
                    is_more = False
                if not is_more:
                    stopped.wait(interval_s)


def commit_each(parts: Sequence[tuple[Any, Any]]) -> list[ExportCounts]:
    """Commit the pending messages of the exports one by one; an error ends the exports."""
    return [export.commit_pending(pending) for export, pending in parts]


@contextmanager
def stop_event_on_signal() -> Iterator[threading.Event]:
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
