"""The rebuild of a whole store: plan, two waves of tasks, publish, report."""

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rmq_formats import config_json, paths
from rmq_formats.errors import OptionError, StoreNotFoundError, StoreSizeError, told_as_store_errors
from rmq_formats.findings import DAMAGED_RECORD, FOREIGN_FILE, MISSING_SEGMENT, WRONG_FILE_SIZE, Finding, damage_finding
from rmq_formats.layout import UNIT_BYTES, index_file_bytes
from rmq_formats.offline import rebuild as tasks
from rmq_formats.offline.area import LocalArea, WorkArea, work_area
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.plan import Split, plan_splits
from rmq_formats.offline.rebuild import IndexTask, RebuildOptions, ScanResult, WriteResult
from rmq_formats.offline.rebuild_report import RebuildReport
from rmq_formats.offline.runner import Runner
from rmq_formats.segment import Segment, Storage, commitlog_segments, list_segments, open_storage

_WRITTEN: Final = "written.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is: bytes of the log scanned, then tasks of the second wave done."""

    phase: str
    done: int
    total: int


class _Clock:
    """Seconds of each phase; the reading of time is kept out of everything else."""

    def __init__(self) -> None:
        self.begin = self._last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = round(now - self._last, 3)
        self._last = now

    def seconds(self) -> float:
        return round(time.perf_counter() - self.begin, 3)


def rebuild_store(
    store: str,
    out: str | None,
    options: RebuildOptions,
    runner: Runner,
    on_progress: Callable[[Progress], None] | None = None,
) -> RebuildReport:
    """Rebuild ConsumeQueue and Index of a store from its CommitLog, and publish them whole.

    Args:
        store: root of the store to read.
        out: root to publish under; None is the store itself, which must not be in use.
        options: what to rebuild, with the broker's file sizes.
        runner: where the tasks run.
        on_progress: told after each task.

    Raises:
        StoreNotFoundError: no such store, or no CommitLog in it.
        StoreLockedError: to be written into a store whose broker runs.
        StoreSizeError: sizes that do not fit the layout, or the store's own files.
        StoreError: the disk is full, or something else is in the way.
    """
    clock = _Clock()
    storage, root = open_storage(store)
    segments = check_rebuild(store, out, options)
    found = [*segment_findings(segments), *foreign_findings(storage, paths.commitlog_dir(root))]
    area = work_area(out if out is not None else store)
    with ExitStack() as stack:
        stack.enter_context(told_as_store_errors(area.target))
        still_alone = stack.enter_context(area.lock(root))
        area.finish_publishing()
        splits = plan_splits(storage, segments, min_splits=runner.parallelism)
        _prepare(area, [storage.version(segment.path) for segment in segments], splits, options)
        clock.mark("plan")
        scans = _scan(splits, options, area, runner, on_progress)
        clock.mark("scan")
        written = _write(scans, splits, options, area, runner, on_progress)
        _note_written(area, written)
        clock.mark("write")
        still_alone()
        area.publish(_directories(options))
        clock.mark("publish")
    return _report(store, area.target, found, scans, written, clock)


def check_rebuild(store: str, out: str | None, options: RebuildOptions) -> list[Segment]:
    """Refuse a rebuild that cannot be run, before anything is started; the CommitLog's files.

    Raises:
        RmqError: as ``rebuild_store`` does.
    """
    check_sizes(options)
    storage, root = open_storage(store)
    segments = commitlog_segments(storage, root)
    area = work_area(out if out is not None else store)
    if area.is_at(root):
        _check_existing_sizes(storage, root, options)
    if isinstance(area, LocalArea) and Path(paths.lock_file(area.target)).exists():
        with store_lock(area.target):
            pass
    return segments


def options_from_arguments(
    what: str,
    consumequeue_file_bytes: int,
    consumequeue_ext_file_bytes: int | None,
    index_slots: int,
    index_entries: int,
    delay_levels_ms: tuple[int, ...],
    store: str,
    live_topics_of: str | None,
) -> RebuildOptions:
    """Options as ``jobs/rebuild.py`` and ``rmq rebuild`` take them.

    Args:
        what: ``all``, ``consumequeue`` or ``index``.
        consumequeue_file_bytes: size of a ConsumeQueue file.
        consumequeue_ext_file_bytes: size of a ConsumeQueueExt file; 0 is none; None is that of the files
            that the store has, so that a store of a broker with ``enableConsumeQueueExt`` keeps it.
        index_slots: slots of an IndexFile.
        index_entries: entries of an IndexFile.
        delay_levels_ms: delay of each level.
        store: the store, to look for ConsumeQueueExt.
        live_topics_of: path of a ``topics.json``; only its topics are rebuilt.

    Raises:
        OptionError: an unknown ``what``, or a ``topics.json`` that cannot be read.
    """
    if what not in {"all", "consumequeue", "index"}:
        raise OptionError(f"--what {what}: give all, consumequeue or index")
    live_topics = None
    if live_topics_of is not None:
        storage, path = open_storage(live_topics_of)
        try:
            live_topics = frozenset(config_json.topic_names(storage.read_bytes(path).decode("utf-8", "replace")))
        except StoreNotFoundError as error:
            raise OptionError(f"--topics-json {live_topics_of}: no such file") from error
    if consumequeue_ext_file_bytes is None:
        consumequeue_ext_file_bytes = _existing_ext_file_bytes(*open_storage(store))
    return RebuildOptions(
        what != "index", what != "consumequeue", consumequeue_file_bytes, consumequeue_ext_file_bytes,
        index_slots, index_entries, delay_levels_ms, live_topics,
    )  # fmt: skip


