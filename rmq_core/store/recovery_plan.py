"""From where a recovery reads the log, and from where it writes queues and Index.

Where the watermark can be trusted, from there; else by the original's rules, from its checkpoint.

Source: ``DefaultMessageStore#recover``, ``CommitLog#recoverNormally``, ``#recoverAbnormally``.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from rmq_core.store.config import StoreConfig
from rmq_core.store.dispatch import Resume
from rmq_core.store.index import Index
from rmq_core.store.log import LogFile, store_timestamp_ms
from rmq_core.store.queue_start import scan_all
from rmq_core.store.queue_units import StoredUnit
from rmq_core.store.queues import QueueTable
from rmq_core.store.watermark import Marks, Watermark
from rmq_formats.frame import FrameShape, frame_shape
from rmq_formats.layout import MAGIC_V1, MAGIC_V2, RECORD_MAGIC_AT

VERIFIED_TAIL_BYTES: Final = 16 << 20  # of the flushed log that every start looks over
_QUEUES_ASKED: Final = 64  # for a record to begin at
_HEAD_BYTES: Final = 100  # of a record, beyond its store timestamp


@dataclass(slots=True)
class Plan:
    """From where to read, and from where to write.

    Attributes:
        start: physical offset where reading begins.
        flushed_until: physical offset below which all was on the disk.
        resume: what of units and keys is there already.
    """

    start: int
    flushed_until: int
    resume: Resume


class Planner:
    """Makes the plan of one opening; it opens queues and Index on the way."""

    def __init__(
        self, config: StoreConfig, files: Sequence[LogFile], queues: QueueTable, index: Index | None, marks: Marks
    ) -> None:
        """Prepare.

        Args:
            config: the store's settings.
            files: of the log, in order; at least one.
            queues: to be opened.
            index: likewise; None without.
            marks: what was left.
        """
        self._config = config
        self._files = files
        self._queues = queues
        self._index = index
        self._marks = marks

    def by_watermark(self, watermark: Watermark, is_clean: bool) -> Plan | None:
        """What is left to do after the watermark; None where it cannot be this store's.

        Args:
            watermark: one that can be trusted.
            is_clean: the store was shut down in order.

        Raises:
            StoreSizeError: files of queues of another size than the settings say.
            OSError: the disk is full or broken.
        """
        first, end = self._files[0].start, self._files[-1].start + self._files[-1].size
        if watermark.log_flushed > end:
            return None
        self._queues.load(None if watermark.rebuild else watermark.dispatched)
        resume = Resume(units_from=watermark.dispatched, keys_from=watermark.index_dispatched)
        if self._index is not None:
            self._index.load()
        if watermark.rebuild or not self._queues.is_whole or self._queues.unit_total != watermark.unit_total:
            resume = self._rebuild()
        elif self._index is not None and not self._restore_index(self._index, watermark, is_clean):
            self._index.remove_from(0)
            resume.keys_from = 0
        start = max(min(resume.units_from, resume.keys_from, watermark.log_flushed), first)
        return Plan(min(start, self._verified_from(watermark)), watermark.log_flushed, resume)

    def _verified_from(self, watermark: Watermark) -> int:
        """Where to begin, to have looked over the end of what was flushed: a file's start, or a record's.

        The record is one that a unit names. A search for one in the log could be led astray: by a body that
        holds the bytes of a record with the very offset at which they stand.
        """
        wanted = watermark.log_flushed - VERIFIED_TAIL_BYTES
        flushed = [file for file in self._files if file.start <= watermark.log_flushed]
        for file in flushed:
            if file.start >= wanted:
                return file.start
        file = flushed[-1] if flushed else self._files[0]
        found = watermark.log_flushed
        for queue in islice(self._queues, _QUEUES_ASKED):
            unit = queue.next_unit(queue.find_physical(wanted, queue.first_stored))
            if unit is not None and unit.physical_offset < found and self._is_record(unit):
                found = unit.physical_offset
        return file.start if found == watermark.log_flushed else found

    def _is_record(self, unit: StoredUnit) -> bool:
        for file in self._files:
            position = unit.physical_offset - file.start
            if 0 <= position <= file.size - unit.size:
                record = memoryview(os.pread(file.descriptor, unit.size, position))
                shape = frame_shape(record, 0, unit.physical_offset)
                return isinstance(shape, FrameShape) and shape.size == unit.size
        return False

    @staticmethod
    def _restore_index(index: Index, watermark: Watermark, is_clean: bool) -> bool:
        is_same = len(index.files) == watermark.index_files and index.header_bytes == watermark.index_header
        if is_clean and is_same:
            return True
        return index.restore(watermark.index_name, watermark.index_files, watermark.index_header)

    def _rebuild(self) -> Resume:
        """Make all queues and the Index anew; a note sees to it that this is ended, should it be interrupted."""
        self._marks.write(Watermark(rebuild=True), self._marks.checkpoint)
        for queue in self._queues:
            scan_all(queue)
        self._queues.count_units()
        if self._index is not None:
            self._index.remove_from(0)
        return Resume(restart=True)

    def by_checkpoint(self, crashed: bool) -> Plan:
        """What the original would do.

        Args:
            crashed: the mark of a crash was there.

        Raises:
            StoreSizeError: files of queues of another size than the settings say.
            OSError: the disk is full or broken.
        """
        if not len(self._queues):
            self._queues.load(None)
            if self._index is not None:
                self._index.load()
        if not self._queues.is_whole:
            return Plan(self._files[0].start, 0, self._rebuild())
        checkpoint = self._marks.checkpoint
        last_end = self._queues.last_end()
        if crashed:
            start = self._first_after(checkpoint.min_timestamp_ms)
            resume = Resume(units_from=start)
            for queue in self._queues:  # what was written last may be half a unit
                queue.trim(queue.find_physical(start, queue.first_stored))
            self._queues.count_units()
            if self._index is not None:
                kept = [file.header.end_timestamp_ms <= checkpoint.index_msg_timestamp_ms for file in self._index.files]
                self._index.remove_from(kept.index(False) if False in kept else len(kept))
        else:
            start = max((file.start for file in self._files if file.start <= last_end), default=self._files[0].start)
            resume = Resume(units_from=max(last_end, 0))
        if self._index is not None:
            resume.keys_from, resume.keys_there = self._index.resume()
            file_bytes = self._config.commitlog_file_bytes
            start = min(start, max(resume.keys_from - resume.keys_from % file_bytes, self._files[0].start))
        return Plan(start, 0, resume)

    def _first_after(self, timestamp_ms: int) -> int:
        """Start of the newest file whose first record was stored by then. Source: ``isMappedFileMatchedRecover``."""
        for file in reversed(self._files):
            head = memoryview(os.pread(file.descriptor, _HEAD_BYTES, 0))
            magic = int.from_bytes(head[RECORD_MAGIC_AT : RECORD_MAGIC_AT + 4], "big", signed=True)
            if magic in (MAGIC_V1, MAGIC_V2) and 0 != store_timestamp_ms(head) <= timestamp_ms:
                return file.start
        return self._files[0].start
