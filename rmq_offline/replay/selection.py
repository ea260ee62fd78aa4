"""The messages that a replay sends: a query over the CommitLog, with SQL92 and message ids on top."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.sql_filter import evaluate_filter
from rmq_formats.codecs.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PATTERN
from rmq_formats.errors import OptionError
from rmq_formats.read.broker_config import stored_offsets
from rmq_formats.read.query import MIN_LONG, Query, Queue, QueueBounds
from rmq_formats.sql92 import SqlError, compile_expression
from rmq_formats.storage.store_files import open_store

# Without system, retry and dead letter topics: other topics have, or had, the same messages.
USER_TOPICS: Final = rf"(?!{RETRY_PREFIX}|{DLQ_PREFIX}|(?:{SYSTEM_TOPIC_PATTERN})$).+"


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """Selection of the messages to send.

    Attributes:
        query: conditions on the log's fields and the well-known properties.
        sql: an SQL92 expression over properties; None is any.
        ids: offset message ids, in any case of letters, or unique keys; None is any.
    """

    query: Query
    sql: str | None = None
    ids: frozenset[str] | None = None

    def columns(self) -> tuple[str, ...]:
        """Return the columns that ``filter_rows`` needs."""
        needed = ["properties"] if self.sql is not None else []
        return (*needed, "msg_id", "uniq_key") if self.ids is not None else tuple(needed)


def build_selection(query: Query, sql: str | None, ids: frozenset[str] | None) -> ReplaySelection:
    """Build a selection; without topics or queues it covers all user topics. Raises OptionError for a wrong ``sql``."""
    if sql is not None:
        try:
            compile_expression(sql)
        except SqlError as error:
            raise OptionError(f"--sql {sql!r}: {error}") from error
    if not query.reads_queues:
        query = replace(query, topic_pattern=USER_TOPICS)
    return ReplaySelection(query, sql, ids)


def limit_to_backlog(store: str, group: str, query: Query) -> Query:
    """Bound a query to a consumer group's unconsumed messages, by the store's ``consumerOffset.json``.

    Without topics, the query gets those for which the group has an offset.

    Raises:
        StoreError: the file cannot be read, or is another one.
        OptionError: the group has no offsets in the file.
    """
    offsets = {queue: offset for queue, offset in _group_offsets(store, group).items() if query.wants_topic(queue[0])}
    if not offsets:
        raise OptionError(f"--group {group}: {store} has no offsets of this group for the wanted topics")
    bounds: dict[Queue, QueueBounds] = dict(query.bounds)
    for queue, offset in offsets.items():
        queue_bounds = bounds.get(queue, QueueBounds())
        bounds[queue] = replace(queue_bounds, first_offset=max(queue_bounds.first_offset, offset, MIN_LONG))
    if not query.reads_queues:
        query = replace(query, topics=frozenset(topic for topic, _ in offsets))
    return replace(query, bounds=bounds)


def _group_offsets(store: str, group: str) -> dict[Queue, int]:
    files = open_store(store)
    return {
        (topic, queue_id): offset
        for (topic, owner), queues in stored_offsets(files).items()
        if owner == group and not topic.startswith(RETRY_PREFIX)
        for queue_id, offset in queues.items()
    }


def filter_rows(batches: Iterator[pa.RecordBatch], choice: ReplaySelection) -> Iterator[pa.RecordBatch]:
    """Filter batches by the selection's expression and ids; a batch may become empty. Damaged ranges stay."""
    for batch in batches:
        rows = batch
        if choice.ids is not None:
            uniq_keys = pa.array(sorted(choice.ids), pa.string())
            msg_ids = pc.utf8_upper(uniq_keys)
            matches = pc.or_(
                pc.fill_null(pc.is_in(rows["msg_id"], value_set=msg_ids), False),
                pc.fill_null(pc.is_in(rows["uniq_key"], value_set=uniq_keys), False),
            )
            rows = rows.filter(pc.or_(matches, _damaged_ranges(rows)))
        if choice.sql is not None and rows.num_rows:
            matches = evaluate_filter(compile_expression(choice.sql), rows["properties"])
            rows = rows.filter(pc.or_(matches, _damaged_ranges(rows)))
        yield rows


def _damaged_ranges(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows have no topic, and so are damaged ranges."""
    if "topic" not in rows.schema.names:
        return pa.repeat(False, rows.num_rows)
    return pc.is_null(rows["topic"])
