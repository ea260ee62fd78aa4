"""Plans a query: chooses between scan, ConsumeQueue and Index, and cuts the work into tasks.

Every access path gives the rows of a scan. Parts of the log that the derived files may lack are scanned as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record_layout import HOST_FLAGS, HOST_V6_BYTES, head_struct, store_timestamp_at
from rmq_formats.errors import FormatError, OptionError, StoreError, StoreNotFoundError
from rmq_formats.read.dirty import dirty_queues_reason, dirty_reason
from rmq_formats.read.index_lookup import find_key_offsets, index_paths, unknown_ranges
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.query import AccessPath, Include, Query
from rmq_formats.read.queue_choice import choose_queues, dispatched_end_of_files
from rmq_formats.read.queue_databases import find_unit_records
from rmq_formats.read.queue_logs import QueueLogsTask, queue_log_tasks
from rmq_formats.read.queues import ConsumeQueue, average_record_bytes
from rmq_formats.read.ranges import Range, log_bounds, range_splits, segment_at, walk_start
from rmq_formats.read.store_times import time_ranges
from rmq_formats.scan.splits import DEFAULT_SPLIT_BYTES, Split
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.queue_files import QueueFiles, queue_topics, topic_queues
from rmq_formats.storage.queue_logs import COMMITLOG_ONLY, LogKind, Logs
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles

POINT_COST_BYTES: Final = 16 << 10  # a scan of so many bytes costs about as much as one record by its offset
MAX_UNKNOWN_SHARE: Final = 0.25  # of the log's bytes; if the Index lacks more, a scan costs less
POINTS_PER_TASK: Final = 20_000
_SYS_FLAG: Final = head_struct("sys_flag")
_TIMESTAMP_BYTES: Final = 8
_STORE_HOST_END: Final = store_timestamp_at(HOST_FLAGS) + _TIMESTAMP_BYTES + HOST_V6_BYTES


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Task: scan one split, from the file position ``begin`` of a record or of damage; None searches for a record."""

    split: Split
    begin: int | None = None


def scan_tasks(storage: Storage, segments: Sequence[Segment], splits: Sequence[Split], begin: int) -> list["Task"]:
    """Make scan tasks of splits; damage at ``begin``, where an earlier read ended, is still to be reported."""
    tasks = [ScanTask(split) for split in splits]
    start = walk_start(storage, segments, begin) if splits and splits[0].start else None
    if start is not None and start < splits[0].file_offset + splits[0].limit:
        tasks[0] = ScanTask(splits[0], start - splits[0].file_offset)
    return list(tasks)


@dataclass(frozen=True, slots=True)
class PointReadTask:
    """Task: read records at physical offsets; the records' headers have the sizes."""

    segments: tuple[Segment, ...]
    physical_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueuesTask:
    """Task: read the records in a range of the log to which the units of some topics' queues point.

    The task lists the queues' files itself: a busy store has thousands, and there are many tasks. Records that are
    dispatched after planning come after the range.
    """

    segments: tuple[Segment, ...]
    topics: tuple[str, ...]
    begin: int
    end: int


