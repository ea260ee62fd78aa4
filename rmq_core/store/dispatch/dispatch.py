"""Dispatch: writes ConsumeQueue units and Index entries for the records of the CommitLog, batch by batch.

The kernels of ``rmq_formats.scan.dispatch`` find units and keys, and those of ``rmq_formats.kernels.live_dispatch``
write them. A batch that fails on a full disk is dispatched again from its first record: a unit has a fixed position and
can be written twice, and the Index counts the keys of the batch that it has.
"""

from collections import defaultdict
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
from rmq_formats.kernels import live_dispatch_tables as tables
from rmq_formats.storage import layout_refusals

if TYPE_CHECKING:
    from rmq_core.store.dispatch.kernel_dispatch import Table
    from rmq_core.store.dispatch.queue_merge import QueueMerge
    from rmq_formats.scan.segment import FrameBatch


class DispatchProgress(NamedTuple):
    """Progress of dispatch, for the flush thread.

    Attributes:
        offset: physical offset below which all records are dispatched.
        index_name: name of the newest IndexFile as a number; 0 without one.
        index_full_ms: store timestamp of the last key in the newest full IndexFile.
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
    """Physical offsets from which a recovery writes units and keys, as earlier records have units and keys already.

    Attributes:
        units_from: physical offset of the first record whose unit is written.
        keys_from: physical offset of the first record whose keys are written, except its first ``keys_indexed`` keys.
        rewrites_queues: replace each ConsumeQueue's units from the first unit on that the log has for the queue.
        merges_units: merge the units with those in the queues, instead of appending them.
    """

    units_from: int = 0
    keys_from: int = 0
    keys_indexed: int = 0
    rewrites_queues: bool = False
    merges_units: bool = False
    merge: "QueueMerge | None" = None


class Dispatch:
    """Writes units and keys of records, in the order of the log.

    Attributes:
        offset: physical offset of the next record to dispatch.
        timestamp_ms: store timestamp of the last dispatched record.
        skipped: ranges of the log that could not be read.
        tags_from: physical offset from which TAGS are indexed, too.
        has_more: the last run ended early, because of its limit of new queues.
        stray_batch_topics: topics with inner batches that are not configured to have BatchConsumeQueues.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: Index | None,
        delay_levels_ms: tuple[int, ...],
        writer: UnitWriter,
        quarantine: Quarantine,
        *,
        tags_from: int,
        to_light_queues: bool,
    ) -> None:
        from rmq_core.store.dispatch.kernel_dispatch import Collector  # noqa: PLC0415 # numba, see ``kernel_loading``

        self.offset = 0
        self.timestamp_ms = 0
        self.skipped: list[Damage] = []
        self.writer = writer
        self.tags_from = tags_from
        self.has_more = False
        self.stray_batch_topics: set[str] = set()
        self._log = log
        self._queues = queues
        self._index = index
        self._quarantine = quarantine
        self._collector = Collector(delay_levels_ms, tags_from, to_light_queues=to_light_queues)
        self.progress = DispatchProgress(0, 0, 0, 0, 0, b"", 0)

    def publish_progress(self) -> None:
        """Set ``progress`` to the current progress, for the flush thread."""
        index = self._index
        index_state = (0, 0, b"", 0)
        if index is not None:
            newest_name = index.files[-1].name if index.files else 0
            index_state = newest_name, len(index.files), index.header_bytes, index.full_end_timestamp_ms
        self.progress = DispatchProgress(self.offset, self.timestamp_ms, self._queues.unit_total, *index_state)

    def run(self, limit: int, arrivals: defaultdict[int, list[int]] | None, most_new_queues: int | None = None) -> None:
        """Dispatch all whole records below a physical offset.

        Args:
            limit: physical offset; a record that begins below the limit and ends above it waits for a later call.
            arrivals: tags codes of new messages by queue row, to be extended; None without listeners.
            most_new_queues: number of queues that may get their first unit; ``has_more`` tells whether more are
                waiting. A message may name a thousand light queues, and each new one needs a directory and a file.

        Raises:
            OSError: the disk is full, or broken. The next call dispatches the remaining records.
        """
        max_new_queue_count = None if most_new_queues is None else self.writer.new_queue_count + most_new_queues
        self.has_more = False
        while self.offset < limit:
            file = self._log.file_at(self.offset)
            if file is None:  # the file is deleted, or never existed
                next_file_start = self.offset - self.offset % self._log.file_bytes + self._log.file_bytes
                self._skip_to(min(limit, next_file_start))
            elif not self._run_file(file, limit, arrivals, max_new_queue_count):
                break
        self.publish_progress()

    def _run_file(
        self, file: LogFile, limit: int, arrivals: defaultdict[int, list[int]] | None, max_new_queue_count: int | None
    ) -> bool:
        """Dispatch a batch of one file's records; False if no whole record is below the limit, or some are left."""
        collector, index = self._collector, self._index
        numbers = collector.numbers
        data_bytes = min(limit - file.start, file.size)
        numbers[tables.RUN_POSITION] = begin_position = self.offset - file.start
        numbers[tables.RUN_DATA_BYTES] = data_bytes
        numbers[tables.RUN_FILE_OFFSET] = file.start
        numbers[tables.RUN_FILE_BYTES] = file.size
        units, keys = collector.run(file.array, self.writer, None if index is None else index.target())
        self._record_tombstones()
        run_numbers = numbers.tolist()
        self._queues.unit_total += run_numbers[tables.RUN_WRITTEN]
        if run_numbers[tables.RUN_PLACED] < len(units):
            self._extend_queue_names()
            if not collector.write_units(units, run_numbers[tables.RUN_PLACED], self.writer, max_new_queue_count):
                self.has_more = True
                return False
        self._record_stray_batch_topics(units)
        if len(units):
            self.timestamp_ms = run_numbers[tables.RUN_TIMESTAMP]
            if arrivals is not None:
                collector.add_arrivals(units, arrivals)
        if index is not None and run_numbers[tables.RUN_LAST_OFFSET] >= 0:
            if run_numbers[tables.RUN_INDEXED]:
                index.note_dirty(index.files[-1])
            else:
                index.append(keys, run_numbers[tables.RUN_LAST_OFFSET], self.timestamp_ms)
        position = run_numbers[tables.RUN_POSITION]
        if collector.is_at_blank:
            self.offset = file.end
            return True
        self.offset = file.start + position
        if collector.is_at_damage:  # a recovery quarantines damage, but a master's log may have some
            self._skip_to(file.start + collector.next_sound(file, position + 1, data_bytes))
            return True
        return bool(position > begin_position)

    def _record_stray_batch_topics(self, units: "Table") -> None:
        rows = self._collector.rows_of_batches(units)
        if rows:
            self._extend_queue_names()
            self.stray_batch_topics |= {self.writer.names[row][0] for row in rows} - self._queues.batch_topics

    def _record_tombstones(self) -> None:
        """Record the tombstones that a slave received, before the units that follow their gaps are written."""
        for tombstone in self._collector.tombstones:
            if not self.writer.is_in_lost_range(tombstone.physical_offset):
                self._quarantine.record_tombstone(tombstone)
                self.writer.add_lost_ranges([tombstone])

    @property
    def has_lmq_records(self) -> bool:
        """True if a dispatched record has LMQ offsets, even if their units were not written."""
        return self._collector.has_lmq_records

    def _extend_queue_names(self) -> None:
        if self._collector.queue_count > len(self.writer.names):
            self.writer.names += self._collector.queue_names(len(self.writer.names))

    def arrivals_of(self, rows: dict[int, list[int]]) -> list[Arrival]:
        """Return the arrivals in the ``arrivals`` of ``run``, one for each queue."""
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
            StoreLayoutError: the records belong into queues of another layout.
        """
        collector = self._collector
        units, keys, last = collector.collect_sound(batch)
        self._record_tombstones()
        self._record_stray_batch_topics(units)
        if not (self.writer.is_slave or self._queues.has_topic_list):  # a slave may receive the topic's config later
            layout_refusals.refuse(layout_refusals.dispatch_refusal(self._log.directory, self.stray_batch_topics))
        if last < 0:
            return
        if self._queues.batch_topics and collector.has_lmq_records:
            self._extend_queue_names()
            units = collector.drop_lmq_units(units, self.writer.names, self._queues.batch_topics)
        if len(units):
            self.timestamp_ms = collector.last_timestamp_ms(units)
        self._extend_queue_names()
        units = units[collector.first_unit_from(units, resume.units_from) :]
        collector.write_units(units if resume.merge is None else resume.merge.compare(units), 0, self.writer)
        if self._index is not None and last >= resume.keys_from:
            keys = collector.keys_from(keys, resume.keys_from, resume.keys_indexed)
            self._index.append(keys, last, self.timestamp_ms)
