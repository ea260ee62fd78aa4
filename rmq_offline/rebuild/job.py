"""Rebuild of ConsumeQueue and Index of a whole store: plan, scan, write, publish, report."""

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
    OptionError,
    StoreError,
    StoreLayoutError,
    os_errors_as_store_errors,
    without_secrets,
)
from rmq_formats.read.broker_config import lists_all_topics, stored_batch_topics, stored_topics
from rmq_formats.read.log_end import readable_segments
from rmq_formats.scan.splits import Split, last_record_end, plan_splits
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.rocksdb import library
from rmq_formats.storage.segments import Segment, Storage, canonical_path
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import is_own_directory
from rmq_formats.storage.store_lock import refuse_locked_store
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
from rmq_offline.rebuild.publication import DEFAULT_PUBLISHING, Outcome, Publication, PublishOptions, lock_if_there
from rmq_offline.rebuild.queue_database import make_queue_database, refuse_open_database
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.rebuild.tasks import IndexTask, ScanResult, WriteResult
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch, run_alone
from rmq_offline.tasks.log_tasks import find_ends, partition_count, require_readable_ends, rescan_misaligned_splits
from rmq_offline.tasks.origin import InterruptedRunPolicy, add_seal, boot_id, foreign_reason
from rmq_offline.tasks.runner import OnProgress, Runner, counted_progress
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.tasks.work_area import LocalArea, WorkArea, temporary_area, work_area
from rmq_offline.tasks.work_files import write_text
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding
from rmq_offline.verify.phases.queue_directories import QueuesByPartition

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
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
    publishing: PublishOptions = DEFAULT_PUBLISHING,
) -> RebuildReport:
    """Rebuild ConsumeQueue and Index of a store from its CommitLog, and publish them whole.

    Args:
        store: root of the store that is read; a path or URI.
        out: root to publish into; None is the store itself, whose broker must be stopped.
        leftover: whether to resume or delete the work files of an interrupted rebuild, if these may be another user's.

    Raises:
        NotAcceptedError: in place, messages would leave their queues, or an end be lowered, and nobody has accepted it.
        StoreNotFoundError: no such store, or no CommitLog in it.
        StoreLockedError: the store is written into and its broker runs.
        StoreSizeError: sizes that do not fit the layout, or the store's own files.
        StoreLayoutError: a layout that a rebuild would get wrong, or unknown files that it would delete.
        StoreError: the disk is full, or a file is in the way.
    """
    return run_alone(rebuild_steps(store, out, options, runner.parallelism, on_progress, leftover, publishing), runner)


def rebuild_steps(
    store: str,
    out: str | None,
    options: RebuildOptions,
    parallelism: int,
    on_progress: OnProgress | None = None,
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
    publishing: PublishOptions = DEFAULT_PUBLISHING,
) -> JobSteps[RebuildReport]:
    """Rebuild a store in steps that yield their tasks; arguments and errors are those of ``rebuild_store``.

    Args:
        parallelism: number of tasks that a large log is split into at least.
    """
    return (yield from _Rebuild(store, out, options, parallelism, on_progress, leftover, publishing).run())


