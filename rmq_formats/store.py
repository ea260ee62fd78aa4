"""A store as one object: its segments, its messages, its records as Arrow, and look-ups by its own indexes."""

import html
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_formats import paths
from rmq_formats.access.plan import AccessPath, Plan, plan_read
from rmq_formats.access.points import Points, read_points
from rmq_formats.access.query import Query, QueueBounds
from rmq_formats.access.queues import QueueFiles, last_unit, queue_topics, topic_queues
from rmq_formats.access.read import ReadOptions, read_task
from rmq_formats.access.trust import distrust
from rmq_formats.arrow import COLUMNS, Mode
from rmq_formats.consumequeue import Unit
from rmq_formats.errors import OptionError
from rmq_formats.kernels.dispatch import STORE_TIMESTAMP_AT
from rmq_formats.kernels.scan import POSITION
from rmq_formats.layout import (
    FLAG_BORN_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_SYS_FLAG_AT,
    UNIT_BYTES,
)
from rmq_formats.message import StoredMessage, decode_message_id, decode_record
from rmq_formats.scan import scan_segment
from rmq_formats.segment import Segment, commitlog_segments, open_storage, opened, read_range

Time = int | datetime
OnPlan = Callable[[Plan], None]

_PLACE: Final = ("physical_offset", "size")
_TAIL_BYTES: Final = 16 << 20  # where the last record is looked for; the largest has 4 MiB by default
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_V6_EXTRA: Final = HOST_V6_BYTES - HOST_V4_BYTES


