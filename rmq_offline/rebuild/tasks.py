"""Rebuild of ConsumeQueue and Index in two batches of tasks: scan the splits, then write the files.

The first batch scans each split once and spills some fifty bytes of each record. The second has a
task for each partition of queues and one for each IndexFile; none needs more than the spills of
the first. A task writes temporary files and renames them, so it can run twice, or die; a killed rebuild
resumes from the tasks that are done.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.damage import Damage, DamageCode
from rmq_formats.codecs.index import IndexBound, entry_position
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_consumed_by_broker
from rmq_formats.codecs.variants.batch_consumequeue import batch_images
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.scan import derived_images
from rmq_formats.scan.dispatch import Dispatcher
from rmq_formats.scan.light_units import drop_light_units, own_queues
from rmq_formats.scan.splits import Split, split_frames
from rmq_formats.storage.segments import open_storage, opened
from rmq_offline.rebuild import log_facts
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.standing_database import noted_database, opened_witness, place_by_database
from rmq_offline.rebuild.standing_queues import StandingQueue, StandingQueues
from rmq_offline.tasks import batch_queues, spill
from rmq_offline.tasks.waves import MAX_REPORTED, Area, write_text
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of scanning one split.

    Attributes:
        number: of the split.
        begin_physical_offset: its first frame.
        end_physical_offset: where its walk ended: the first frame of the next split.
        message_count: sound records.
        record_bytes: bytes of these records.
        last_physical_offset: of the last sound record that is to be dispatched; -1 if none.
        key_count: keys that they give to the Index.
        damages: (physical offset, size, code) of each damaged stretch, the first MAX_REPORTED.
        damage_count: all of them.
        batch_topics: that have inner batches, and so a BatchConsumeQueue.
        has_end_mark: whether it met the file's end mark.
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

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ScanResult":
        """Decode from ``to_json``."""
        return msgspec.convert(json.loads(text), cls)

    def damage_list(self) -> list[Damage]:
        """Return the damaged ranges."""
        return [Damage(offset, size, DamageCode(code)) for offset, size, code in self.damages]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of one task of the second wave: what it wrote.

    Attributes:
        queue_count: queues it wrote.
        file_count: files it wrote.
        unit_count: units in them, without fillers.
        entry_count: Index entries in them.
        findings: faults, the first MAX_REPORTED, as ``Finding.to_dict``.
        finding_counts: all of them, by code.
    """

    queue_count: int
    file_count: int
    unit_count: int
    entry_count: int
    findings: tuple[dict[str, Any], ...]
    finding_counts: dict[str, int]

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WriteResult":
        """Decode from ``to_json``."""
        return msgspec.convert(json.loads(text), cls)


class KeyRange(NamedTuple):
    """Keys of one split: from ``begin`` up to, not including, ``end``."""

    split: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Task of writing one IndexFile with a range of the log's keys.

    Attributes:
        number: place in the order of files.
        name: of the file, 17 digits.
        parts: the keys, in log order.
        previous_end: the last message of the file before.
    """

    number: int
    name: str
    parts: tuple[KeyRange, ...]
    previous_end: IndexBound | None


def scan_split(
    split: Split, options: RebuildOptions, area: Area, partitions: int, *, begin: int | None = None
) -> ScanResult:
    """Task of the first wave: scan one split, spill its units and keys.

    Args:
        split: the split.
        options: of the rebuild.
        area: work area that takes the spills.
        partitions: of the queues.
        begin: the file position of the split's first frame, where a search would find another.
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
    with opened(storage, path) as file:
        for batch in split_frames(file, split, begin=begin):
            first = batch.begin_physical_offset if first < 0 else first
            end = batch.next_physical_offset
            damages += batch.all_damages()
            has_end_mark |= batch.blank_at is not None
            dispatcher.dispatch(batch)
    units, keys = _only_live(*dispatcher.drain(), dispatcher, options)
    names, file_name = dispatcher.queue_names(), f"{split.number:06d}.arrow"
    units = drop_light_units(units, names, options.batch_topics)
    if options.consumequeue:
        area.write(f"spill/units-{file_name}", lambda target: spill.write_units(target, units, names, partitions))
        batch_queues.spill_batches(area, split.number, dispatcher.inner_batches())
        log_facts.spill_damages(area, split.number, damages)
    if options.index:
        area.write(f"spill/keys-{file_name}", lambda target: spill.write_keys(target, keys))
    reported = tuple((item.physical_offset, item.size, int(item.code)) for item in damages[:MAX_REPORTED])
    result = ScanResult(
        split.number, first, end, dispatcher.message_count, dispatcher.record_bytes,
        dispatcher.last_physical_offset if options.live_topics is None else -1, len(keys), reported, len(damages),
        dispatcher.marked_topics(dispatch_kernel.MARK_BATCH), has_end_mark,
    )  # fmt: skip
    write_text(area, done, result.to_json())
    return result


