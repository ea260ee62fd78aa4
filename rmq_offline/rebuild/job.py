"""Rebuild of ConsumeQueue and Index of a whole store: plan, two waves of tasks, publish, report."""

import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.errors import (
    NotAcceptedError,
    StoreError,
    StoreLayoutError,
    os_errors_as_store_errors,
    without_secrets,
)
from rmq_formats.read.broker_config import lists_all_topics, stored_batch_topics, stored_topics
from rmq_formats.read.log_end import readable_segments
from rmq_formats.scan.splits import Split, frozen_end, plan_splits
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.rocksdb import library
from rmq_formats.storage.segments import Segment, Storage, opened
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild import tasks
from rmq_offline.rebuild.existing_database import (
    existing_database_path,
    open_existing_database,
    with_existing_light_queues,
    write_existing_database_path,
)
from rmq_offline.rebuild.existing_queues import list_existing_queues, write_existing_queues
from rmq_offline.rebuild.log_facts import write_log_facts
from rmq_offline.rebuild.options import RebuildOptions, check_existing_sizes
from rmq_offline.rebuild.publication import NO_TERMS, Outcome, Publication, Terms, lock_if_there
from rmq_offline.rebuild.queue_database import make_queue_database, refuse_open_database
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.rebuild.tasks import IndexTask, ScanResult, WriteResult
from rmq_offline.tasks import split_tasks, work_files
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch, run_alone
from rmq_offline.tasks.origin import LeftoverPolicy, boot_id, foreign_reason, sealed
from rmq_offline.tasks.runner import OnProgress, Runner, counted_progress
from rmq_offline.tasks.segment_ends import find_ends, require_readable_ends
from rmq_offline.tasks.unknown_files import refuse_unknown
from rmq_offline.tasks.work_area import LocalArea, WorkArea, temporary_area, work_area
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding

_WRITTEN: Final = "written.json"


class _Clock:
    """Stopwatch of the phases, in seconds; the only reader of the clock here."""

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
    on_progress: OnProgress | None = None,
    leftover: LeftoverPolicy = LeftoverPolicy.REFUSE,
    terms: Terms = NO_TERMS,
) -> RebuildReport:
    """Rebuild ConsumeQueue and Index of a store from its CommitLog, and publish them whole.

    Args:
        store: root of the store that is read.
        out: root to publish into; None is the store itself, whose broker must be stopped.
        options: what to rebuild, with the broker's file sizes.
        runner: where the tasks run.
        on_progress: called after each task.
        leftover: the operator's word on what an interrupted rebuild has left, if that is not known to be this user's.
        terms: what may be taken from consumers, and where the former files go; or that this is a plan only.

    Raises:
        NotAcceptedError: in place, messages would leave their queues, or an end be lowered, and nobody has accepted it.
        StoreNotFoundError: no such store, or no CommitLog in it.
        StoreLockedError: the store is written into and its broker runs.
        StoreSizeError: sizes that do not fit the layout, or the store's own files.
        StoreLayoutError: a layout that a rebuild would get wrong, or unknown files that it would delete.
        StoreError: the disk is full, or a file is in the way.
    """
    return run_alone(rebuild_steps(store, out, options, runner.parallelism, on_progress, leftover, terms), runner)