class Store:
    """A store at rest, or a running broker's, which is read as far as it is written when a call begins.

    Nothing is written and nothing is locked. Damaged records are left out, unless a method says otherwise.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a store.

        Args:
            path: its root directory, or a URI that ``pyarrow.fs`` opens.

        Raises:
            StoreError: the URI cannot be opened.
        """
        self._storage, self.path = open_storage(fspath(path))

    def __repr__(self) -> str:
        return f"Store({self.path!r})"

    def segments(self) -> list[Segment]:
        """The files of the CommitLog, by offset.

        Raises:
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        return commitlog_segments(self._storage, self.path)

    def topics(self) -> list[str]:
        """The topics that have a ConsumeQueue; where there is none at all, those of the log, which is scanned."""
        found = queue_topics(self._storage, self.path)
        if not found:
            names: set[str] = set()
            for batch in self.arrow(["topic"], mode=Mode.DROPMALFORMED, verify_crc=False):
                names.update(batch.column(0).unique().to_pylist())
            found = list(names)
        return sorted(found)

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
        strict: bool = False,
    ) -> Iterator[StoredMessage]:
        """Messages in the order of the log. All conditions have to hold; ends are exclusive.

        With a topic these are the messages that its consumers are given; without one, all records.

        Args:
            topic: only that one's.
            queue_id: only that queue of the topic.
            from_offset: smallest queue offset.
            to_offset: one past the largest.
            tags: any of these.
            from_time: earliest store time, in ms or as a datetime.
            to_time: end of the store times.
            from_physical_offset: records that begin there or later.
            to_physical_offset: and before here.
            strict: raise at the first damaged stretch instead of leaving it out.

        Raises:
            FormatError: damage, if strict.
            OptionError: a queue or a queue offset without what it belongs to.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        query = _query(
            topic, queue_id, from_offset, to_offset, tags, from_time, to_time, from_physical_offset, to_physical_offset
        )
        for message in self._read(query, Mode.FAILFAST if strict else Mode.DROPMALFORMED):
            if (from_offset is None or message.queue_offset >= from_offset) and (
                to_offset is None or message.queue_offset < to_offset
            ):
                yield message

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        query: Query | None = None,
        *,
        mode: Mode | str = Mode.PERMISSIVE,
        decompress: bool = False,
        verify_crc: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Records as Arrow batches, with the columns of the Spark source ``rmq_commitlog``.

        Args:
            columns: names; None is all of ``rmq_formats.arrow.COLUMNS``.
            query: which records; None is all.
            mode: PERMISSIVE gives damage as rows with a record_error, DROPMALFORMED leaves it out,
                FAILFAST raises.
            decompress: inflate bodies that the producer compressed.
            verify_crc: check the sums of bodies and records.

        Raises:
            FormatError: damage, in FAILFAST.
            OptionError: an unknown column or mode.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        try:
            wanted_mode = Mode(mode)
        except ValueError:
            raise OptionError(f"mode {mode!r}: give {', '.join(Mode)}") from None
        options = ReadOptions(
            tuple(COLUMNS if columns is None else columns), query or Query(), wanted_mode, verify_crc, decompress
        )
        for task in plan_read(self._storage, self.path, options.query).tasks:
            yield from read_task(self.path, task, options)

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
        on_plan: OnPlan | None = None,
    ) -> list[StoredMessage]:
        """Find messages by the store's own indexes, or by a scan where these lack something.

        Give ``key`` and ``topic``; ``uniq_key`` and ``topic``; ``msg_id``; ``topic``, ``queue_id`` and
        ``offset``; or ``topic`` and ``time`` (and ``queue_id``): of each queue, the first message stored then
        or later. Results are in the order of the log.

        Args:
            key: one part of the KEYS property.
            topic: the topic.
            uniq_key: the UNIQ_KEY property: the id that the producer gave the message.
            msg_id: the offset message id.
            queue_id: the queue.
            offset: the queue offset.
            time: store time, in ms or as a datetime.
            on_plan: told how the messages are looked for.

        Raises:
            DecodeError: not an offset message id.
            OptionError: not one of these five.
            StoreNotFoundError: there is no store, or no CommitLog in it.
        """
        ways = [key is not None, uniq_key is not None, msg_id is not None, offset is not None, time is not None]
        if sum(ways) != 1:
            raise OptionError("give one of key, uniq_key, msg_id, offset and time")
        if msg_id is not None:
            return list(self._read(Query(msg_id=decode_message_id(msg_id)), on_plan=on_plan))
        if topic is None:
            raise OptionError("a topic is needed as well")
        if time is not None:
            return self._first_since(topic, queue_id, _milliseconds(time), on_plan)
        if offset is not None and queue_id is None:
            raise OptionError("a queue id is needed as well")
        queues = None if queue_id is None else {topic: frozenset([queue_id])}
        bounds = {}
        if offset is not None and queue_id is not None:
            bounds[topic, queue_id] = QueueBounds(first_offset=offset, end_offset=offset + 1)
        query = Query(topics=frozenset([topic]), queues=queues, bounds=bounds, key=key, uniq_key=uniq_key)
        return list(self._read(query, on_plan=on_plan))

    def _read(
        self, query: Query, mode: Mode = Mode.DROPMALFORMED, on_plan: OnPlan | None = None
    ) -> Iterator[StoredMessage]:
        """The messages of a query. Their places come first, so that only what is wanted is decoded."""
        plan = plan_read(self._storage, self.path, query)
        if on_plan:
            on_plan(plan)
        segments = self.segments()
        for task in plan.tasks:
            for batch in read_task(self.path, task, ReadOptions(_PLACE, query, mode)):
                offsets, sizes = (np.asarray(batch.column(name), dtype=np.int64) for name in _PLACE)
                for _, found in read_points(self._storage, segments, Points.of(offsets, sizes), verify_crc=False):
                    window = found.data.data
                    for position in found.frames[:, POSITION].tolist():
                        yield decode_record(window, position, verify_crc=False)

    # --- by time ------------------------------------------------------------------------------------

    def _first_since(
        self, topic: str, queue_id: int | None, time_ms: int, on_plan: OnPlan | None
    ) -> list[StoredMessage]:
        """Of each queue the first message that was stored at a time or later."""
        segments = self.segments()
        queues = topic_queues(self._storage, self.path, topic)
        if not queues or distrust(self._storage, self.path) is not None:
            return self._scan_since(topic, queue_id, time_ms, on_plan)
        found = []
        for queue in queues:
            if queue_id in {None, queue.queue_id}:
                search = _QueueSearch(self, segments, queue)
                offset = search.first_since(time_ms)
                if search.is_broken:
                    return self._scan_since(topic, queue_id, time_ms, on_plan)
                found += self.query(topic=topic, queue_id=queue.queue_id, offset=offset) if offset is not None else []
        return sorted(found, key=lambda message: message.physical_offset)

    def _scan_since(
        self, topic: str, queue_id: int | None, time_ms: int, on_plan: OnPlan | None
    ) -> list[StoredMessage]:
        queues = None if queue_id is None else {topic: frozenset([queue_id])}
        first: dict[int, StoredMessage] = {}
        for message in self._read(Query(topics=frozenset([topic]), queues=queues, first_ms=time_ms), on_plan=on_plan):
            first.setdefault(message.queue_id, message)
        return list(first.values())
