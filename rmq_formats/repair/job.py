"""Repair of a store: verify, plan, journal, change, rebuild, and verify again."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError, StoreNotFoundError, told_as_store_errors
from rmq_formats.rebuild.changes import ALL
from rmq_formats.rebuild.job import rebuild_store
from rmq_formats.rebuild.options import RebuildOptions
from rmq_formats.rebuild.publication import Terms
from rmq_formats.repair import journal
from rmq_formats.repair.checkpoint import write_checkpoint
from rmq_formats.repair.entry_index import make_state
from rmq_formats.repair.plan import RepairPlan, log_file_bytes, plan_repair
from rmq_formats.repair.preconditions import refuse_layouts, refuse_plan, refuse_store
from rmq_formats.repair.report import RepairReport, steps, without_quarantined
from rmq_formats.storage.commitlog import log_directories
from rmq_formats.storage.segments import list_segments, open_storage
from rmq_formats.tasks.origin import Leftover
from rmq_formats.tasks.progress import OnProgress
from rmq_formats.tasks.runner import Runner
from rmq_formats.tasks.store_lock import store_lock
from rmq_formats.verify import finding_kinds
from rmq_formats.verify.findings import Finding, Severity
from rmq_formats.verify.job import verify_store
from rmq_formats.verify.phases.plan import VerifyOptions
from rmq_formats.verify.report import VerifyReport

REPLACED: Final = "replaced"  # in a repair's directory of the quarantine: the queues and IndexFiles that it replaced


def repair_store(
    store: str,
    options: VerifyOptions,
    runner: Runner,
    *,
    apply: bool,
    work: str | None = None,
    on_progress: OnProgress | None = None,
    leftover: Leftover = Leftover.REFUSE,
) -> RepairReport:
    """Repair a store; or, in a dry run, report what that would do.

    Killed at any instant, it leaves a store that another run brings to the same end. What is overwritten or in the
    way is first put into ``STORE/quarantine``; new derived files replace the old ones whole.

    Args:
        store: root of the store, on this machine.
        options: the broker's sizes, as far as they are known.
        runner: where the tasks run.
        apply: do it; else only the plan is made, and nothing is written.
        work: directory for the intermediate files of the verifications.
        on_progress: told after each task.
        leftover: the operator's word on an interrupted repair that is not known to be this user's own.

    Raises:
        StoreNotFoundError: there is no store, or nothing to repair it from.
        StoreLockedError: a running broker has it.
        StoreError: a file that cannot be read or written.
        OptionError: an object store, or an option that cannot be used.
    """
    begin = time.perf_counter()
    if "://" in store and not store.startswith("file://"):
        raise OptionError(f"{store}: a repair is made on a local disk or a shared mount")
    storage, root = open_storage(store)
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store")
    run = _Repair(root, options, runner, work, on_progress, leftover)
    with told_as_store_errors(root):
        report = run.apply() if apply else run.plan()
    return replace(report, seconds=round(time.perf_counter() - begin, 3))


class _Repair:
    """State of one repair run."""

    def __init__(
        self,
        root: str,
        options: VerifyOptions,
        runner: Runner,
        work: str | None,
        on_progress: OnProgress | None,
        leftover: Leftover,
    ) -> None:
        self.root = root
        self.options = replace(options, commitlog_file_bytes=log_file_bytes(root, options))
        self.runner = runner
        self.work = work
        self.on_progress = on_progress
        self.leftover = leftover

    def plan(self) -> RepairReport:
        """Report the plan without applying it."""
        with self._lock_if_there():
            left_over = self._left_over()
            if left_over is not None:
                _, plan = left_over
                return self._report(plan, None, plan.left, is_resumed=True)
            found = self._verify()
            plan = self._planned(found)
            return self._report(plan, found, plan.left)

    def apply(self) -> RepairReport:
        """Apply the plan, or what is left of one that was interrupted."""
        root = Path(self.root)
        found: VerifyReport | None = None
        if self.leftover is Leftover.START_ANEW or journal.pending(root, self.leftover) is None:
            refuse_store(self.root)  # before the lock, whose file would be a change
        with store_lock(self.root):
            if self.leftover is Leftover.START_ANEW:
                journal.set_pending_aside(root)
            left_over = self._left_over()
            if left_over is None:
                found = self._verify()
                plan = self._planned(found)
                if plan.is_empty:
                    return replace(self._report(plan, found, _faults(found)), is_applied=True)
                refuse_plan(root, plan)
                directory = journal.begin(root, plan)
            else:
                directory, plan = left_over
            journal.change(root, directory, plan)
            if plan.entries is not None:
                make_state(root, directory, plan.entries)
        terms = Terms(accept=frozenset({ALL}), former=directory / REPLACED)
        for rebuild in _rebuilds(plan):
            rebuild_store(self.root, None, rebuild, self.runner, self.on_progress, self.leftover, terms)
        with store_lock(self.root):
            if plan.checkpoint:
                write_checkpoint(root)
            journal.end(directory)
        self.options = replace(self.options, commitlog_file_bytes=plan.store_sizes.commitlog_file_bytes)
        report = self._report(plan, found, _faults(self._verify()), is_resumed=left_over is not None)
        return replace(report, is_applied=True, directory=str(directory))

    @contextmanager
    def _lock_if_there(self) -> Iterator[None]:
        """Hold the store's lock if its file exists: a plan writes nothing, not even that file."""
        if Path(paths.lock_file(self.root)).exists():
            with store_lock(self.root):
                yield
        else:
            yield

    def _left_over(self) -> tuple[Path, RepairPlan] | None:
        journal.manifests(Path(self.root))  # for the report: an unreadable one is reported before a change
        return None if self.leftover is Leftover.START_ANEW else journal.pending(Path(self.root), self.leftover)

    def _verify(self) -> VerifyReport:
        return verify_store(self.root, self.options, self.runner, work=self.work, on_progress=self.on_progress)

    def _planned(self, found: VerifyReport) -> RepairPlan:
        refuse_store(self.root)
        plan = plan_repair(self.root, self.options, found)
        refuse_layouts(self.root, plan)
        directory, storage = paths.commitlog_dir(self.root), open_storage(self.root)[0]
        places = log_directories(storage, self.root)
        needs_log = plan.rebuild or finding_kinds.LOG_MISSING in found.counts
        if needs_log and not any(list_segments(storage, place) for place, _ in places):
            raise StoreNotFoundError(f"{directory}: no CommitLog files, and nothing else to repair the store from")
        return plan

    def _report(
        self, plan: RepairPlan, found: VerifyReport | None, left: Iterable[Finding], *, is_resumed: bool = False
    ) -> RepairReport:
        counts = {} if found is None else found.counts
        left, explained = without_quarantined(self.root, left, journal.manifests(Path(self.root)))
        return RepairReport(
            store=self.root, is_applied=False, is_resumed=is_resumed, directory=None, steps=steps(plan),
            lost=counts.get(finding_kinds.UNIT_LOST, 0), before=counts, left=left, explained=explained, seconds=0.0,
        )  # fmt: skip


def _faults(report: VerifyReport) -> list[Finding]:
    """Return a verification's findings that are more than information."""
    return [finding for finding in report.findings if finding.kind.severity is not Severity.INFO]


def _rebuilds(plan: RepairPlan) -> list[RebuildOptions]:
    """One for queues and Index, or one for each: the original deletes a topic's queues, and never its Index entries."""
    both = RebuildOptions(consumequeue=True, index=True, sizes=plan.store_sizes)
    if not plan.rebuild:
        return []
    if plan.live_topics is None:
        return [both]
    return [replace(both, index=False, live_topics=plan.live_topics), replace(both, consumequeue=False)]
