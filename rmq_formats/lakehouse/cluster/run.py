"""Runs exports by queue offsets: each round takes the queues' ends of now, lands up to there, and commits."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from rmq_formats.errors import ClusterError, RmqError, StoreError
from rmq_formats.lakehouse.cluster.queues import PendingQueueMessages, QueueProgress, queue_key, queue_progress
from rmq_formats.lakehouse.cluster.sources import ExportLink, QueueSource
from rmq_formats.lakehouse.raw import Export, ExportCounts, commit_all
from rmq_formats.lakehouse.selection import BrokerKey, ExcludedTopics, ExportSelection
from rmq_formats.spark.live import plan
from rmq_formats.spark.live.options import ClusterQueue

_log = logging.getLogger("rmq_formats.lakehouse")


@dataclass(frozen=True, slots=True)
class ClusterExportOptions:
    """What is exported of a cluster.

    Attributes:
        source: its queues.
        topics: those of all exports together; None is all but those that are left out.
        left_out: RocketMQ's own topics; None if they are asked for.
        options: of the source ``rmq``, beyond what the exports select.
        table_id: identifier of the clusters in the table; None is made of their names.
        max_messages: of a round; None is no limit.
        follows: whether rounds take what has come since the first one.
    """

    source: QueueSource
    topics: tuple[str, ...] | None
    excluded_topics: ExcludedTopics | None
    options: Mapping[str, str] = field(repr=False)
    table_id: str | None = None
    max_messages: int | None = None
    follows: bool = False


@dataclass(slots=True)
class BrokerExport:
    """The export of one broker of the cluster, and what has come of it.

    Attributes:
        broker: the broker.
        exports: into the common tables, in the same order for all brokers.
        counts: counts, by export.
        missing: offset ranges that the broker had deleted before they were exported: queue, from, up to where.
        error: what has ended it.
    """

    broker: BrokerKey
    exports: Sequence[Export]
    counts: dict[str, ExportCounts] = field(default_factory=dict)
    missing: set[tuple[ClusterQueue, int, int]] = field(default_factory=set)
    error: str | None = None

    @property
    def total(self) -> ExportCounts:
        """Counts of all exports together."""
        return sum(self.counts.values(), ExportCounts())

    def to_dict(self) -> dict[str, Any]:
        """Convert to the broker's part of the JSON report."""
        names: dict[str, Any] = {"cluster": self.broker.cluster, "broker_name": self.broker.name}
        failure = {} if self.error is None else {"error": self.error}
        return (
            names
            | failure
            | self.total.to_dict()
            | {"missing_messages": sum(end - begin for _, begin, end in self.missing)}
        )


