"""Rebuild of ConsumeQueue and Index in two waves of tasks: scan the splits, then write the files.

Wave one reads each split once and spills the fifty bytes of each record that matter. Wave two has a
task for each partition of queues and one for each IndexFile; none needs more than the spills of wave
one. A task writes beside and renames, so it can run twice, or die, and a rebuild that was killed
begins again from what is finished.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_formats import findings, paths, rebuild
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.dispatch import Dispatcher
from rmq_formats.findings import Finding
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.layout import index_file_bytes
from rmq_formats.offline import spill
from rmq_formats.offline.plan import Split, split_frames
from rmq_formats.segment import open_storage, opened

WORK_DIRECTORY: Final = ".rmq-rebuild"  # below the root that is published under
PARTITION_BYTES: Final = 512 << 20  # of log for each task that writes queues
MAX_PARTITIONS: Final = 256
EARLY_PARTITIONS: Final = 16
_EARLY_BYTES: Final = 4 << 20
MAX_REPORTED: Final = 1000  # findings that a report lists; all are counted


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What to rebuild, and the sizes that the broker is configured with.

    Attributes:
        consumequeue: rebuild the queues.
        index: rebuild the Index.
        consumequeue_file_bytes: ``mappedFileSizeConsumeQueue``.
        consumequeue_ext_file_bytes: ``mappedFileSizeConsumeQueueExt``; 0 where the broker has no
            ``enableConsumeQueueExt``.
        index_slots: ``maxHashSlotNum``.
        index_entries: ``maxIndexNum``; a file has one entry less.
        delay_levels_ms: ``messageDelayLevel``.
        live_topics: rebuild only these; None is all.
    """

    consumequeue: bool
    index: bool
    consumequeue_file_bytes: int
    consumequeue_ext_file_bytes: int
    index_slots: int
    index_entries: int
    delay_levels_ms: tuple[int, ...]
    live_topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one split gave.

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

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ScanResult":
        """The reverse of ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        fields["damages"] = tuple(tuple(damage) for damage in fields["damages"])
        return cls(**fields)

    def damage_list(self) -> list[Damage]:
        """The damaged stretches."""
        return [Damage(offset, size, DamageCode(code)) for offset, size, code in self.damages]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one task of the second wave wrote.

    Attributes:
        name: of the task.
        queue_count: queues it wrote.
        file_count: files it wrote.
        unit_count: units in them, without fillers.
        entry_count: Index entries in them.
        findings: faults, the first MAX_REPORTED, as ``Finding.to_dict``.
        finding_counts: all of them, by code.
    """

    name: str
    queue_count: int
    file_count: int
    unit_count: int
    entry_count: int
    findings: tuple[dict[str, Any], ...]
    finding_counts: dict[str, int]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WriteResult":
        """The reverse of ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        fields["findings"] = tuple(fields["findings"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One IndexFile: which keys of the log it holds.

    Attributes:
        number: place in the order of files.
        name: of the file, 17 digits.
        parts: (split number, first key, one past the last) in log order.
        previous_end: (store timestamp in ms, physical offset) of the last key of the file before.
    """

    number: int
    name: str
    parts: tuple[tuple[int, int, int], ...]
    previous_end: tuple[int, int] | None


class Area(Protocol):
    """Where the tasks of a rebuild write: intermediate files, notes of what is done, and ``new/``, the result."""

    def path(self, name: str) -> str:
        """Where a file is, for those who read it."""
        ...

    def exists(self, name: str) -> bool:
        """Whether a file is there: all of it."""
        ...

    def read_text(self, name: str) -> str:
        """A small file's text."""
        ...

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Have a file written, by a function that is told where; a reader sees all of it or none."""
        ...


def partition_count(splits: Sequence[Split]) -> int:
    """How many tasks write the queues of a log of this size: by its bytes, for its queues are not known.

    A small log may have a hundred thousand queues, and a queue costs a file: so there are some tasks early.
    """
    total = sum(split.size_bytes for split in splits)
    return min(MAX_PARTITIONS, max(1 + total // PARTITION_BYTES, min(EARLY_PARTITIONS, 1 + total // _EARLY_BYTES)))


def write_whole(path: Path, work: Path, write: Callable[[Path], None]) -> None:
    """Write a file elsewhere, then rename: a reader sees all of it or none.

    A task that dies leaves its half aside, for a broker does not start where a queue has a foreign file.
    """
    temporary = work / "part" / f"{path.name}.{uuid.uuid4().hex}"
    write(temporary)
    temporary.replace(path)


def scan_split(
    split: Split, options: RebuildOptions, area: Area, partitions: int, *, begin: int | None = None
) -> ScanResult:
    """Task of the first wave: read one split, spill its units and keys.

    Args:
        split: what to read.
        options: of the rebuild.
        area: where it writes.
        partitions: of the queues.
        begin: the file position of the split's first frame, where a search would find another.
    """
    done = f"spill/scan-{split.number:06d}.json"
    if begin is None and area.exists(done):
        return ScanResult.from_json(area.read_text(done))
    dispatcher = Dispatcher(options.delay_levels_ms, split.size_bytes)
    damages: list[Damage] = []
    first, end = -1, -1
    storage, path = open_storage(split.path)
    with opened(storage, path) as file:
        for batch in split_frames(file, split, begin=begin):
            first = batch.begin_physical_offset if first < 0 else first
            end = batch.next_physical_offset
            damages += batch.all_damages()
            dispatcher.dispatch(batch)
    units, keys = _only_live(*dispatcher.take(), dispatcher, options)
    names = f"{split.number:06d}.arrow"
    if options.consumequeue:
        area.write(f"spill/units-{names}", lambda target: spill.write_units(target, units, dispatcher, partitions))
    if options.index:
        area.write(f"spill/keys-{names}", lambda target: spill.write_keys(target, keys))
    reported = tuple((item.physical_offset, item.size, int(item.code)) for item in damages[:MAX_REPORTED])
    result = ScanResult(
        split.number, first, end, dispatcher.message_count, dispatcher.record_bytes,
        dispatcher.last_physical_offset if options.live_topics is None else -1, len(keys), reported, len(damages),
    )  # fmt: skip
    write_text(area, done, result.to_json())
    return result


def _only_live(
    units: NDArray[np.int64], keys: NDArray[np.int64], dispatcher: Dispatcher, options: RebuildOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if options.live_topics is None:
        return units, keys
    live = np.array([topic in options.live_topics for topic, _ in dispatcher.queue_names()], dtype=bool)
    return units[live[units[:, dispatch_kernel.UNIT_QUEUE]]], keys[live[keys[:, dispatch_kernel.KEY_QUEUE]]]


class Scanned(Protocol):
    """What the scan of a split says of its place in the log."""

    @property
    def begin_physical_offset(self) -> int:
        """The split's first frame."""
        ...

    @property
    def end_physical_offset(self) -> int:
        """Where its walk ended: the first frame of the next split."""
        ...


