"""Rebuild of ConsumeQueue and Index in two batches of tasks: scan the splits, then write the files.

The first batch scans each split once and spills some fifty bytes of each record. The second has a
task for each partition of queues and one for each IndexFile; none needs more than the spills of
the first. A task writes temporary files and renames them, so it can run twice, or die; a killed rebuild
resumes from the tasks that are done.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.index import IndexBound, entry_position
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.scan import derived_images
from rmq_formats.scan.derived_images import Rows
from rmq_formats.scan.dispatch import Dispatcher, drop_light_units, own_queues
from rmq_formats.scan.splits import Split, split_frames
from rmq_formats.storage.segments import open_storage
from rmq_offline.rebuild import log_facts
from rmq_offline.rebuild.existing_queues import Queue
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.queue_sources import NO_ROWS, Files, PlaceRecords, queue_sources, write_queue
from rmq_offline.tasks import spill
from rmq_offline.tasks.log_tasks import MAX_REPORTED
from rmq_offline.tasks.work_files import Area, write_text
from rmq_offline.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task, saved as one line of JSON for the run after a kill."""

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode from ``to_json``."""
        return msgspec.convert(json.loads(text), cls)


@dataclass(frozen=True, slots=True)
class ScanResult(TaskResult):
    """Result of scanning one split.

    Attributes:
        begin_physical_offset: offset of the first frame.
        end_physical_offset: offset at which the walk ended: the first frame of the next split; -1 for an empty split.
        record_bytes: size of the sound records together.
        last_physical_offset: offset of the last sound record that is to be dispatched; -1 if none.
        damages: (physical offset, size, code) of the first MAX_REPORTED damaged ranges; ``damage_count`` has all.
        batch_topics: topics with inner batches, and so with a BatchConsumeQueue.
        has_end_mark: whether the split contains the file's end mark.
    """

    number: int
    begin_physical_offset: int
    end_physical_offset: int
    message_count: int
    record_bytes: int
    last_physical_offset: int
    key_count: int
    damages: tuple[tuple[int, int, int], ...]
    damage_count: int
    batch_topics: tuple[str, ...] = ()
    has_end_mark: bool = False

    def damage_list(self) -> list[Damage]:
        """Return the damaged ranges."""
        return [Damage(offset, size, DamageCode(code)) for offset, size, code in self.damages]


@dataclass(frozen=True, slots=True)
class WriteResult(TaskResult):
    """Result of a task of the second batch: counts of the written files.

    Attributes:
        unit_count: number of units, without pre-blanks.
        findings: the first MAX_REPORTED, as ``Finding.to_dict``; ``finding_counts`` has all.
    """

    queue_count: int
    file_count: int
    unit_count: int
    entry_count: int
    findings: tuple[dict[str, Any], ...]
    finding_counts: dict[str, int]


class KeyRange(NamedTuple):
    """Keys of one split: from ``begin`` up to, not including, ``end``."""

    split: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Task of writing one IndexFile with a range of the log's keys.

    Attributes:
        name: file name of 17 digits.
        parts: ranges of keys, in log order.
        previous_end: the last message of the file before this one.
    """

    number: int
    name: str
    parts: tuple[KeyRange, ...]
    previous_end: IndexBound | None


def scan_split(
    split: Split, options: RebuildOptions, area: Area, partitions: int, *, begin: int | None = None
) -> ScanResult:
    """Scan one split, and spill its units and keys; a task of the first batch.

    Args:
        begin: file position of the split's first frame; None searches the first frame.
    """
    done = f"spill/scan-{split.number:06d}.json"
    if begin is None and area.exists(done):
        return ScanResult.from_json(area.read_text(done))
    dispatcher = Dispatcher(
        options.sizes.delay_levels_ms, split.size_bytes, tags_from=options.sizes.tags_from, to_light_queues=True
    )
    damages: list[Damage] = []
    first, end, has_end_mark = -1, -1, False
    storage, path = open_storage(split.path)
    with storage.open(path) as file:
        for batch in split_frames(file, split, begin=begin):
            first = batch.begin_physical_offset if first < 0 else first
            end = batch.next_physical_offset
            damages += batch.all_damages()
            has_end_mark |= batch.blank_at is not None
            dispatcher.dispatch(batch)
    units, keys = _select_live_topics(*dispatcher.drain(), dispatcher, options)
    names, file_name = dispatcher.queue_names(), f"{split.number:06d}.arrow"
    units = drop_light_units(units, names, options.batch_topics)
    if options.consumequeue:
        area.write(f"spill/units-{file_name}", lambda target: spill.write_units(target, units, names, partitions))
        spill.spill_batches(area, split.number, dispatcher.inner_batches())
        log_facts.spill_damages(area, split.number, damages)
    if options.index:
        area.write(f"spill/keys-{file_name}", lambda target: spill.write_keys(target, keys))
    reported = tuple((item.physical_offset, item.size, int(item.code)) for item in damages[:MAX_REPORTED])
    result = ScanResult(
        split.number,
        first,
        end,
        dispatcher.message_count,
        dispatcher.record_bytes,
        dispatcher.last_physical_offset if options.live_topics is None else -1,
        len(keys),
        reported,
        len(damages),
        dispatcher.marked_topics(dispatch_kernel.MARK_BATCH),
        has_end_mark,
    )
    write_text(area, done, result.to_json())
    return result