def _only_live(
    units: NDArray[np.int64], keys: NDArray[np.int64], dispatcher: Dispatcher, options: RebuildOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if options.live_topics is None:
        return units, keys
    live = np.array([topic in options.live_topics for topic, _ in dispatcher.queue_names()], dtype=bool)
    # No list of topics has light queues: units of one that does not stand live as the record's own does.
    is_live = live[own_queues(units)] | live[units[:, dispatch_kernel.UNIT_QUEUE]]
    return units[is_live], keys[live[keys[:, dispatch_kernel.KEY_QUEUE]]]


def _queue_findings(topic: str, queue_id: int, placement: derived_images.Placement) -> Iterator[Finding]:
    for kind, rows in (
        (finding_kinds.QUEUE_OFFSET_REPEATED, placement.repeated),
        (finding_kinds.QUEUE_OFFSET_DISPLACED, placement.displaced),
    ):
        for row in rows:
            yield Finding(
                kind, "unit left out", None, int(row[unit_kernel.PHYSICAL_OFFSET]), int(row[unit_kernel.SIZE]),
                topic, queue_id, int(row[unit_kernel.QUEUE_OFFSET]),
            )  # fmt: skip
    if placement.gap_units:
        detail = f"{placement.gap_units} queue offsets between the first and the last have no record"
        yield Finding(finding_kinds.QUEUE_OFFSET_GAP, detail, topic=topic, queue_id=queue_id)


_NO_ROWS: Final = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)
Place: TypeAlias = Callable[[derived_images.Rows], derived_images.Placement]


def write_queues(
    partition: int, split_count: int, options: RebuildOptions, area: Area, place: Place | None = None
) -> WriteResult:
    """Write the files of all queues of one partition; a task of the second wave.

    Args:
        partition: which.
        split_count: of the first wave.
        options: of the rebuild.
        area: work area of the spills and of the files.
        place: gives the rows of a queue their places; None places them as a broker does that dispatches the log.
    """
    done = f"done/queues-{partition:06d}.json"
    if area.exists(done):
        return WriteResult.from_json(area.read_text(done))
    queues: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(area.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows) and options.rebuilds(topic, queue_id):
                queues.setdefault((topic, queue_id), []).append(rows)
    inner_batches = functools.cache(lambda: batch_queues.read_batches(area, split_count))
    standing: StandingQueues | None = None
    placements: dict[tuple[str, int], derived_images.Placement] = {}
    if place is None:
        facts = log_facts.read_log_facts(area)
        place = functools.partial(derived_images.place_units, lost=facts.lost_ranges)
        if StandingQueues.exist(area, partition):
            standing = StandingQueues(area, partition, options, facts)
            for queue in standing.queues:
                queues.setdefault(queue, [])
        if options.queue_database:
            with opened_witness(noted_database(area)) as database:
                for name, parts in queues.items():
                    placements[name] = place_by_database(database, *name, np.concatenate([_NO_ROWS, *parts]), facts)
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    files: dict[str, int] = {}
    queue_count = unit_count = 0
    for (topic, queue_id), parts in sorted(queues.items()):
        rows = np.concatenate([_NO_ROWS, *parts])
        if not paths.is_safe_topic(topic) or "\ufffd" in topic:
            findings.append(
                Finding(finding_kinds.LOG_TOPIC, "topic is no directory name", None,
                        int(rows[0, unit_kernel.PHYSICAL_OFFSET]), None, topic, queue_id)
            )  # fmt: skip
            counts[finding_kinds.LOG_TOPIC.code] += 1
            continue
        if topic in options.batch_topics:
            units = batch_queues.units_of(rows, inner_batches() if len(rows) else rows)
            carried = None if standing is None else standing.merge_batches((topic, queue_id), units)
            if carried is None:
                written = _write_batch_queue(topic, queue_id, units, options, area)
            else:
                written = _write_merged_queue(topic, queue_id, carried, options, area)
            queue_count += bool(written)
            files |= written
            unit_count += len(units)
            continue
        merged = None if standing is None else standing.merge((topic, queue_id), rows)
        if merged is not None:
            written = _write_merged_queue(topic, queue_id, merged, options, area)
            queue_count += bool(written)
            files |= written
            unit_count += 0 if merged.state is None else len(merged.state.rows)
            findings += merged.findings.kept
            counts.update({kind.code: count for kind, count in merged.findings.counts.items()})
            continue
        placement = placements.pop((topic, queue_id), None)
        if placement is None:
            is_cut = options.live_topics is not None and topic.startswith(LIGHT_QUEUE_PREFIX)  # of units left out
            placement = derived_images.place_by_offset(rows) if is_cut else place(rows)
        queue_findings = list(_queue_findings(topic, queue_id, placement))
        findings += queue_findings
        counts.update(finding.kind.code for finding in queue_findings)
        if len(placement.rows):
            queue_count += 1
            files |= _write_queue(topic, queue_id, placement.rows, options, area)
            unit_count += len(placement.rows)
    reported = tuple(finding.to_dict() for finding in findings[:MAX_REPORTED])
    result = WriteResult(queue_count, len(files), unit_count, 0, reported, dict(counts))
    area.note_files(f"queues-{partition:06d}", files)
    write_text(area, done, result.to_json())
    return result