AnyScan = TypeVar("AnyScan", bound=Scanned)


def mend_seams(
    splits: Sequence[Split], results: Sequence[AnyScan], scan_again: Callable[[Split, int], AnyScan]
) -> list[AnyScan]:
    """See that each split of a file began where the one before it ended; scan again those that did not.

    A record's body may hold a record's bytes with the very offset where they stand, by malice. A split
    that begins inside such a body takes them for a frame; the walk from the file's start does not.
    """
    mended = list(results)
    for number in range(1, len(splits)):
        split, before = splits[number], splits[number - 1]
        end = mended[number - 1].end_physical_offset
        if split.path == before.path and mended[number].begin_physical_offset != end:
            mended[number] = scan_again(split, end - split.file_offset)
    return mended


def _queue_findings(topic: str, queue_id: int, placement: rebuild.Placement) -> Iterator[Finding]:
    for kind, rows in (
        (findings.REPEATED_QUEUE_OFFSET, placement.repeated),
        (findings.DISPLACED_QUEUE_OFFSET, placement.displaced),
    ):
        for row in rows:
            yield Finding(
                kind, "unit left out", None, int(row[unit_kernel.PHYSICAL_OFFSET]), int(row[unit_kernel.SIZE]),
                topic, queue_id, int(row[unit_kernel.QUEUE_OFFSET]),
            )  # fmt: skip
    if placement.gap_units:
        detail = f"{placement.gap_units} places between the first and the last unit have no record"
        yield Finding(findings.QUEUE_GAP, detail, topic=topic, queue_id=queue_id)


def write_queues(partition: int, split_count: int, options: RebuildOptions, area: Area) -> WriteResult:
    """Task of the second wave: write the files of all queues of one partition."""
    done = f"done/queues-{partition:06d}.json"
    if area.exists(done):
        return WriteResult.from_json(area.read_text(done))
    queues: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(area.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows):
                queues.setdefault((topic, queue_id), []).append(rows)
    found: list[Finding] = []
    queue_count = file_count = unit_count = 0
    for (topic, queue_id), parts in sorted(queues.items()):
        if not paths.is_safe_topic(topic) or "\ufffd" in topic:
            first = parts[0][0]
            found.append(
                Finding(findings.UNSAFE_TOPIC, "topic is no directory name", None,
                        int(first[unit_kernel.PHYSICAL_OFFSET]), None, topic, queue_id)
            )  # fmt: skip
            continue
        placement = rebuild.place_units(np.concatenate(parts))
        found += _queue_findings(topic, queue_id, placement)
        if len(placement.rows):
            queue_count += 1
            file_count += _write_queue(topic, queue_id, placement.rows, options, area)
            unit_count += len(placement.rows)
    reported = tuple(finding.to_dict() for finding in found[:MAX_REPORTED])
    counts = Counter(finding.kind.code for finding in found)
    result = WriteResult(f"queues-{partition:06d}", queue_count, file_count, unit_count, 0, reported, dict(counts))
    write_text(area, done, result.to_json())
    return result


