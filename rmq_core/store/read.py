"""Reads from a store: messages of a queue by offset or by time, records by physical offset or by key.

Records are returned as slices of the mapped log, without a copy. A record of a BatchConsumeQueue that is an inner batch
is returned whole, whichever of its messages was requested: clients split it.

Source: ``DefaultMessageStore#getMessage``, ``#queryMessage``, ``ConsumeQueue#getOffsetInQueueByTime``,
``BatchConsumeQueue#iterateFrom``.
"""

import os
from collections.abc import Callable, Set
from typing import Final

from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.batch_queue import BatchQueue, BatchUnit
from rmq_core.store.consumequeue.ext import ExtReader, MayMatchUnit
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.consumequeue.table import ConsumeQueueTable, Queue
from rmq_core.store.index.index import Index
from rmq_core.store.results import Boundary, GetResult, GetStatus, KeyKind, QueryResult, StoredUnit
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT
from rmq_formats.codecs.consumequeue import UNIT
from rmq_formats.codecs.index import MAX_LONG, TAGS_MARK
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, EXT_MAX_ADDRESS, FLAG_INNER_BATCH, RECORD_VERSIONS, UNIT_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, SYS_FLAG, head_struct
from rmq_formats.errors import FormatError

Matches = Callable[[memoryview], bool]
_RECORD_IDENTITY: Final = head_struct("size", "magic", "physical_offset")
_NO_VIEW: Final = memoryview(b"")
_new = tuple.__new__
MEMORY_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MAX_PULL_BYTES: Final = 128 << 20  # DefaultMessageStore#MAX_PULL_MSG_SIZE
MIN_PULL_BYTES: Final = 100
_MAX_CANDIDATES: Final = 4096  # Index entries that one query reads at most, as hot keys and collisions have long chains


