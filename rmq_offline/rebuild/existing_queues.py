"""Queue files of a store that is rebuilt: evidence for facts that the log lacks.

A sound queue is carried over unchanged. In a queue with faults the right units retain their queue offsets, and the
log's records give the others. A log lacks the end of a queue whose messages have expired, the creation of a topic anew
under an old name, the closing of gaps, and former delays.

ConsumeQueueExt files are carried over, and wrong values in them corrected, as no log has their bit maps. A broker adds
its last message again at each start, so that units after the last one with an address in the queue are in order, too.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue_ext import UNIT
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.read.broker_config import stored_topics
from rmq_formats.read.log_end import dispatched_end
from rmq_formats.scan.derived_images import Rows
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks import spill
from rmq_offline.tasks.job_steps import JobSteps
from rmq_offline.tasks.work_files import Area, write_text
from rmq_offline.verify import committed_offsets, finding_kinds
from rmq_offline.verify.absent_queues import AbsentQueues, is_deleted
from rmq_offline.verify.batch_queue import BatchQueueCheck
from rmq_offline.verify.config_files import read_config_texts
from rmq_offline.verify.consumequeue import QueueCheck, QueueFile, QueueName
from rmq_offline.verify.findings import FindingList, Severity
from rmq_offline.verify.log_facts import LogFacts
from rmq_offline.verify.phases.queue_directories import QueuesByPartition, list_queues
from rmq_offline.verify.phases.stored_files import StoredFiles
from rmq_offline.verify.queue_state import QueueState, build_state_from_log, find_record_gaps
from rmq_offline.verify.units import read_units

Queue = tuple[str, int]
_ADDRESS_ZERO: Final = int(np.iinfo(np.int64).min)  # address of offset 0 in ConsumeQueueExt
_NOWHERE: Final = -1
_RECORD_KINDS: Final = (
    finding_kinds.QUEUE_OFFSET_REPEATED, finding_kinds.QUEUE_OFFSET_DISPLACED, finding_kinds.QUEUE_PASSED_OVER,
)  # fmt: skip

# Of ext files with such a finding none is kept.
_EXT_DAMAGE: Final = frozenset({
    finding_kinds.EXT_FORMAT, finding_kinds.EXT_FILE_SIZE, finding_kinds.EXT_UNREADABLE, finding_kinds.EXT_FOREIGN,
})  # fmt: skip


def list_existing_queues(store: StoreFiles, options: RebuildOptions, least: int) -> JobSteps[QueuesByPartition | None]:
    """List the queues that have files in a store, in steps that yield their tasks; None if the log alone decides."""
    if not options.consumequeue or options.from_log_alone:
        return None
    if options.queue_database and store.layouts.queue_database is not None:
        return None
    if not store.storage.entries(paths.consumequeue_dir(store.root)):
        return None
    queues = yield from list_queues(store, FindingList())
    return queues.by_partition(least)


def write_existing_queues(area: Area, files: StoreFiles, store: str, queues: QueuesByPartition | None) -> None:
    """Write the queues of each partition for the partition's task, with the offsets that groups have committed."""
    if queues is None:
        return
    topics = stored_topics(files)
    consumed_queues: list[list[Queue]] = [[] for _ in range(len(queues))]
    for topic, queue_id in _list_consumed_queues(files):
        consumed_queues[spill.queue_partition(topic, queue_id, len(queues))].append((topic, queue_id))
    for partition in range(len(queues)):
        note = {
            "store": store, "queues": queues.of(partition), "claimed": consumed_queues[partition],
            "known_topics": None if topics is None else sorted(topics),
        }  # fmt: skip
        write_text(area, _note_name(partition), json.dumps(note))


def _note_name(partition: int) -> str:
    return f"spill/standing-{partition:06d}.json"


def _list_consumed_queues(store: StoreFiles) -> Iterator[Queue]:
    texts = read_config_texts(store.storage, paths.config_dir(store.root), FindingList())
    for name in (committed_offsets.CONSUMER_OFFSETS, committed_offsets.LIGHT_CONSUMER_OFFSETS):
        for committed in committed_offsets.parse_consumer_offsets(texts.get(name, "{}")):
            if committed.queue_offset > 0:
                yield committed.topic, committed.queue_id


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """Queue file that is carried over: the queue's directory below the root, the file's position, its used bytes."""

    tree: str
    start_offset: int
    image: memoryview