Task = ScanTask | PointReadTask | QueuesTask | QueueLogsTask


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Tasks of a query, with the access path and the reason for the choice."""

    access_path: AccessPath
    reason: str
    tasks: tuple[Task, ...]

    @property
    def scanned_bytes(self) -> int:
        """Bytes of the log that are scanned, rather than read by their offsets."""
        splits = [task.split for task in self.tasks if isinstance(task, ScanTask)]
        of_queues = sum(task.size_bytes for task in self.tasks if isinstance(task, QueueLogsTask))
        return of_queues + sum(min(split.limit, split.data_end) - split.start for split in splits)

    def __str__(self) -> str:
        scanned = f", {self.scanned_bytes} bytes of the log scanned" if self.scanned_bytes else ""
        return f"access path {self.access_path}: {self.reason}; {len(self.tasks)} tasks{scanned}"


def plan_read(
    store: StoreFiles,
    query: Query,
    *,
    access_path: AccessPath = AccessPath.AUTO,
    split_bytes: int = DEFAULT_SPLIT_BYTES,
    min_tasks: int = 1,
    logs: Logs = COMMITLOG_ONLY,
) -> ReadPlan:
    """Plan the read of a store.

    Args:
        access_path: AUTO chooses; another path is used whatever its files may lack.
        split_bytes: bytes of the log that a task reads, about.
        min_tasks: make tasks smaller until there are about this many.

    Raises:
        StoreNotFoundError: no such store or log, or no files of the access path.
        OptionError: the query does not fit the access path.
    """
    if logs.kind is not LogKind.COMMITLOG:
        return _with_queue_logs(store, query, access_path, split_bytes, min_tasks, logs)
    segments = store.segments if query.included is Include.UNQUEUED else readable_segments(store)
    begin, end = log_bounds(store.storage, segments)
    return _Planner(store, query, segments, begin, end, split_bytes, min_tasks).plan(access_path)


def _with_queue_logs(
    store: StoreFiles, query: Query, access_path: AccessPath, split_bytes: int, min_tasks: int, logs: Logs
) -> ReadPlan:
    """Plan the read of the logs of single queues, and then of the CommitLog where both are joined."""
    if access_path not in {AccessPath.AUTO, AccessPath.SCAN}:
        raise OptionError(f"accessPath {access_path} is of the CommitLog; log {logs.kind} needs auto or scan")
    store.require_readable()
    tasks, description = queue_log_tasks(store, query, logs, split_bytes, min_tasks)
    if logs.kind is not LogKind.JOINED:
        return ReadPlan(AccessPath.SCAN, description, tuple(tasks))
    plan = plan_read(store, query, access_path=access_path, split_bytes=split_bytes, min_tasks=min_tasks)
    return ReadPlan(plan.access_path, f"{description}; of the CommitLog: {plan.reason}", (*tasks, *plan.tasks))


@dataclass(frozen=True, slots=True)
class _Planner:
    store: StoreFiles
    query: Query
    segments: list[Segment]
    log_begin: int
    log_end: int
    split_bytes: int
    min_tasks: int

    def plan(self, access_path: AccessPath) -> ReadPlan:
        if access_path is AccessPath.SCAN:
            return self._scan("asked for")
        if access_path is AccessPath.CONSUMEQUEUE:
            return self._plan_by_queues()
        if access_path is AccessPath.INDEX:
            return self._plan_by_index()
        if self.query.msg_id is not None:
            host, physical_offset = self.query.msg_id
            if not self._is_stored_by(host, physical_offset):
                return ReadPlan(AccessPath.MESSAGE_ID, "no record of the message id's broker is at its offset", ())
            tasks = self._point_read_tasks([physical_offset])
            return ReadPlan(AccessPath.MESSAGE_ID, "a message id names an offset", tasks)
        why_not = []
        if self.query.reads_index:
            plan = self._index_if_fit()
            if isinstance(plan, ReadPlan):
                return plan
            why_not.append(f"no index: {plan}")
        if self.query.reads_queues and self.query.included is Include.LIVE:
            plan = self._queues_if_fit()
            if isinstance(plan, ReadPlan):
                return plan
            why_not.append(f"no consumequeue: {plan}")
        return self._scan("; ".join(why_not) or "no condition that an index or a queue answers", by_time=True)

    def _scan(self, reason: str, *, by_time: bool = False) -> ReadPlan:
        begin, end = self._wanted_range()
        ranges = [(begin, end)]
        if by_time and self.query.has_time:
            segments = self._segments_of(begin, end)
            timed = time_ranges(self.store.storage, segments, *self.query.time_bounds)
            ranges = [(max(begin, first), min(end, last)) for first, last in timed]
        return ReadPlan(AccessPath.SCAN, reason, self._scan_tasks(ranges))

    def _wanted_range(self) -> Range:
        query = self.query
        return max(self.log_begin, query.first_physical_offset), min(self.log_end, query.end_physical_offset)

    def _scan_tasks(self, ranges: Sequence[Range]) -> tuple[Task, ...]:
        splits = range_splits(self.segments, ranges, self.log_end, self.split_bytes, self.min_tasks)
        return tuple(scan_tasks(self.store.storage, self.segments, splits, ranges[0][0] if ranges else 0))

    def _point_read_tasks(self, physical_offsets: Sequence[int]) -> tuple[Task, ...]:
        begin, end = self._wanted_range()
        selected = [physical_offset for physical_offset in physical_offsets if begin <= physical_offset < end]
        tasks = []
        for cut in range(0, len(selected), POINTS_PER_TASK):
            task_offsets = tuple(selected[cut : cut + POINTS_PER_TASK])
            tasks.append(PointReadTask(self._segments_of(task_offsets[0], task_offsets[-1] + 1), task_offsets))
        return tuple(tasks)

    def _segments_of(self, begin: int, end: int) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.start_offset < end and begin < segment.end_offset)

    def _is_stored_by(self, host: Host, physical_offset: int) -> bool:
        """Return whether a host stored the record at an offset: of several stores, only one has that record."""
        segment = segment_at(self.segments, physical_offset)
        if segment is None:
            return False
        with self.store.storage.open(segment.path) as file:
            head = read_range(file, physical_offset - segment.start_offset, _STORE_HOST_END)
        head = head.ljust(_STORE_HOST_END, b"\0")
        host_bytes = host.to_bytes()
        at = store_timestamp_at(_SYS_FLAG.unpack_from(head)[0]) + _TIMESTAMP_BYTES
        return head[at : at + len(host_bytes)] == host_bytes

    def _index_if_fit(self) -> ReadPlan | str:
        """Plan by the Index, with scans of ranges that the Index may lack; or return why the Index cannot be used."""
        topics = self.query.named_topics
        if topics is None:
            return "it has keys by topic, and no topic is named"
        if self.query.reads_light_queues:
            return "it has keys by the topics that messages were sent to, and light queues (LMQ) are named"
        reason = dirty_reason(self.store)
        if reason is not None:
            return reason
        files = index_paths(self.store)
        if not files:
            return "there are no index files"
        try:
            unknown = unknown_ranges(self.store.storage, files, *self._wanted_range())
            if sum(last - first for first, last in unknown) > MAX_UNKNOWN_SHARE * (self.log_end - self.log_begin):
                return "the index files know too little of the log"
            offsets = find_key_offsets(self.store.storage, files, topics, self._key())
        except FormatError as error:
            return str(error)
        known_offsets = [offset for offset in offsets if not any(first <= offset < last for first, last in unknown)]
        tasks = self._point_read_tasks(known_offsets) + self._scan_tasks(unknown)
        return ReadPlan(AccessPath.INDEX, f"the Index has {len(known_offsets)} entries for the key", tasks)

    def _key(self) -> str:
        key = self.query.uniq_key if self.query.uniq_key is not None else self.query.key
        assert key is not None
        return key

    def _plan_by_index(self) -> ReadPlan:
        if not self.query.reads_index:
            raise OptionError("accessPath index needs key or uniqKey")
        if self.query.reads_light_queues:
            raise OptionError("accessPath index: the Index has no keys of light queues (LMQ)")
        files = index_paths(self.store)
        if not files:
            raise StoreNotFoundError(f"{paths.index_dir(self.store.root)}: no index files")
        if self.query.named_topics is None:
            self._refuse_database()
        physical_offsets = find_key_offsets(self.store.storage, files, self._wanted_topics(), self._key())
        return ReadPlan(AccessPath.INDEX, "asked for", self._point_read_tasks(physical_offsets))

    def _queues_if_fit(self) -> ReadPlan | str:
        """Plan by the queues' units, with a scan of undispatched records; or return why the queues cannot be used."""
        topics = self.query.named_topics
        if topics is None:
            return "no topic is named"
        if not self.store.storage.is_local:
            return "the store is not local; ask for it if the topic is a small part of the log"
        database = self.store.layouts.only_queue_database
        if database is not None:
            return self._point_reads_if_fit(database, topics)
        reason = dirty_queues_reason(self.store, topics)
        if reason is not None:
            return reason
        queues = self._wanted_queues(topics)
        if isinstance(queues, str):
            return f"topic {queues} has none"
        dispatched = max(dispatched_end_of_files(self.store, self.log_end), self.log_begin)
        begin, end = self._wanted_range()
        queue_bytes, count = self._cost(queues)
        if queue_bytes + count * POINT_COST_BYTES >= end - begin:
            return f"{count} records by their places cost more than scanning the log"
        tasks = self._queue_tasks(queues, min(end, dispatched), queue_bytes)
        tasks += self._scan_tasks([(max(begin, dispatched), end)])
        return ReadPlan(AccessPath.CONSUMEQUEUE, f"{count} units of {len(queues)} queues", tasks)

    def _point_reads_if_fit(self, database: str, topics: frozenset[str]) -> ReadPlan | str:
        """Plan by the units in a database, with a scan of undispatched records; or return why it cannot be used."""
        begin, end = self._wanted_range()
        most = (end - begin) // POINT_COST_BYTES
        try:
            stored = find_unit_records(self.store.storage, database, self.query, topics, most)
        except (FormatError, StoreError) as error:
            return str(error)
        if stored is None:
            return f"more than {most} records by their places cost more than scanning the log"
        dispatched = min(max(stored.dispatched, begin), end)
        if stored.size_bytes + len(stored.physical_offsets) * POINT_COST_BYTES + end - dispatched >= end - begin:
            return f"{len(stored.physical_offsets)} records by their places cost more than scanning the log"
        offsets = [offset for offset in stored.physical_offsets if offset < dispatched]
        tasks = self._point_read_tasks(offsets) + self._scan_tasks([(dispatched, end)])
        return ReadPlan(AccessPath.CONSUMEQUEUE, f"{len(offsets)} units of a database", tasks)

    def _wanted_topics(self) -> frozenset[str]:
        """Return the topics that the query names, else those with queues that it selects."""
        if self.query.named_topics is not None:
            return self.query.named_topics
        topics = queue_topics(self.store.storage, paths.consumequeue_dir(self.store.root))
        return frozenset(filter(self.query.wants_topic, topics))

    def _wanted_queues(self, topics: frozenset[str]) -> list[QueueFiles] | str:
        """Return the queues of some topics that the query selects; or the first topic without any queue."""
        selected_queues = []
        for topic in sorted(topics):
            queues = list(topic_queues(self.store.storage, paths.consumequeue_dir(self.store.root), topic))
            if not queues:
                return topic
            for queue in queues:
                bounds = self.query.queue_bounds(queue.topic, queue.queue_id)
                if bounds.first_offset < bounds.end_offset:
                    selected_queues.append(queue)
        return selected_queues

    def _cost(self, queues: Sequence[QueueFiles]) -> tuple[int, int]:
        """Estimate the bytes and count of the records of some queues."""
        count = 0
        for queue in queues:
            bounds = self.query.queue_bounds(queue.topic, queue.queue_id)
            end = min(ConsumeQueue(self.store.storage, queue).max_offset(), bounds.end_offset)
            count += max(0, end - max(queue.first_offset, bounds.first_offset))
        return int(count * average_record_bytes(self.store.storage, queues)), count

    def _queue_tasks(self, queues: Sequence[QueueFiles], end: int, queue_bytes: int) -> tuple[Task, ...]:
        """Cut the work into ranges of the log, so that each task reads its part of all queues in log order."""
        begin, _ = self._wanted_range()
        if not queues or begin >= end:
            return ()
        count = max(self.min_tasks, -(-queue_bytes // self.split_bytes), 1)
        step = max(1, -(-(end - begin) // count))
        topics = tuple(sorted({queue.topic for queue in queues}))
        tasks = []
        for first in range(begin, end, step):
            last = min(first + step, end)
            tasks.append(QueuesTask(self._segments_of(first, last), topics, first, last))
        return tuple(tasks)

    def _refuse_database(self) -> None:
        """Raise StoreLayoutError where a database has the queues, alone or beside files that end before it."""
        database = choose_queues(self.store).database
        layout_refusals.refuse(layout_refusals.queue_files_refusal(self.store.layouts, database))

    def _plan_by_queues(self) -> ReadPlan:
        if not self.query.reads_queues:
            raise OptionError("accessPath consumequeue needs subscribe, subscribePattern or assign")
        if self.query.included is not Include.LIVE:
            raise OptionError(f"accessPath consumequeue: include {self.query.included} needs a scan of the log")
        layouts = self.store.layouts
        batch_topics = frozenset(filter(self.query.wants_topic, layouts.batch_topics))
        self._refuse_database()
        layout_refusals.refuse(layout_refusals.batch_topics_refusal(layouts, batch_topics))
        queues = self._wanted_queues(self._wanted_topics())
        if isinstance(queues, str):
            raise StoreNotFoundError(f"{paths.consumequeue_dir(self.store.root)}/{queues}: no queues")
        queue_bytes, _ = self._cost(queues)
        tasks = self._queue_tasks(queues, self._wanted_range()[1], queue_bytes)
        return ReadPlan(AccessPath.CONSUMEQUEUE, "asked for", tasks)
