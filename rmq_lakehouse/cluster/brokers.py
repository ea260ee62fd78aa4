"""Source of exports: the queues of brokers, of a running cluster or of a store with its tier, by queue offsets."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from rmq_formats.errors import ClusterError, StoreError
from rmq_lakehouse.cluster.queues import PendingQueueMessages, QueueProgress, queue_key, queue_progress
from rmq_lakehouse.cluster.sources import ExportConnection, QueueExportSource
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.exports import ExportCounts, SourceExports
from rmq_lakehouse.live import plan
from rmq_lakehouse.live.options import ClusterQueue
from rmq_lakehouse.raw import Export
from rmq_lakehouse.selection import BrokerKey, ExcludedTopics, ExportSelection, exported_brokers

_log = logging.getLogger("rmq_lakehouse")


@dataclass(frozen=True, slots=True)
class ClusterExportOptions:
    """Options of an export by queue offsets.

    Attributes:
        topics: topics of all exports together; None is all topics that are not excluded.
        excluded_topics: None if system topics are exported.
        options: options of the source ``rmq``, in addition to those of the exports.
        table_id: identifier of the clusters in the table; None is made of their names.
        max_messages: limit of a round.
        follows: whether later rounds export messages that arrived after the first round.
    """

    source: QueueExportSource
    topics: tuple[str, ...] | None
    excluded_topics: ExcludedTopics | None
    options: Mapping[str, str] = field(repr=False)
    table_id: str | None = None
    max_messages: int | None = None
    follows: bool = False


@dataclass(kw_only=True)
class BrokerExports(SourceExports[Export]):
    """Exports of one broker; it had deleted the ``missing`` ranges before their export: queue, begin, end."""

    broker: BrokerKey
    missing: set[tuple[ClusterQueue, int, int]] = field(default_factory=set)

    @property
    def names(self) -> dict[str, str]:
        return self.broker.to_dict()

    @property
    def lost(self) -> dict[str, int]:
        return {"missing_messages": sum(end - begin for _, begin, end in self.missing)}


class BrokerQueues:
    """Message source of the queues of brokers; see ``MessageSource``. Each round ends at the queues' current ends."""

    def __init__(
        self, spark: SparkSession, options: ClusterExportOptions, make_exports: Callable[[BrokerKey], Sequence[Export]]
    ) -> None:
        self._spark, self._options, self._make_exports = spark, options, make_exports
        self._fails_on_data_loss = options.options.get("failOnDataLoss") != "false"
        self.rounds = 0
        self._brokers: dict[str, BrokerExports] = {}
        self._is_limited = False
        self._first_ends: dict[int, plan.Offsets] = {}  # ends of the first round, by the number of the export

    @property
    def parts(self) -> list[BrokerExports]:
        return [self._brokers[name] for name in sorted(self._brokers)]

    def check(self) -> None:
        """Find the brokers, and refuse tables that do not fit. Raises ClusterError, StoreError."""
        with self._options.source.link() as link:
            topics = self._topics(link, self._options)
            self._find_brokers(link, {queue.broker for topic in topics for queue in link.queues(topic)})
            clusters = link.clusters()
        for part in self.parts:
            for export in part.exports:
                export.check()
                for table in export.exactly_once_tables:
                    queue_progress(table)
        for export in self.parts[0].exports:
            for table in export.exactly_once_tables:
                self._report_absent_brokers(table, clusters)

    def prepare(self) -> None:
        for export in self.parts[0].exports:
            export.prepare()

    def begin_round(self) -> None:
        """Try brokers again whose exports have failed; each export then fixes its own end of the round."""
        self._is_limited = False
        for part in self.parts:
            part.error = None

    def pending(self, number: int) -> list[tuple[BrokerExports, PendingQueueMessages]]:
        """Return the messages that the exports of one number lack: at most ``max_messages`` of all brokers."""
        with self._options.source.link() as link:
            messages, is_limited = self._plan(link, number)
        self._is_limited |= is_limited
        return [(self._brokers[name], pending) for name, pending in messages.items()]

    def end_round(self, added: Sequence[ExportCounts]) -> bool:
        """Count the round if it has added files; return whether more messages are pending."""
        total = sum(added, ExportCounts())
        self.rounds += bool(total.files)
        if self._options.follows and total.files:
            _log.info("batch %d: %d rows, %d files, %d bytes", self.rounds, total.messages, total.files, total.bytes)
        failed = [part for part in self.parts if part.error is not None]
        if failed and len(failed) == len(self.parts):
            raise StoreError(f"no broker could be exported; broker {failed[0].broker.name}: {failed[0].error}")
        return self._is_limited and not failed

    def _topics(self, link: ExportConnection, selection: ClusterExportOptions | ExportSelection) -> tuple[str, ...]:
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

    def _find_brokers(self, link: ExportConnection, names: Iterable[str]) -> None:
        """Make the exports of new brokers."""
        new_names = sorted(set(names) - self._brokers.keys())
        if not new_names:
            return
        clusters = link.clusters()
        unknown = [name for name in new_names if name not in clusters]
        if unknown:
            raise ClusterError(f"{self._options.source.name}: has no cluster for broker {unknown[0]}")
        table_id = self._options.table_id or ",".join(sorted({clusters[name] for name in names}))
        for name in new_names:
            broker = BrokerKey(clusters[name], name, table_id)
            self._brokers[name] = BrokerExports(self._make_exports(broker), broker=broker)

    def _plan(self, link: ExportConnection, number: int) -> tuple[dict[str, PendingQueueMessages], bool]:
        """Plan the pending messages of each broker for one export, and whether the limit leaves some for later."""
        export = self.parts[0].exports[number]
        topics = self._topics(link, export.selection)
        read = {**self._options.options, **export.source_options()}
        options = self._options.source.options({**read, **dict(export.selection.queue_bounds)}, topics)
        queues = plan.chosen_queues(link, options)
        self._find_brokers(link, {queue.broker for queue in queues})
        bounds = link.bounds(queues)
        ends = plan.ending_offsets(link, options, queues, bounds)
        if not self._options.follows:
            first_ends = self._first_ends.setdefault(number, ends)
            ends = {queue: min(end, first_ends.get(queue, 0)) for queue, end in ends.items()}
        starts = plan.starting_offsets(link, options, queues, bounds)
        progress: dict[str, dict[str, QueueProgress]] = {}  # by broker and table
        reconciled_offsets: dict[str, dict[str, int]] = {}  # by broker and table
        begins: dict[str, plan.Offsets] = {}  # by table
        for part in self.parts:
            name, broker_queues = part.broker.name, [queue for queue in queues if queue.broker == part.broker.name]
            tables = part.exports[number].exactly_once_tables
            progress[name] = {table.path: queue_progress(table) for table in tables}
            for path, table_progress in progress[name].items():
                table_begins = self._begins(link, part, broker_queues, bounds, table_progress)
                # An export of the store may have committed records that the queues do not have yet.
                is_reconciled = all(table_begins[queue] < bounds[queue][1] for queue in broker_queues)
                reconciled_offsets.setdefault(name, {})[path] = (
                    table_progress.physical_offset if is_reconciled else table_progress.reconciled_offset
                )
                begins.setdefault(path, {}).update(
                    {queue: max(at, starts[queue]) for queue, at in table_begins.items()}
                )
        firsts = {queue: min(table_begins[queue] for table_begins in begins.values()) for queue in queues}
        pending_ends = {queue: max(first, ends[queue]) for queue, first in firsts.items()}
        round_ends = pending_ends
        if self._options.max_messages is not None:
            round_ends = plan.limit_ends(firsts, pending_ends, self._options.max_messages)
        for part in self.parts:
            for gap in link.gaps(_of_broker(firsts, part.broker.name), _of_broker(round_ends, part.broker.name)):
                self._report_lost_messages(part, *gap)
        reader = self._options.source.reader(options, read)
        physical_ends = dict.fromkeys(progress, 0)
        for queue, end in round_ends.items():
            if firsts[queue] < end:
                physical_ends[queue.broker] = max(physical_ends[queue.broker], link.physical_end_of(queue, end))
        pending = {
            name: PendingQueueMessages(
                self._spark,
                self._brokers[name].broker,
                reader,
                begins={path: _of_broker(offsets, name) for path, offsets in begins.items()},
                ends=_of_broker(round_ends, name),
                planned_progress=broker_progress,
                reconciled_offset=reconciled_offsets.get(name, {}),
                pulled_end=physical_ends[name],
                topics=len(topics),
            )
            for name, broker_progress in progress.items()
        }
        return pending, round_ends != pending_ends

    def _begins(
        self,
        link: ExportConnection,
        part: BrokerExports,
        queues: Sequence[ClusterQueue],
        bounds: Mapping[ClusterQueue, tuple[int, int]],
        progress: QueueProgress,
    ) -> plan.Offsets:
        """Find the first pending offset of each queue: the committed offset, or else where the store's export ended."""
        committed_offsets = {queue: progress.offsets.get(queue_key(queue), 0) for queue in queues}
        for queue, offset in committed_offsets.items():
            if offset > bounds[queue][1]:
                raise ClusterError(
                    f"{queue.topic} {queue.name}: has {bounds[queue][1]} messages, the table {offset}: the topic was "
                    "recreated, or the broker has lost messages; give another table"
                )
        lows = {queue: max(offset, bounds[queue][0]) for queue, offset in committed_offsets.items()}
        begins = dict(lows)
        if progress.physical_offset > 0:  # the store's export knows no queues: find its end in each of them
            has_advanced = progress.physical_offset > progress.reconciled_offset
            unresolved = [queue for queue in queues if has_advanced or queue_key(queue) not in progress.offsets]
            ranges = {queue: (lows[queue], bounds[queue][1]) for queue in unresolved}
            begins |= link.first_at(ranges, progress.physical_offset)
        # The broker still has a message that the store's export has committed, so it has deleted none after that.
        has_committed_message = any(begins[queue] > low for queue, low in lows.items())
        for queue, offset in committed_offsets.items():
            low = bounds[queue][0]
            has_progress = queue_key(queue) in progress.offsets or progress.physical_offset > 0
            if offset < low and not has_committed_message and has_progress:
                self._report_lost_messages(part, queue, offset, low)
        return begins

    def _report_absent_brokers(self, table: ExactlyOnceTable, clusters: Mapping[str, str]) -> None:
        """Warn of absent brokers with messages in the table, which may only be stopped."""
        for cluster, name in sorted(exported_brokers(table.log.snapshot().transactions)):
            if cluster in clusters.values() and name not in clusters:
                text = "%s: %s does not name broker %s of cluster %s now; %s"
                advice = "an export after its return adds its new messages"
                _log.warning(text, table.path, self._options.source.name, name, cluster, advice)

    def _report_lost_messages(self, part: BrokerExports, queue: ClusterQueue, begin: int, end: int) -> None:
        text = f"{plan.missing_offsets_message(queue, begin, end)}: deleted before the export"
        if self._fails_on_data_loss:
            raise ClusterError(f"{text}; --fail-on-data-loss false skips them")
        _log.warning("%s", text)
        part.missing.add((queue, begin, end))


def _of_broker(offsets: plan.Offsets, broker: str) -> plan.Offsets:
    return {queue: offset for queue, offset in offsets.items() if queue.broker == broker}


def check_queue_options(options: ClusterExportOptions, selection: ExportSelection) -> None:
    """Refuse unusable options before a session is started. Raises OptionError."""
    options.source.options({**options.options, **dict(selection.queue_bounds)}, ["-"])
