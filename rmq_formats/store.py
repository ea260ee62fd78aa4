"""Reads a store: its segments, its messages, its records as Arrow, and look-ups by its own indexes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import index
from os import PathLike, fspath
from typing import Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrow.schema import COMMITLOG, Mode
from rmq_formats.codecs import paths
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError, OptionError
from rmq_formats.html_text import bytes_text, card, counted
from rmq_formats.kernels.scan import POSITION
from rmq_formats.read.dirty import dirty_queues_reason
from rmq_formats.read.index_lookup import first_unit_since
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.plan import ReadPlan, plan_read
from rmq_formats.read.point_reads import Points, read_points
from rmq_formats.read.query import (
    ANY_QUEUE,
    MAX_LONG,
    MIN_LONG,
    Include,
    Query,
    QueueBounds,
    ReadOptions,
    parse_include,
    parse_tags,
)
from rmq_formats.read.queue_choice import queue_file_topics
from rmq_formats.read.queue_logs import QueueLogsTask, queue_log_messages, queue_log_query
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import edge_message
from rmq_formats.read.store_times import ascends
from rmq_formats.read.task import read_task
from rmq_formats.records import Records, column_names
from rmq_formats.storage.queue_files import named_topics, topic_queues
from rmq_formats.storage.queue_logs import COMMITLOG_ONLY, LogKind, Logs
from rmq_formats.storage.segments import Segment
from rmq_formats.times import bound_ms, check_milliseconds

Time = int | datetime
OnPlan = Callable[[ReadPlan], None]

_OFFSET_AND_SIZE: Final = ("physical_offset", "size")
_SHOWN_TOPICS: Final = 8


class Store(Records):
    """A store at rest, or of a running broker, which is read up to the messages that are written when a call begins.

    Nothing is written and no lock is acquired. Damaged records are left out, unless a method says otherwise. For
    engines a store is a table: an Arrow dataset of all records, as of ``arrow()``.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        tier: str | PathLike[str] | None = None,
        log: LogKind | str | None = None,
    ) -> None:
        """Open a store.

        Args:
            path: root directory, or a URI that ``pyarrow.fs`` opens.
            tier: the broker's ``tieredStoreFilePath``, whose messages are read with those of the store, none twice.
            log: the logs: ``commitlog``, the default without a tier; ``joined``, the tier and the CommitLog, the
                default with a tier; ``tiered``, the tier alone; ``compacted``, the logs of compacted topics. Physical
                offsets in a tier and in compacted topics are places in a queue's log.

        Raises:
            OptionError: an unknown log, or a log that does not fit a tier.
            StoreError: the URI cannot be opened.
        """
        logs = Logs.of(log, None if tier is None else fspath(tier))
        super().__init__(fspath(path), ReadOptions(tuple(COMMITLOG.names), logs=logs))

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[str]]:
        logs = self._options.logs
        return partial(Store, tier=logs.tier, log=logs.kind), (self.path,)

    def __repr__(self) -> str:
        logs = self._options.logs
        more = (f", tier={logs.tier!r}" if logs.tier else "") + f", log={str(logs.kind)!r}"
        return f"Store({self.path!r}{more if logs != COMMITLOG_ONLY else ''})"

    def compacted(self) -> "Store":
        """Return the same store with the logs of its compacted topics in place of the CommitLog."""
        return Store(self.path, log=LogKind.COMPACTED)

    def segments(self) -> list[Segment]:
        """List the files of the CommitLog, by offset.

        Raises:
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        return self._files.segments

    def topics(self) -> list[str]:
        """List the topics that have a ConsumeQueue; without ConsumeQueue files, scan the logs for topics."""
        topics = queue_file_topics(self._files) if self._options.logs == COMMITLOG_ONLY else []
        if not topics:
            batches = self.arrow(["topic"], mode=Mode.DROPMALFORMED, verify_crc=False)
            topics = list({name for batch in batches for name in batch.column(0).unique().to_pylist()})
        return sorted(topics)

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        *,
        tags: str | Sequence[str] | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_physical_offset: int = 0,
        to_physical_offset: int | None = None,
        include: Include | str | None = None,
        strict: bool = False,
    ) -> Iterator[StoredMessage]:
        """Iterate over messages in log order. All conditions have to hold; ends are exclusive.

        With a topic it yields the messages that its consumers receive; without one, all records; ``include`` chooses
        otherwise. Queue offsets are those that consumers count: places in the ConsumeQueue, which differ from a
        message's ``queue_offset`` where the broker has closed a gap. The name of a light
        queue (LMQ) is a topic with one queue, 0: it yields the messages that stand there, as they were stored, with the
        topic that they were sent to and their place in its queue; queue offsets that are given are those of the light
        queue. An inner batch is one record: with a queue id it is chosen if one of its messages is;
        ``codecs.batch_consumequeue.inner_messages`` takes it apart.

        Args:
            topic: only that one's.
            queue_id: only that queue of the topic.
            from_offset: smallest queue offset.
            to_offset: one past the largest.
            tags: any of these; a text is an expression ``a || b``, as of subscriptions.
            from_time: earliest store time, in ms or as a datetime.
            to_time: end of the store times.
            from_physical_offset: records that begin there or later.
            to_physical_offset: records that begin before here.
            include: ``live``, what consumers get; ``log``, all; ``unqueued``, what no queue has.
            strict: raise at the first damaged range instead of leaving it out.

        Raises:
            FormatError: damage, if strict.
            OptionError: a queue or a queue offset without what it belongs to, an unknown ``include``, or an
                argument of another type.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        _check_texts(topic=topic)
        _check_integers(
            queue_id=queue_id,
            from_offset=from_offset,
            to_offset=to_offset,
            from_physical_offset=from_physical_offset,
            to_physical_offset=to_physical_offset,
        )
        if topic is None and not (queue_id is None and from_offset is None and to_offset is None):
            raise OptionError("queue_id, from_offset and to_offset need a topic")
        queues, bounds = None, {}
        if topic is not None and queue_id is not None:
            queues = {topic: frozenset([queue_id])}
        if topic is not None and not (from_offset is None and to_offset is None):
            narrowed = {"first_offset": from_offset, "end_offset": to_offset}
            limits = {name: value for name, value in narrowed.items() if value is not None}
            bounds[topic, ANY_QUEUE if queue_id is None else queue_id] = QueueBounds(**limits)
        query = Query(
            topics=None if topic is None else frozenset([topic]),
            queues=queues,
            bounds=bounds,
            first_ms=None if from_time is None else _milliseconds(from_time),
            end_ms=None if to_time is None else _milliseconds(to_time),
            first_physical_offset=from_physical_offset,
            end_physical_offset=MAX_LONG if to_physical_offset is None else to_physical_offset,
            tags=_tags(tags),
            include=parse_include(include),
        )
        return self._read(query, Mode.FAILFAST if strict else Mode.DROPMALFORMED)

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        topic: str | None = None,
        query: Query | None = None,
        include: Include | str | None = None,
        mode: Mode | str = Mode.PERMISSIVE,
        decompress: bool = False,
        verify_crc: bool = True,
    ) -> Records:
        """Describe records as Arrow, with the columns of the Spark source ``rmq_commitlog``; nothing is read yet.

        Args:
            columns: names; None is all of ``rmq_formats.arrow.schema.COMMITLOG``.
            topic: only that one's messages.
            query: all other conditions; None is all records.
            include: ``live``, what consumers get, which is the default with a topic; ``log``, all; ``unqueued``, what
                no queue has.
            mode: PERMISSIVE gives damage as rows with a record_error, DROPMALFORMED leaves it out,
                FAILFAST raises.
            decompress: inflate bodies that the producer compressed.
            verify_crc: check the sums of bodies and records.

        Raises:
            OptionError: an unknown column, mode or ``include``, or a topic or an ``include`` beside a query.

            When it is read:
            FormatError: damage, in FAILFAST.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        try:
            wanted_mode = Mode(mode)
        except ValueError:
            raise OptionError(f"mode {mode!r}: give {', '.join(Mode)}") from None
        _check_texts(topic=topic)
        if not (topic is None and include is None) and query is not None:
            raise OptionError("give topic and include in the query")
        if query is None:
            query = Query(topics=None if topic is None else frozenset([topic]), include=parse_include(include))
        names = column_names(COMMITLOG.names if columns is None else columns)
        logs = self._options.logs
        return Records(self.path, ReadOptions(names, query, wanted_mode, verify_crc, decompress, logs))

    def query(
        self,
        *,
        key: str | None = None,
        topic: str | None = None,
        uniq_key: str | None = None,
        msg_id: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        time: Time | None = None,
        include: Include | str | None = None,
        on_plan: OnPlan | None = None,
    ) -> list[StoredMessage]:
        """Find messages by ConsumeQueue or Index, or by a scan of the log where these lack something.

        Give ``key`` and ``topic``; ``uniq_key`` and ``topic``; ``msg_id``; ``topic``, ``queue_id`` and
        ``offset``; or ``topic`` and ``time`` (and ``queue_id``): of each queue, the first message stored then
        or later. Results are in the order of the log. The name of a light queue (LMQ) is a topic, see ``messages``.

        Args:
            key: one part of the KEYS property.
            topic: the topic.
            uniq_key: the UNIQ_KEY property: the id that the producer gave the message.
            msg_id: the offset message id.
            queue_id: the queue.
            offset: the queue offset.
            time: store time, in ms or as a datetime.
            include: ``live``, what consumers get, the default for offset and time; ``log``, all, the default for keys
                and message ids, as a broker answers them; ``unqueued``, what no queue has.
            on_plan: called with the plan of the look-up.

        Raises:
            DecodeError: not an offset message id.
            OptionError: another combination of arguments.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        _check_texts(key=key, topic=topic, uniq_key=uniq_key, msg_id=msg_id)
        _check_integers(queue_id=queue_id, offset=offset)
        ways = [key is not None, uniq_key is not None, msg_id is not None, offset is not None, time is not None]
        if sum(ways) != 1:
            raise OptionError("give one of key, uniq_key, msg_id, offset and time")
        included = parse_include(include)
        if msg_id is not None:
            return list(self._read(Query(msg_id=decode_message_id(msg_id), include=included), on_plan=on_plan))
        if topic is None:
            raise OptionError("a look-up by key, offset or time needs a topic")
        if time is not None and included not in {None, Include.LIVE}:
            raise OptionError(f"include {included} does not go with time, which is looked up in the queues")
        if time is not None:
            return self._first_since(topic, queue_id, _milliseconds(time), on_plan)
        if offset is not None and queue_id is None:
            raise OptionError("a look-up by offset needs a queue id")
        queues = None if queue_id is None else {topic: frozenset([queue_id])}
        bounds = {}
        if offset is not None and queue_id is not None:
            bounds[topic, queue_id] = QueueBounds(first_offset=offset, end_offset=offset + 1)
        if included is None and offset is None:
            included = Include.LOG
        query = Query(
            topics=frozenset([topic]), queues=queues, bounds=bounds, key=key, uniq_key=uniq_key, include=included
        )
        return list(self._read(query, on_plan=on_plan))

    def _read(
        self, query: Query, mode: Mode = Mode.DROPMALFORMED, on_plan: OnPlan | None = None
    ) -> Iterator[StoredMessage]:
        """Read the messages of a query: first their places, so that only selected records are decoded."""
        plan = plan_read(self._files, query, logs=self._options.logs)
        if on_plan:
            on_plan(plan)
        segments: list[Segment] = []
        for task in plan.tasks:
            if isinstance(task, QueueLogsTask):
                yield from queue_log_messages(task, queue_log_query(query, self._options.logs), mode)
                continue
            segments = segments or self.segments()
            for batch in read_task(self.path, task, ReadOptions(_OFFSET_AND_SIZE, query, mode)):
                places = np.stack([np.asarray(column, dtype=np.int64) for column in batch.columns], axis=1)
                yield from self._decode(segments, places)

    def _decode(self, segments: Sequence[Segment], places: NDArray[np.int64]) -> Iterator[StoredMessage]:
        """Decode the records at places, int64[n, 2] of physical offset and size, in log order."""
        points = Points.of(places[:, 0], places[:, 1])
        for batch in read_points(self._storage, segments, points, verify_crc=False):
            window = batch.data.data
            for position in batch.frames[:, POSITION].tolist():
                yield decode_record(window, position, verify_crc=False)

    def _first_since(
        self, topic: str, queue_id: int | None, time_ms: int, on_plan: OnPlan | None
    ) -> list[StoredMessage]:
        """Find the first message of each queue that was stored at a time or later."""
        selected_queues = None if queue_id is None else {topic: frozenset([queue_id])}
        query = Query(topics=frozenset([topic]), queues=selected_queues, first_ms=time_ms)
        if self._options.logs.kind is not LogKind.COMMITLOG:
            return self._first_of_queues(query, on_plan)
        segments = self.segments()
        queues = list(topic_queues(self._storage, paths.consumequeue_dir(self.path), topic))
        if not queues or dirty_queues_reason(self._files, frozenset([topic])) is not None:
            return self._scan_since(topic, query, on_plan)
        if not ascends(self._storage, readable_segments(self._files)):  # no bisection by time
            return self._scan_since(topic, query, on_plan)
        units = []
        for queue in queues:
            if queue_id in {None, queue.queue_id}:
                try:
                    unit = first_unit_since(self._storage, segments, ConsumeQueue(self._storage, queue), time_ms)
                except FormatError:
                    return self._scan_since(topic, query, on_plan)
                units += [] if unit is None else [(unit.physical_offset, unit.size)]
        return list(self._decode(segments, np.array(units, dtype=np.int64).reshape(-1, 2)))

    def _first_of_queues(self, query: Query, on_plan: OnPlan | None) -> list[StoredMessage]:
        """Find the message of each queue with the smallest queue offset."""
        first: dict[int, StoredMessage] = {}
        for message in self._read(query, on_plan=on_plan):
            earliest = first.get(message.queue_id)
            if earliest is None or message.queue_offset < earliest.queue_offset:
                first[message.queue_id] = message
        return [first[number] for number in sorted(first)]

    def _scan_since(self, topic: str, query: Query, on_plan: OnPlan | None) -> list[StoredMessage]:
        """Find the first message of each queue in the order of the log."""
        plan = plan_read(self._files, query)
        if on_plan:
            on_plan(plan)
        first: dict[int, tuple[int, int]] = {}
        options = ReadOptions(("queue_id", *_OFFSET_AND_SIZE), query, Mode.DROPMALFORMED)
        for task in plan.tasks:
            for batch in read_task(self.path, task, options):
                rows = np.stack([np.asarray(column, dtype=np.int64) for column in batch.columns], axis=1)
                if topic.startswith(LIGHT_QUEUE_PREFIX):
                    rows[:, 0] = 0  # a light queue has one queue; the rows have the queue ids of the sends
                for row in np.unique(rows[:, 0], return_index=True)[1].tolist():
                    first.setdefault(int(rows[row, 0]), (int(rows[row, 1]), int(rows[row, 2])))
        return list(self._decode(self.segments(), np.array(list(first.values()), dtype=np.int64).reshape(-1, 2)))

    def _repr_html_(self) -> str:
        """Render a card for notebooks, by a few reads for any size of the store."""
        segments = readable_segments(self._files)
        first, last = (edge_message(self._storage, segments, last=last) for last in (False, True))
        topics = named_topics(self._files)
        shown = ", ".join(topics[:_SHOWN_TOPICS]) + (" …" if len(topics) > _SHOWN_TOPICS else "")
        log_bytes = sum(segment.size_bytes for segment in segments)
        rows = [
            ("CommitLog", f"{counted(len(segments), 'file')}, {bytes_text(log_bytes)}"),
            ("offsets", f"{first.physical_offset:,} to {last.physical_offset:,}" if first and last else "no messages"),
            ("stored", f"{_utc(first)} to {_utc(last)}" if first and last else ""),
            ("topics", f"{len(topics):,}: {shown}" if topics else "no ConsumeQueue"),
        ]
        return card(f"Store {self.path}", rows)


