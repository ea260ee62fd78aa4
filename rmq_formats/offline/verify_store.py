"""The verification of a whole store: plan, scan, compare, report. Nothing is written into the store."""

import functools
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from rmq_formats import config_json, paths
from rmq_formats.errors import DecodeError, OptionError, StoreError, StoreNotFoundError
from rmq_formats.findings import Finding, FindingList, Kind
from rmq_formats.index import MAX_INT
from rmq_formats.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.offline import verify_index, verify_queues, verify_scan
from rmq_formats.offline.area import LocalArea, WorkArea, work_area
from rmq_formats.offline.plan import Split, plan_splits
from rmq_formats.offline.rebuild import mend_seams, partition_count
from rmq_formats.offline.rebuild_store import Progress
from rmq_formats.offline.runner import Runner
from rmq_formats.offline.spill import queue_partition
from rmq_formats.offline.verify_config import config_texts
from rmq_formats.offline.verify_delays import told_delay_levels
from rmq_formats.offline.verify_index import IndexFileTask, IndexResult, SpilledKeys, check_index
from rmq_formats.offline.verify_plan import (
    LINK_TO_NOWHERE,
    StoreLayout,
    VerifyOptions,
    entries_or_finding,
    find_segments,
    is_a_store,
    resolve_layout,
    segment_findings,
    with_delay_levels,
)
from rmq_formats.offline.verify_queues import PartResult, check_queues, is_named_topic
from rmq_formats.offline.verify_report import VerifyReport, sorted_findings
from rmq_formats.offline.verify_scan import SplitCheck, check_split
from rmq_formats.segment import Segment, Storage, open_storage, opened, place_of, read_range
from rmq_formats.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.verify import kinds, small
from rmq_formats.verify.facts import LogFacts

QUEUES_PER_PARTITION: Final = 4096  # directories that one task opens
MAX_PARTITIONS: Final = 256
_DIRECTORIES: Final[dict[str, Kind]] = {
    "commitlog": kinds.SEGMENT_UNREADABLE, "consumequeue": kinds.QUEUE_UNREADABLE,
    "consumequeue_ext": kinds.QUEUE_UNREADABLE, "index": kinds.INDEX_UNREADABLE, "config": kinds.CONFIG_LOST,
}  # fmt: skip

OnProgress = Callable[[Progress], None]


