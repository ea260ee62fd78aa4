"""Pushes the filters of an engine down into a query.

The query selects at least the rows that match, perhaps more, as the engine filters once more.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from rmq_formats.arrow.conditions import Comparison, Condition
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.errors import DecodeError
from rmq_formats.read.query import MAX_LONG, MIN_LONG, Query, Queue


def push_down_conditions(
    query: Query, conditions: Iterable[Condition], stands_at: Callable[[Queue, int], bool]
) -> Query:
    """Add conditions to a query, as far as a read can use them; for ``stands_at`` see ``_narrowed_to_offsets``."""
    offsets = (MIN_LONG, MAX_LONG)
    for condition in conditions:
        column, values = condition.column, condition.values
        if column == "physical_offset":
            first, end = _range(condition, query.first_physical_offset, query.end_physical_offset)
            query = replace(query, first_physical_offset=first, end_physical_offset=end)
        elif column == "store_timestamp":
            query = _narrowed_to_times(query, condition)
        elif column == "queue_offset":
            offsets = _range(condition, *offsets)
        elif condition.comparison is not Comparison.IN:
            continue
        elif column == "queue_id":
            query = _narrowed_to_queues(query, frozenset(value for value in values if isinstance(value, int)))
        else:
            query = _narrowed_to_texts(query, column, frozenset(value for value in values if isinstance(value, str)))
    return _narrowed_to_offsets(query, *offsets, stands_at)


def _range(condition: Condition, first: int, end: int) -> tuple[int, int]:
    """Narrow a range of integers, whose end is exclusive, by a condition."""
    values = [value for value in condition.values if isinstance(value, int)]
    if not values:
        return first, end
    if condition.comparison in (Comparison.IN, Comparison.GREATER, Comparison.GREATER_OR_EQUAL):
        first = max(first, min(*values, MAX_LONG - 1) + (condition.comparison is Comparison.GREATER))
    if condition.comparison in (Comparison.IN, Comparison.LESS, Comparison.LESS_OR_EQUAL):
        end = min(end, max(values) + (condition.comparison is not Comparison.LESS))
    return first, end


def _narrowed_to_times(query: Query, condition: Condition) -> Query:
    """Narrow the store times, in µs; both ends are rounded outwards to the millisecond."""
    first_us, end_us = _range(condition, MIN_LONG, MAX_LONG)
    first_ms, end_ms = query.time_bounds
    if first_us != MIN_LONG:
        query = replace(query, first_ms=max(first_ms, first_us // 1000))
    if end_us != MAX_LONG:
        query = replace(query, end_ms=min(end_ms, (end_us - 1) // 1000 + 1))
    return query


def _narrowed_to_texts(query: Query, column: str, values: frozenset[str]) -> Query:
    if column == "topic" and query.topics is not None and not query.reads_light_queues:
        return replace(query, topics=query.topics & values)
    if column == "topic":
        return replace(query, topic_values=values if query.topic_values is None else values & query.topic_values)
    if column == "tags":
        return replace(query, tags=values if query.tags is None else values & query.tags)
    if column == "uniq_key" and len(values) == 1 and query.uniq_key is None and query.reads_queues:
        return replace(query, uniq_key=next(iter(values)))  # the Index has no rollbacks; a query by topics neither
    if column == "msg_id" and len(values) == 1 and query.msg_id is None:
        (value,) = values
        try:
            return replace(query, msg_id=decode_message_id(value)) if value == value.upper() else query
        except DecodeError:
            return query
    return query


def _narrowed_to_queues(query: Query, queue_ids: frozenset[int]) -> Query:
    """Narrow a query that names its topics to some of their queues."""
    topics = query.named_topics
    if topics is None or query.reads_light_queues:  # rows of light queues have the numbers of the messages' own queues
        return query
    queues = query.queues or {}
    return replace(query, queues={topic: queues.get(topic, queue_ids) & queue_ids for topic in topics})


def _narrowed_to_offsets(query: Query, first: int, end: int, stands_at: Callable[[Queue, int], bool]) -> Query:
    """Narrow the queues that a query names one by one to a range of queue offsets.

    Conditions compare the offsets in records, and bounds are places in a queue. Where a broker has closed a gap, a
    message stands before its recorded offset; a message with offset 0 stands anywhere
    (``docs/formats/consumequeue.md``). So a range with 0 narrows nothing, and another range begins at its first offset
    only if ``stands_at`` finds the message with that offset at that place.
    """
    if query.queues is None or first <= 0:
        return query
    bounds = dict(query.bounds)
    for topic, queue_ids in query.queues.items():
        for queue_id in queue_ids:
            queue = (topic, queue_id)
            queue_bounds = query.queue_bounds(*queue)
            first_place = first if stands_at(queue, first) else MIN_LONG
            bounds[queue] = replace(
                queue_bounds,
                first_offset=max(queue_bounds.first_offset, first_place),
                end_offset=min(queue_bounds.end_offset, end),
            )
    return replace(query, bounds=bounds)