class StoreReader:
    """Reads messages of one store by queue offset, time, key and physical offset."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: ConsumeQueueTable, index: Index | None) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        # Bytes at the log's end that are estimated to be in memory.
        self._memory_bytes = MEMORY_BYTES * config.memory_ratio // 100
        self._limits_in_memory = config.max_transfer_bytes_in_memory, config.max_transfer_count_in_memory
        self._limits_on_disk = config.max_transfer_bytes_on_disk, config.max_transfer_count_on_disk
        self._skips_offset_correction = config.slave and not config.offset_check_in_slave

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        tags_codes: Set[int] | None = None,
        matches: Matches | None = None,
        may_match_unit: MayMatchUnit | None = None,
    ) -> GetResult:
        """Read messages of a queue from a queue offset on.

        Args:
            max_count: maximal messages; the settings limit count and bytes, too. The first message is always returned.
            tags_codes: return only messages with one of these tags codes; None for all.
            may_match_unit: test of store timestamp (ms) and bit map, if ConsumeQueueExt has them.

        Source: ``DefaultMessageStore#getMessage``.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self._empty_result(GetStatus.NO_MATCHED_LOGIC_QUEUE, queue_offset, 0, 0, 0)
        min_offset, max_offset = queue.min_offset, queue.max_offset
        if max_offset == 0:
            return self._empty_result(GetStatus.NO_MESSAGE_IN_QUEUE, queue_offset, 0, min_offset, max_offset)
        if queue_offset < min_offset:
            return self._empty_result(GetStatus.OFFSET_TOO_SMALL, queue_offset, min_offset, min_offset, max_offset)
        if queue_offset == max_offset:
            return self._empty_result(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, queue_offset, min_offset, max_offset)
        if queue_offset > max_offset:
            return self._empty_result(GetStatus.OFFSET_OVERFLOW_BADLY, queue_offset, max_offset, min_offset, max_offset)
        max_bytes = min(max(max_bytes, MIN_PULL_BYTES), MAX_PULL_BYTES)
        if isinstance(queue, BatchQueue):
            return self._collect_batches(queue, queue_offset, (max_count, max_bytes), tags_codes, matches)
        is_filtered = tags_codes is not None or matches is not None
        max_scanned_units = max(self._config.max_filter_bytes // UNIT_BYTES, max_count)
        units = queue.read(queue_offset, max_scanned_units if is_filtered else max_count)
        if not units:
            units_per_file = queue.files.file_bytes // UNIT_BYTES
            next_offset = queue_offset - queue_offset % units_per_file + units_per_file
            return self._empty_result(GetStatus.OFFSET_FOUND_NULL, queue_offset, next_offset, min_offset, max_offset)
        return self._collect(queue, queue_offset, units, (max_count, max_bytes), tags_codes, matches, may_match_unit)

    def _empty_result(
        self, status: GetStatus, requested_offset: int, corrected_offset: int, min_offset: int, max_offset: int
    ) -> GetResult:
        next_offset = requested_offset if self._skips_offset_correction else corrected_offset
        return GetResult(status, next_offset, min_offset, max_offset, [], 0, 0)

    def _collect(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        units: bytes | memoryview,
        limits: tuple[int, int],
        tags_codes: Set[int] | None,
        matches: Matches | None,
        may_match_unit: MayMatchUnit | None,
    ) -> GetResult:
        """Collect the messages of units, up to the limits. Calls in this loop dominate the cost of a pull."""
        log, read_identity = self._log, _RECORD_IDENTITY.unpack_from
        limits_in_memory, limits_on_disk = self._limits_in_memory, self._limits_on_disk
        max_count, max_bytes = limits
        near_from = log.max_offset - self._memory_bytes
        slices: list[memoryview] = []
        start = end = -1  # physical offsets: begin of the current log file, and end of its written part
        view = _NO_VIEW
        first = last = -1  # positions of the pending slice in the file
        count = total_bytes = removed_count = 0
        next_offset, last_physical = queue_offset, log.max_offset
        ext = None if queue.ext is None or may_match_unit is None else ExtReader(queue.ext)
        for physical_offset, size, tags_code in UNIT.iter_unpack(units):
            if total_bytes:
                transfer_bytes, transfer_count = limits_in_memory if physical_offset >= near_from else limits_on_disk
                if (
                    count >= max_count
                    or count >= transfer_count
                    or total_bytes + size > transfer_bytes
                    or total_bytes + size > max_bytes
                ):
                    break
            next_offset += 1
            last_physical = physical_offset
            if tags_codes is not None and tags_code not in tags_codes and not _is_tagged(queue, tags_code, tags_codes):
                continue
            if ext is not None and may_match_unit is not None:
                unit = ext.at(tags_code)
                if unit is not None and not may_match_unit(*unit):
                    continue
            if not start <= physical_offset < end:
                file = log.file_at(physical_offset)
                first = last = _append_slice(slices, view, first, last)
                if file is None:
                    removed_count += 1
                    continue
                start, view = file.start, file.view
                end = min(start + file.size, log.max_offset)
            position = physical_offset - start
            if size < RECORD_FIXED_BYTES_V1 or physical_offset + size > end:
                removed_count += 1
                continue
            record_size, magic, recorded_offset = read_identity(view, position)
            if record_size != size or recorded_offset != physical_offset or magic not in RECORD_VERSIONS:
                removed_count += 1
                continue
            if matches is not None and not matches(view[position : position + size]):
                continue
            if position != last:
                first = _append_slice(slices, view, first, last, position)
            last = position + size
            count += 1
            total_bytes += size
        _append_slice(slices, view, first, last)
        status = _read_status(count, removed_count)
        min_offset, max_offset, is_far = queue.min_offset, queue.max_offset, last_physical < near_from
        return _new(GetResult, (status, next_offset, min_offset, max_offset, slices, count, total_bytes, is_far))

    def _collect_batches(
        self,
        queue: BatchQueue,
        queue_offset: int,
        limits: tuple[int, int],
        tags_codes: Set[int] | None,
        matches: Matches | None,
    ) -> GetResult:
        """Collect the records of a batch queue from the one with a queue offset on; the queue must have the offset.

        All inner batches match a filter of tags codes, as clients filter their messages. The original returns none.

        Source: ``DefaultMessageStore#isTheBatchFull``.
        """
        max_count, max_bytes = limits
        near_from = self._log.max_offset - self._memory_bytes
        max_scanned_units = max(self._config.max_filter_bytes // BATCH_UNIT_BYTES, max_count)
        slices: list[memoryview] = []
        count = size = removed_count = 0
        next_offset, last_physical = queue_offset, self._log.max_offset
        is_filtered = tags_codes is not None or matches is not None
        units = queue.read(queue.find_row(queue_offset), max_scanned_units if is_filtered else max_count)
        first_base = -1
        for physical_offset, record_bytes, tags_code, _, base, message_count, _, _ in BATCH_UNIT.iter_unpack(units):
            if first_base < 0:
                first_base = base
            if base - first_base >= max_scanned_units:
                break
            if count:
                is_near = physical_offset >= near_from
                transfer_bytes, transfer_count = self._limits_in_memory if is_near else self._limits_on_disk
                if (
                    count + message_count > max_count
                    or count >= transfer_count
                    or size + record_bytes > min(transfer_bytes, max_bytes)
                ):
                    break
            next_offset, last_physical = base + message_count, physical_offset
            record = self._log.record(physical_offset)
            if record is None or len(record) != record_bytes:
                removed_count += 1
                continue
            is_excluded = tags_codes is not None and tags_code not in tags_codes
            if is_excluded and not SYS_FLAG.unpack_from(record)[0] & FLAG_INNER_BATCH:
                continue
            if matches is None or matches(record):
                slices.append(record)
                count, size = count + message_count, size + record_bytes
        status = _read_status(count, removed_count)
        is_far = last_physical < near_from
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset, slices, count, size, is_far)

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if the queue does not exist."""
        return self._queues.get(topic, queue_id)

    def store_timestamp_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Store timestamp (ms) of the message at a queue offset; None if there is none."""
        queue = self._queues.get(topic, queue_id)
        unit = None if queue is None or queue_offset < queue.min_offset else _unit_of(queue, queue_offset)
        return None if unit is None else self._log.store_timestamp_ms(unit.physical_offset)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Find a queue offset by store time.

        LOWER is the first message stored at the time or later (without one, the max offset), UPPER the last one stored
        at the time or earlier (without one, the min offset). Source: ``ConsumeQueueStore#getOffsetInQueueByTime``.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return queue.offset_by_time(time_ms, upper=boundary is Boundary.UPPER)
        bound_ms = time_ms if boundary is Boundary.LOWER else time_ms + 1

        def is_since_bound(unit: StoredUnit) -> bool:
            timestamp_ms = self._log.store_timestamp_ms(unit.physical_offset)
            return timestamp_ms is not None and timestamp_ms >= bound_ms

        offset = queue.find(is_since_bound)
        return offset if boundary is Boundary.LOWER else max(offset - 1, queue.min_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = MAX_LONG,
        *,
        kind: KeyKind = KeyKind.ANY,
    ) -> QueryResult:
        """Return messages of a topic with a key, newest first.

        Args:
            max_count: maximal messages; the settings limit the count, too.
            begin_ms: earliest store time, to the second.

        Source: ``DefaultMessageStore#queryMessage``, which also returns messages with other keys of the same hash.
        """
        records: list[memoryview] = []
        seen_offsets: set[int] = set()
        index = self._index
        if index is None:
            return QueryResult(records, 0, 0)
        max_records = min(max_count, self._config.max_query_count)
        index_key = TAGS_MARK + key if kind is KeyKind.TAGS else key
        for tried_count, physical_offset in enumerate(index.find(topic, index_key, begin_ms, end_ms)):
            if len(records) >= max_records or tried_count == _MAX_CANDIDATES:
                break
            if physical_offset in seen_offsets:
                continue
            seen_offsets.add(physical_offset)
            message = self.message(physical_offset)
            if message is None or message.topic != topic or not _has_key(message, key, kind):
                continue
            record = self._log.record(physical_offset)
            if record is not None:
                records.append(record)
        return QueryResult(records, *index.last_update())

    def message(self, physical_offset: int) -> StoredMessage | None:
        """Decode the message at a physical offset; None if no sound record begins there.

        Source: ``DefaultMessageStore#lookMessageByOffset``.
        """
        record = self._log.record(physical_offset)
        if record is None:
            return None
        try:
            return decode_record(record, physical_offset=physical_offset)
        except FormatError:
            return None

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First readable queue offset; if the queue does not exist 0, or -1 for a BatchConsumeQueue, as in Java."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return -1 if topic in self._queues.batch_topics else 0
        return queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset one past the newest readable message; 0 if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Estimate whether a message is in memory. Source: ``DefaultMessageStore#checkInMemByConsumeOffset``."""
        queue = self._queues.get(topic, queue_id)
        unit = None if queue is None else _unit_of(queue, queue_offset)
        return unit is not None and self._log.max_offset - unit.physical_offset <= self._memory_bytes


def _read_status(count: int, removed_count: int) -> GetStatus:
    if count:
        return GetStatus.FOUND
    return GetStatus.MESSAGE_WAS_REMOVING if removed_count else GetStatus.NO_MATCHED_MESSAGE


def _unit_of(queue: Queue, queue_offset: int) -> StoredUnit | BatchUnit | None:
    """Return the unit of the record that has the message of a queue offset."""
    return queue.unit_of(queue_offset) if isinstance(queue, BatchQueue) else queue.unit(queue_offset)


def _append_slice(slices: list[memoryview], view: memoryview, first: int, last: int, position: int = -1) -> int:
    """Append the pending range ``view[first:last]``, if any, and return the next range's begin, ``position``."""
    if first >= 0:
        slices.append(view[first:last])
    return position


def _is_tagged(queue: ConsumeQueue, tags_code: int, filter_codes: Set[int]) -> bool:
    """Return whether a tags code, ConsumeQueueExt address or delivery time matches the filter."""
    if tags_code <= EXT_MAX_ADDRESS and queue.ext is not None:
        tags_code = queue.ext.tags_code(tags_code)
    if not -(1 << 31) <= tags_code < 1 << 31:  # a delivery time, of which the original compares the low half
        tags_code = (tags_code + (1 << 31)) % (1 << 32) - (1 << 31)
    return tags_code in filter_codes


def _has_key(message: StoredMessage, key: str, kind: KeyKind) -> bool:
    if kind is KeyKind.TAGS:
        return message.tags == key
    return message.uniq_key == key or (kind is KeyKind.ANY and key in message.keys)
