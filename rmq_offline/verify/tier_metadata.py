"""Segments of tiered storage that a broker's metadata lists, and where queues begin there and in compacted logs."""

from collections.abc import Iterable, Iterator
from typing import Final

from rmq_formats.codecs import fastjson, paths, tiered
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import DecodeError, RmqError, StoreError
from rmq_formats.read.broker_config import read_config
from rmq_formats.read.query import Queue
from rmq_formats.read.queue_logs import first_queue_offset
from rmq_formats.storage.queue_logs import CompactedLogs
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_files import StoreFiles

SegmentsByQueue = dict[tuple[str, str, int], dict[str, int]]
"""By broker, topic and queue: the size of each segment by the segment's base offset in decimal digits."""

COMMIT_LOG_SEGMENTS: Final = "commitLogFileSegmentTable"
CONSUME_QUEUE_SEGMENTS: Final = "consumeQueueFileSegmentTable"
_DELETED: Final = 2  # status of a segment whose file will be deleted


def read_tier_segments(store: StoreFiles, table: str) -> SegmentsByQueue:
    """Read a table of segments from the metadata of a store, or from its ``.bak``; empty without both.

    Raises:
        StoreError: neither can be read, or neither has the table.
    """
    return read_config(store, tiered.METADATA, lambda text: dict(_sizes_by_queue(fastjson.loads(text), table))) or {}


def read_begins_elsewhere(store: StoreFiles, queues: Iterable[Queue]) -> dict[Queue, int]:
    """Find where queues begin in compacted logs and tiered storage, which have messages that the log has no more.

    All queues begin at 0 where that cannot be read, so that no message counts as expired.
    Source: ``FlatMessageFile#getConsumeQueueMinOffset``.
    """
    begins: dict[Queue, int] = {}
    try:
        for (_, topic, queue_id), segments in read_tier_segments(store, CONSUME_QUEUE_SEGMENTS).items():
            for base in segments:
                begin = int(base) // UNIT_BYTES
                begins[topic, queue_id] = min(begin, begins.get((topic, queue_id), begin))
        for log in CompactedLogs.of(store).existing():
            log_begin = first_queue_offset(store.storage, log)
            if log_begin is not None:
                begins[log.topic, log.queue_id] = min(log_begin, begins.get((log.topic, log.queue_id), log_begin))
    except (RmqError, OSError):
        return dict.fromkeys(queues, 0)
    return begins


def _sizes_by_queue(value: object, table: str) -> Iterator[tuple[tuple[str, str, int], dict[str, int]]]:
    tables = value.get(table) if isinstance(value, dict) else None
    if not isinstance(tables, dict):
        raise DecodeError(f"no {table}")
    for name, segments in tables.items():
        broker, _, rest = name.partition("/")
        topic, _, queue = rest.rpartition("/")
        if not topic or paths.parse_queue_id(queue) is None or not isinstance(segments, dict):
            raise DecodeError(f"no queue's segments at {name!r}")
        sizes = {}
        for base, segment in segments.items():
            size = segment.get("size") if isinstance(segment, dict) else None
            if not isinstance(size, int) or not base.isdecimal():
                raise DecodeError(f"no segment at {name!r}, {base}")
            if segment.get("status") != _DELETED:
                sizes[base] = size
        yield (broker, topic, int(queue)), sizes


def read_text(storage: Storage, path: str, limit: int) -> str:
    """Read a small file. Raises StoreError."""
    directory, _, name = path.rpartition("/")
    sizes = {entry.name: entry.size_bytes for entry in storage.entries(directory) if not entry.is_directory}
    if sizes.get(name, 0) > limit:
        raise StoreError(f"{path}: has {sizes[name]} bytes, more than {limit}")
    return storage.read_bytes(path).decode("utf-8", "replace")
