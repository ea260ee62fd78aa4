"""Stream reader of the source ``rmq``: follows the queues of a running cluster.

A stream offset is ``{"Orders": {"broker-a:0": 17}}``, which ``startingOffsets`` takes as well.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq_formats.errors import ClusterError, OptionError
from rmq_formats.spark.options import schemas
from rmq_lakehouse.live import plan
from rmq_lakehouse.live.options import ClusterQueue, ClusterReadOptions, queue_name
from rmq_lakehouse.live.plan import Offsets
from rmq_lakehouse.live.reader import COLUMNS, SpanPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_lakehouse.live.client import ClusterConnection

_OUTAGE_S: Final = 60.0  # how long a query waits for servers that restart, as Kafka's clients do
_log = logging.getLogger("rmq_formats.spark")


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro batches by queue offset; each is read as a batch of the source is."""

    def __init__(self, options: ClusterReadOptions, schema: StructType) -> None:
        from rmq_lakehouse.live.client import resolve_access  # noqa: PLC0415

        self._options = resolve_access(options)
        self._columns = schemas.check_requested_columns(COLUMNS, schema, options.columns)
        self._link: ClusterConnection | None = None
        self._freezes = False  # for Trigger.AvailableNow
        self._frozen_ends: Offsets | None = None
        self._offset: Offsets = {}  # the stream's place in each queue that it has met
        self._missing: frozenset[ClusterQueue] = frozenset()
        self._committed: Offsets = {}

    def _cluster(self) -> "ClusterConnection":
        """Connect the driver's side to the cluster; the connection lives as long as the query."""
        if self._link is None:
            from rmq_lakehouse.live.client import ClusterConnection  # noqa: PLC0415

            options = self._options
            self._link = ClusterConnection(options.namesrv, options.group, options.access, patience_s=_OUTAGE_S)
        return self._link

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        link, options = self._cluster(), self._options
        queues = plan.chosen_queues(link, options)
        bounds = link.bounds(queues)
        begins = plan.starting_offsets(link, options, queues, bounds)
        return _as_json(self._check_present(begins, bounds))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the queues' ends when the first batch is planned: messages after them are for the next run."""
        self._freezes = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_trigger_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset where the next micro batch ends.

        A new queue enters the stream at its first message, which comes with the batch after the next: so its beginning
        is in the checkpoint before any of it is read.

        Raises:
            ClusterError: the cluster does not answer; or a queue ends before the stream's place in it, as that of a
                topic that was recreated, and the option failOnDataLoss is true.
        """
        begins = _from_json(start)
        ends = self._ends(begins) if self._frozen_ends is None else self._frozen_ends
        if self._freezes:
            self._frozen_ends = ends
        self._warn_of_missing(begins.keys() - ends.keys())
        new_queues = sorted(ends.keys() - begins.keys())
        new = {queue: low for queue, (low, _) in self._cluster().bounds(new_queues).items()} if new_queues else {}
        shorter = {queue: ends[queue] for queue, begin in begins.items() if ends.get(queue, begin) < begin}
        bounds = {queue: (0, end) for queue, end in shorter.items()}
        self._check_present({queue: begins[queue] for queue in shorter}, bounds)
        # A queue without a broker keeps its place. One that has become shorter is read on from its end.
        ends = {queue: max(begin, ends.get(queue, begin)) for queue, begin in begins.items()}
        if isinstance(limit, ReadMaxRows):
            ends = plan.limit_ends(begins, ends, limit.max_rows)
        self._offset = ends | shorter | new
        return _as_json(self._offset)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the queues' max offsets: less the stream's offset, they are the lag."""
        try:
            return _as_json(self._ends(self._offset))
        except ClusterError as error:  # a report ends no query
            _log.warning("%s", error)
            return _as_json(self._offset)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the offset ranges of a micro batch. Raises ClusterError: some of its messages are deleted."""
        begins, ends = _from_json(start), _from_json(end)
        changed = [queue for queue in ends if begins.get(queue) != ends[queue]]
        if not self._options.fail_on_data_loss:  # the topic of a planned batch may have been deleted
            present = frozenset(plan.chosen_queues(self._cluster(), self._options, changed))
            self._warn_of_missing(frozenset(changed) - present)
            changed = [queue for queue in changed if queue in present]
        bounds = self._cluster().bounds(changed)
        begins = {queue: begins.get(queue, bounds[queue][0]) for queue in changed}
        begins = self._check_present(begins, bounds)
        # A restart repeats a batch that was planned before a broker lost its last messages.
        self._check_present({queue: ends[queue] for queue in changed if ends[queue] > bounds[queue][1]}, bounds)
        ends = {queue: min(ends[queue], bounds[queue][1]) for queue in changed}
        return [SpanPartition(span) for span in plan.spans(begins, ends, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, SpanPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_lakehouse.live.read import read_span  # noqa: PLC0415

        # The starting time is that of a new query: a restart with another one goes on at the checkpoint's place.
        options = replace(self._options, first_ms=None)
        yield from read_span(partition.span, options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the processed offsets for the consumer group, if the options enable that.

        A queue whose offset cannot be committed is logged: the group's offset stays until the next messages.
        """
        if not self._options.commits or self._options.group is None:
            return
        committed = self._committed
        offsets = {queue: offset for queue, offset in _from_json(end).items() if committed.get(queue, 0) != offset}
        failures = self._cluster().commit(offsets, self._options.group)
        self._committed |= offsets
        for queue, reason in failures.items():
            _log.warning("%s %s: offset %d is not committed: %s", queue.topic, queue.name, offsets[queue], reason)

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _check_present(self, begins: Offsets, bounds: Mapping[ClusterQueue, tuple[int, int]]) -> Offsets:
        present, lost = plan.check_present(begins, bounds, self._options.fail_on_data_loss)
        for text in lost:
            _log.warning("%s", text)
        return present

    def _warn_of_missing(self, missing: AbstractSet[ClusterQueue]) -> None:
        """Warn once of queues that no broker has: of a deleted topic or a lowered count, or their broker is down."""
        for queue in sorted(missing - self._missing):
            _log.warning(
                "%s %s: the options do not choose it, or no broker has it now: its messages do not come",
                queue.topic,
                queue.name,
            )
        self._missing = frozenset(missing)

    def _ends(self, met_queues: Collection[ClusterQueue]) -> Offsets:
        link = self._cluster()
        queues = plan.chosen_queues(link, self._options, met_queues)
        return {queue: high for queue, (_, high) in link.bounds(queues).items()}


def _as_json(offsets: Offsets) -> dict[str, Any]:
    """Encode offsets by topic and queue; keys in one order, since Spark compares the text."""
    queue_offsets: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        queue_offsets.setdefault(queue.topic, {})[queue.name] = offsets[queue]
    return queue_offsets


def _from_json(offset: dict[str, Any]) -> Offsets:
    """Decode offsets, which may come from a checkpoint. Raises OptionError."""
    queue_offsets: Offsets = {}
    try:
        for topic, queues in offset.items():
            for text, value in queues.items():
                name = queue_name(topic, text)
                if name.broker is None or not isinstance(value, int):
                    raise ValueError(text)
                queue_offsets[ClusterQueue(topic, name.broker, name.queue_id)] = value
    except (AttributeError, ValueError) as error:
        raise OptionError(f"the checkpoint's offset {offset} is not one of rmq") from error
    return queue_offsets
