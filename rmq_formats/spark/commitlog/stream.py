"""Stream reader of ``rmq_commitlog``: follows the CommitLog of a store while a broker writes.

A stream offset has a physical offset of the log, the segment before the offset, the time of the segment's first record,
and a checksum of the log's last bytes before the offset. By these a checkpoint of another store is recognized, also of
a store that was replaced at the same path. A stream offset also has the starting conditions of the new query: a restart
with other conditions continues at the checkpoint, and skips nothing.

A micro batch has the records and damage that begin between two offsets. Bytes after the last sound record belong to a
later batch: they may be half of a record, and are damage only if records follow.
"""

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError, StoreError, StoreNotFoundError
from rmq_formats.read.query import Query, QueueBounds
from rmq_formats.spark.commitlog.batch import TaskPartition
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions
from rmq_formats.spark.options.values import LATEST
from rmq_formats.storage.store_files import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.read.plan import Task
    from rmq_formats.storage.segments import Segment, Storage

PHYSICAL_OFFSET: Final = "physicalOffset"
SEGMENT: Final = "segment"
SEGMENT_TIMESTAMP: Final = "segmentStoreTimestamp"
CHECKSUM: Final = "crc32"
STARTING: Final = "starting"
_SUMMED_BYTES: Final = 4096  # some records, with their store times and offsets

_log = logging.getLogger("rmq_formats.spark")


