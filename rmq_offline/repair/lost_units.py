"""Units and Index entries that name bytes of the log which a repair overwrites.

Such units have the queue offsets of lost messages. Their queues and the Index are rebuilt.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.batch_consumequeue import split_file
from rmq_formats.codecs.index import ENTRY_DTYPE, entry_position
from rmq_formats.codecs.layout import BLANK_BYTES, PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_consumed_by_broker
from rmq_formats.errors import FormatError
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import LocalStorage, read_range
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.queue_views import QueueIdentity, Units, make_units, read_file_units, read_queue_file
from rmq_offline.repair.filler import MIN_BYTES, Fill, LogRange, LostMessage, placeholder_bytes

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Lost:
    """Lost messages of a range: in their topics' queues, and in light queues (LMQ)."""

    own_queue: list[LostMessage]
    light: list[LostMessage]


def with_lost_messages(root: str, log_ranges: Sequence[LogRange]) -> list[LogRange]:
    """Add to each range, in log order, its lost messages.

    A range up to its file's end is split behind its last lost message.
    """
    fillable = [log_range for log_range in log_ranges if log_range.fill in {Fill.FILLER, Fill.END}]
    begins = np.array([log_range.physical_offset for log_range in fillable], dtype=np.int64)
    ends = begins + np.array([log_range.size for log_range in fillable], dtype=np.int64)
    lost_by_range: dict[int, _Lost] = {}
    for queue, units in read_all_units(root) if fillable else ():
        if is_consumed_by_broker(queue.topic) and not queue.is_batch:
            continue
        at = np.searchsorted(begins, units.physical_offsets, side="right") - 1
        is_lost = (at >= 0) & (units.sizes > 0) & (units.physical_offsets + units.sizes <= ends[at])
        for row in np.flatnonzero(is_lost).tolist():
            physical_offset, size = int(units.physical_offsets[row]), int(units.sizes[row])
            queue_offset, batch_size = int(units.queue_offsets[row]), queue.is_batch * int(units.counts[row])
            message = LostMessage(physical_offset, size, queue.topic, queue.queue_id, queue_offset, batch_size)
            lost = lost_by_range.setdefault(int(at[row]), _Lost([], []))
            (lost.light if queue.topic.startswith(LIGHT_QUEUE_PREFIX) else lost.own_queue).append(message)
    places = {id(fillable[number]): _join_light_queues(lost) for number, lost in lost_by_range.items()}
    with_messages: list[LogRange] = []
    for log_range in log_ranges:
        with_messages += _attach_lost_messages(log_range, places.get(id(log_range), []))
    return with_messages


def _join_light_queues(lost: _Lost) -> list[LostMessage]:
    """Join the messages of light queues (LMQ) to the message of the same record in the topic's queue.

    A record without a message there, as of a topic that the broker consumes, goes to its first light queue.
    """
    light: dict[tuple[int, int], list[LostMessage]] = {}
    for message in lost.light:
        light.setdefault((message.physical_offset, message.size), []).append(message)
    joined = [_add_light(message, light.pop((message.physical_offset, message.size), [])) for message in lost.own_queue]
    return joined + [_add_light(first, more) for first, *more in light.values()]


def _add_light(message: LostMessage, light: Iterable[LostMessage]) -> LostMessage:
    joined = replace(message, light=tuple((other.topic, other.queue_offset) for other in light))
    return joined if placeholder_bytes(joined) <= joined.size else message


def read_all_units(root: str) -> Iterator[tuple[QueueIdentity, Units]]:
    """Read the units of all queues, some at a time, with pre-blanks and unwritten units."""
    store = open_store(root)
    for queue in walk_queues(store.storage, paths.consumequeue_dir(root)):
        for file in queue.segments:
            units = read_file_units(store.storage, file.path)
            offsets = file.start_offset // UNIT_BYTES + np.arange(len(units), dtype=np.int64)
            yield QueueIdentity(queue.topic, queue.queue_id), make_units(offsets, units)
    for queue in walk_queues(store.storage, paths.batch_consumequeue_dir(root)):
        for file in queue.segments:
            units, _ = split_file(read_queue_file(store.storage, file.path))
            offsets, counts = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
            yield QueueIdentity(queue.topic, queue.queue_id, is_batch=True), make_units(offsets, units, counts)
    database = store.layouts.queue_database
    if database is not None:
        # Verify reports a damaged database, and a rebuild replaces it.
        with suppress(FormatError), open_queues(store.storage, database) as queues:
            for topic, queue_id in queues.queues():
                for offsets, units in queues.units(topic, queue_id):
                    yield QueueIdentity(topic, queue_id), make_units(offsets, units)