Files = dict[str, int]  # sizes in bytes, by names in the store


def _write_merged_queue(
    topic: str, queue_id: int, merged: StandingQueue, options: RebuildOptions, area: Area
) -> Files:  # fmt: skip
    """Carry a queue over, or write the merge of its files and its records."""
    sizes, files = options.sizes, Files()
    sizes_of = {
        "consumequeue": sizes.consumequeue_file_bytes, "consumequeue_ext": sizes.consumequeue_ext_file_bytes,
        "batchconsumequeue": sizes.batchconsumequeue_file_bytes,
    }  # fmt: skip
    for file in (*(merged.files or ()), *(merged.ext_files or ())):
        files |= _write_image(area, file.tree, file.start_offset, file.image, sizes_of[file.tree.split("/")[0]])
    if merged.files is not None or merged.state is None:
        return files
    state, lost = merged.state, merged.state.lost
    if not is_consumed_by_broker(topic):  # clients pass over pre-blanks; only the last unit must be none
        lost = lost[lost[:, unit_kernel.QUEUE_OFFSET] == state.end - 1]
    keeps_ext = merged.ext_files is not None
    return files | _write_queue(topic, queue_id, state.rows, options, area, lost, end=state.end, keeps_ext=keeps_ext)


def _write_queue(
    topic: str,
    queue_id: int,
    rows: derived_images.Rows,
    options: RebuildOptions,
    area: Area,
    lost: derived_images.Rows = _NO_ROWS,
    *,
    end: int = 0,
    keeps_ext: bool = False,
) -> Files:
    files: Files = {}
    if options.sizes.consumequeue_ext_file_bytes and not keeps_ext:
        rows, ext_images = derived_images.ext_images(rows, options.sizes.consumequeue_ext_file_bytes)
        directory = paths.queue_dir("consumequeue_ext", topic, queue_id)
        for number, image in enumerate(ext_images):
            start = number * options.sizes.consumequeue_ext_file_bytes
            files |= _write_image(area, directory, start, image, options.sizes.consumequeue_ext_file_bytes)
    if len(lost):
        rows = np.concatenate([rows, lost])
        rows = np.ascontiguousarray(rows[np.argsort(rows[:, unit_kernel.QUEUE_OFFSET])])
    directory = paths.queue_dir("consumequeue", topic, queue_id)
    for start, units in derived_images.consumequeue_images(rows, options.sizes.consumequeue_file_bytes, end):
        files |= _write_image(area, directory, start, units.data, options.sizes.consumequeue_file_bytes)
    return files


def _write_batch_queue(
    topic: str, queue_id: int, units: NDArray[np.void], options: RebuildOptions, area: Area
) -> Files:  # fmt: skip
    file_bytes, files = options.sizes.batchconsumequeue_file_bytes, Files()
    directory = paths.queue_dir("batchconsumequeue", topic, queue_id)
    for start, image in batch_images(units, file_bytes):
        files |= _write_image(area, directory, start, image, file_bytes)
    return files


def _write_image(area: Area, directory: str, start_offset: int, image: bytes | memoryview, file_bytes: int) -> Files:
    """Write a file's used bytes; the rest of it stays a hole."""

    def write(target: Path) -> None:
        with target.open("wb", buffering=0) as file:
            file.write(image)
            file.truncate(file_bytes)

    name = f"{directory}/{paths.segment_name(start_offset)}"
    area.write(f"new/{name}", write)
    return {name: file_bytes}


def index_tasks(
    results: Sequence[ScanResult], options: RebuildOptions, last_keys: Callable[[int, int], IndexBound]
) -> list[IndexTask]:
    """Plan the IndexFiles of a log, each with the next ``index_entries - 1`` keys in log order.

    RocketMQ creates a file when a message comes and the last file is full or there is none, even if
    that message has no key: so the last file may be empty (``IndexService#buildIndex``).

    Args:
        results: of all splits, in log order.
        options: of the rebuild.
        last_keys: gives (store timestamp in ms, physical offset) of a key, by split number and key.
    """
    per_file = options.sizes.index_entries - 1
    parts: list[list[KeyRange]] = []
    room = 0
    for result in results:
        begin = 0
        while begin < result.key_count:
            if room == 0:
                parts.append([])
                room = per_file
            end = min(result.key_count, begin + room)
            parts[-1].append(KeyRange(result.number, begin, end))
            room -= end - begin
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
    if room == 0 and last_message > (previous_end.physical_offset if previous_end else -1):
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
    """Task of the second wave: write one IndexFile."""
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