def check_sizes(options: RebuildOptions) -> None:
    """Refuse sizes that no broker could use.

    Raises:
        StoreSizeError: naming the option.
    """
    if options.consumequeue_file_bytes < UNIT_BYTES or options.consumequeue_file_bytes % UNIT_BYTES:
        raise StoreSizeError(
            f"--consumequeue-file-bytes {options.consumequeue_file_bytes}: must be a multiple of {UNIT_BYTES}"
        )
    if options.consumequeue_ext_file_bytes and options.consumequeue_ext_file_bytes < 2 * UNIT_BYTES:
        raise StoreSizeError(f"--consumequeue-ext-file-bytes {options.consumequeue_ext_file_bytes}: too small")
    if options.index_slots < 1:
        raise StoreSizeError(f"--index-slots {options.index_slots}: must be 1 or more")
    if options.index_entries < 2:
        raise StoreSizeError(f"--index-entries {options.index_entries}: must be 2 or more (entry 0 is never used)")
    if index_file_bytes(options.index_slots, options.index_entries) > 0x7FFFFFFF:
        raise StoreSizeError("--index-slots and --index-entries: an IndexFile above 2 GiB cannot be mapped by Java")


def _queue_files(storage: Storage, directory: str) -> list[Segment]:
    """Files of the first queue that has any: all queues of a broker have one size."""
    for topic in storage.entries(directory):
        for queue in storage.entries(f"{directory}/{topic.name}"):
            found = list_segments(storage, f"{directory}/{topic.name}/{queue.name}")
            if found:
                return found
    return []


def _existing_ext_file_bytes(storage: Storage, root: str) -> int:
    found = _queue_files(storage, paths.consumequeue_ext_dir(root))
    return Counter(segment.size_bytes for segment in found).most_common(1)[0][0] if found else 0


def _check_existing_sizes(storage: Storage, root: str, options: RebuildOptions) -> None:
    """Files of another size than the broker's setting would keep it from starting."""
    queue = _queue_files(storage, paths.consumequeue_dir(root))
    if options.consumequeue and queue:
        size, _ = Counter(segment.size_bytes for segment in queue).most_common(1)[0]
        if size != options.consumequeue_file_bytes and size > 0 and size % UNIT_BYTES == 0:
            raise StoreSizeError(
                f"{queue[0].path}: ConsumeQueue files here have {size} bytes, not "
                f"{options.consumequeue_file_bytes}; give --consumequeue-file-bytes {size}, or --out another directory"
            )
    index_files = [entry for entry in storage.entries(paths.index_dir(root)) if paths.is_index_file_name(entry.name)]
    if options.index and index_files:
        size, _ = Counter(entry.size_bytes for entry in index_files).most_common(1)[0]
        wanted = index_file_bytes(options.index_slots, options.index_entries)
        if size not in {0, wanted}:
            raise StoreSizeError(
                f"{paths.index_dir(root)}: IndexFiles here have {size} bytes, not the {wanted} of --index-slots "
                f"{options.index_slots} and --index-entries {options.index_entries}"
            )


