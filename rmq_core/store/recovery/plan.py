"""Plans a recovery: the physical offset from which the log is read, and those from which units and keys are written.

The plan follows the watermark if that can be trusted, else the checkpoint, by the original's rules.

Source: ``DefaultMessageStore#recover``, ``CommitLog#recoverNormally``, ``#recoverAbnormally``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from rmq_core.store.commitlog.log import LogFile, store_timestamp_ms
from rmq_core.store.consumequeue.batch_queue import BatchQueue, BatchUnit
from rmq_core.store.dispatch.dispatch import Resume
from rmq_core.store.files.watermark import Watermark
from rmq_core.store.parts import StoreParts
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs.checkpoint import SAFETY_MS
from rmq_formats.codecs.layout import RECORD_VERSIONS
from rmq_formats.codecs.record_frame import FrameShape, frame_shape
from rmq_formats.codecs.record_layout import RECORD_MAGIC_AT

VERIFIED_TAIL_BYTES: Final = 16 << 20  # last bytes of the flushed log that every start verifies
_MAX_SEARCHED_QUEUES: Final = 64  # queues in which a record to begin at is searched, at most
_HEAD_BYTES: Final = 100  # first bytes of a record, with its store timestamp


@dataclass(slots=True)
class RecoveryPlan:
    """Offsets from which a recovery reads and writes.

    Attributes:
        start: physical offset at which reading begins.
        flushed_until: physical offset below which the log is on the disk.
        unproven_from: physical offset from which the log may be in memory alone, as an fsync may have failed.
        resume: offsets from which units and keys are missing.
    """

    start: int
    flushed_until: int
    unproven_from: int
    resume: Resume


class RecoveryPlanner:
    """Plans one recovery, and opens ConsumeQueues and Index for it."""

    def __init__(self, parts: StoreParts, files: Sequence[LogFile]) -> None:
        """Plan the recovery of a store whose log has these files, in order, at least one."""
        self._parts = parts
        self._files = files
        self._queues = parts.queues
        self._index = parts.index

    def plan_by_watermark(self, watermark: Watermark, is_clean: bool) -> RecoveryPlan | None:
        """Plan the recovery after the watermark; return None if the watermark belongs to another store."""
        log_begin, log_end = self._files[0].start, self._files[-1].end
        if watermark.log_flushed > log_end:
            return None
        self._queues.load(None if watermark.rebuild else watermark.dispatched)
        resume = Resume(units_from=watermark.dispatched, keys_from=watermark.index_dispatched)
        if self._index is not None:
            self._index.load()
        if watermark.rebuild or not self._queues.is_whole or self._queues.unit_total != watermark.unit_total:
            resume = self._rebuild()
        elif self._index is not None:
            index, file_count, header = self._index, watermark.index_files, watermark.index_header
            is_same = len(index.files) == file_count and index.header_bytes == header
            if not (is_clean and is_same) and not index.restore(watermark.index_name, file_count, header):
                index.remove_from(0)
                resume.keys_from = 0
        start = max(min(resume.units_from, resume.keys_from, watermark.log_flushed), log_begin)
        start = min(start, self._find_verification_start(watermark))
        return RecoveryPlan(start, watermark.log_flushed, watermark.log_flushed, resume)

    def _find_verification_start(self, watermark: Watermark) -> int:
        """Return the physical offset from which the end of the flushed log is verified: a file's start or a record's.

        The record is taken from a ConsumeQueue unit. A search in the log itself could find a record within a body
        that has the bytes of a record with the right physical offset.
        """
        tail_begin = watermark.log_flushed - VERIFIED_TAIL_BYTES
        flushed_files = [file for file in self._files if file.start <= watermark.log_flushed]
        for file in flushed_files:
            if file.start >= tail_begin:
                return file.start
        file = flushed_files[-1] if flushed_files else self._files[0]
        scan_begin = watermark.log_flushed
        for queue in islice(self._queues, _MAX_SEARCHED_QUEUES):
            unit = queue.next_unit(queue.find_physical(tail_begin, queue.first_stored))
            if unit is not None and unit.physical_offset < scan_begin and self._is_record(unit):
                scan_begin = unit.physical_offset
        return file.start if scan_begin == watermark.log_flushed else scan_begin

    def _is_record(self, unit: StoredUnit | BatchUnit) -> bool:
        for file in self._files:
            position = unit.physical_offset - file.start
            if 0 <= position <= file.size - unit.size:
                record = memoryview(self._parts.disk.read(file.descriptor, unit.size, position))
                shape = frame_shape(record, 0, unit.physical_offset)
                return isinstance(shape, FrameShape) and shape.size == unit.size
        return False

    def _rebuild(self) -> Resume:
        """Prepare to rebuild all ConsumeQueues and the Index; the watermark restarts an interrupted rebuild."""
        checkpoint_files = self._parts.checkpoint_files
        checkpoint_files.write(Watermark(rebuild=True), checkpoint_files.checkpoint)
        for queue in self._queues:
            queue.scan_all()
            queue.rewrite(self._files[0].start)
        self._queues.count_units()
        if self._index is not None:
            self._index.remove_from(0)
        return Resume(rewrites_queues=True, merges_units=not self._parts.config.slave)

    def plan_by_checkpoint(self, crashed: bool) -> RecoveryPlan:
        """Plan the recovery that the original does.

        Args:
            crashed: the file ``abort`` existed.
        """
        if not len(self._queues):
            self._queues.load(None)
            if self._index is not None:
                self._index.load()
        checkpoint = self._parts.checkpoint_files.checkpoint
        flushed_ms = checkpoint.physic_msg_timestamp_ms - SAFETY_MS
        unproven_from = self._file_start_before(flushed_ms) if crashed else self._files[-1].end
        if not self._queues.is_whole:
            return RecoveryPlan(self._files[0].start, 0, unproven_from, self._rebuild())
        last_end = self._queues.last_end()
        if crashed:
            start = self._file_start_before(checkpoint.min_timestamp_ms)
            resume = Resume(units_from=start, merges_units=not self._parts.config.slave)
            for queue in self._queues:  # the last unit may be written in part
                if not resume.merges_units:
                    queue.trim(queue.find_physical(start, queue.first_stored))
                    continue
                if isinstance(queue, BatchQueue):
                    queue.trim_torn()
                queue.rewrite(start)
            self._queues.count_units()
            if self._index is not None:
                full_until_ms = checkpoint.index_msg_timestamp_ms
                full_files = takewhile(lambda file: file.header.end_timestamp_ms <= full_until_ms, self._index.files)
                self._index.remove_from(len(list(full_files)))
        else:
            start = max((file.start for file in self._files if file.start <= last_end), default=self._files[0].start)
            resume = Resume(units_from=max(last_end, 0))
        if self._index is not None:
            resume.keys_from, resume.keys_indexed = self._index.resume()
            file_bytes = self._parts.config.commitlog_file_bytes
            start = min(start, max(resume.keys_from - resume.keys_from % file_bytes, self._files[0].start))
        return RecoveryPlan(start, 0, unproven_from, resume)

    def _file_start_before(self, timestamp_ms: int) -> int:
        """Find the start of the newest file that begins with a record of a time or earlier.

        Source: ``isMappedFileMatchedRecover``.
        """
        for file in reversed(self._files):
            head = memoryview(self._parts.disk.read(file.descriptor, _HEAD_BYTES, 0))
            magic = int.from_bytes(head[RECORD_MAGIC_AT : RECORD_MAGIC_AT + 4], "big", signed=True)
            if magic in RECORD_VERSIONS and 0 != store_timestamp_ms(head) <= timestamp_ms:
                return file.start
        return self._files[0].start
