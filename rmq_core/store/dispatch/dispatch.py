"""Dispatch: writes ConsumeQueue units and Index entries for the records of the CommitLog, batch by batch.

The kernels of ``rmq_formats.scan.dispatch`` find units and keys, and those of ``rmq_formats.kernels.live_dispatch``
write them. A batch that fails on a full disk is given again, from its beginning: units stand at their own places
and can be written twice, and the Index knows how many keys of it it has.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rmq_core.store.commitlog.log import CommitLog, LogFile
from rmq_core.store.commitlog.quarantine import Quarantine
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_core.store.consumequeue.writer import UnitWriter
from rmq_core.store.index.index import Index
from rmq_core.store.results import Arrival
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.kernels.live_dispatch_tables import (
    RUN_DATA_BYTES,
    RUN_FILE_BYTES,
    RUN_FILE_OFFSET,
    RUN_INDEXED,
    RUN_LAST_OFFSET,
    RUN_PLACED,
    RUN_POSITION,
    RUN_TIMESTAMP,
    RUN_WRITTEN,
)
from rmq_formats.storage import layout_refusals

if TYPE_CHECKING:
    from rmq_core.store.dispatch.kernel_dispatch import Table
    from rmq_core.store.dispatch.queue_merge import QueueMerge
    from rmq_formats.scan.segment import FrameBatch


class DispatchProgress(NamedTuple):
    """Progress of dispatch, as the thread that flushes its files reads it.

    Attributes:
        offset: physical offset below which all is dispatched.
        index_name: of the newest IndexFile; 0 if there is none.
        index_header: header of the newest.
        index_full_ms: store timestamp of the last key in the last IndexFile that is full.
    """

    offset: int
    timestamp_ms: int
    unit_total: int
    index_name: int
    index_files: int
    index_header: bytes
    index_full_ms: int


@dataclass(slots=True)
class Resume:
    """From where a recovery writes units and keys; those of earlier records are written already.

    Attributes:
        units_from: physical offset of the first record whose unit is written.
        keys_from: physical offset of the first record whose keys are written, but for its first ``keys_there``.
        keys_there: keys of that record that are in the Index already.
        restart: rewrite each ConsumeQueue from the first unit on that the log has for it.
        merges: merge the units with those that stand, instead of appending them.
        merge: with which they are then.
    """

    units_from: int = 0
    keys_from: int = 0
    keys_there: int = 0
    restart: bool = False
    merges: bool = False
    merge: "QueueMerge | None" = None


class Dispatch:
    """Writes units and keys of records, in the order of the log.

    Attributes:
        offset: physical offset of the next record to dispatch.
        timestamp_ms: store timestamp of the last one dispatched.
        skipped: ranges of the log that could not be read.
        tags_from: physical offset from which TAGS are indexed, too.
        has_more: whether the last run ended early, as it had met as many queues as it might.
        stray_batch_topics: topics that had inner batches, and have no BatchConsumeQueue as far as the store knows.
    """

    def __init__(
        self, log: CommitLog, queues: ConsumeQueueTable, index: Index | None, delay_levels_ms: tuple[int, ...],
        writer: UnitWriter, quarantine: Quarantine, *, tags_from: int, to_light_queues: bool,
    ) -> None:  # fmt: skip
        from rmq_core.store.dispatch.kernel_dispatch import Collector  # noqa: PLC0415 # numba, see ``kernel_loading``

        self.offset = 0
        self.timestamp_ms = 0
        self.skipped: list[Damage] = []
        self.writer = writer
        self.tags_from = tags_from
        self.has_more = False
        self.stray_batch_topics: set[str] = set()
        self._log = log
        self._is_slave = writer.is_slave
        self._queues = queues
        self._index = index
        self._quarantine = quarantine
        self._collector = Collector(delay_levels_ms, tags_from, to_light_queues=to_light_queues)
        self.mark = DispatchProgress(0, 0, 0, 0, 0, b"", 0)

    def note(self) -> None:
        """Renew ``mark`` with the progress of now."""
        index = self._index
        newest = index.files[-1] if index is not None and index.files else None
        self.mark = DispatchProgress(
            self.offset,
            self.timestamp_ms,
            self._queues.unit_total,
            0 if newest is None else newest.name,
            0 if index is None else len(index.files),
            b"" if index is None else index.header_bytes,
            0 if index is None else index.full_end_timestamp_ms,
        )

    def run(self, limit: int, arrivals: dict[int, list[int]] | None, most_new_queues: int | None = None) -> None:
        """Dispatch all whole records below a physical offset.

        Args:
            limit: physical offset; a record that begins below it and ends above waits for a later call.
            arrivals: the tags codes of the new messages of each row are added to it; None if no one asks.
            most_new_queues: that may get their first unit; where there are more, ``has_more`` says so. A message may
                name a thousand light queues, and each new one takes a directory and a file.

        Raises:
            OSError: the disk is full, or broken. What was not dispatched comes again at the next call.
        """
        most_met = None if most_new_queues is None else self.writer.met + most_new_queues
        self.has_more = False
        while self.offset < limit:
            file = self._log.file_at(self.offset)
            if file is None:  # its file is deleted, or was never there
                next_file = self.offset - self.offset % self._log.file_bytes + self._log.file_bytes
                self._skip_to(min(limit, next_file))
            elif not self._run_file(file, limit, arrivals, most_met):
                break
        self.note()

    def _run_file(self, file: LogFile, limit: int, arrivals: dict[int, list[int]] | None, most_met: int | None) -> bool:
        """Dispatch a batch of one file's records; False if none is whole below the limit, or not all were done."""
        collector, index = self._collector, self._index
        numbers = collector.numbers
        data_bytes = min(limit - file.start, file.size)
        before = self.offset - file.start
        numbers[RUN_POSITION] = before
        numbers[RUN_DATA_BYTES] = data_bytes
        numbers[RUN_FILE_OFFSET] = file.start
        numbers[RUN_FILE_BYTES] = file.size
        target = index.target() if index is not None else None
        units, keys = collector.run(file.array, self.writer, target)
        self._note_tombstones()
        run_numbers = numbers.tolist()
        self._queues.unit_total += run_numbers[RUN_WRITTEN]
        if run_numbers[RUN_PLACED] < len(units):
            self._extend_queue_names()
            if not collector.place(units, run_numbers[RUN_PLACED], self.writer, most_met):
                self.has_more = True
                return False
        self._note_strays(units)
        if len(units):
            self.timestamp_ms = run_numbers[RUN_TIMESTAMP]
            if arrivals is not None:
                collector.note_arrivals(units, arrivals)
        if index is not None and run_numbers[RUN_LAST_OFFSET] >= 0:
            if run_numbers[RUN_INDEXED]:
                index.note_dirty(index.files[-1])
            else:
                index.append(keys, run_numbers[RUN_LAST_OFFSET], self.timestamp_ms)
        position = run_numbers[RUN_POSITION]
        if collector.is_at_blank:
            self.offset = file.start + file.size
            return True
        self.offset = file.start + position
        if collector.is_at_damage:  # a recovery leaves none; a master's log may have some
            self._skip_to(file.start + collector.next_sound(file, position + 1, data_bytes))
            return True
        return bool(position > before)

    def _note_strays(self, units: "Table") -> None:
        rows = self._collector.rows_of_batches(units)
        if rows:
            self._extend_queue_names()
            self.stray_batch_topics |= {self.writer.names[row][0] for row in rows} - self._queues.batch_topics

    def _note_tombstones(self) -> None:
        """Note the tombstones of the last run, as a slave gets them, before units that they explain are written."""
        for tombstone in self._collector.tombstones:
            if not self.writer.is_lost(tombstone.physical_offset):
                self._quarantine.note(tombstone)
                self.writer.note_lost([tombstone])

    @property
    def has_lmq_records(self) -> bool:
        """True if a dispatched record has LMQ offsets, even if their units were not written."""
        return self._collector.has_lmq_records

    def _extend_queue_names(self) -> None:
        if self._collector.queue_count > len(self.writer.names):
            self.writer.names += self._collector.queue_names(len(self.writer.names))

    def arrivals_of(self, rows: dict[int, list[int]]) -> list[Arrival]:
        """Return the arrivals that ``run`` has noted, one for each queue."""
        self._extend_queue_names()
        names = self.writer.names
        arrivals = []
        for row, codes in rows.items():
            topic, queue_id = names[row]
            queue = self._queues.get(topic, queue_id)
            if queue is not None:
                tags_codes = None if isinstance(queue, BatchQueue) else codes
                arrivals.append(Arrival(topic, queue_id, queue.max_offset, tags_codes))
        return arrivals

    def _skip_to(self, physical_offset: int) -> None:
        self.skipped.append(Damage(self.offset, physical_offset - self.offset, DamageCode.MAGIC))
        self.offset = physical_offset

    def feed(self, batch: "FrameBatch", resume: Resume) -> None:
        """Dispatch the sound frames of a batch that a recovery has read.

        Raises:
            StoreLayoutError: they belong into queues of another layout.
            OSError: the disk is full, or broken.
        """
        collector = self._collector
        units, keys, last = collector.collect_sound(batch)
        self._note_tombstones()
        self._note_strays(units)
        if not (self._is_slave or self._queues.has_topic_list):  # a slave may yet be told of the topic
            layout_refusals.refuse(layout_refusals.dispatch_refusal(self._log.directory, self.stray_batch_topics))
        if last < 0:
            return
        if self._queues.batch_topics and collector.has_lmq_records:
            self._extend_queue_names()
            units = collector.without_lmq_units(units, self.writer.names, self._queues.batch_topics)
        if len(units):
            self.timestamp_ms = collector.last_timestamp_ms(units)
        self._extend_queue_names()
        units = units[collector.first_unit_from(units, resume.units_from) :]
        collector.place(units if resume.merge is None else resume.merge.compare(units), 0, self.writer)
        if self._index is not None and last >= resume.keys_from:
            keys = collector.keys_from(keys, resume.keys_from, resume.keys_there)
            self._index.append(keys, last, self.timestamp_ms)