def _select_live_topics(
    units: NDArray[np.int64], keys: NDArray[np.int64], dispatcher: Dispatcher, options: RebuildOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if options.live_topics is None:
        return units, keys
    live = np.array([topic in options.live_topics for topic, _ in dispatcher.queue_names()], dtype=bool)
    # No list of topics has light queues: units of one that does not stand live as the record's own does.
    is_live = live[own_queues(units)] | live[units[:, dispatch_kernel.UNIT_QUEUE]]
    return units[is_live], keys[live[keys[:, dispatch_kernel.KEY_QUEUE]]]


def write_queues(
    partition: int, split_count: int, options: RebuildOptions, area: Area, place_records: PlaceRecords | None = None
) -> WriteResult:
    """Write the files of all queues of one partition; a task of the second batch.

    Without ``place_records``, which assigns the queue offsets, records are placed as a broker dispatches the log.
    """
    done = f"done/queues-{partition:06d}.json"
    if area.exists(done):
        return WriteResult.from_json(area.read_text(done))
    queues: dict[Queue, list[Rows]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(area.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows) and options.rebuilds(topic, queue_id):
                queues.setdefault((topic, queue_id), []).append(rows)
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    files = Files()
    queue_count = unit_count = 0
    with queue_sources(partition, split_count, options, area, place_records) as (existing_queues, sources):
        for queue in existing_queues:
            queues.setdefault(queue, [])
        for queue, parts in sorted(queues.items()):
            written = write_queue(queue, np.concatenate([NO_ROWS, *parts]), sources)
            queue_count += bool(written.files)
            files |= written.files
            unit_count += written.unit_count
            findings += written.findings
            counts.update(written.counts)
    reported = tuple(finding.to_dict() for finding in findings[:MAX_REPORTED])
    result = WriteResult(queue_count, len(files), unit_count, 0, reported, dict(counts))
    area.note_files(f"queues-{partition:06d}", files)
    write_text(area, done, result.to_json())
    return result


def index_tasks(
    results: Sequence[ScanResult], options: RebuildOptions, last_keys: Callable[[int, int], IndexBound]
) -> list[IndexTask]:
    """Plan the IndexFiles of a log, each with the next ``index_entries - 1`` keys in log order.

    RocketMQ creates a file when a message comes and the last file is full or there is none, even if
    that message has no key: so the last file may be empty (``IndexService#buildIndex``).

    Args:
        last_keys: gives (store timestamp in ms, physical offset) of a key, by split number and key.
    """
    per_file = options.sizes.index_entries - 1
    parts: list[list[KeyRange]] = []
    free_entries = 0
    for result in results:
        begin = 0
        while begin < result.key_count:
            if free_entries == 0:
                parts.append([])
                free_entries = per_file
            end = min(result.key_count, begin + free_entries)
            parts[-1].append(KeyRange(result.number, begin, end))
            free_entries -= end - begin
            begin = end
    tasks: list[IndexTask] = []
    name = f"{0:017d}"
    previous_end: IndexBound | None = None
    for number, key_ranges in enumerate(parts):
        # Brokers name a file by its creation time; the first record's time is as near, and repeatable.
        name = _name_after(name, last_keys(key_ranges[0].split, key_ranges[0].begin).timestamp_ms)
        tasks.append(IndexTask(number, name, tuple(key_ranges), previous_end))
        previous_end = last_keys(key_ranges[-1].split, key_ranges[-1].end - 1)
    last_message = max((result.last_physical_offset for result in results), default=-1)
    if free_entries == 0 and last_message > (previous_end.physical_offset if previous_end else -1):
        tasks.append(IndexTask(len(tasks), _name_after(name, 0), (), previous_end))
    return tasks


def _name_after(name: str, time_ms: int) -> str:
    """Return the name of an IndexFile, or the next one after ``name``: brokers read them in the order of names."""
    return max(index_file_name(time_ms), f"{int(name) + 1:017d}")


def index_file_name(time_ms: int) -> str:
    """Name an IndexFile ``yyyyMMddHHmmssSSS`` in the local time zone, as RocketMQ does."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000).astimezone()
    except (ValueError, OSError, OverflowError):  # the time of a damaged header, beyond the calendar
        return f"{0:017d}"
    return f"{moment:%Y%m%d%H%M%S}{time_ms % 1000:03d}"


def spilled_key(area: Area) -> Callable[[int, int], IndexBound]:
    """Return a look-up of a key's message by split number and key, in the spill files."""

    def look_up(number: int, key: int) -> IndexBound:
        path = area.path(f"spill/keys-{number:06d}.arrow")
        for _, physical_offsets, timestamps in spill.read_keys(path, key, key + 1):
            return IndexBound(int(timestamps[0]), int(physical_offsets[0]))
        raise AssertionError(f"key {key} of split {number} is not in its file")

    return look_up


def write_index(task: IndexTask, options: RebuildOptions, area: Area) -> WriteResult:
    """Write one IndexFile; a task of the second batch."""
    done = f"done/index-{task.number:06d}.json"
    if area.exists(done):
        return WriteResult.from_json(area.read_text(done))
    builder = derived_images.IndexBuilder(options.sizes.index_slots, task.previous_end)

    def write(target: Path) -> None:
        at = entry_position(1, options.sizes.index_slots)
        with target.open("wb", buffering=0) as file:
            file.truncate(options.sizes.index_file_bytes)
            for part in task.parts:
                for columns in spill.read_keys(area.path(f"spill/keys-{part.split:06d}.arrow"), part.begin, part.end):
                    entries = builder.append(*columns)
                    file.seek(at)
                    at += file.write(entries.data)
            file.seek(0)
            file.write(builder.head())

    area.write(f"new/index/{task.name}", write)
    area.note_files(f"index-{task.number:06d}", {f"index/{task.name}": options.sizes.index_file_bytes})
    entry_count = sum(part.end - part.begin for part in task.parts)
    result = WriteResult(0, 1, 0, entry_count, (), {})
    write_text(area, done, result.to_json())
    return result
