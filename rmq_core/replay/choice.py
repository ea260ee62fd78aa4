"""Which messages of a store are sent: a query over the log, and what only their properties tell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats import config_json, paths
from rmq_formats.access.query import MIN_LONG, Query, Queue, QueueBounds
from rmq_formats.arrow_filter import fulfilled
from rmq_formats.errors import OptionError, StoreError
from rmq_formats.segment import open_storage, opened, read_range
from rmq_formats.sql92 import SqlError, compile_expression
from rmq_formats.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PATTERN

# Topics of the system, of retries and of what has failed for good: other topics have, or had, the same messages.
USER_TOPICS: Final = rf"(?!{RETRY_PREFIX}|{DLQ_PREFIX}|(?:{SYSTEM_TOPIC_PATTERN})$).+"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages.

    Attributes:
        query: what the log's fields and the well-known properties tell; it reads queues.
        sql: an SQL92 expression over properties; None is any.
        ids: message ids by place, or unique keys; None is any.
    """

    query: Query
    sql: str | None = None
    ids: frozenset[str] | None = None

    def columns(self) -> tuple[str, ...]:
        """Columns that ``filtered`` needs."""
        needed = ["properties"] if self.sql is not None else []
        return (*needed, "msg_id", "uniq_key") if self.ids is not None else tuple(needed)


def chosen(query: Query, sql: str | None, ids: frozenset[str] | None) -> Choice:
    """A choice; without topics or queues it is of all topics that are users' own.

    Raises:
        OptionError: ``sql`` does not compile.
    """
    if sql is not None:
        try:
            compile_expression(sql)
        except SqlError as error:
            raise OptionError(f"--sql {sql!r}: {error}") from error
    if not query.reads_queues:
        query = replace(query, topic_pattern=USER_TOPICS)
    return Choice(query, sql, ids)


def backlog_of(store: str, group: str, query: Query) -> Query:
    """The query bounded by what a consumer group has consumed, as the store's ``consumerOffset.json`` has it.

    Args:
        store: its root.
        group: which group.
        query: what else is wanted; without topics, those of which the group has an offset.

    Raises:
        StoreError: the file cannot be read.
        OptionError: the group has no offsets in it.
    """
    offsets = {queue: offset for queue, offset in _group_offsets(store, group).items() if query.wants_topic(queue[0])}
    if not offsets:
        raise OptionError(f"--group {group}: {store} has no offsets of this group for the wanted topics")
    bounds: dict[Queue, QueueBounds] = dict(query.bounds)
    for queue, offset in offsets.items():
        known = bounds.get(queue, QueueBounds())
        bounds[queue] = replace(known, first_offset=max(known.first_offset, offset, MIN_LONG))
    if not query.reads_queues:
        query = replace(query, topics=frozenset(topic for topic, _ in offsets))
    return replace(query, bounds=bounds)


def _group_offsets(store: str, group: str) -> dict[Queue, int]:
    storage, root = open_storage(store)
    path = str(PurePosixPath(paths.config_dir(root)) / "consumerOffset.json")
    with opened(storage, path) as file:
        table = config_json.loads(read_range(file, 0, file.size_bytes).decode("utf-8", "replace"))
    if not isinstance(table, dict) or not isinstance(table.get("offsetTable"), dict):
        raise StoreError(f"{path}: no offsetTable")
    found: dict[Queue, int] = {}
    for name, queues in table["offsetTable"].items():
        topic, _, owner = str(name).partition("@")
        if owner != group or topic.startswith(RETRY_PREFIX) or not isinstance(queues, Mapping):
            continue
        for queue_id, offset in queues.items():
            if str(queue_id).isdecimal() and isinstance(offset, int):
                found[topic, int(queue_id)] = offset
    return found


def filtered(batches: Iterator[pa.RecordBatch], choice: Choice) -> Iterator[pa.RecordBatch]:
    """The rows of batches that the choice's expression and ids let through; a batch may become empty."""
    for batch in batches:
        rows = batch
        if choice.ids is not None:
            ids = pa.array(sorted(choice.ids), pa.string())
            keep = pc.or_(
                pc.is_in(rows["msg_id"], value_set=ids), pc.fill_null(pc.is_in(rows["uniq_key"], value_set=ids), False)
            )
            rows = rows.filter(keep)
        if choice.sql is not None and rows.num_rows:
            rows = rows.filter(fulfilled(compile_expression(choice.sql), rows["properties"]))
        yield rows
