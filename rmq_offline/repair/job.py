"""Repair of a store: verify, plan, journal, change, rebuild, and verify again."""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreNotFoundError, os_errors_as_store_errors
from rmq_formats.read.log_end import cut_segments, find_leftovers
from rmq_formats.storage.segments import Segment, list_segments
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild.changes import ALL, QueueChanges
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.publication import DEFAULT_PUBLISHING, Outcome, PublishOptions, RepairContext, lock_if_there
from rmq_offline.rebuild.queue_views import QueueIdentity, fingerprints
from rmq_offline.repair import journal
from rmq_offline.repair.checkpoint import write_checkpoint
from rmq_offline.repair.dledger_entries import make_state, relative_path
from rmq_offline.repair.filler import Fill
from rmq_offline.repair.lost_units import lost_ranges, placeholder_ends
from rmq_offline.repair.plan import RepairPlan, infer_log_file_bytes, plan_repair
from rmq_offline.repair.preconditions import open_repairable_store, refuse_layouts, refuse_plan, refuse_store
from rmq_offline.repair.report import RepairReport, list_steps, sort_gaps
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.quarantine import bring_back_some_command
from rmq_offline.tasks.runner import OnProgress, Runner
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport

REPLACED: Final = "replaced"  # in a repair's directory of the quarantine: the queues and IndexFiles that it replaced


def repair_store(
    store: str,
    options: VerifyOptions,
    runner: Runner,
    *,
    apply: bool,
    work: str | None = None,
    on_progress: OnProgress | None = None,
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
    accept: Collection[str] = (),
) -> RepairReport:
    """Repair a store; or, in a dry run, report what that would do.

    Killed at any instant, it leaves a store that another run brings to the same end. Bytes that are
    overwritten and files that are moved go to ``STORE/quarantine`` first; new derived files replace the old ones whole.

    Args:
        apply: change the store; False only makes the plan.
        work: directory for the verifications' intermediate files; None is the temporary directory.
        accept: queues (``TOPIC`` or ``TOPIC/ID``, or ``all``) whose messages or ends may be lost.

    Raises:
        NotAcceptedError: messages would leave their queues, or an end be lowered, and nobody has accepted it.
        StoreNotFoundError: there is no store, or nothing to repair it from.
        StoreLockedError: a running broker has the store.
        StoreError: a file that cannot be read or written.
        OptionError: an object store, or an option that cannot be used.
    """
    begin = time.perf_counter()
    files = open_repairable_store(store)
    options = replace(options, commitlog_file_bytes=infer_log_file_bytes(files.root, options))
    run = _Repair(files.root, options, runner, work, on_progress, leftover, frozenset(accept))
    with os_errors_as_store_errors(files.root):
        report = run.apply() if apply else run.plan()
    return replace(report, seconds=round(time.perf_counter() - begin, 3))