def rebuild_steps(
    store: str,
    out: str | None,
    options: RebuildOptions,
    parallelism: int,
    on_progress: OnProgress | None = None,
    leftover: LeftoverPolicy = LeftoverPolicy.REFUSE,
    terms: Terms = NO_TERMS,
) -> JobSteps[RebuildReport]:
    """Rebuild a store in steps that yield their tasks; see ``rebuild_store``.

    Args:
        store: root of the store that is read.
        out: root to publish into; None is the store itself.
        options: what to rebuild.
        parallelism: tasks that the log is cut into at least, if it is large enough.
        on_progress: called after each task.
        leftover: see ``rebuild_store``.
        terms: see ``rebuild_store``.

    Raises:
        RmqError: as ``rebuild_store`` does.
    """
    clock = _Clock()
    files = open_store(store)
    if options.consumequeue:
        database = options.queue_database or files.layouts.rebuilds_as_database
        options = replace(options, batch_topics=files.layouts.batch_topics, queue_database=database)
    faulty = terms.repair.segments if terms.repair is not None and terms.is_plan else None
    segments = check_rebuild(files, out, options) if faulty is None else list(faulty)
    if options.consumequeue:
        options = replace(options, batch_topics=stored_batch_topics(files))
    log_trees = files.log_directories
    foreign = [finding for directory, _ in log_trees for finding in foreign_findings(files.storage, directory)]
    if terms.is_plan:
        options = replace(options, index=False)  # no consumer reads it
    area = temporary_area("rmq-rebuild", terms.work) if terms.is_plan else work_area(out if out is not None else store)
    publication = Publication(files, segments, area, terms, is_in_place=terms.is_plan or area.is_at(files.root))
    with ExitStack() as stack:
        stack.enter_context(os_errors_as_store_errors(area.target))
        check_lease = stack.enter_context(lock_if_there(files.root, terms) if terms.is_plan else area.lock(files.root))
        if terms.is_plan:
            stack.callback(area.remove)
        else:
            yield from publication.finish_interrupted(leftover)
            files = open_store(store)  # which the interrupted rebuild has changed
        stack.enter_context(_removed_if_refused(area))
        ends = require_readable_ends((yield from find_ends(files.storage, segments)))
        splits = plan_splits(files.storage, segments, min_splits=parallelism, ends=ends)
        _prepare(area, segments, splits, options, leftover)
        standing = yield from list_existing_queues(files, options, split_tasks.partition_count(splits))
        partitions = split_tasks.partition_count(splits) if standing is None else len(standing)
        former = existing_database_path(files, options)
        options = with_existing_light_queues(options, () if standing is None else standing.topics, former)
        clock.mark("plan")
        scans = yield from _scan(splits, options, area, partitions, on_progress)
        options = _with_batch_topics(scans, files, options)
        directories = _directories(options)
        if faulty is None:
            refuse_unknown(open_store(files.root if terms.is_plan else area.target), directories)
        findings = check_segments(_with_last_of_now(files.storage, segments)) + foreign
        clock.mark("scan")
        if options.consumequeue and not area.exists(_WRITTEN):
            overwritten = terms.repair.lost if terms.repair is not None and not terms.is_plan else ()
            write_log_facts(area, splits, scans, overwritten)
            write_existing_queues(area, files, store, standing)
            write_existing_database_path(area, former)
        written = yield from _write(scans, len(splits), partitions, options, area, on_progress)
        _note_written(area, written)
        if options.queue_database:
            with open_existing_database(former) as witness:
                make_queue_database(Path(area.path("")), segments, frozen_end(files.storage, segments), witness)
        clock.mark("write")
        check_lease()
        outcome = yield from publication.publish(directories, None if options.queue_database else options.queues)
        clock.mark("publish")
    return _report(
        store, files.root if terms.is_plan else area.target, findings, scans, written, options, clock, outcome
    )


def _with_last_of_now(storage: Storage, segments: Sequence[Segment]) -> list[Segment]:
    """Read the last file's size again: a broker may have been creating the file when the files were listed."""
    with opened(storage, segments[-1].path) as last:
        return [*segments[:-1], replace(segments[-1], size_bytes=last.size_bytes)]


@contextmanager
def _removed_if_refused(area: WorkArea) -> Iterator[None]:
    """Delete the work area if the rebuild is refused; after another error the next rebuild resumes from it."""
    try:
        yield
    except (StoreLayoutError, NotAcceptedError):
        area.remove()
        raise


def _with_batch_topics(scans: Sequence[ScanResult], store: StoreFiles, options: RebuildOptions) -> RebuildOptions:
    """Add the topics whose records belong to batch queues."""
    if not options.consumequeue:
        return options
    batch = frozenset(topic for scan in scans for topic in scan.batch_topics)
    unlisted_topics = batch if not options.batch_topics and stored_topics(store) is None else frozenset()
    if not lists_all_topics(store):
        unlisted_topics |= batch - options.batch_topics
    layout_refusals.refuse(layout_refusals.records_refusal(store.root, (), sorted(unlisted_topics)))
    return replace(options, batch_topics=options.batch_topics | batch)