def _write_queue(topic: str, queue_id: int, rows: rebuild.Rows, options: RebuildOptions, area: Area) -> int:
    file_count = 0
    if options.consumequeue_ext_file_bytes:
        rows, ext_images = rebuild.ext_images(rows, options.consumequeue_ext_file_bytes)
        directory = paths.queue_dir(paths.consumequeue_ext_dir("new"), topic, queue_id)
        for number, image in enumerate(ext_images):
            start = number * options.consumequeue_ext_file_bytes
            _write_image(area, directory, start, image, options.consumequeue_ext_file_bytes)
            file_count += 1
    directory = paths.queue_dir(paths.consumequeue_dir("new"), topic, queue_id)
    for start, units in rebuild.consumequeue_images(rows, options.consumequeue_file_bytes):
        _write_image(area, directory, start, units.data, options.consumequeue_file_bytes)
        file_count += 1
    return file_count


def _write_image(area: Area, directory: str, start_offset: int, image: bytes | memoryview, file_bytes: int) -> None:
    """Write a file's used bytes; the rest of it is a hole."""

    def write(target: Path) -> None:
        with target.open("wb", buffering=0) as file:
            file.write(image)
            file.truncate(file_bytes)

    area.write(f"{directory}/{paths.segment_name(start_offset)}", write)


def write_text(area: Area, name: str, text: str) -> None:
    """Write a small file."""

    def write(target: Path) -> None:
        target.write_text(text, encoding="utf-8")

    area.write(name, write)


def index_tasks(
    results: Sequence[ScanResult], options: RebuildOptions, last_keys: Callable[[int, int], tuple[int, int]]
) -> list[IndexTask]:
    """The IndexFiles of a log: each holds the next ``index_entries - 1`` keys in log order.

    The original makes a file when a message comes and the last file is full or there is none, even if
    that message has no key: so the last file may be empty (``IndexService#buildIndex``).

    Args:
        results: of all splits, in log order.
        options: of the rebuild.
        last_keys: gives (store timestamp in ms, physical offset) of a key, by split number and key.
    """
    per_file = options.index_entries - 1
    parts: list[list[tuple[int, int, int]]] = []
    room = 0
    for result in results:
        begin = 0
        while begin < result.key_count:
            if room == 0:
                parts.append([])
                room = per_file
            end = min(result.key_count, begin + room)
            parts[-1].append((result.number, begin, end))
            room -= end - begin
            begin = end
    tasks: list[IndexTask] = []
    name = f"{0:017d}"
    previous_end: tuple[int, int] | None = None
    for number, own in enumerate(parts):
        # The original names a file by its creation; the first record's time is as near and repeatable.
        name = _name_after(name, last_keys(own[0][0], own[0][1])[0])
        tasks.append(IndexTask(number, name, tuple(own), previous_end))
        previous_end = last_keys(own[-1][0], own[-1][2] - 1)
    last_message = max((result.last_physical_offset for result in results), default=-1)
    if room == 0 and last_message > (previous_end[1] if previous_end else -1):
        tasks.append(IndexTask(len(tasks), _name_after(name, 0), (), previous_end))
    return tasks


def _name_after(name: str, time_ms: int) -> str:
    """The name of an IndexFile, or the next one after ``name``: the original reads them in the order of names."""
    return max(index_file_name(time_ms), f"{int(name) + 1:017d}")


def index_file_name(time_ms: int) -> str:
    """``yyyyMMddHHmmssSSS`` in the local time zone, as the original names its IndexFiles."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000).astimezone()
    except (ValueError, OSError, OverflowError):  # a damaged header's time, beyond the calendar
        return f"{0:017d}"
    return f"{moment:%Y%m%d%H%M%S}{time_ms % 1000:03d}"


def spilled_key(area: Area) -> Callable[[int, int], tuple[int, int]]:
    """A look-up of (store timestamp, physical offset) by split number and key, in the spill files."""

    def look_up(number: int, key: int) -> tuple[int, int]:
        path = area.path(f"spill/keys-{number:06d}.arrow")
        for _, physical_offsets, timestamps in spill.read_keys(path, key, key + 1):
            return int(timestamps[0]), int(physical_offsets[0])
        raise AssertionError(f"key {key} of split {number} is not in its file")

    return look_up


def write_index(task: IndexTask, options: RebuildOptions, area: Area) -> WriteResult:
    """Task of the second wave: write one IndexFile."""
    done = f"done/index-{task.number:06d}.json"
    if area.exists(done):
        return WriteResult.from_json(area.read_text(done))
    builder = rebuild.IndexBuilder(options.index_slots, task.previous_end)

    def write(target: Path) -> None:
        at = rebuild.first_entry_at(options.index_slots)
        with target.open("wb", buffering=0) as file:
            file.truncate(index_file_bytes(options.index_slots, options.index_entries))
            for number, begin, end in task.parts:
                for columns in spill.read_keys(area.path(f"spill/keys-{number:06d}.arrow"), begin, end):
                    entries = builder.append(*columns)
                    file.seek(at)
                    at += file.write(entries.data)
            file.seek(0)
            file.write(builder.head())

    area.write(f"{paths.index_dir('new')}/{task.name}", write)
    entry_count = sum(end - begin for _, begin, end in task.parts)
    result = WriteResult(f"index-{task.number:06d}", 0, 1, 0, entry_count, (), {})
    write_text(area, done, result.to_json())
    return result