def _milliseconds(time: Time) -> int:
    """Convert a store time to ms; a datetime without a zone is UTC. Raises OptionError."""
    if isinstance(time, SupportsIndex):  # integers of numpy, too
        try:
            return check_milliseconds(index(time))
        except ValueError as error:
            raise OptionError(f"time: {error}") from None
    milliseconds = bound_ms(time) if isinstance(time, datetime) else None
    if not isinstance(milliseconds, int):  # pandas' NaT is a datetime
        raise OptionError(f"time {time!r}: give a datetime, or milliseconds since 1970 as an int")
    return milliseconds


def _tags(tags: str | Sequence[str] | None) -> frozenset[str] | None:
    """Return the wanted tags; None is any. Raises OptionError."""
    if tags is None or isinstance(tags, str):
        return None if tags is None else parse_tags(tags)
    names = frozenset(tags) if isinstance(tags, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise OptionError(f"tags {tags!r}: give texts")
    return names


def _check_texts(**texts: str | None) -> None:
    """Refuse arguments that are no texts. Raises OptionError."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise OptionError(f"{name} {text!r}: give a text")


def _check_integers(**numbers: int | None) -> None:
    """Refuse arguments that are no integers of 64 bits. Raises OptionError."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, SupportsIndex) and MIN_LONG <= number <= MAX_LONG):
            raise OptionError(f"{name} {number!r}: give an int of 64 bits")


def _utc(message: StoredMessage) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=message.store_timestamp_ms)
    except OverflowError:
        return f"{message.store_timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