class _Rebuild:
    """One rebuild: the store, the work area, and the options, which the scan completes.

    A repair's plan skips the checks of existing files: the store is still unrepaired.
    """

    def __init__(
        self,
        store_path: str,
        out: str | None,
        options: RebuildOptions,
        parallelism: int,
        on_progress: OnProgress | None,
        leftover: InterruptedRunPolicy,
        publishing: PublishOptions,
    ) -> None:
        self.clock = _Clock()
        self.store_path = store_path
        self.store = open_store(store_path)
        self.parallelism = parallelism
        self.on_progress = on_progress
        self.leftover = leftover
        self.publishing = publishing
        layouts = self.store.layouts
        if options.consumequeue:
            database = options.queue_database or layouts.rebuilds_as_database
            options = replace(options, batch_topics=layouts.batch_topics, queue_database=database)
        _refuse_own_directory(self.store.root, "--work", publishing.work)
        self.is_repair_plan = publishing.is_plan and publishing.repair is not None
        if publishing.repair is not None and publishing.is_plan:
            self.segments = list(publishing.repair.segments)
        else:
            self.segments = check_rebuild(self.store, out, options, checks_sizes=publishing.repair is None)
        if options.consumequeue:
            options = replace(options, batch_topics=stored_batch_topics(self.store))
        log_trees = self.store.log_directories
        self.findings = [
            finding for directory, _ in log_trees for finding in foreign_findings(self.store.storage, directory)
        ]
        self.options = replace(options, index=False) if publishing.is_plan else options  # no consumer reads the Index
        target = store_path if out is None else out
        self.area = temporary_area("rmq-rebuild", publishing.work) if publishing.is_plan else work_area(target)
        self.target = self.store.root if publishing.is_plan else self.area.target
        self.publication = Publication(
            self.store,
            self.segments,
            self.area,
            publishing,
            is_in_place=publishing.is_plan or self.area.is_at(self.store.root),
        )

    def run(self) -> JobSteps[RebuildReport]:
        area, root = self.area, self.store.root
        with ExitStack() as stack:
            stack.enter_context(os_errors_as_store_errors(area.target))
            if self.publishing.is_plan:
                stack.callback(area.remove)
            lock = lock_if_there(root, self.publishing) if self.publishing.is_plan else area.lock(root)
            check_lease = stack.enter_context(lock)
            if not self.publishing.is_plan:
                yield from self.publication.finish_interrupted(self.leftover)
                self.store = open_store(self.store_path)  # which the interrupted rebuild has changed
            stack.enter_context(_removed_if_refused(area))
            ends = require_readable_ends((yield from find_ends(self.store.storage, self.segments)))
            splits = plan_splits(self.store.storage, self.segments, min_splits=self.parallelism, ends=ends)
            self._prepare_area(splits)
            partitions = partition_count(splits)
            existing_queues = yield from list_existing_queues(self.store, self.options, partitions)
            if existing_queues is not None:
                partitions = len(existing_queues)
            existing_topics = () if existing_queues is None else existing_queues.topics
            existing_database = existing_database_path(self.store, self.options)
            self.options = with_existing_light_queues(self.options, existing_topics, existing_database)
            self.clock.mark("plan")
            scans = yield from self._scan(splits, partitions)
            self.options = _with_batch_topics(scans, self.store, self.options)
            directories = _directories(self.options)
            if not self.is_repair_plan:
                refuse_unknown_files(open_store(self.target), directories)
            self.findings = find_segment_faults(self._segments_of_now()) + self.findings
            self.clock.mark("scan")
            if self.options.consumequeue and not area.exists(_WRITTEN):
                self._write_task_inputs(splits, scans, existing_queues, existing_database)
            written = yield from self._write(scans, len(splits), partitions)
            self._record_written(written)
            if self.options.queue_database:
                log_end = last_record_end(self.store.storage, self.segments)
                with open_existing_database(existing_database) as database:
                    make_queue_database(Path(area.path("")), self.segments, log_end, database)
            self.clock.mark("write")
            check_lease()
            queues = None if self.options.queue_database else self.options.queues
            outcome = yield from self.publication.publish(directories, queues)
            self.clock.mark("publish")
        return self._report(scans, written, outcome)

    def _segments_of_now(self) -> list[Segment]:
        """Read the last file's size again: a broker may have been creating the file when the files were listed."""
        *earlier, last = self.segments
        with self.store.storage.open(last.path) as file:
            return [*earlier, replace(last, size_bytes=file.size_bytes)]

    def _prepare_area(self, splits: Sequence[Split]) -> None:
        """Create the work directory, or reuse the directory of a killed run of the same rebuild and user."""
        options = self.options
        settings = asdict(options)
        settings["live_topics"] = sorted(options.live_topics) if options.live_topics is not None else None
        settings["batch_topics"] = sorted(options.batch_topics)
        settings["written_queues"] = sorted(options.written_queues)
        settings["queues"] = sorted(options.queues) if options.queues is not None else None
        log = hashlib.sha256()
        for segment in self.segments:
            log.update(f"{segment.path} {segment.size_bytes} {segment.version}\n".encode(errors="surrogateescape"))
        for split in splits:
            log.update(f"{split.file_offset} {split.start} {split.limit} {split.data_end}\n".encode())
        # After a power loss files that were not flushed may be empty; objects survive it.
        boot = boot_id() if isinstance(self.area, LocalArea) else ""
        result_fields = [*(field.name for field in fields(ScanResult)), "files"]  # results of other fields are not read
        plan = {"log": log.hexdigest(), "options": settings, "boot": boot, "notes": result_fields}
        if self.leftover is not InterruptedRunPolicy.START_ANEW and self._resumes(plan) and not self.area.has_links():
            return
        self.area.clear(_directories(options))
        write_text(self.area, "plan.json", json.dumps(add_seal(plan, self.area.target)))

    def _resumes(self, plan: Mapping[str, Any]) -> bool:
        """Return whether a run of this user, or one that the operator resumes, has left the same plan."""
        as_read: dict[str, Any] = json.loads(json.dumps(plan))  # tuples have become lists
        try:
            if not self.area.exists("plan.json"):
                return False
            note = json.loads(self.area.read_text("plan.json"))
            is_same = isinstance(note, dict) and all(note.get(name) == value for name, value in as_read.items())
        except (ValueError, StoreError, RecursionError):
            return False
        return is_same and (
            self.leftover is InterruptedRunPolicy.RESUME or foreign_reason(note, self.area.target) is None
        )

    def _scan(self, splits: Sequence[Split], partitions: int) -> JobSteps[list[ScanResult]]:
        total = sum(split.size_bytes for split in splits)
        sizes = {split.number: split.size_bytes for split in splits}
        on_split_done = counted_progress(self.on_progress, "scan", total, lambda result: sizes[result.number])
        task = functools.partial(tasks.scan_split, options=self.options, area=self.area, partitions=partitions)
        results: list[ScanResult] = yield TaskBatch(task, splits, on_split_done)
        return rescan_misaligned_splits(splits, results, lambda split, begin: task(split, begin=begin))

    def _write_task_inputs(
        self,
        splits: Sequence[Split],
        scans: Sequence[ScanResult],
        existing_queues: QueuesByPartition | None,
        existing_database: str | None,
    ) -> None:
        """Write the files that the tasks of the second batch read, beside those of the scan."""
        repair = self.publishing.repair
        overwritten = repair.lost if repair is not None and not self.publishing.is_plan else ()
        write_log_facts(self.area, splits, scans, overwritten)
        write_existing_queues(self.area, self.store, self.store_path, existing_queues)
        write_existing_database_path(self.area, existing_database)

    def _write(self, scans: Sequence[ScanResult], split_count: int, partitions: int) -> JobSteps[list[WriteResult]]:
        if self.area.exists(_WRITTEN):  # an earlier run was killed between its last task and the publication
            return [WriteResult.from_json(line) for line in self.area.read_text(_WRITTEN).splitlines()]
        arguments: list[int | IndexTask] = []
        if self.options.index:  # largest tasks first
            arguments += tasks.index_tasks(scans, self.options, tasks.spilled_key(self.area))
        if self.options.consumequeue:
            arguments += range(partitions)
        task = functools.partial(_write_task, split_count=split_count, options=self.options, area=self.area)
        return (yield TaskBatch(task, arguments, counted_progress(self.on_progress, "write", len(arguments))))

    def _record_written(self, written: Sequence[WriteResult]) -> None:
        """Record the written queues, and delete the intermediate files."""
        if not self.area.exists(_WRITTEN):
            write_text(self.area, _WRITTEN, "\n".join(result.to_json() for result in written))
        self.area.drop_spills()

    def _report(self, scans: Sequence[ScanResult], written: Sequence[WriteResult], outcome: Outcome) -> RebuildReport:
        findings = self.findings
        counts = Counter(finding.kind.code for finding in findings)
        for scan in scans:
            findings += [finding_kinds.make_damage_finding(damage) for damage in scan.damage_list()]
            counts[finding_kinds.LOG_DAMAGED.code] += scan.damage_count
        for result in written:
            findings += [finding_kinds.restore_finding(fields) for fields in result.findings]
            counts.update(result.finding_counts)
        return RebuildReport(
            without_secrets(self.store_path),
            without_secrets(self.target),
            messages=sum(scan.message_count for scan in scans),
            bytes=sum(scan.record_bytes for scan in scans),
            units=sum(result.unit_count for result in written),
            index_entries=sum(result.entry_count for result in written),
            index_tags=self.options.index_tags,
            queues=sum(result.queue_count for result in written),
            files=sum(result.file_count for result in written),
            seconds=self.clock.seconds(),
            phases=self.clock.phases,
            findings=tuple(finding.without_secrets() for finding in findings),
            finding_counts={code: count for code, count in sorted(counts.items()) if count},
            outcome=outcome,
        )


