"""Lag of consumer groups in the queues of a store at rest: offsets, messages and store times.

The queues are those of ``mqadmin consumerProgress``: all readable queues of a topic in which a group has an offset,
counted from 0 where the group has none, and the group's light queues (LMQ). The ConsumeQueue has a queue's two ends,
and the places of two messages, whose store times give the seconds.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.schema import CONSUMER_OFFSETS, Mode, schema_of
from rmq_formats.codecs.consumer_offsets_json import TopicAndGroup
from rmq_formats.codecs.layout import FLAG_INNER_BATCH
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.codecs.topics_json import StoredTopicConfig
from rmq_formats.errors import FormatError, StoreError, StoreNotFoundError
from rmq_formats.read.broker_config import lists_all_topics, stored_offsets, stored_topics
from rmq_formats.read.dirty import dirty_reason, read_checkpoint
from rmq_formats.read.index_lookup import read_store_timestamp_ms
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, Query, Queue, ReadOptions
from rmq_formats.read.queue_choice import QueueChoice, choose_queues, open_units
from rmq_formats.read.queue_units import QueueUnits
from rmq_formats.read.ranges import log_bounds
from rmq_formats.read.task import read_task
from rmq_formats.storage.segments import Segment, Storage
from rmq_formats.storage.store_files import StoreFiles, open_store

_MESSAGE_COLUMNS = ("topic", "queue_id", "queue_offset", "store_timestamp", "sys_flag", "properties")
_MESSAGE_SCHEMA: Final = schema_of(_MESSAGE_COLUMNS[:-2]).append(pa.field("end_offset", pa.int64()))
LAG: Final = schema_of(CONSUMER_OFFSETS.names[2:], CONSUMER_OFFSETS)  # without cluster and broker
_QUEUES_A_TASK: Final = 2048  # each costs 0.2 ms of a processor, and some small reads, which an object store is slow at
_MAX_QUEUES: Final = 1 << 17  # of a topic: as many as a broker of ours tells in one answer
_NO_OFFSET: Final = -1  # in consumer offsets of brokers
_MAX_TIME_MS: Final = 253_402_300_799_999  # the last of the year 9999; a store time beyond it is damage


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """Queue that a consumer group reads; ``committed`` is None if the group has no offset there."""

    topic: str
    queue_id: int
    group: str
    committed: int | None

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and number of the queue."""
        return self.topic, self.queue_id


@dataclass(frozen=True, slots=True)
class LagTask:
    """Queues of a store that are looked up together; ``is_dirty`` if the queues may lack messages of the log's end."""

    rows: tuple[GroupQueue, ...]  # sorted by queue
    is_dirty: bool
    choice: QueueChoice


def plan_lag(store: StoreFiles, groups: frozenset[str] | None, query: Query) -> list[LagTask]:
    """Plan the lag of some consumer groups, or of all, in the topics of a query.

    Raises:
        StoreNotFoundError: no such store, or no CommitLog in it.
        StoreLayoutError: a layout whose offsets are not known.
        StoreError: a table of ``config/`` cannot be read, or the RocksDB with the queues.
        FormatError: the RocksDB with the queues is damaged.
    """
    offsets = {
        (topic, group): queues
        for (topic, group), queues in stored_offsets(store).items()
        if (groups is None or group in groups) and query.wants_topic(topic)
    }
    topics = stored_topics(store)
    store.require_log()
    is_whole = lists_all_topics(store)
    rows = sorted(
        group_queues(offsets, topics, is_whole=is_whole), key=lambda row: (row.topic, row.queue_id, row.group)
    )
    if not rows:
        return []
    wants_light = any(row.topic.startswith(LIGHT_QUEUE_PREFIX) for row in rows)
    choice = choose_queues(store, wants_light=wants_light)
    if dirty_reason(store) is not None:
        return [LagTask(tuple(rows), is_dirty=True, choice=choice)]
    tasks: list[list[GroupQueue]] = []
    for number, (_, queue_rows) in enumerate(groupby(rows, key=lambda row: row.queue)):
        if number % _QUEUES_A_TASK == 0:
            tasks.append([])
        tasks[-1] += queue_rows
    return [LagTask(tuple(task), is_dirty=False, choice=choice) for task in tasks]


