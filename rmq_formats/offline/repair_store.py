"""The repair of a store: verify, plan, put aside, change, rebuild, and verify again."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rmq_formats import paths
from rmq_formats.errors import OptionError, StoreNotFoundError, told_as_store_errors
from rmq_formats.findings import Finding, Severity
from rmq_formats.offline import repair_journal as journal
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.rebuild import RebuildOptions
from rmq_formats.offline.rebuild_store import Progress, rebuild_store
from rmq_formats.offline.repair_checkpoint import write_checkpoint
from rmq_formats.offline.repair_plan import RepairPlan, log_file_bytes, plan_repair
from rmq_formats.offline.repair_refusals import refuse_plan, refuse_store
from rmq_formats.offline.repair_report import RepairReport, steps, without_quarantined
from rmq_formats.offline.runner import Runner
from rmq_formats.offline.verify_plan import VerifyOptions
from rmq_formats.offline.verify_report import VerifyReport
from rmq_formats.offline.verify_store import verify_store
from rmq_formats.segment import list_segments, open_storage
from rmq_formats.verify import kinds

OnProgress = Callable[[Progress], None]


def repair_store(
    store: str,
    options: VerifyOptions,
    runner: Runner,
    *,
    apply: bool,
    work: str | None = None,
    on_progress: OnProgress | None = None,
) -> RepairReport:
    """Repair a store, or say what that would do.

    Killed at any instant, it leaves a store that another run brings to the same end. What is overwritten or in the
    way is first put into ``STORE/quarantine``; of the derived files the new ones replace the old ones whole.

    Args:
        store: root of the store, on this machine.
        options: the broker's sizes, as far as they are known.
        runner: where the tasks run.
        apply: do it; else only the plan is made, and nothing is written.
        work: directory for the intermediate files of the verifications.
        on_progress: told after each task.

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
    run = _Repair(root, options, runner, work, on_progress)
    with told_as_store_errors(root):
        report = run.apply() if apply else run.plan()
    return replace(report, seconds=round(time.perf_counter() - begin, 3))


class _Repair:
    """One run."""

    def __init__(
        self, root: str, options: VerifyOptions, runner: Runner, work: str | None, on_progress: OnProgress | None
    ) -> None:
        self.root = root
        self.options = replace(options, commitlog_file_bytes=log_file_bytes(root, options))
        self.runner = runner
        self.work = work
        self.on_progress = on_progress

    def plan(self) -> RepairReport:
        """Say what would be done."""
        with self._lock_if_there():
            left_over = self._left_over()
            if left_over is not None:
                return self._report(left_over[1], None, left_over[1].left, is_resumed=True)
            found = self._verify()
            plan = self._planned(found)
            return self._report(plan, found, plan.left)

    def apply(self) -> RepairReport:
        """Do it, or what is left of it."""
        root = Path(self.root)
        found: VerifyReport | None = None
        with store_lock(self.root):
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
        for rebuild in _rebuilds(plan):
            rebuild_store(self.root, None, rebuild, self.runner, self.on_progress)
        with store_lock(self.root):
            if plan.checkpoint:
                write_checkpoint(root)
            journal.end(directory)
        self.options = replace(self.options, commitlog_file_bytes=plan.layout.commitlog_file_bytes)
        report = self._report(plan, found, _faults(self._verify()), is_resumed=left_over is not None)
        return replace(report, is_applied=True, directory=str(directory))

    @contextmanager
    def _lock_if_there(self) -> Iterator[None]:
        """The store's lock where it has one: a plan writes nothing, not even that file."""
        if Path(paths.lock_file(self.root)).exists():
            with store_lock(self.root):
                yield
        else:
            yield

    def _left_over(self) -> tuple[Path, RepairPlan] | None:
        journal.manifests(Path(self.root))  # the report needs them: what is none is told before there is a change
        return journal.pending(Path(self.root))

    def _verify(self) -> VerifyReport:
        return verify_store(self.root, self.options, self.runner, work=self.work, on_progress=self.on_progress)

    def _planned(self, found: VerifyReport) -> RepairPlan:
        refuse_store(self.root)
        plan = plan_repair(self.root, self.options, found)
        directory = paths.commitlog_dir(self.root)
        if plan.rebuild and not list_segments(open_storage(directory)[0], directory):
            raise StoreNotFoundError(f"{directory}: no CommitLog files, and nothing else to repair the store from")
        return plan

    def _report(
        self, plan: RepairPlan, found: VerifyReport | None, left: Iterable[Finding], *, is_resumed: bool = False
    ) -> RepairReport:
        counts = {} if found is None else found.counts
        left, explained = without_quarantined(self.root, left, journal.manifests(Path(self.root)))
        return RepairReport(
            store=self.root, is_applied=False, is_resumed=is_resumed, directory=None, steps=steps(plan),
            lost=counts.get(kinds.UNIT_LOST, 0), before=counts, left=left, explained=explained, seconds=0.0,
        )  # fmt: skip


def _faults(report: VerifyReport) -> list[Finding]:
    """What a verification found, without mere information."""
    return [finding for finding in report.findings if finding.kind.severity is not Severity.INFO]


def _rebuilds(plan: RepairPlan) -> list[RebuildOptions]:
    """One for queues and Index, or one for each: the original deletes a topic's queues, and never its Index entries."""
    layout = plan.layout
    both = RebuildOptions(
        consumequeue=True, index=True, consumequeue_file_bytes=layout.consumequeue_file_bytes,
        consumequeue_ext_file_bytes=layout.consumequeue_ext_file_bytes, index_slots=layout.index_slots,
        index_entries=layout.index_entries, delay_levels_ms=layout.delay_levels_ms,
    )  # fmt: skip
    if not plan.rebuild:
        return []
    if plan.live_topics is None:
        return [both]
    return [replace(both, index=False, live_topics=plan.live_topics), replace(both, consumequeue=False)]
