"""Verification of a whole store: plan, scan, compare, report. Nothing is written into the store."""

import functools
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.read.dirty import read_checkpoint
from rmq_formats.read.log_end import dispatched_end
from rmq_formats.scan.splits import Split, plan_splits
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles, no_store_error, open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch, run_alone
from rmq_offline.tasks.log_tasks import find_ends, partition_count, rescan_misaligned_splits
from rmq_offline.tasks.runner import OnProgress, Runner, counted_progress
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_area import WorkArea, temporary_area
from rmq_offline.verify import checkpoint, finding_kinds
from rmq_offline.verify.delay_levels import infer_levels_from_delays, sample_file_delays
from rmq_offline.verify.findings import FindingList, Kind
from rmq_offline.verify.log_facts import LogFacts
from rmq_offline.verify.phases import index_files as job_index
from rmq_offline.verify.phases import queues as job_queues
from rmq_offline.verify.phases import scan as job_scan
from rmq_offline.verify.phases.index_files import IndexFileTask, IndexResult, SpilledKeys, check_index
from rmq_offline.verify.phases.plan import (
    LINK_TO_NOWHERE,
    VerifyOptions,
    bound_by_log_end,
    check_segments,
    find_segments,
    is_a_store,
    list_or_report,
    refuse_inside_store,
    resolve_sizes,
    with_delay_levels,
)
from rmq_offline.verify.phases.queue_database import DatabaseReference, inspect_database
from rmq_offline.verify.phases.queue_directories import QueuesByPartition, list_queues
from rmq_offline.verify.phases.queue_logs import list_queue_logs
from rmq_offline.verify.phases.queues import PartResult, check_queues
from rmq_offline.verify.phases.scan import ScanOptions, SplitCheck, check_split
from rmq_offline.verify.phases.small_files import SmallFilesCheck, read_checkpoint_bytes
from rmq_offline.verify.report import VerifyReport, sort_findings

_DIRECTORIES: Final[dict[str, Kind]] = {
    "commitlog": finding_kinds.SEGMENT_UNREADABLE,
    "consumequeue": finding_kinds.QUEUE_UNREADABLE,
    "consumequeue_ext": finding_kinds.QUEUE_UNREADABLE,
    "index": finding_kinds.INDEX_UNREADABLE,
    "config": finding_kinds.CONFIG_LOST,
}
_BEING_MADE: Final = (finding_kinds.SEGMENT_EMPTY, finding_kinds.SEGMENT_SIZE)