def check_rebuild(store: StoreFiles, out: str | None, options: RebuildOptions) -> list[Segment]:
    """Refuse a rebuild that cannot be run, before anything is started; return the CommitLog's files.

    Raises:
        RmqError: as ``rebuild_store`` does.
    """
    options.sizes.check()
    _refuse_layouts(store, options)
    segments = readable_segments(store)
    area = work_area(out if out is not None else store.root)
    target = store if area.target == store.root else open_store(area.target)
    if not area.is_at(store.root):
        _refuse_layouts(target, options)
    refuse_unknown(target, _directories(options))
    if area.is_at(store.root):
        store.refuse_compressed_segments()
        check_existing_sizes(store, options)
    if isinstance(area, LocalArea) and Path(paths.lock_file(area.target)).exists():
        with store_lock(area.target):
            pass
    return segments


def _refuse_layouts(store: StoreFiles, options: RebuildOptions) -> None:
    """Refuse a store whose queues a rebuild would get wrong. Raises StoreLayoutError."""
    if options.consumequeue:
        layout_refusals.refuse(layout_refusals.rebuild_refusal(store.layouts))
        if options.queue_database or store.layouts.rebuilds_as_database:
            if not store.storage.is_local:
                raise StoreLayoutError(
                    f"{store.root}: a ConsumeQueue in RocksDB is rebuilt on a disk of this machine only"
                )
            library(store.root)
            refuse_open_database(paths.consumequeue_dir(store.root))


def _prepare(
    area: WorkArea,
    segments: Sequence[Segment],
    splits: Sequence[Split],
    options: RebuildOptions,
    leftover: LeftoverPolicy,
) -> None:
    """Create the work directory, or reuse the directory of a killed run of the same rebuild and user."""
    settings = asdict(options)
    settings["live_topics"] = sorted(options.live_topics) if options.live_topics is not None else None
    settings["batch_topics"] = sorted(options.batch_topics)
    settings["written_queues"] = sorted(options.written_queues)
    settings["queues"] = sorted(options.queues) if options.queues is not None else None
    log = hashlib.sha256()
    for segment in segments:
        log.update(f"{segment.path} {segment.size_bytes} {segment.version}\n".encode())
    for split in splits:
        log.update(f"{split.file_offset} {split.start} {split.limit} {split.data_end}\n".encode())
    # After a power loss files that were not flushed may be empty; objects survive it.
    boot = boot_id() if isinstance(area, LocalArea) else ""
    notes = [*(field.name for field in fields(ScanResult)), "files"]  # those of another version cannot be read
    plan = {"log": log.hexdigest(), "options": settings, "boot": boot, "notes": notes}
    if leftover is not LeftoverPolicy.START_ANEW and _is_own_plan(area, plan, leftover) and not area.has_links():
        return
    area.clear(_directories(options))
    work_files.write_text(area, "plan.json", json.dumps(sealed(plan, area.target)))


def _is_own_plan(area: WorkArea, plan: Mapping[str, Any], leftover: LeftoverPolicy) -> bool:
    """Return whether a run of this user, or one that the operator resumes, has left the same plan."""
    try:
        if not area.exists("plan.json"):
            return False
        note = json.loads(area.read_text("plan.json"))
        is_same = isinstance(note, dict) and all(note.get(name) == value for name, value in _as_read(plan).items())
    except (ValueError, StoreError, RecursionError):
        return False
    return is_same and (leftover is LeftoverPolicy.RESUME or foreign_reason(note, area.target) is None)


def _as_read(plan: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(plan))  # tuples have become lists
    return read


def _directories(options: RebuildOptions) -> list[str]:
    names = ["consumequeue"] if options.consumequeue else []
    if options.consumequeue and options.sizes.consumequeue_ext_file_bytes:
        names.append("consumequeue_ext")
    if options.batch_topics:
        names.append("batchconsumequeue")
    return [*names, "index"] if options.index else names


def _scan(
    splits: Sequence[Split],
    options: RebuildOptions,
    area: WorkArea,
    partitions: int,
    on_progress: OnProgress | None,
) -> JobSteps[list[ScanResult]]:
    total = sum(split.size_bytes for split in splits)
    sizes = {split.number: split.size_bytes for split in splits}
    on_split_done = counted_progress(on_progress, "scan", total, lambda result: sizes[result.number])
    task = functools.partial(tasks.scan_split, options=options, area=area, partitions=partitions)
    results: list[ScanResult] = yield TaskBatch(task, splits, on_split_done)
    return split_tasks.rescan_misaligned_splits(splits, results, lambda split, begin: task(split, begin=begin))