@dataclass(slots=True)
class _Repair:
    """State of one repair run."""

    root: str
    options: VerifyOptions
    runner: Runner
    work: str | None
    on_progress: OnProgress | None
    leftover: InterruptedRunPolicy
    accept: frozenset[str]

    def plan(self) -> RepairReport:
        with lock_if_there(self.root, DEFAULT_PUBLISHING):
            pending_repair = self._find_pending_repair()
            if pending_repair is not None:
                _, plan = pending_repair
                return self._report(plan, None, plan.left, Outcome(is_plan=True), is_resumed=True)
            verification = self._verify()
            plan = self._make_plan(verification)
            outcome = Outcome(is_plan=True, planned=self._predict(plan), accept=self.accept)
            return self._report(plan, verification, plan.left, outcome)

    def apply(self) -> RepairReport:
        root = Path(self.root)
        verification: VerifyReport | None = None
        before: dict[QueueIdentity, bytes] = {}
        if self.leftover is InterruptedRunPolicy.START_ANEW or journal.read_pending_plan(root, self.leftover) is None:
            refuse_store(open_store(self.root))  # before the lock, whose file would be a change
        with store_lock(self.root):
            if self.leftover is InterruptedRunPolicy.START_ANEW:
                journal.rename_pending_plan(root)
            pending_repair = self._find_pending_repair()
            if pending_repair is None:
                verification = self._verify()
                plan = self._make_plan(verification)
                if plan.is_empty:
                    report = self._report(plan, verification, _select_faults(verification), Outcome())
                    return replace(report, is_applied=True)
                refuse_plan(root, plan)
                changes = self._predict(plan)
                if changes is not None:
                    changes.refuse(self.root, self.accept)
                before = _hash_retained_queues(self.root, plan)
                directory = journal.start_repair(root, replace(plan, accept=tuple(sorted(self.accept))))
            else:
                directory, plan = pending_repair
            journal.apply_plan(root, directory, plan)
            if plan.entries is not None:
                make_state(root, directory, plan.entries)
        outcome = self._rebuild(directory, plan)
        with store_lock(self.root):
            if plan.checkpoint:
                write_checkpoint(root)
            journal.complete_repair(directory)
        self.options = replace(self.options, commitlog_file_bytes=plan.store_sizes.commitlog_file_bytes)
        after = _hash_retained_queues(self.root, plan) if before else {}
        report = self._report(
            plan, verification, _select_faults(self._verify()), outcome, is_resumed=pending_repair is not None
        )
        disturbed = tuple(sorted({str(name) for name, value in before.items() if after.get(name) != value}))
        return replace(report, is_applied=True, directory=str(directory), disturbed=disturbed)

    def _predict(self, plan: RepairPlan) -> QueueChanges | None:
        """Compare the queues with those that the repair would make; None if no queue is replaced.

        The new queues are made from the unrepaired log: messages in its damaged ranges count on neither side. Their
        units count for the end of the queue before, and also after if they will have placeholders.
        """
        changes: list[QueueChanges] = []
        publishing = PublishOptions(is_plan=True, work=self.work, repair=self._repair_context(plan))
        for rebuild in _rebuild_options(plan):
            if rebuild.consumequeue and publishing.repair is not None and publishing.repair.segments:
                report = rebuild_store(self.root, None, rebuild, self.runner, self.on_progress, publishing=publishing)
                changes += [report.outcome.planned] if report.outcome.planned is not None else []
        return changes[0] if changes else None

    def _rebuild(self, directory: Path, plan: RepairPlan) -> Outcome:
        outcome = Outcome()
        replaced = directory / REPLACED
        publishing = PublishOptions(accept=frozenset({ALL}), quarantine=replaced, repair=self._repair_context(plan))
        for rebuild in _rebuild_options(plan):
            report = rebuild_store(self.root, None, rebuild, self.runner, self.on_progress, self.leftover, publishing)
            new = report.outcome
            if rebuild.consumequeue:
                outcome = replace(new, planned=None, accept=self.accept | set(plan.accept))
            else:
                outcome = replace(outcome, quarantine=new.quarantine, quarantine_bytes=new.quarantine_bytes)
        command = bring_back_some_command(Path(self.root), replaced) if replaced.is_dir() else None
        return replace(outcome, bring_back=command)

    def _repair_context(self, plan: RepairPlan) -> RepairContext:
        store, sizes = open_store(self.root), dict(plan.sizes)
        segments = [
            replace(segment, size_bytes=min(segment.size_bytes, sizes.get(path, segment.size_bytes)))
            for directory, head_bytes in store.log_directories
            for segment in list_segments(store.storage, directory, head_bytes)
            if segment.size_bytes and (path := relative_path(self.root, segment.path)) not in plan.moves
        ]
        segments.sort(key=lambda segment: segment.start_offset)
        if segments:
            segments = cut_segments(segments, find_leftovers(store, segments))
            segments = [_without_torn_tail(segment, plan) for segment in segments]
        return RepairContext(lost_ranges(plan.log_ranges), tuple(segments), placeholder_ends(plan.log_ranges))

    def _find_pending_repair(self) -> tuple[Path, RepairPlan] | None:
        journal.manifests(Path(self.root))  # for the report: an unreadable one is reported before a change
        return (
            None
            if self.leftover is InterruptedRunPolicy.START_ANEW
            else journal.read_pending_plan(Path(self.root), self.leftover)
        )

    def _verify(self) -> VerifyReport:
        return verify_store(self.root, self.options, self.runner, work=self.work, on_progress=self.on_progress)

    def _make_plan(self, verification: VerifyReport) -> RepairPlan:
        store = open_store(self.root)
        refuse_store(store)
        plan = plan_repair(store, self.options, verification)
        refuse_layouts(store, plan)
        directories = store.log_directories
        needs_log = plan.rebuild or finding_kinds.LOG_MISSING in verification.counts
        if needs_log and not any(list_segments(store.storage, directory) for directory, _ in directories):
            raise StoreNotFoundError(
                f"{paths.commitlog_dir(self.root)}: no CommitLog files, and nothing else to repair the store from"
            )
        return plan

    def _report(
        self,
        plan: RepairPlan,
        verification: VerifyReport | None,
        findings: Iterable[Finding],
        outcome: Outcome,
        *,
        is_resumed: bool = False,
    ) -> RepairReport:
        counts = {} if verification is None else verification.counts
        gaps = sort_gaps(self.root, findings, journal.manifests(Path(self.root)))
        layouts = open_store(self.root).layouts
        return RepairReport(
            store=self.root,
            is_resumed=is_resumed,
            steps=tuple(list_steps(plan)),
            lost=counts.get(finding_kinds.UNIT_LOST, 0),
            before=counts,
            left=gaps.unexplained,
            explained=gaps.quarantined,
            closed=gaps.closed,
            outcome=outcome,
            layouts=tuple(layout.value for layout in layouts.evidence),
        )


def _without_torn_tail(segment: Segment, plan: RepairPlan) -> Segment:
    """Bound a segment by the begin of the torn tail that the repair overwrites with zeros: the log will end there."""
    begins = [
        item.physical_offset - segment.start_offset
        for item in plan.log_ranges
        if item.fill is Fill.ZEROS and segment.start_offset <= item.physical_offset < segment.end_offset
    ]
    return replace(segment, log_bytes=min(begins)) if begins else segment


def _select_faults(report: VerifyReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind.severity is not Severity.INFO]


def _rebuild_options(plan: RepairPlan) -> list[RebuildOptions]:
    """List the rebuilds of a plan.

    With live topics, queues and Index need separate rebuilds: a broker that deletes a topic keeps its Index entries.
    """
    if not plan.rebuild:
        return []
    queues = None if plan.queues is None else frozenset(plan.queues)
    makes_queues = queues is None or bool(queues)
    both = RebuildOptions(consumequeue=makes_queues, index=plan.index, sizes=plan.store_sizes, queues=queues)
    if plan.live_topics is None or not makes_queues:
        return [both]
    only_queues = replace(both, index=False, live_topics=plan.live_topics)
    return [only_queues, replace(both, consumequeue=False)] if plan.index else [only_queues]


def _hash_retained_queues(root: str, plan: RepairPlan) -> dict[QueueIdentity, bytes]:
    if plan.rebuild and plan.queues is None:
        return {}
    replaced = set(plan.queues or ())
    return {name: value for name, value in fingerprints(root).items() if (name.topic, name.queue_id) not in replaced}