class GapPartition(InputPartition):
    """Input partition: a range of the log whose files were deleted."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class BatchPartition(TaskPartition):
    """Input partition: a task of a micro batch, with the query that ends the batch."""

    def __init__(self, task: "Task", query: Query) -> None:
        super().__init__(task)
        self.query = query


@dataclass(frozen=True, slots=True)
class _Log:
    """Snapshot of the log, with a cache of the times of its files' first records."""

    storage: "Storage"
    segments: "list[Segment]"
    end: int
    timestamps_ms: dict[int, int | None] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return self.segments[0].start_offset

    def offset(self, physical_offset: int) -> dict[str, Any]:
        """Encode the stream's offset for a physical offset; the order of keys counts, since Spark compares texts."""
        for segment in reversed(self.segments):
            if segment.start_offset < physical_offset:
                return {
                    PHYSICAL_OFFSET: physical_offset,
                    SEGMENT: segment.start_offset,
                    SEGMENT_TIMESTAMP: self._timestamp_ms(segment),
                    CHECKSUM: self._crc32(segment, physical_offset),
                }
        return {PHYSICAL_OFFSET: physical_offset}

    def contains_offset(self, offset: dict[str, Any]) -> bool:
        """Return whether the log contains the offset; True for an offset in a deleted segment."""
        for segment in self.segments:
            if segment.start_offset == offset.get(SEGMENT):
                end, crc = offset[PHYSICAL_OFFSET], offset.get(CHECKSUM)  # None in checkpoints of former versions
                is_there = crc is not None and end <= min(segment.end_offset, self.end)
                has_bytes = not is_there or self._crc32(segment, end) == crc
                return has_bytes and self._timestamp_ms(segment) == offset.get(SEGMENT_TIMESTAMP)
        former_start = offset.get(SEGMENT, -1)  # within a segment of another size: the log was replaced
        return not any(segment.start_offset < former_start < segment.end_offset for segment in self.segments)

    def _crc32(self, segment: "Segment", end: int) -> int:
        """Compute the checksum of a segment's last bytes before a physical offset."""
        from rmq_formats.storage.segments import read_range  # noqa: PLC0415

        begin = max(segment.start_offset, end - _SUMMED_BYTES)
        with self.storage.open(segment.path) as file:
            return zlib.crc32(read_range(file, begin - segment.start_offset, end - begin))

    def _timestamp_ms(self, segment: "Segment") -> int | None:
        from rmq_formats.read.ranges import segment_timestamp_ms  # noqa: PLC0415

        start = segment.start_offset
        if start not in self.timestamps_ms:
            with self.storage.open(segment.path) as file:
                self.timestamps_ms[start] = segment_timestamp_ms(file, segment)
        return self.timestamps_ms[start]


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of micro batches by physical offset.

    To find the end of a log takes reads of the tail, on an object store some requests: each trigger does so once, in
    ``latestOffset``, and the other calls of the trigger use the result.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns = schemas.check_requested_columns(schemas.COMMITLOG, schema, options.columns)
        self._options = replace(options, read=replace(options.read, columns=columns))
        self._last: int | None = None  # of Trigger.AvailableNow
        self._starting: dict[str, Any] = {}  # part of each offset
        self._seen: _Log | None = None  # snapshot of this trigger; None before the first: a restart repeats a batch

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the snapshot, which tasks do not need."""
        return {**self.__dict__, "_seen": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        """Return the begin of a new query: ``startingPhysicalOffset``, else by ``startingOffsets`` or time."""
        from rmq_formats.spark.options.brokers import check_bounded_queues, stores_of  # noqa: PLC0415

        check_bounded_queues(self._options, stores_of(self._options))
        log = self._snapshot_log()
        query = self._options.query
        starting = {STARTING: _starting_conditions(query)}
        if self._options.starting == LATEST:
            return log.offset(log.end) | starting
        begin = log.begin
        if query.has_time:
            from rmq_formats.read.store_times import time_ranges  # noqa: PLC0415

            ranges = time_ranges(log.storage, log.segments, *query.time_bounds)
            begin = max(begin, ranges[0][0] if ranges else log.end)
        return log.offset(max(begin, query.first_physical_offset)) | starting

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of ``Trigger.AvailableNow``: later messages are for the next run."""
        self._last = self._snapshot_log().end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the read limit of the options; ``latestOffset`` applies both limits, if both are set."""
        if self._options.max_trigger_offsets is not None:
            return ReadMaxRows(self._options.max_trigger_offsets)
        if self._options.max_trigger_bytes is not None:
            return ReadMaxBytes(self._options.max_trigger_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro batch. Raises StoreError: the log ends before ``start``."""
        from rmq_formats.read.ranges import NO_LIMIT, BatchLimit, batch_end  # noqa: PLC0415

        log = self._seen = self._snapshot_log()
        self._starting = {name: start[name] for name in start if name == STARTING}
        begin = self._begin(log, start)
        end = log.end if self._last is None else min(self._last, log.end)
        if log.end < begin and begin > self._query(start).first_physical_offset:
            self._fail_or_warn(
                f"{self._options.path}: the CommitLog ends at {log.end}, before {begin}, where the stream stands: "
                "the checkpoint is another store's, or the log was cut off"
            )
        if end <= begin:
            return start
        allowed = NO_LIMIT
        if not isinstance(limit, ReadAllAvailable):
            allowed = BatchLimit(self._options.max_trigger_bytes, self._options.max_trigger_offsets)
        begin = max(begin, log.begin)  # deleted ranges have no records to count
        return log.offset(batch_end(log.storage, log.segments, begin, end, allowed)) | self._starting

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the log's end; the difference to the stream's offset is the lag in bytes."""
        log = self._seen or self._snapshot_log()
        return log.offset(log.end) | self._starting

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a micro batch; without ``failOnDataLoss=false``, lost records raise StoreError."""
        from rmq_formats.read.plan import scan_tasks  # noqa: PLC0415
        from rmq_formats.read.ranges import missing_ranges, range_splits  # noqa: PLC0415

        log = self._seen or self._snapshot_log()
        begin, limit = self._begin(log, start), int(end[PHYSICAL_OFFSET])
        if begin < limit and log.end < limit:
            # A restart repeats a batch that was planned before a broker's machine went down, and the log lost its tail.
            self._fail_or_warn(
                f"{self._options.path}: the CommitLog ends at {log.end}, before {limit}, where the batch was planned "
                "to end: the log was cut off"
            )
        gaps = missing_ranges(log.segments, begin, min(limit, log.end))
        for first, last in gaps:
            self._fail_or_warn(_deleted_bytes_message(self._options.path, first, last))
        # A broker may be writing after the last sound record: for the splits, the log ends there.
        splits = range_splits(
            log.segments, [(begin, limit)], log.end, self._options.split_bytes, self._options.min_partitions
        )
        tasks = scan_tasks(log.storage, log.segments, splits, begin)
        query = replace(self._query(start), end_physical_offset=limit)
        return [*(GapPartition(*gap) for gap in gaps), *(BatchPartition(task, query) for task in tasks)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read one task as Arrow batches; a deleted range is a row with a record_error, or raises StoreError."""
        from rmq_formats.read.plan import ScanTask  # noqa: PLC0415
        from rmq_formats.read.task import gap_batch, read_task  # noqa: PLC0415

        options = self._options
        if isinstance(partition, GapPartition):
            yield from gap_batch(partition.start, partition.end, options.read)
            return
        if not isinstance(partition, BatchPartition) or not isinstance(partition.task, ScanTask):
            return  # Spark's stand-in for an empty list of partitions
        split = partition.task.split
        try:
            yield from read_task(options.path, partition.task, replace(options.read, query=partition.query))
        except StoreNotFoundError:
            if open_store(options.path).storage.exists(split.path):  # a ConsumeQueue file was deleted meanwhile
                raise
            first, last = split.file_offset + split.start, split.file_offset + min(split.limit, split.data_end)
            self._fail_or_warn(_deleted_bytes_message(options.path, first, last))
            yield from gap_batch(first, last, options.read)

    def _snapshot_log(self) -> _Log:
        from rmq_formats.read.log_end import readable_segments  # noqa: PLC0415
        from rmq_formats.scan.splits import last_record_end  # noqa: PLC0415

        store = open_store(self._options.path)
        segments = readable_segments(store)
        return _Log(store.storage, segments, last_record_end(store.storage, segments))

    def _begin(self, log: _Log, offset: dict[str, Any]) -> int:
        """Return the physical offset of a stream offset, which may come from a checkpoint."""
        begin = offset.get(PHYSICAL_OFFSET)
        if not isinstance(begin, int):
            raise OptionError(f"the checkpoint's offset {offset} is not one of rmq_commitlog")
        if not log.contains_offset(offset):
            raise StoreError(
                f"{self._options.path}: the segment at {offset[SEGMENT]} has other records before offset {begin} than "
                "when the checkpoint was written: it is a checkpoint of another store"
            )
        return begin

    def _query(self, offset: dict[str, Any]) -> Query:
        """Return the query with the starting conditions of a stream offset, else of the options."""
        query, starting = self._options.query, offset.get(STARTING)
        if starting is None:  # a checkpoint of a former version
            return query
        bounds = {
            (topic, int(queue_id)): QueueBounds(first_offset=first_offset, first_ms=first_ms)
            for topic, queues in starting["queues"].items()
            for queue_id, (first_offset, first_ms) in queues.items()
        }
        first_ms, first_physical_offset = starting["timestamp"], starting[PHYSICAL_OFFSET]
        return replace(query, first_ms=first_ms, first_physical_offset=first_physical_offset, bounds=bounds)

    def _fail_or_warn(self, message: str) -> None:
        if self._options.fail_on_data_loss:
            raise StoreError(f"{message}; option failOnDataLoss=false skips it")
        _log.warning("%s", message)


def _starting_conditions(query: Query) -> dict[str, Any]:
    """Encode the conditions of a query on the begin of the stream."""
    queues: dict[str, dict[str, list[int]]] = {}
    for (topic, queue_id), bounds in sorted(query.bounds.items()):
        queues.setdefault(topic, {})[str(queue_id)] = [bounds.first_offset, bounds.first_ms]
    return {"timestamp": query.first_ms, PHYSICAL_OFFSET: query.first_physical_offset, "queues": queues}


def _deleted_bytes_message(path: str, first: int, last: int) -> str:
    return f"{path}: bytes {first} to {last} of the CommitLog were deleted before the read"