def group_queues(
    offsets: Mapping[TopicAndGroup, Mapping[int, int]],
    topics: Mapping[str, StoredTopicConfig] | None,
    *,
    is_whole: bool = True,
) -> Iterable[GroupQueue]:
    """List the queues that groups read, see ``AdminBrokerProcessor#getConsumeStats``: all readable ones of each topic.

    Args:
        offsets: committed offsets by topic and group, and queue id.
        topics: configs by name; None if they are unknown. Of an unknown topic, the queues with an offset are listed.
        is_whole: whether ``topics`` has all topics; else a topic that is not among them is unknown, not deleted.

    Raises:
        StoreError: a topic has more queues than any broker.
    """
    for (topic, group), queues in offsets.items():
        is_light = topic.startswith(LIGHT_QUEUE_PREFIX)  # no list of topics has light queues (LMQ)
        if topics is None or ((is_light or not is_whole) and topic not in topics):
            numbers: Iterable[int] = queues
        else:
            config = topics.get(topic)
            numbers = range(config.read_queue_nums if config else 0)
            if len(numbers) > _MAX_QUEUES:
                raise StoreError(f"topics.json: topic {topic} has {len(numbers)} queues, more than {_MAX_QUEUES}")
        for queue_id in numbers:
            committed = queues.get(queue_id, _NO_OFFSET)
            yield GroupQueue(topic, queue_id, group, committed if committed > _NO_OFFSET else None)


def read_lag(path: str, task: LagTask) -> pa.RecordBatch:
    """Look up the queues of a task; columns of ``LAG``. Raises StoreError, FormatError."""
    store = open_store(path)
    log = store.segments
    undispatched = UndispatchedMessages.read(store, {row.topic for row in task.rows}) if task.is_dirty else None
    lags: list[tuple[GroupQueue, Ends]] = []
    with open_units(store, task.choice) as queues:
        for name, rows in groupby(task.rows, key=lambda row: row.queue):
            queue = _Queue(store.storage, log, undispatched, name, queues.units_of(*name))
            lags += [(row, queue.ends_for(row.committed or 0)) for row in rows]
    return lag_batch(lags)


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends of a queue, and two store times for a consumer group, None if nothing waits, or if a time is unknown."""

    min_offset: int  # of the first message that is still stored
    max_offset: int  # one past the newest message
    next_ms: int | None  # of the group's next message
    newest_ms: int | None


def lag_batch(lags: Iterable[tuple[GroupQueue, Ends]]) -> pa.RecordBatch:
    """Make a batch of ``LAG``, with a row for each queue of a group."""
    rows = [dict(zip(LAG.names, _values(row, ends), strict=True)) for row, ends in lags]
    return pa.RecordBatch.from_pylist(rows, schema=LAG)


def _values(row: GroupQueue, ends: Ends) -> tuple[object, ...]:
    """Return a row's values, in the order of ``LAG``."""
    behind = max(0, ends.max_offset - (row.committed or 0))
    next_ms, newest_ms = (_valid_time(ends.next_ms), _valid_time(ends.newest_ms)) if behind else (None, None)
    seconds = None if next_ms is None or newest_ms is None else max(0, newest_ms - next_ms) / 1000
    times = (None if time is None else time * 1000 for time in (next_ms, newest_ms))
    return (
        row.group, row.topic, row.queue_id, ends.min_offset, row.committed, ends.max_offset, behind,
        seconds if behind else 0.0, *times,
    )  # fmt: skip


def _valid_time(time_ms: int | None) -> int | None:
    return time_ms if time_ms is not None and 0 <= time_ms <= _MAX_TIME_MS else None