def verify_store(
    store: str,
    options: VerifyOptions,
    runner: Runner,
    *,
    work: str | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Verify a store: compare its files with each other.

    Args:
        store: path or URI of the root.
        work: directory or URI for intermediate files, shared by all tasks; None is the temporary directory.

    Raises:
        StoreNotFoundError: there is no store.
        StoreLayoutError: a store with two DLedger CommitLogs.
        StoreSizeError: an option that no broker could have.
        OptionError: a work directory that cannot be used.
    """
    return run_alone(verify_steps(store, options, runner.parallelism, work=work, on_progress=on_progress), runner)


def verify_steps(
    store: str,
    options: VerifyOptions,
    parallelism: int,
    *,
    work: str | None = None,
    on_progress: OnProgress | None = None,
) -> JobSteps[VerifyReport]:
    """Verify a store in steps that yield their tasks; a large log is split into ``parallelism`` tasks or more."""
    options.check()
    files = open_store(store)
    check_verifiable(files)
    if not is_a_store(files):
        raise StoreNotFoundError(no_store_error(files.storage, files.root))
    refuse_inside_store(files.root, "--work", work)
    area = temporary_area("rmq-verify", work)
    try:
        return (yield from _Verification(files, options, parallelism, area, on_progress).run())
    finally:
        area.remove()


def check_verifiable(store: StoreFiles) -> None:
    """Refuse a store that cannot be verified. Raises StoreNotFoundError, StoreLayoutError."""
    store.require_readable()
    _ = store.log_directories


@dataclass(frozen=True, slots=True)
class _Plan:
    """Input of a verification: the log's files and splits up to a frozen bound, and the queues' directories.

    Attributes:
        segments: readable files of the log.
        data_ends: by path, where the data of each readable file ends, leftovers included.
        unreadable: unreadable files of the log.
    """

    segments: list[Segment]
    data_ends: dict[str, int]
    unreadable: list[Segment]
    splits: list[Split]
    sizes: StoreSizes
    queues: QueuesByPartition
    database: DatabaseReference | None


@dataclass
class _Verification:
    """State of one verification run."""

    store: StoreFiles
    options: VerifyOptions
    parallelism: int
    work: WorkArea
    on_progress: OnProgress | None
    findings: FindingList = field(default_factory=FindingList)
    race_findings: FindingList = field(default_factory=FindingList)
    phases: dict[str, float] = field(default_factory=dict)
    phase_begin: float = field(default_factory=time.perf_counter)

    @property
    def has_queue_files(self) -> bool:
        return self.store.layouts.only_queue_database is None

    def run(self) -> JobSteps[VerifyReport]:
        begin = self.phase_begin
        plan = yield from self._plan()
        self._record_phase_time("plan")
        checks = yield from self._scan(plan)
        self._report_unverified_layouts(checks)
        self._record_phase_time("scan")
        parts, indexes = ([], []) if self._is_log_missing(plan) else (yield from self._compare(plan, checks))
        self._record_phase_time("compare")
        if not self._has_grown(plan):
            self.findings.merge(self.race_findings)
        return VerifyReport(
            store=self.store.root,
            messages=sum(check.message_count for check in checks),
            bytes=sum(check.record_bytes for check in checks),
            queues=sum(part.queue_count for part in parts),
            units=sum(part.unit_count for part in parts),
            index_paths=tuple(result.task.path for result in indexes),
            index_entries=sum(check.key_count for check in checks),
            seconds=round(time.perf_counter() - begin, 3),
            phases=self.phases,
            segments=tuple(job_scan.merge_segment_states(checks)),
            findings=sort_findings(self.findings.kept),
            counts=dict(self.findings.counts),
            faulty_queues=self.findings.queues,
            layouts=tuple(layout.value for layout in self.store.layouts.evidence),
        ).without_secrets()

    def _record_phase_time(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = round(now - self.phase_begin, 3)
        self.phase_begin = now

    # --- plan -----------------------------------------------------------------------------

    def _plan(self) -> JobSteps[_Plan]:
        files = [entry.name for entry in self.store.storage.entries(self.store.root) if not entry.is_directory]
        details = dict.fromkeys(files, "there is a file where a directory should be")
        details |= dict.fromkeys(self.store.storage.dangling_symlinks(self.store.root), LINK_TO_NOWHERE)
        for name, detail in sorted(details.items()):
            if name in _DIRECTORIES:
                self.findings.report(_DIRECTORIES[name], detail, f"{self.store.root}/{name}")
        all_segments = find_segments(self.store, self.findings)
        all_segments.sort(key=lambda segment: segment.start_offset)
        segments, ends, unreadable = yield from self._readable(all_segments)
        data_ends = {segment.path: end for segment, end in zip(segments, ends, strict=True)}
        segments, ends = bound_by_log_end(self.store, segments, ends, self.findings)
        sizes = resolve_sizes(self.store, all_segments, self.options, self.findings)
        for finding in check_segments(all_segments, sizes.commitlog_file_bytes):
            # A broker allocates a next file.
            is_being_made = finding.kind in _BEING_MADE and finding.path == all_segments[-1].path
            (self.race_findings if is_being_made else self.findings).add(finding)
        database = inspect_database(self.store, self.findings)
        if self.options.delay_levels_ms is None:
            delays = database.delays or sample_file_delays(self.store, segments)
            levels = infer_levels_from_delays(delays, sizes.delay_levels_ms)
            sizes = with_delay_levels(sizes, levels, self.findings)
        splits = plan_splits(self.store.storage, segments, min_splits=self.parallelism, ends=ends)
        queues = yield from list_queues(self.store, self.findings)
        for topic, queue_id in database.queues:
            queues.add(topic, [queue_id])
        return _Plan(
            segments,
            data_ends,
            unreadable,
            splits,
            sizes,
            queues.by_partition(partition_count(splits)),
            database.reference,
        )

    def _readable(self, all_segments: list[Segment]) -> JobSteps[tuple[list[Segment], list[int], list[Segment]]]:
        """List the log's readable files with the ends of their data, and the unreadable files."""
        segments, ends, unreadable = [], [], []
        for segment, end in zip(all_segments, (yield from find_ends(self.store.storage, all_segments)), strict=True):
            if isinstance(end, StoreError):
                unreadable.append(segment)
                kind, begin, size = finding_kinds.SEGMENT_UNREADABLE, segment.start_offset, segment.size_bytes
                self.findings.report(kind, str(end), segment.path, physical_offset=begin, size=size)
            else:
                segments.append(segment)
                ends.append(end)
        return segments, ends, unreadable

    def _report_unverified_layouts(self, checks: Sequence[SplitCheck]) -> None:
        """Report tiered storage and light queues that are not verified, with the reason."""
        layouts = self.store.layouts
        if StoreLayout.TIERED in layouts and self.options.tier is None:
            detail = "not checked, because tiered storage needs --tier"
            self.findings.report(finding_kinds.OTHER_NOT_CHECKED, detail, layouts.evidence[StoreLayout.TIERED])
        light = sorted({topic for check in checks for topic in check.light_topics})
        if light and StoreLayout.LIGHT_QUEUES not in layouts and layouts.queue_database is None:
            reason = f"messages of topic {light[0]} were put into light queues (LMQ), and the broker has none"
            path = paths.consumequeue_dir(self.store.root)
            self.findings.report(finding_kinds.NOT_CHECKED, f"not checked, because {reason}", path, count=len(light))

    def _is_log_missing(self, plan: _Plan) -> bool:
        """Return whether queues or an Index exist without any file of the log, readable or not; report such a store."""
        has_derived = bool(plan.queues.topics) or plan.database is not None or bool(self._index_tasks)
        if plan.segments or plan.unreadable or not has_derived:
            return False
        detail = "no CommitLog file, and queues or an Index, which are not compared with anything"
        self.findings.report(finding_kinds.LOG_MISSING, detail, paths.commitlog_dir(self.store.root))
        return True

    # --- scan -----------------------------------------------------------------------------

    def _scan(self, plan: _Plan) -> JobSteps[list[SplitCheck]]:
        total = sum(split.size_bytes for split in plan.splits)
        on_check = counted_progress(self.on_progress, "scan", total, lambda check: check.split.size_bytes)
        has_light_files = self.has_queue_files and StoreLayout.LIGHT_QUEUES in self.store.layouts
        options = ScanOptions(
            sizes=plan.sizes,
            partitions=len(plan.queues),
            to_light_queues=plan.database is not None or has_light_files,
            has_database=plan.database is not None,
            batch_topics=self.store.layouts.batch_topics,
        )
        task = functools.partial(check_split, options=options, work=self.work)
        checks: list[SplitCheck] = yield TaskBatch(task, plan.splits, on_check)
        checks = rescan_misaligned_splits(
            plan.splits,
            checks,
            lambda split, begin: checks[split.number] if checks[split.number].failed else task(split, begin=begin),
        )
        for check in checks:
            if check.findings is not None:
                self.findings.merge(check.findings)
        self.findings.extend(job_scan.check_whole_log(checks))
        return checks

    def _facts(self, plan: _Plan, checks: Sequence[SplitCheck]) -> LogFacts:
        """Collect the log's facts for the checks of derived files."""
        all_segments = sorted([*plan.segments, *plan.unreadable], key=lambda segment: segment.start_offset)
        end = job_scan.checked_log_end(checks)
        lost = [(item.start_offset, item.end_offset) for item in plan.unreadable]
        gaps = [(before.end_offset, after.start_offset) for before, after in pairwise(all_segments)]
        holes = (state for state in job_scan.merge_segment_states(checks) if not state.data_bytes)
        gaps += [(state.start_offset, state.start_offset + state.size_bytes) for state in holes]
        gaps += job_scan.find_unended_ranges(checks)
        lost += [(begin, gap_end) for begin, gap_end in gaps if begin < gap_end <= end]
        damages = job_scan.read_damages(self.work, checks)
        rows = np.concatenate([*damages, np.array(lost, dtype=np.int64).reshape(-1, 2)])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return LogFacts(
            start=all_segments[0].start_offset if all_segments else 0,
            end=end,
            lost_begins=np.ascontiguousarray(rows[:, 0]),
            lost_ends=np.ascontiguousarray(rows[:, 1]),
            largest_record_bytes=max((check.largest_record_bytes for check in checks), default=0),
            is_cut=finding_kinds.LOG_LEFTOVER in self.findings.counts or self._is_stopped_at_end(checks),
            dispatched_end=self._dispatched_end(plan),
        )

    def _dispatched_end(self, plan: _Plan) -> int:
        """Find the first record that the next start of a broker may dispatch; Java skips the last record.

        Source: ``CommitLog#recoverNormally``, which dispatches what begins after the last end that a queue names.
        """
        if not plan.segments or self.store.storage.exists(paths.abort_file(self.store.root)):
            return 0
        with suppress(StoreError):
            return dispatched_end(self.store, plan.segments) + 1
        return 0

    def _is_stopped_at_end(self, checks: Sequence[SplitCheck]) -> bool:
        """Return whether a broker stopped in order, and flushed all files up to the last record of the log."""
        checkpoint = read_checkpoint(self.store)
        last_ms = job_scan.find_last_timestamp_ms(checks)
        if checkpoint is None or last_ms is None or self.store.storage.exists(paths.abort_file(self.store.root)):
            return False
        # A broker that ran shorter than the interval of flushes has not noted the time of the log's last flush.
        return 0 < (checkpoint.physic_msg_timestamp_ms or checkpoint.logics_msg_timestamp_ms) <= last_ms

    # --- compare --------------------------------------------------------------------------

    def _compare(
        self, plan: _Plan, checks: Sequence[SplitCheck]
    ) -> JobSteps[tuple[list[PartResult], list[IndexResult]]]:
        facts = self._facts(plan, checks)
        job_queues.write_facts(self.work, facts)
        job_index.write_key_table(self.work, checks)
        small_files = SmallFilesCheck(self.store, self.findings, self.race_findings)
        has_files = self.has_queue_files
        committed_offsets = small_files.check(plan.queues, checks)
        logs = list_queue_logs(self.store, self.options.tier, self.findings)
        job_queues.write_queue_inputs(
            self.work, plan.queues, committed_offsets, plan.database, logs, has_files=has_files
        )
        small_files.check_controller(plan.segments, facts)
        partitions = range(len(plan.queues) if has_files or plan.database is not None or logs else 0)
        waiting: list[int | IndexFileTask] = [*self._index_tasks, *partitions]  # largest first
        task = functools.partial(
            _compare_task, root=self.store.root, split_count=len(plan.splits), sizes=plan.sizes, work=self.work
        )
        results: list[PartResult | IndexResult]
        results = yield TaskBatch(task, waiting, counted_progress(self.on_progress, "compare", len(waiting)))
        for result in results:
            self.findings.merge(result.findings)
            self.race_findings.merge(result.race_findings)
        indexes = [result for result in results if isinstance(result, IndexResult)]
        last_offset = max((check.last_physical_offset for check in checks), default=-1)
        for finding in job_index.check_index_files(indexes, SpilledKeys(self.work), last_offset, self.race_findings):
            if finding.kind != finding_kinds.INDEX_MISSING or self.options.has_index:
                self.findings.add(finding)
        path = paths.checkpoint_file(self.store.root)
        ends_ms = [result.span.end_timestamp_ms for result in indexes if result.span is not None]
        checkpoint_bytes, _ = read_checkpoint_bytes(self.store.storage, path)
        # A broker that has just begun a file flushes the one before it after a while.
        self.race_findings.extend(checkpoint.check_index_timestamp(checkpoint_bytes, path, ends_ms))
        return [result for result in results if isinstance(result, PartResult)], indexes

    @functools.cached_property
    def _index_tasks(self) -> list[IndexFileTask]:
        """Tasks of the IndexFiles; other files in their directory are reported once."""
        directory = paths.index_dir(self.store.root)
        files = []
        for entry in list_or_report(self.store.storage, directory, finding_kinds.INDEX_UNREADABLE, self.findings):
            path = f"{directory}/{entry.name}"
            if entry.is_directory or not paths.is_index_file_name(entry.name):
                self.findings.report(finding_kinds.STRAY, "no name of an IndexFile", path, size=entry.size_bytes)
            else:
                files.append((path, entry.size_bytes))
        return [
            IndexFileTask(path, size, files[number - 1][0] if number else None, number + 1 == len(files))
            for number, (path, size) in enumerate(files)
        ]

    def _has_grown(self, plan: _Plan) -> bool:
        """Return whether a broker has written to the log since the plan was made."""
        if not self.race_findings.counts:
            return False
        segments = find_segments(self.store, FindingList())
        last = max((segment.start_offset for segment in plan.segments if plan.data_ends[segment.path]), default=-1)
        for segment in segments:
            if segment.start_offset >= last:
                with suppress(StoreError, OSError), self.store.storage.open(segment.path) as file:
                    if file.data_end() > plan.data_ends.get(segment.path, 0):
                        return True
        return False


def _compare_task(
    task: int | IndexFileTask, root: str, split_count: int, sizes: StoreSizes, work: WorkArea
) -> PartResult | IndexResult:
    if isinstance(task, IndexFileTask):
        return check_index(task, sizes, work)
    return check_queues(task, root, split_count, sizes, work)