def verify_store(
    store: str,
    options: VerifyOptions,
    runner: Runner,
    *,
    work: str | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare a store's files with each other.

    Args:
        store: root of the store, or a URI.
        options: the broker's sizes, as far as they are known.
        runner: where the tasks run.
        work: directory or URI for intermediate files, which all tasks must see; default: this machine's own.
        on_progress: told after each task.

    Raises:
        StoreNotFoundError: there is no store.
        StoreSizeError: an option that no broker could have.
        OptionError: a work directory that cannot be used.
    """
    options.check()
    storage, root = open_storage(store)
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store")
    if not is_a_store(storage, root):
        raise StoreNotFoundError(f"{root}: holds no store")
    refuse_inside_store(root, "--work", work)
    area = _work_area(work)
    try:
        return _Verification(storage, root, options, runner, area, on_progress).run()
    finally:
        area.remove()


def _work_area(work: str | None) -> WorkArea:
    """An empty one of its own. Raises OptionError."""
    parent = work or tempfile.gettempdir()
    area = work_area(parent, f"rmq-verify-{uuid.uuid4().hex}")
    try:
        if isinstance(area, LocalArea) and not Path(area.target).is_dir():
            raise OptionError(f"--work {parent}: no such directory")
        area.clear(())
        if work is None:  # everybody's directory, and what is written there tells topics and keys
            Path(area.path(".")).chmod(0o700)
    except OSError as error:
        raise OptionError(f"--work {parent}: {error.strerror or error}") from error
    return area


def refuse_inside_store(root: str, option: str, path: str | None) -> None:
    """A verification writes nothing into the store. Raises OptionError."""
    if path is not None and place_of(path).is_relative_to(place_of(root)):
        raise OptionError(f"{option} {path}: is in the store, which is only read")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is looked at: the log's files and splits up to a frozen bound, and the queues' directories."""

    segments: list[Segment]
    unreadable: list[Segment]
    splits: list[Split]
    layout: StoreLayout
    queues: list[list[tuple[str, int]]]


class _Verification:
    """One run."""

    def __init__(
        self,
        storage: Storage,
        root: str,
        options: VerifyOptions,
        runner: Runner,
        work: WorkArea,
        on_progress: OnProgress | None,
    ) -> None:
        self.storage, self.root = storage, root
        self.options = options
        self.runner = runner
        self.work = work
        self.on_progress = on_progress
        self.findings = FindingList()
        self.excused = FindingList()
        self.phases: dict[str, float] = {}
        self._begin = self._last = time.perf_counter()

    def run(self) -> VerifyReport:
        """Verify."""
        plan = self._plan()
        self._mark("plan")
        checks = self._scan(plan)
        self._mark("scan")
        parts, indexes = self._compare(plan, checks)
        self._mark("compare")
        if not self._has_grown(plan):
            self.findings.merge(self.excused)
        keys = sum(check.key_count for check in checks)
        return VerifyReport(
            store=self.root,
            messages=sum(check.message_count for check in checks),
            bytes=sum(check.record_bytes for check in checks),
            queues=sum(part.queue_count for part in parts),
            units=sum(part.unit_count for part in parts),
            index_paths=tuple(result.task.path for result in indexes),
            index_entries=keys,
            seconds=round(time.perf_counter() - self._begin, 3),
            phases=self.phases,
            segments=tuple(verify_scan.segment_states(checks)),
            findings=sorted_findings(self.findings.kept),
            counts=dict(self.findings.counts),
        )

    def _mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = round(now - self._last, 3)
        self._last = now

    # --- plan -----------------------------------------------------------------------------

    def _plan(self) -> _Plan:
        files = [entry.name for entry in self.storage.entries(self.root) if not entry.is_directory]
        details = dict.fromkeys(files, "there is a file where a directory should be")
        details |= dict.fromkeys(self.storage.links_to_nowhere(self.root), LINK_TO_NOWHERE)
        for name, detail in sorted(details.items()):
            if name in _DIRECTORIES:
                self.findings.add(Finding(_DIRECTORIES[name], detail, f"{self.root}/{name}"))
        segments, unreadable = find_segments(self.storage, self.root, self.findings)
        every = sorted([*segments, *unreadable], key=lambda segment: segment.start_offset)
        layout = resolve_layout(self.storage, self.root, every, self.options, self.findings)
        for finding in segment_findings(every, layout.commitlog_file_bytes):
            self.findings.add(finding)
        if self.options.delay_levels_ms is None:
            told = told_delay_levels(self.storage, self.root, segments, layout.delay_levels_ms)
            layout = with_delay_levels(layout, told, self.findings)
        splits = plan_splits(self.storage, segments, min_splits=self.runner.parallelism)
        return _Plan(segments, unreadable, splits, layout, self._queues(splits))

    def _queues(self, splits: Sequence[Split]) -> list[list[tuple[str, int]]]:
        """Queues that have a directory, by partition; what else is there becomes a finding."""
        found: set[tuple[str, int]] = set()
        trees = [paths.consumequeue_dir(self.root), paths.consumequeue_ext_dir(self.root)]
        lmq_count = 0
        for tree in trees:
            for topic in entries_or_finding(self.storage, tree, kinds.QUEUE_UNREADABLE, self.findings):
                path = f"{tree}/{topic.name}"
                if not topic.is_directory:
                    self.findings.add(Finding(kinds.STRAY, "a file among the topics' directories", path))
                elif not is_named_topic(topic.name):
                    self.findings.add(Finding(kinds.STRAY, "a directory that is no topic's", path))
                elif topic.name.startswith(LIGHT_QUEUE_PREFIX):
                    lmq_count += 1
                else:
                    found.update(self._queues_of(path, topic.name))
        if lmq_count:
            detail = f"{lmq_count} light queues, which other topics' messages are dispatched to"
            self.findings.add(Finding(kinds.NOT_CHECKED, detail, trees[0], count=lmq_count))
        count = min(MAX_PARTITIONS, max(partition_count(splits), -(-len(found) // QUEUES_PER_PARTITION)))
        parts: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        for name in sorted(found):
            parts[queue_partition(*name, count)].append(name)
        return parts

    def _queues_of(self, path: str, topic: str) -> set[tuple[str, int]]:
        found = set()
        for queue in entries_or_finding(self.storage, path, kinds.QUEUE_UNREADABLE, self.findings):
            # The original makes a queue of a negative id, too, where a record has one.
            is_number = queue.name.removeprefix("-").isdecimal() and str(int(queue.name)) == queue.name
            if queue.is_directory and is_number and -MAX_INT - 1 <= int(queue.name) <= MAX_INT:
                found.add((topic, int(queue.name)))
            else:
                what = "a directory" if queue.is_directory else "a file"
                self.findings.add(
                    Finding(kinds.STRAY, f"{what} that is no queue's", f"{path}/{queue.name}", topic=topic)
                )
        return found

    # --- scan -----------------------------------------------------------------------------

    def _scan(self, plan: _Plan) -> list[SplitCheck]:
        total = sum(split.size_bytes for split in plan.splits)
        done = 0

        def tell(check: SplitCheck) -> None:
            nonlocal done
            done += check.split.size_bytes
            if self.on_progress:
                self.on_progress(Progress("scan", done, total))

        task = functools.partial(check_split, layout=plan.layout, work=self.work, partitions=len(plan.queues))
        checks = self.runner.map(task, plan.splits, tell)
        checks = mend_seams(
            plan.splits,
            checks,
            lambda split, begin: checks[split.number] if checks[split.number].failed else task(split, begin=begin),
        )
        for check in checks:
            self.findings.merge(check.findings)
        for finding in verify_scan.log_findings(checks):
            self.findings.add(finding)
        return checks

    def _facts(self, plan: _Plan, checks: Sequence[SplitCheck]) -> LogFacts:
        """What the derived files are compared with, beside units and keys."""
        every = sorted([*plan.segments, *plan.unreadable], key=lambda segment: segment.start_offset)
        lost = list(verify_scan.read_damages(self.work, len(plan.splits)))
        lost += [np.array([[item.start_offset, item.end_offset]], dtype=np.int64) for item in plan.unreadable]
        end = verify_scan.log_end(checks)
        gaps = [(before.end_offset, after.start_offset) for before, after in pairwise(every)]
        gaps += [(state.start_offset, state.start_offset + state.size_bytes) for state in self._holes(checks)]
        gaps += verify_scan.unended(checks)
        lost += [np.array([gap], dtype=np.int64) for gap in gaps if gap[0] < gap[1] <= end]
        rows = np.concatenate(lost) if lost else np.empty((0, 2), dtype=np.int64)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return LogFacts(
            start=every[0].start_offset if every else 0,
            end=end,
            lost_begins=np.ascontiguousarray(rows[:, 0]),
            lost_ends=np.ascontiguousarray(rows[:, 1]),
            largest_record_bytes=max((check.largest_record_bytes for check in checks), default=0),
        )

    def _holes(self, checks: Sequence[SplitCheck]) -> list[verify_scan.SegmentState]:
        return [state for state in verify_scan.segment_states(checks) if not state.data_bytes]

    # --- compare --------------------------------------------------------------------------

    def _compare(self, plan: _Plan, checks: Sequence[SplitCheck]) -> tuple[list[PartResult], list[IndexResult]]:
        verify_queues.write_facts(self.work, self._facts(plan, checks))
        verify_index.write_key_table(self.work, checks)
        self._check_small_files(plan, checks)
        index_tasks = self._index_tasks()
        waiting: list[int | IndexFileTask] = [*index_tasks, *range(len(plan.queues))]  # the largest first
        done = 0

        def tell(_result: PartResult | IndexResult) -> None:
            nonlocal done
            done += 1
            if self.on_progress:
                self.on_progress(Progress("compare", done, len(waiting)))

        task = functools.partial(
            _compare_task, root=self.root, split_count=len(plan.splits), layout=plan.layout, work=self.work
        )
        results = self.runner.map(task, waiting, tell)
        for result in results:
            self.findings.merge(result.findings)
            self.excused.merge(result.excused)
        indexes = [result for result in results if isinstance(result, IndexResult)]
        last_offset = max((check.last_physical_offset for check in checks), default=-1)
        for finding in verify_index.index_findings(indexes, SpilledKeys(self.work), last_offset, self.excused):
            self.findings.add(finding)
        path = paths.checkpoint_file(self.root)
        ends_ms = [result.span.end_timestamp_ms for result in indexes if result.span is not None]
        for finding in small.index_findings(self._read_checkpoint(path)[0], path, ends_ms):
            self.excused.add(finding)  # a broker that has just begun a file flushes the one before it in a while
        return [result for result in results if isinstance(result, PartResult)], indexes

    def _index_tasks(self) -> list[IndexFileTask]:
        directory = paths.index_dir(self.root)
        files = []
        for entry in entries_or_finding(self.storage, directory, kinds.INDEX_UNREADABLE, self.findings):
            path = f"{directory}/{entry.name}"
            if entry.is_directory or not paths.is_index_file_name(entry.name):
                self.findings.add(Finding(kinds.STRAY, "no name of an IndexFile", path, size=entry.size_bytes))
            else:
                files.append((path, entry.size_bytes))
        return [
            IndexFileTask(number, path, size, files[number - 1][0] if number else None, number + 1 == len(files))
            for number, (path, size) in enumerate(files)
        ]

    # --- small files ----------------------------------------------------------------------

    def _read_checkpoint(self, path: str) -> tuple[bytes | None, int]:
        """What a broker reads of the checkpoint, and the file's size; None if there is none or it cannot be read."""
        try:
            with opened(self.storage, path) as file:
                return read_range(file, 0, min(file.size_bytes, CHECKPOINT_FILE_BYTES)), file.size_bytes
        except (StoreError, OSError):
            return None, 0

    def _check_small_files(self, plan: _Plan, checks: Sequence[SplitCheck]) -> None:
        if self.storage.exists(paths.abort_file(self.root)):
            self.findings.add(Finding(kinds.ABORT, "the file abort is there", paths.abort_file(self.root)))
        path = paths.checkpoint_file(self.root)
        latest_ms = max((check.latest_ms for check in checks), default=-1)
        data, size_bytes = self._read_checkpoint(path)
        if data is None and self.storage.exists(path):
            self.findings.add(Finding(kinds.CHECKPOINT_UNREADABLE, "it cannot be read", path))
        else:
            for finding in small.checkpoint_findings(data, size_bytes, path, latest_ms, verify_scan.log_end(checks)):
                (self.excused if finding.kind == kinds.CHECKPOINT_LATER else self.findings).add(finding)
        config = paths.config_dir(self.root)
        texts = config_texts(self.storage, config, self.findings)
        known, unchecked = self._topics(texts.get("topics.json"))
        if known is not None:
            self._tell_unknown_topics(plan, known)
        elif "topics.json" not in texts and any(plan.queues) and self.storage.exists(config):
            detail = "neither it nor its .bak is there"
            self.findings.add(Finding(kinds.CONFIG_TOPICS, detail, f"{config}/topics.json"))
        claims = [
            (f"{config}/consumerOffset.json", list(small.consumer_claims(texts.get("consumerOffset.json", "{}")))),
            (f"{config}/delayOffset.json", list(small.delay_claims(texts.get("delayOffset.json", "{}")))),
        ]
        verify_queues.write_queue_notes(self.work, plan.queues, known, unchecked, claims)

    def _topics(self, text: str | None) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Topics that the broker knows, None if that is not known, and those with a BatchConsumeQueue."""
        batch: set[str] = set()
        with suppress(StoreError):
            batch |= {entry.name for entry in self.storage.entries(f"{self.root}/batchconsumequeue")}
        known = None
        if text is not None:
            with suppress(DecodeError):
                configs = config_json.topic_configs(text)
                known = frozenset(configs)
                batch |= {name for name, item in configs.items() if item.attributes.get("queue.type") == "BatchCQ"}
        return known, frozenset(batch)

    def _tell_unknown_topics(self, plan: _Plan, known: frozenset[str]) -> None:
        for topic in sorted({topic for part in plan.queues for topic, _ in part} - known):
            path = f"{paths.consumequeue_dir(self.root)}/{topic}"
            self.findings.add(Finding(kinds.TOPIC_UNKNOWN, "the topic has queues", path, topic=topic))

    def _has_grown(self, plan: _Plan) -> bool:
        """Whether a broker has written to the log since the plan was made."""
        if not self.excused.counts:
            return False
        findings = FindingList()
        segments, _ = find_segments(self.storage, self.root, findings)
        ends = {split.path: split.data_end for split in plan.splits}
        last = max((split.file_offset for split in plan.splits if split.data_end), default=-1)
        for segment in segments:
            if segment.start_offset >= last:
                with suppress(StoreError, OSError), opened(self.storage, segment.path) as file:
                    if file.data_end() > ends.get(segment.path, 0):
                        return True
        return False


def _compare_task(
    task: int | IndexFileTask, root: str, split_count: int, layout: StoreLayout, work: WorkArea
) -> PartResult | IndexResult:
    if isinstance(task, IndexFileTask):
        return check_index(task, layout, work)
    return check_queues(task, root, split_count, layout, work)