@dataclass(frozen=True, slots=True)
class UndispatchedMessages:
    """Messages that were stored since the checkpoint; the units of earlier messages are on disk."""

    log_end: int  # physical offset one past the log's data
    ends: dict[Queue, int]  # queue offsets one past the last of these messages
    _messages: pa.Table

    @classmethod
    def read(cls, store: StoreFiles, topics: Set[str]) -> "UndispatchedMessages":
        """Scan the end of the log for messages of some topics, as ``CommitLog#recoverAbnormally``."""
        segments = readable_segments(store)
        checkpoint = read_checkpoint(store)
        query = Query(topics=frozenset(topics), first_ms=checkpoint.min_timestamp_ms if checkpoint else 0)
        plan = plan_read(store, query, access_path=AccessPath.SCAN)
        options = ReadOptions(_MESSAGE_COLUMNS, query, Mode.DROPMALFORMED)
        batches = [batch for task in plan.tasks for batch in read_task(store.root, task, options)]
        messages = pa.Table.from_batches([_with_ends(batch) for batch in batches], _MESSAGE_SCHEMA)
        last = messages.group_by(["topic", "queue_id"]).aggregate([("end_offset", "max")])
        names, numbers, offsets = (last[name].to_pylist() for name in ("topic", "queue_id", "end_offset_max"))
        ends = {(name, number): offset for name, number, offset in zip(names, numbers, offsets, strict=True)}
        return cls(log_bounds(store.storage, segments)[1], ends, messages)

    def store_timestamp_ms(self, queue: Queue, queue_offset: int) -> int | None:
        """Return the store time of the message at a queue offset; None if the message is older."""
        messages = self._messages.filter(
            (pc.field("queue_offset") <= queue_offset)
            & (pc.field("end_offset") > queue_offset)
            & (pc.field("queue_id") == queue[1])
            & (pc.field("topic") == queue[0])
        )
        times = messages["store_timestamp"].cast(pa.int64()).to_pylist()
        return None if not times or times[-1] is None else times[-1] // 1000


def _with_ends(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the properties by the queue offset one past each record's last message: an inner batch has several."""
    number = pc.map_lookup(batch["properties"], pa.scalar("INNER_NUM"), "first")
    is_number = pc.fill_null(pc.match_substring_regex(number, r"^[0-9]{1,5}$"), False)
    is_batch = pc.not_equal(pc.bit_wise_and(batch["sys_flag"], FLAG_INNER_BATCH), 0)
    counts = pc.cast(pc.if_else(pc.and_(is_number, is_batch), number, "1"), pa.int64())
    columns = [batch[name] for name in _MESSAGE_SCHEMA.names[:-1]]
    return pa.RecordBatch.from_arrays([*columns, pc.add(batch["queue_offset"], counts)], schema=_MESSAGE_SCHEMA)


class _Queue:
    """Both ends of a queue, and store times of its messages, each looked up once."""

    def __init__(
        self,
        storage: Storage,
        log: Sequence[Segment],
        undispatched: UndispatchedMessages | None,  # None for queues that lack no message
        name: Queue,
        units: QueueUnits | None,
    ) -> None:
        self._storage, self._log, self._undispatched = storage, log, undispatched
        self._name, self._units = name, units
        self._units_end = self._first = 0
        self._newest_ms: int | None = None
        if units is not None:
            self._units_end = units.max_offset(None if undispatched is None else undispatched.log_end)
            first = units.first_since(log[0].start_offset)
            self._first = self._units_end if first is None else min(first.queue_offset, self._units_end)
        self._end = self._units_end
        if undispatched is not None:
            self._end = max(self._end, undispatched.ends.get(name, 0))

    def ends_for(self, queue_offset: int) -> Ends:
        """Return the ends, and the store times for a group whose next message is at a queue offset."""
        if queue_offset >= self._end:
            return Ends(self._first, self._end, None, None)
        if self._newest_ms is None:
            self._newest_ms = self._store_ms(self._end - 1)
        next_ms = self._store_ms(queue_offset) if queue_offset >= self._first else None
        return Ends(self._first, self._end, next_ms, self._newest_ms)

    def _store_ms(self, queue_offset: int) -> int | None:
        """Return a message's store time; None if the message is deleted, or its unit points to no record."""
        if self._units is None or queue_offset >= self._units_end:
            undispatched = self._undispatched
            return None if undispatched is None else undispatched.store_timestamp_ms(self._name, queue_offset)
        try:
            unit = self._units.first_message(queue_offset, self._units_end)
            if unit is None:
                return None
            if unit.store_timestamp_ms is not None:
                return unit.store_timestamp_ms
            return read_store_timestamp_ms(self._storage, self._log, unit.physical_offset)
        except (FormatError, StoreNotFoundError):  # the second, if a running broker has just deleted its file
            return None