def _write_task(task: int | IndexTask, split_count: int, options: RebuildOptions, area: WorkArea) -> WriteResult:
    if isinstance(task, IndexTask):
        return tasks.write_index(task, options, area)
    return tasks.write_queues(task, split_count, options, area)


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


def _refuse_own_directory(root: str, option: str, path: str | None) -> None:
    """Refuse an output path in a directory with the store's own files. Raises OptionError."""
    if path is None:
        return
    target, place = canonical_path(path), canonical_path(root)
    if target != place and target.is_relative_to(place) and is_own_directory(target.relative_to(place).parts[0]):
        raise OptionError(f"{option} {path}: is in the store, among its files. Give a directory outside of it")


def check_rebuild(
    store: StoreFiles, out: str | None, options: RebuildOptions, *, checks_sizes: bool = True
) -> list[Segment]:
    """Refuse a rebuild that cannot be run, before anything is started; return the CommitLog's files.

    Args:
        checks_sizes: refuse existing files of another size; a repair replaces these, and reads them as witnesses.
    """
    options.sizes.check()
    _refuse_layouts(store, options)
    segments = readable_segments(store)
    area = work_area(out if out is not None else store.root)
    target = store if area.target == store.root else open_store(area.target)
    if not area.is_at(store.root):
        _refuse_own_directory(store.root, "--out", out)
        _refuse_layouts(target, options)
    refuse_unknown_files(target, _directories(options))
    if area.is_at(store.root):
        store.refuse_compressed_segments()
        if checks_sizes:
            check_existing_sizes(store, options)
    if isinstance(area, LocalArea):
        refuse_locked_store(area.target)
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


def _directories(options: RebuildOptions) -> list[str]:
    names = ["consumequeue"] if options.consumequeue else []
    if options.consumequeue and options.sizes.consumequeue_ext_file_bytes:
        names.append("consumequeue_ext")
    if options.batch_topics:
        names.append("batchconsumequeue")
    return [*names, "index"] if options.index else names


def find_segment_faults(segments: Sequence[Segment]) -> list[Finding]:
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