def _attach_lost_messages(log_range: LogRange, messages: Sequence[LostMessage]) -> Iterator[LogRange]:
    places = _select_fitting(log_range, messages)
    if not places or log_range.fill is Fill.FILLER:
        yield replace(log_range, places=places)
        return
    size = places[-1].physical_offset + places[-1].size - log_range.physical_offset
    yield replace(
        log_range, size=size, existing_bytes=min(size, log_range.existing_bytes), fill=Fill.FILLER, places=places
    )
    begin, existing_bytes = log_range.physical_offset + size, max(0, log_range.existing_bytes - size)
    yield replace(log_range, physical_offset=begin, size=log_range.size - size, existing_bytes=existing_bytes)


def _select_fitting(log_range: LogRange, candidates: Sequence[LostMessage]) -> tuple[LostMessage, ...]:
    """Select the messages that leave room for fillers; damaged units may overlap, or name half a record."""
    places: list[LostMessage] = []
    queue_places: set[tuple[str, int, int]] = set()
    at, end = log_range.physical_offset, log_range.physical_offset + log_range.size
    if log_range.fill is Fill.END:
        end -= BLANK_BYTES
    for message in sorted(candidates, key=lambda item: item.physical_offset):
        name = message.topic, message.queue_id, message.queue_offset
        behind = end - message.physical_offset - message.size
        fits_behind = behind >= 0 if log_range.fill is Fill.END else behind == 0 or behind >= MIN_BYTES
        before = message.physical_offset - at
        fits = (before == 0 or before >= MIN_BYTES) and fits_behind
        if fits and name not in queue_places and message.size >= placeholder_bytes(message):
            places.append(message)
            queue_places.add(name)
            at = message.physical_offset + message.size
    return tuple(places)


def lost_ranges(log_ranges: Iterable[LogRange]) -> Ranges:
    """List the ranges of the log whose records are lost: begin and end, in log order, joined where they overlap."""
    joined: list[tuple[int, int]] = []
    lost = [item for item in log_ranges if item.fill is not Fill.BYTES]
    for begin, end in sorted((item.physical_offset, item.physical_offset + item.size) for item in lost):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return tuple(joined)


def placeholder_ends(log_ranges: Iterable[LogRange]) -> dict[tuple[str, int], int]:
    """Return, by queue, the queue offset one past the last lost message that gets a placeholder."""
    ends: dict[tuple[str, int], int] = {}
    for message in (message for log_range in log_ranges for message in log_range.places):
        queue_end = ((message.topic, message.queue_id), message.queue_offset + max(1, message.batch_size))
        # MixAll.LMQ_QUEUE_ID is 0.
        light = (((topic, 0), queue_offset + 1) for topic, queue_offset in message.light)
        for queue, end in (queue_end, *light):
            ends[queue] = max(end, ends.get(queue, 0))
    return ends


def touched_queues(root: str, ranges: Ranges) -> set[tuple[str, int]]:
    """Find the queues with units whose records overlap a range."""
    touched = set()
    for queue, units in read_all_units(root) if ranges else ():
        begins = units.physical_offsets
        if _overlap(ranges, begins, begins + _record_sizes(begins, units.sizes)).any():
            touched.add((queue.topic, queue.queue_id))
    return touched


def _record_sizes(physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of the records that units name; pre-blanks name none."""
    is_blank = (physical_offsets == 0) & (sizes == PRE_BLANK_SIZE)
    return np.where(is_blank, 0, np.maximum(sizes, 1))


def is_index_touched(root: str, ranges: Ranges, index_slots: int) -> bool:
    """Return whether an IndexFile has entries of records that begin in a range."""
    storage, begin = LocalStorage(), entry_position(1, index_slots)
    for entry in storage.entries(paths.index_dir(root)) if ranges else ():
        if entry.is_directory or not paths.is_index_file_name(entry.name):
            continue
        with storage.open(f"{paths.index_dir(root)}/{entry.name}") as file:
            data = read_range(file, begin, max(0, min(file.data_end(), entry.size_bytes) - begin))
        entries = np.frombuffer(data, dtype=ENTRY_DTYPE, count=len(data) // ENTRY_DTYPE.itemsize)
        offsets = entries["physical_offset"].astype(np.int64)
        if _overlap(ranges, offsets, offsets + 1).any():
            return True
    return False


def _overlap(
    ranges: Sequence[tuple[int, int]], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which of some intervals overlap one of the ranges, which are in order and apart."""
    bounds = np.array(ranges, dtype=np.int64)
    last = np.searchsorted(bounds[:, 0], ends, side="left") - 1
    overlaps: NDArray[np.bool_] = (last >= 0) & (bounds[last, 1] > begins)
    return overlaps