@dataclass(frozen=True, slots=True)
class RetainedQueue:
    """Queue as merged from its files and its records.

    Attributes:
        files: files that are carried over unchanged; None for a queue that is written from ``state``.
        state: expected units; None for a queue that should have no files.
        findings: about the queue's records.
        ext_files: ConsumeQueueExt files that the tags codes of ``state`` point to; None if new ones are written.
    """

    files: Sequence[CarriedFile] | None
    state: QueueState | None
    findings: FindingList
    ext_files: Sequence[CarriedFile] | None = None


class ExistingQueues:
    """Queues of one partition that have files in the store."""

    def __init__(self, area: Area, partition: int, options: RebuildOptions, facts: LogFacts) -> None:
        note: dict[str, Any] = json.loads(area.read_text(_note_name(partition)))
        self.store = open_store(note["store"])
        known_topics = note["known_topics"]
        self.known_topics = None if known_topics is None else frozenset(known_topics)
        self.sizes, self.facts = options.sizes, facts
        live = options.live_topics
        self.queues: list[Queue] = [
            (topic, queue_id)
            for topic, queue_id in note["queues"]
            if options.rebuilds(topic, queue_id)
            and (live is None or topic in live or topic.startswith(LIGHT_QUEUE_PREFIX))
        ]
        self._consumed_queues = options.written_queues | {(topic, queue_id) for topic, queue_id in note["claimed"]}
        self._absent = AbsentQueues(self.store, self.known_topics)

    @staticmethod
    def exist(area: Area, partition: int) -> bool:
        """Return whether this rebuild uses the store's queue files."""
        return area.exists(_note_name(partition))

    def merge(self, queue: Queue, rows: Rows) -> RetainedQueue | None:
        """Merge a queue's files with its records, int64[n, ROW_COLUMNS] in log order; None if the log decides."""
        name, findings = QueueName(*queue), FindingList()
        stored, file_bytes = StoredFiles(self.store, self.sizes, findings), self.sizes.consumequeue_file_bytes
        files = self._queue_files(stored, name, paths.consumequeue_dir(self.store.root), file_bytes)
        if not files:
            return self._merge_without_files(queue, rows)
        files = [replace(file, read=functools.cache(file.read)) for file in files]  # to be compared and carried over
        ext = stored.ext(name)
        is_known, log_file_bytes = not is_deleted(name.topic, self.known_topics), self.sizes.commitlog_file_bytes
        check = QueueCheck(
            name, rows, self.facts, findings, findings, ext, is_known=is_known, log_file_bytes=log_file_bytes
        )
        check.check(files, file_bytes)
        record_findings = FindingList()
        is_sound = True
        for finding in findings.kept:
            if finding.kind in _RECORD_KINDS:
                record_findings.add(finding)
            elif finding.kind is not finding_kinds.QUEUE_OFFSET_GAP and finding.kind.severity is not Severity.INFO:
                is_sound = False
        # Units of lost messages explain their gaps to a verification; here such units become pre-blanks.
        for begin, end, *_ in find_record_gaps(check.state).tolist():
            detail = f"no record has the queue offsets {begin} to {end - 1}"
            record_findings.add(
                name.finding(finding_kinds.QUEUE_OFFSET_GAP, detail, queue_offset=begin, count=end - begin)
            )
        for kind in _RECORD_KINDS:
            record_findings.add_uncounted(kind, findings.counts.get(kind, 0) - record_findings.counts.get(kind, 0))
        if is_sound:
            carried = list(self._read_files(name, "consumequeue", files, check.state.end * UNIT_BYTES))
            if ext is not None:
                carried += self._read_ext_files(name, stored)
            return RetainedQueue(carried, check.state, record_findings)
        state, ext_files = check.state, None
        if ext is not None and _EXT_DAMAGE.isdisjoint(findings.counts):
            state, ext_files = self._with_existing_ext(name, stored, files, state, ext.units)
        return RetainedQueue(None, state, record_findings, ext_files)

    def _with_existing_ext(
        self, name: QueueName, stored: StoredFiles, files: Sequence[QueueFile], state: QueueState, ext_units: Rows
    ) -> tuple[QueueState, Sequence[CarriedFile] | None]:
        """Carry the queue's ext files over, with the addresses in its units, if each address leads to an ext unit."""
        file_bytes = self.sizes.consumequeue_file_bytes
        units = [
            read_units(file.start_offset // UNIT_BYTES, file_bytes // UNIT_BYTES, file.read())
            for file in files
            if not file.start_offset % file_bytes
        ]
        rows_and_values = assign_ext_addresses(state.rows, np.concatenate([state.rows[:0], *units]), ext_units)
        if rows_and_values is None:
            return state, None
        rows, values = rows_and_values
        ext_files = self._read_ext_files(name, stored)
        for file in ext_files:
            set_values(file.start_offset, file.image, values)
        return replace(state, rows=rows), ext_files

    def merge_batches(self, queue: Queue, units: NDArray[np.void]) -> RetainedQueue | None:
        """Carry a batch queue over if it has the units of its records, BATCH_UNIT_DTYPE[n]; None to make it anew."""
        name, findings = QueueName(*queue), FindingList()
        stored, file_bytes = StoredFiles(self.store, self.sizes, findings), self.sizes.batchconsumequeue_file_bytes
        files = self._queue_files(stored, name, paths.batch_consumequeue_dir(self.store.root), file_bytes)
        if not files:
            return None if len(units) else RetainedQueue(None, None, findings)
        is_known = not is_deleted(name.topic, self.known_topics)
        check = BatchQueueCheck(name, units, self.facts, findings, findings, is_known=is_known)
        check.check(files, file_bytes)
        if any(finding.kind.severity is not Severity.INFO for finding in findings.kept):
            return None
        return RetainedQueue(list(self._read_files(name, "batchconsumequeue", files)), None, FindingList())

    def _queue_files(self, stored: StoredFiles, name: QueueName, tree: str, file_bytes: int) -> list[QueueFile] | None:
        directory = paths.queue_dir(tree, name.topic, name.queue_id)
        return stored.files(name, directory, finding_kinds.QUEUE_UNREADABLE, finding_kinds.QUEUE_FOREIGN, file_bytes)

    @functools.cached_property
    def _dispatched_end(self) -> int:
        """Physical offset up to which a broker has dispatched the log; it dispatches the rest when it starts."""
        return dispatched_end(self.store, self.store.segments)

    def _merge_without_files(self, queue: Queue, rows: Rows) -> RetainedQueue | None:
        if not len(rows):
            return RetainedQueue(None, None, FindingList())
        kind = self._absent.classify(queue[0], rows, has_consumer_offset=queue in self._consumed_queues)
        if kind is finding_kinds.QUEUE_MISSING:
            return None
        findings = FindingList()
        undispatched = rows[rows[:, unit_kernel.PHYSICAL_OFFSET] >= self._dispatched_end]
        if kind is finding_kinds.QUEUE_ABSENT and len(undispatched):
            return RetainedQueue(None, build_state_from_log(undispatched, self.facts), findings)
        if kind.severity is not Severity.INFO:
            findings.add(QueueName(*queue).finding(kind, f"{len(rows)} messages of the log, left out", count=len(rows)))
        return RetainedQueue(None, None, findings)

    def _read_files(
        self, name: QueueName, tree: str, files: Sequence[QueueFile], end_bytes: int = MAX_LONG
    ) -> Iterator[CarriedFile]:
        """Read files up to the queue's end: a broker may have written after that end in the meantime."""
        for file in files:
            image = file.read().data[: max(0, end_bytes - file.start_offset)]
            yield CarriedFile(paths.queue_dir(tree, name.topic, name.queue_id), file.start_offset, image)

    def _read_ext_files(self, name: QueueName, stored: StoredFiles) -> list[CarriedFile]:
        directory = paths.queue_dir(paths.consumequeue_ext_dir(self.store.root), name.topic, name.queue_id)
        size = self.sizes.consumequeue_ext_file_bytes
        files = stored.files(name, directory, finding_kinds.EXT_UNREADABLE, finding_kinds.EXT_FOREIGN, size) or []
        return list(self._read_files(name, "consumequeue_ext", files))


def assign_ext_addresses(rows: Rows, units: Rows, ext_units: Rows) -> tuple[Rows, Rows] | None:
    """Set the tags codes of a queue's rows to the addresses of its existing ext units.

    Args:
        rows: int64[n, ROW_COLUMNS], expected rows of the queue, ascending by QUEUE_OFFSET.
        units: int64[m, ROW_COLUMNS], units of the queue's files, with addresses as tags codes.
        ext_units: int64[k, 3], offset in the ext files, tags code and store timestamp of each ext unit, by offset.

    Returns:
        The rows with addresses where ext units are theirs, and those of the ext units whose values are to be set:
        offset, tags code and store timestamp, int64[j, 3]. None where an address has lost its ext unit.
    """
    if not len(units):
        return None
    if not len(ext_units):  # ext files were switched on later, if no unit has an address
        return None if (units[:, unit_kernel.TAGS_CODE] <= EXT_MAX_ADDRESS).any() else (rows, ext_units)
    at = np.searchsorted(units[:, unit_kernel.QUEUE_OFFSET], rows[:, unit_kernel.QUEUE_OFFSET])
    at = np.minimum(at, len(units) - 1)
    columns = [unit_kernel.QUEUE_OFFSET, unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE]
    stands = (units[at][:, columns] == rows[:, columns]).all(axis=1)
    tags_codes = units[at, unit_kernel.TAGS_CODE]
    values_of_rows = rows[:, [unit_kernel.TAGS_CODE, unit_kernel.STORE_TIMESTAMP]]
    is_address = stands & (tags_codes <= EXT_MAX_ADDRESS)
    numbers = np.where(is_address, _find(ext_units, tags_codes - _ADDRESS_ZERO), _NOWHERE)
    named = np.sort(numbers[numbers != _NOWHERE])
    repeated = named[1:][np.diff(named) == 0]
    numbers[np.isin(numbers, repeated)] = _NOWHERE
    is_plain = stands & ~is_address & (tags_codes == values_of_rows[:, 0])
    _name_free_units(numbers, ~is_plain & (numbers == _NOWHERE), values_of_rows, ext_units)
    if (is_address & (numbers == _NOWHERE)).any():
        return None
    new_rows = rows.copy()
    has_ext = numbers != _NOWHERE
    new_rows[has_ext, unit_kernel.TAGS_CODE] = ext_units[numbers[has_ext], 0] + _ADDRESS_ZERO
    changed = np.flatnonzero(has_ext)
    changed = changed[(ext_units[numbers[changed], 1:] != values_of_rows[changed]).any(axis=1)]
    values = np.column_stack([ext_units[numbers[changed], 0], values_of_rows[changed]])
    return new_rows, np.ascontiguousarray(values[np.argsort(values[:, 0], kind="stable")])


def _find(ext_units: Rows, offsets: Rows) -> Rows:
    at = np.minimum(np.searchsorted(ext_units[:, 0], offsets), len(ext_units) - 1)
    return np.where(ext_units[at, 0] == offsets, at, _NOWHERE)


def _name_free_units(numbers: Rows, wants: NDArray[np.bool_], values_of_rows: Rows, ext_units: Rows) -> None:
    """Assign free ext units with the same values to rows without an ext unit, in the order of the files."""
    free = np.setdiff1d(np.arange(len(ext_units)), numbers)
    by_values: dict[tuple[int, int], list[int]] = {}
    for number in reversed(free.tolist()):
        by_values.setdefault((int(ext_units[number, 1]), int(ext_units[number, 2])), []).append(number)
    for row in np.flatnonzero(wants).tolist() if by_values else ():
        candidates = by_values.get((int(values_of_rows[row, 0]), int(values_of_rows[row, 1])))
        if candidates:
            numbers[row] = candidates.pop()


def set_values(start: int, image: memoryview, values: Rows) -> None:
    """Set tags codes and store timestamps, as of ``assign_ext_addresses``, in the image of a ConsumeQueueExt file.

    The file begins at ``start`` of the queue.
    """
    low, high = np.searchsorted(values[:, 0], [start, start + len(image)]).tolist()
    for offset, tags_code, store_timestamp_ms in values[low:high].tolist():
        size, _, _, bit_map_bytes = UNIT.unpack_from(image, offset - start)
        UNIT.pack_into(image, offset - start, size, tags_code, store_timestamp_ms, bit_map_bytes)