class ClusterRun:
    """Exports of the brokers of a cluster that run together.

    Args:
        spark: the session.
        options: what is exported.
        make_exports: gives the exports of a broker.
    """

    def __init__(
        self, spark: SparkSession, options: ClusterExportOptions, make_exports: Callable[[BrokerKey], Sequence[Export]]
    ) -> None:
        self._spark, self._options, self._make_exports = spark, options, make_exports
        self._fails_on_data_loss = options.options.get("failOnDataLoss") != "false"
        self.check_lease: Callable[[], None] = lambda: None  # raises if another exporter has taken over
        self.brokers: dict[str, BrokerExport] = {}
        self.rounds = 0
        self._first_ends: dict[int, plan.Offsets] = {}  # ends of the first round, by the number of the export

    @property
    def parts(self) -> list[BrokerExport]:
        """The brokers, by name."""
        return [self.brokers[name] for name in sorted(self.brokers)]

    @property
    def total(self) -> ExportCounts:
        """Counts of all brokers together."""
        return sum((part.total for part in self.parts), ExportCounts())

    def prepare(self) -> None:
        """Find the brokers, refuse tables that do not fit, and create them.

        Raises:
            ClusterError: the cluster does not answer, or lacks a topic.
            StoreError: a table of others, or one that was restored.
        """
        with self._options.source.link() as link:
            topics = self._topics(link, self._options)
            self._find_brokers(link, {queue.broker for topic in topics for queue in link.queues(topic)})
        for part in self.parts:
            for export in part.exports:
                export.check()
                for table in export.exactly_once_tables:
                    queue_progress(table)
        for export in self.parts[0].exports:
            export.prepare()

    def export_round(self) -> bool:
        """Land what the queues have now, at most ``max_messages`` for each table; returns whether more is left.

        Raises:
            ClusterError: the cluster does not answer, messages are gone, or a queue was made anew.
            StoreError: a table cannot be written, or nothing could be landed of any broker.
        """
        for part in self.parts:
            part.error = None
        added, is_more = ExportCounts(), False
        for number in range(len(self.parts[0].exports)):
            self.check_lease()
            with self._options.source.link() as link:
                records, is_limited = self._plan(link, number)
            parts = [self.brokers[name] for name in records]
            outcomes = commit_all([(part.exports[number], records[part.broker.name]) for part in parts])
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, RmqError):
                    part.error = str(outcome)
                else:
                    name = part.exports[number].name
                    part.counts[name] = part.counts.get(name, ExportCounts()) + outcome
                    added += outcome
            is_more |= is_limited
        self.rounds += bool(added.files)
        if self._options.follows and added.files:
            _log.info("batch %d: %d rows, %d files, %d bytes", self.rounds, added.messages, added.files, added.bytes)
        failed = [part for part in self.parts if part.error is not None]
        if failed and len(failed) == len(self.parts):
            raise StoreError(f"no export could be done: broker {failed[0].broker.name} not: {failed[0].error}")
        return is_more and not failed

    def _topics(self, link: ExportLink, selection: ClusterExportOptions | ExportSelection) -> tuple[str, ...]:
        """List the topics of an export, or of all."""
        if selection.topics is not None:
            return selection.topics
        topics = tuple(
            name
            for name in link.topics()
            if selection.excluded_topics is None or not selection.excluded_topics.excludes(name)
        )
        if not topics:
            raise ClusterError(f"{self._options.source.name}: has no topics to export")
        return topics

    def _find_brokers(self, link: ExportLink, names: Iterable[str]) -> None:
        """Make the exports of brokers that are not known yet."""
        new_names = sorted(set(names) - self.brokers.keys())
        if not new_names:
            return
        clusters = link.clusters()
        unknown = [name for name in new_names if name not in clusters]
        if unknown:
            raise ClusterError(f"{self._options.source.name}: does not tell the cluster of broker {unknown[0]}")
        table_id = self._options.table_id or ",".join(sorted({clusters[name] for name in names}))
        for name in new_names:
            broker = BrokerKey(clusters[name], name, table_id)
            self.brokers[name] = BrokerExport(broker, self._make_exports(broker))

    def _plan(self, link: ExportLink, number: int) -> tuple[dict[str, PendingQueueMessages], bool]:
        """Plan a round of one export: of each broker what is to land; and whether the limit leaves something."""
        export = self.parts[0].exports[number]
        topics = self._topics(link, export.selection)
        read = {**self._options.options, **export.source_options()}
        options = self._options.source.options({**read, **dict(export.selection.queue_bounds)}, topics)
        queues = plan.chosen_queues(link, options)
        self._find_brokers(link, {queue.broker for queue in queues})
        bounds = link.bounds(queues)
        ends = plan.ending_offsets(link, options, queues, bounds)
        if not self._options.follows:
            frozen = self._first_ends.setdefault(number, ends)
            ends = {queue: min(end, frozen.get(queue, 0)) for queue, end in ends.items()}
        starts = plan.starting_offsets(link, options, queues, bounds)
        known: dict[str, dict[str, QueueProgress]] = {}
        reconciled_offset: dict[str, dict[str, int]] = {}
        begins: dict[str, plan.Offsets] = {}
        for part in self.parts:
            own = [queue for queue in queues if queue.broker == part.broker.name]
            tables = part.exports[number].exactly_once_tables
            known[part.broker.name] = {table.path: queue_progress(table) for table in tables}
            for path, found in known[part.broker.name].items():
                from_here = self._begins(link, part, own, bounds, found)
                # The store's export may have landed records that the queues do not have yet.
                is_past = all(from_here[queue] < bounds[queue][1] for queue in own)
                own_heeded = reconciled_offset.setdefault(part.broker.name, {})
                own_heeded[path] = found.physical_offset if is_past else found.reconciled_offset
                begins.setdefault(path, {}).update({queue: max(at, starts[queue]) for queue, at in from_here.items()})
        firsts = {queue: min(own[queue] for own in begins.values()) for queue in queues}
        owed = {queue: max(first, ends[queue]) for queue, first in firsts.items()}
        last = owed if self._options.max_messages is None else plan.limited(firsts, owed, self._options.max_messages)
        for part in self.parts:
            for gap in link.gaps(_of_broker(firsts, part.broker.name), _of_broker(last, part.broker.name)):
                self._report_lost_messages(part, *gap)
        reader = self._options.source.reader(options, read)
        tops = dict.fromkeys(known, 0)
        for queue, end in last.items():
            if firsts[queue] < end:
                tops[queue.broker] = max(tops[queue.broker], link.physical_end_of(queue, end))
        return {
            name: PendingQueueMessages(
                self._spark, self.brokers[name].broker, reader,
                {path: _of_broker(own, name) for path, own in begins.items()}, _of_broker(last, name),
                found, reconciled_offset.get(name, {}), tops[name], len(topics),
            )
            for name, found in known.items()
        }, last != owed  # fmt: skip

    def _begins(
        self,
        link: ExportLink,
        part: BrokerExport,
        queues: Sequence[ClusterQueue],
        bounds: Mapping[ClusterQueue, tuple[int, int]],
        known: QueueProgress,
    ) -> plan.Offsets:
        """Find where each queue of a broker begins: where it was noted, else where the store's export ended.

        Raises:
            ClusterError: messages in between are gone, or a queue was made anew.
        """
        noted = {queue: known.offsets.get(queue_key(queue), 0) for queue in queues}
        for queue, at in noted.items():
            if at > bounds[queue][1]:
                raise ClusterError(
                    f"{queue.topic} {queue.name}: has {bounds[queue][1]} messages, but {at} have landed: the topic was "
                    "made anew, or the broker has lost messages; give another table"
                )
        lows = {queue: max(at, bounds[queue][0]) for queue, at in noted.items()}
        begins = dict(lows)
        if known.physical_offset > 0:  # a queue that is not noted may have come since
            owing = [
                at
                for at in queues
                if known.physical_offset > known.reconciled_offset or queue_key(at) not in known.offsets
            ]
            begins |= link.first_at({at: (lows[at], bounds[at][1]) for at in owing}, known.physical_offset)
        has_landed = any(begins[queue] > low for queue, low in lows.items())  # so nothing behind that was deleted
        for queue, at in noted.items():
            low, is_known = bounds[queue][0], queue_key(queue) in known.offsets or known.physical_offset > 0
            if at < low and not has_landed and is_known:
                self._report_lost_messages(part, queue, at, low)
        return begins

    def _report_lost_messages(self, part: BrokerExport, queue: ClusterQueue, begin: int, end: int) -> None:
        text = f"{plan.gone(queue, begin, end)}: deleted before the export"
        if self._fails_on_data_loss:
            raise ClusterError(f"{text}; --fail-on-data-loss false skips them")
        _log.warning("%s", text)
        part.missing.add((queue, begin, end))


def _of_broker(offsets: plan.Offsets, broker: str) -> plan.Offsets:
    return {queue: offset for queue, offset in offsets.items() if queue.broker == broker}


def check_queue_options(options: ClusterExportOptions, selection: ExportSelection) -> None:
    """Refuse options that cannot be used, before a session is started. Raises OptionError."""
    options.source.options({**options.options, **dict(selection.queue_bounds)}, ["-"])