def _boot() -> str:
    """Which run of the machine this is. After a power loss files that were not flushed may be empty."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _prepare(area: WorkArea, versions: list[int], splits: Sequence[Split], options: RebuildOptions) -> None:
    """Make the work directory, or keep the one that a killed run of the same rebuild left."""
    fields = asdict(options)
    fields["live_topics"] = sorted(options.live_topics) if options.live_topics is not None else None
    own = [asdict(split) for split in splits]
    boot = _boot() if isinstance(area, LocalArea) else ""  # an object that is there is there to stay
    plan = json.dumps({"splits": own, "options": fields, "versions": versions, "boot": boot})
    if area.exists("plan.json") and area.read_text("plan.json") == plan:
        return
    area.clear(_directories(options))
    tasks.write_text(area, "plan.json", plan)


def _directories(options: RebuildOptions) -> list[str]:
    names = ["consumequeue"] if options.consumequeue else []
    if options.consumequeue and options.consumequeue_ext_file_bytes:
        names.append("consumequeue_ext")
    return [*names, "index"] if options.index else names


def _scan(
    splits: Sequence[Split],
    options: RebuildOptions,
    area: WorkArea,
    runner: Runner,
    on_progress: Callable[[Progress], None] | None,
) -> list[ScanResult]:
    total = sum(split.size_bytes for split in splits)
    sizes = {split.number: split.size_bytes for split in splits}
    done = 0

    def tell(result: ScanResult) -> None:
        nonlocal done
        done += sizes[result.number]
        if on_progress:
            on_progress(Progress("scan", done, total))

    partitions = tasks.partition_count(splits)
    task = functools.partial(tasks.scan_split, options=options, area=area, partitions=partitions)
    results = runner.map(task, splits, tell)
    return tasks.mend_seams(splits, results, lambda split, begin: task(split, begin=begin))


def _write_task(task: int | IndexTask, split_count: int, options: RebuildOptions, area: WorkArea) -> WriteResult:
    if isinstance(task, IndexTask):
        return tasks.write_index(task, options, area)
    return tasks.write_queues(task, split_count, options, area)


def _write(
    scans: Sequence[ScanResult],
    splits: Sequence[Split],
    options: RebuildOptions,
    area: WorkArea,
    runner: Runner,
    on_progress: Callable[[Progress], None] | None,
) -> list[WriteResult]:
    if area.exists(_WRITTEN):  # an earlier run was killed between its last task and the publication
        return [WriteResult.from_json(line) for line in area.read_text(_WRITTEN).splitlines()]
    waiting: list[int | IndexTask] = []
    if options.index:  # the largest tasks first
        waiting += tasks.index_tasks(scans, options, tasks.spilled_key(area))
    if options.consumequeue:
        waiting += range(tasks.partition_count(splits))
    done = 0

    def tell(_result: WriteResult) -> None:
        nonlocal done
        done += 1
        if on_progress:
            on_progress(Progress("write", done, len(waiting)))

    task = functools.partial(_write_task, split_count=len(splits), options=options, area=area)
    return runner.map(task, waiting, tell)


def _note_written(area: WorkArea, written: Sequence[WriteResult]) -> None:
    """Delete the intermediate files, once a note says that nothing needs them any more."""
    if not area.exists(_WRITTEN):
        tasks.write_text(area, _WRITTEN, "\n".join(result.to_json() for result in written))
    area.drop_spills()


def segment_findings(segments: Sequence[Segment]) -> list[Finding]:
    """Gaps between files, and files of another size than most."""
    sizes = Counter(segment.size_bytes for segment in segments)
    usual = max(sizes, key=lambda size: (sizes[size], size))  # of two files the shorter one was cut
    found = []
    for segment, after in zip(segments, [*segments[1:], None], strict=True):
        if segment.size_bytes != usual:
            detail = f"{segment.size_bytes} bytes, not {usual} as the others"
            found.append(Finding(WRONG_FILE_SIZE, detail, segment.path, segment.start_offset, segment.size_bytes))
        elif after is not None and segment.end_offset != after.start_offset:
            missing = after.start_offset - segment.end_offset
            found.append(Finding(MISSING_SEGMENT, "no file holds this range", None, segment.end_offset, missing))
    return found


def foreign_findings(storage: Storage, directory: str) -> list[Finding]:
    """Files among the CommitLog's that are none of it, which a broker does not start with."""
    return [
        Finding(FOREIGN_FILE, "no name of a CommitLog file", f"{directory}/{entry.name}", size=entry.size_bytes)
        for entry in storage.entries(directory)
        if not entry.is_directory and paths.parse_segment_name(entry.name, entry.size_bytes) is None
    ]


def _report(
    store: str,
    out: str,
    found: list[Finding],
    scans: Sequence[ScanResult],
    written: Sequence[WriteResult],
    clock: _Clock,
) -> RebuildReport:
    counts = Counter(finding.kind.code for finding in found)
    for scan in scans:
        found += [damage_finding(damage) for damage in scan.damage_list()]
        counts[DAMAGED_RECORD.code] += scan.damage_count
    for result in written:
        found += [Finding.from_dict(fields) for fields in result.findings]
        counts.update(result.finding_counts)
    return RebuildReport(
        store,
        out,
        messages=sum(scan.message_count for scan in scans),
        bytes=sum(scan.record_bytes for scan in scans),
        units=sum(result.unit_count for result in written),
        index_entries=sum(result.entry_count for result in written),
        queues=sum(result.queue_count for result in written),
        files=sum(result.file_count for result in written),
        seconds=clock.seconds(),
        phases=clock.phases,
        findings=tuple(found),
        finding_counts={code: count for code, count in sorted(counts.items()) if count},
    )
