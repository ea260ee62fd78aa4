"""Reads of BatchConsumeQueues: records of a queue from the one on that a queue offset is in.

A record that is an inner batch is given whole, whichever of its messages was asked for: clients take it apart.

Source: ``DefaultMessageStore#getMessage`` over ``BatchConsumeQueue#iterateFrom``.
"""

from collections.abc import Callable, Set

from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.results import GetResult, GetStatus
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, FLAG_INNER_BATCH
from rmq_formats.codecs.record_layout import SYS_FLAG
from rmq_formats.codecs.variants.batch_consumequeue import BATCH_UNIT

Matches = Callable[[memoryview], bool]


class BatchReader:
    """Reads the records of one store's BatchConsumeQueues."""

    def __init__(self, config: StoreConfig, log: CommitLog, memory_bytes: int) -> None:
        """Read from a log; its last ``memory_bytes`` count as in memory."""
        self._config = config
        self._log = log
        self._memory_bytes = memory_bytes

    def get(
        self,
        queue: BatchQueue,
        queue_offset: int,
        limits: tuple[int, int],
        tags_codes: Set[int] | None,
        matches: Matches | None,
    ) -> GetResult:
        """Read the records of a queue from a queue offset on, which the queue has.

        Args:
            queue: of the records.
            queue_offset: of a message of the first one.
            limits: messages and bytes at most; the settings bound both as well. The first record is always given.
            tags_codes: only records with one of these tags codes, and inner batches, whose tags are those of their
                messages: clients look at these. The original gives no inner batch to who asks for tags.
            matches: only records that this function accepts.
        """
        max_count, max_bytes = limits
        most_scanned = max(self._config.max_filter_bytes // BATCH_UNIT_BYTES, max_count)
        slices: list[memoryview] = []
        count = size = removed = 0
        following, last_physical = queue_offset, self._log.max_offset
        is_filtered = tags_codes is not None or matches is not None
        units = queue.read(queue.find_row(queue_offset), most_scanned if is_filtered else max_count)
        first_base = -1
        for unit in BATCH_UNIT.iter_unpack(units):
            physical_offset, record_bytes, tags_code, _, base, messages, _, _ = unit
            if first_base < 0:
                first_base = base
            if base - first_base >= most_scanned or (count and self._is_full(unit, count, size, max_count, max_bytes)):
                break
            following, last_physical = base + messages, physical_offset
            record = self._log.record(physical_offset)
            if record is None or len(record) != record_bytes:
                removed += 1
                continue
            if tags_codes is not None and tags_code not in tags_codes and not _is_inner_batch(record):
                continue
            if matches is None or matches(record):
                slices.append(record)
                count, size = count + messages, size + record_bytes
        status = GetStatus.FOUND
        if not count:
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        is_far = last_physical < self._log.max_offset - self._memory_bytes
        return GetResult(status, following, queue.min_offset, queue.max_offset, slices, count, size, is_far)

    def _is_full(self, unit: tuple[int, ...], count: int, size: int, max_count: int, max_bytes: int) -> bool:
        """Return whether a read has no room for a unit's record. Source: ``DefaultMessageStore#isTheBatchFull``."""
        physical_offset, record_bytes, messages = unit[0], unit[1], unit[5]
        config, after = self._config, size + record_bytes
        if count + messages > max_count or after > max_bytes:
            return True
        if physical_offset >= self._log.max_offset - self._memory_bytes:
            return after > config.max_transfer_bytes_in_memory or count >= config.max_transfer_count_in_memory
        return after > config.max_transfer_bytes_on_disk or count >= config.max_transfer_count_on_disk


def _is_inner_batch(record: memoryview) -> bool:
    return bool(SYS_FLAG.unpack_from(record)[0] & FLAG_INNER_BATCH)