def _write_task(task: int | IndexTask, split_count: int, options: RebuildOptions, area: WorkArea) -> WriteResult:
    if isinstance(task, IndexTask):
        return tasks.write_index(task, options, area)
    return tasks.write_queues(task, split_count, options, area)


def _write(
    scans: Sequence[ScanResult],
    split_count: int,
    partitions: int,
    options: RebuildOptions,
    area: WorkArea,
    on_progress: OnProgress | None,
) -> JobSteps[list[WriteResult]]:
    if area.exists(_WRITTEN):  # an earlier run was killed between its last task and the publication
        return [WriteResult.from_json(line) for line in area.read_text(_WRITTEN).splitlines()]
    waiting: list[int | IndexTask] = []
    if options.index:  # largest tasks first
        waiting += tasks.index_tasks(scans, options, tasks.spilled_key(area))
    if options.consumequeue:
        waiting += range(partitions)
    task = functools.partial(_write_task, split_count=split_count, options=options, area=area)
    return (yield TaskBatch(task, waiting, counted_progress(on_progress, "write", len(waiting))))


def _note_written(area: WorkArea, written: Sequence[WriteResult]) -> None:
    """Record the written queues, and delete the intermediate files."""
    if not area.exists(_WRITTEN):
        work_files.write_text(area, _WRITTEN, "\n".join(result.to_json() for result in written))
    area.drop_spills()


def check_segments(segments: Sequence[Segment]) -> list[Finding]:
    """Find gaps between CommitLog files, and files of another size than most."""
    sizes = Counter(segment.size_bytes for segment in segments)
    usual = max(sizes, key=lambda size: (sizes[size], size))  # of two counts alike the larger: the other was cut
    findings = []
    for segment, after in zip(segments, [*segments[1:], None], strict=True):
        if segment.size_bytes != usual:
            detail = f"{segment.size_bytes} bytes, not {usual} as the others"
            findings.append(
                Finding(finding_kinds.SEGMENT_SIZE, detail, segment.path, segment.start_offset, segment.size_bytes)
            )
        elif after is not None and segment.end_offset != after.start_offset:
            missing = after.start_offset - segment.end_offset
            findings.append(
                Finding(finding_kinds.SEGMENT_MISSING, "no file holds this range", None, segment.end_offset, missing)
            )
    return findings


def foreign_findings(storage: Storage, directory: str) -> list[Finding]:
    """Find files in the CommitLog directory that are no segments, with which a broker does not start."""
    return [
        Finding(
            finding_kinds.SEGMENT_FOREIGN,
            "no name of a CommitLog file",
            f"{directory}/{entry.name}",
            size=entry.size_bytes,
        )
        for entry in storage.entries(directory)
        if not entry.is_directory and paths.parse_segment_name(entry.name, entry.size_bytes) is None
    ]


def _report(
    store: str,
    out: str,
    findings: list[Finding],
    scans: Sequence[ScanResult],
    written: Sequence[WriteResult],
    options: RebuildOptions,
    clock: _Clock,
    outcome: Outcome,
) -> RebuildReport:
    counts = Counter(finding.kind.code for finding in findings)
    for scan in scans:
        findings += [finding_kinds.make_damage_finding(damage) for damage in scan.damage_list()]
        counts[finding_kinds.LOG_DAMAGED.code] += scan.damage_count
    for result in written:
        findings += [Finding.from_dict(fields) for fields in result.findings]
        counts.update(result.finding_counts)
    return RebuildReport(
        without_secrets(store),
        without_secrets(out),
        messages=sum(scan.message_count for scan in scans),
        bytes=sum(scan.record_bytes for scan in scans),
        units=sum(result.unit_count for result in written),
        index_entries=sum(result.entry_count for result in written),
        index_tags=options.index_tags,
        queues=sum(result.queue_count for result in written),
        files=sum(result.file_count for result in written),
        seconds=clock.seconds(),
        phases=clock.phases,
        findings=tuple(finding.without_secrets() for finding in findings),
        finding_counts={code: count for code, count in sorted(counts.items()) if count},
        outcome=outcome,
    )
