"""Report of a repair: the steps planned or done, and the findings afterwards."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from rmq_formats.errors import RmqError
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.publication import Outcome
from rmq_offline.repair.filler import Fill
from rmq_offline.repair.plan import RepairPlan
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Kind

_DONE: Final = {
    Fill.FILLER: "copy aside, write a filler over it",
    Fill.END: "copy aside, end the file here",
    Fill.BYTES: "copy aside, write what must stand there",
    Fill.ZEROS: "copy aside, write zeros over it",
    Fill.NONE: "copy aside, cut it off",
}

_Sides = Callable[[Finding], Sequence[tuple[int, int]]]
"""Returns the physical offsets of the messages on both sides of each hole of a finding; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair, in words.

    Attributes:
        path: relative to the store's root.
        why: code of the finding, or words.
        size: number of bytes concerned.
    """

    action: str
    path: str
    why: str
    physical_offset: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Steps, findings and outcome of a repair or of its dry run.

    Attributes:
        is_resumed: whether this run completed a killed repair.
        directory: quarantine directory with the replaced bytes and files; None if there are none.
        lost: number of messages that queues name in damaged ranges.
        left: faults that cannot be repaired; after a repair, faults that a verification still finds.
        explained: number of messages that queues lack because this or an earlier repair quarantined them.
        closed: number of queue offsets without a record that their queue has closed: nothing to repair.
        disturbed: queues with changed bytes though the plan does not replace them.
        layouts: layouts beside the classic one, such as a DLedger CommitLog.
    """

    store: str
    is_applied: bool = False
    is_resumed: bool
    directory: str | None = None
    steps: tuple[Step, ...]
    lost: int
    before: dict[Kind, int]
    left: tuple[Finding, ...]
    explained: int
    closed: int
    outcome: Outcome
    disturbed: tuple[str, ...] = ()
    layouts: tuple[str, ...]
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """True if the store is sound: no finding is left and no step is pending."""
        is_undisturbed = not self.disturbed and not self.outcome.unaccepted_queues
        return not self.left and is_undisturbed and (self.is_applied or not self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the JSON report."""
        return {
            "job": "repair",
            "store": self.store,
            "layouts": list(self.layouts),
            "applied": self.is_applied,
            "resumed": self.is_resumed,
            "clean": self.is_clean,
            "seconds": self.seconds,
            "quarantine": self.directory,
            "steps": [asdict(step) for step in self.steps],
            "messages_lost": self.lost,
            "messages_quarantined": self.explained,
            "gaps_closed": self.closed,
            "finding_counts": {kind.code: count for kind, count in self.before.items()},
            "left": [finding.to_dict() for finding in self.left],
            "changes": None if self.outcome.changes is None else self.outcome.changes.to_dict(),
            "taken_unaccepted": self.outcome.unaccepted_queues,
            "replaced": self.outcome.quarantine,
            "replaced_bytes": self.outcome.quarantine_bytes,
            "bring_back": self.outcome.bring_back,
            "queues_disturbed": list(self.disturbed),
        }


def list_steps(plan: RepairPlan) -> Iterator[Step]:
    """List a plan's steps in words."""
    for log_range in plan.log_ranges:
        action = (
            _DONE[log_range.fill] if log_range.existing_bytes else _DONE[log_range.fill].removeprefix("copy aside, ")
        )
        size = log_range.existing_bytes if log_range.fill is Fill.END else log_range.size
        yield Step(action, log_range.path, log_range.code, log_range.physical_offset, size or None)
    new_files = {
        log_range.path for log_range in plan.log_ranges if log_range.code == finding_kinds.SEGMENT_MISSING.code
    }
    for path, size in plan.sizes:
        if path in new_files:
            yield Step("create the file", path, finding_kinds.SEGMENT_MISSING.code, size=size)
        else:
            yield Step("resize the file", path, finding_kinds.SEGMENT_SIZE.code, size=size)
    for path in plan.moves:
        yield Step("move to the quarantine", path, "in the way")
    for path in plan.configs:
        yield Step("restore from its .bak", path, finding_kinds.CONFIG_UNPARSABLE.code)
    if plan.entries is not None:
        if plan.entries.makes_index:
            yield Step("make anew of the entries", f"{plan.entries.directory}/index", "data and index agree")
        if plan.entries.checkpoint is not None:
            yield Step("rewrite", f"{plan.entries.directory}/checkpoint", "it speaks of entries that there are")
    if plan.rebuild:
        if plan.queues is None:
            yield Step("rebuild from the log", "consumequeue", _sizes_text(plan))
        for topic, queue_id in plan.queues or ():
            yield Step("rebuild from the log", f"consumequeue/{topic}/{queue_id}", _sizes_text(plan))
        if plan.index:
            sizes = f"{plan.store_sizes.index_slots} slots, {plan.store_sizes.index_entries} entries"
            yield Step("rebuild from the log", "index", sizes)
    if plan.checkpoint:
        yield Step("rewrite", "checkpoint", "log, queues and Index agree")


def _sizes_text(plan: RepairPlan) -> str:
    text = f"files of {plan.store_sizes.consumequeue_file_bytes} bytes"
    return text if plan.live_topics is None else f"{text}; not the topics that were deleted"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Queue offsets that no record has, by their explanation.

    Attributes:
        unexplained: the other findings, and gaps that remain open in a RocksDB for an unknown reason.
        quarantined: number of queue offsets whose messages this or an earlier repair quarantined.
        closed: number of the other queue offsets that the queue has closed: its units have no gap.
    """

    unexplained: tuple[Finding, ...]
    quarantined: int
    closed: int


def sort_gaps(root: str, findings: Iterable[Finding], repairs: Sequence[RepairPlan]) -> Gaps:
    """Separate gaps that a repair explains from the other findings."""
    log_ranges = sorted(
        (log_range.physical_offset, log_range.physical_offset + log_range.size)
        for plan in repairs
        for log_range in plan.log_ranges
        if log_range.fill is not Fill.BYTES
    )
    unexplained: list[Finding] = []
    quarantined = closed = 0
    with _sides_of(root) as sides_of:
        for finding in findings:
            if finding.kind != finding_kinds.QUEUE_OFFSET_GAP:
                unexplained.append(finding)
            elif _is_quarantined(sides_of(finding), log_ranges):
                quarantined += finding.count
            elif finding.physical_offset is not None:
                closed += finding.count
            else:
                unexplained.append(finding)
    return Gaps(tuple(unexplained), quarantined, closed)


def _is_quarantined(sides: Sequence[tuple[int, int]], log_ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether something was quarantined between the messages on both sides of each hole in a queue."""
    return bool(sides) and all(
        any(begin < stretch_end and stretch_begin < end for stretch_begin, stretch_end in log_ranges)
        for begin, end in sides
    )


@contextmanager
def _sides_of(root: str) -> Iterator[_Sides]:
    """Yield a function that returns the sides of a finding's gaps: of the finding itself, else from RocksDB."""
    with ExitStack() as stack:
        databases: list[QueueDatabase | None] = []

        def sides_of(gap: Finding) -> Sequence[tuple[int, int]]:
            if gap.physical_offset is not None:
                return ((gap.physical_offset, gap.physical_offset + (gap.size or 0)),)
            if not databases:
                databases.append(_open_database(root, stack))
            return _sides_in_database(databases[0], gap)

        yield sides_of


def _open_database(root: str, stack: ExitStack) -> QueueDatabase | None:
    store = open_store(root)
    path = store.layouts.only_queue_database
    with suppress(RmqError):  # verify reports it
        return stack.enter_context(open_queues(store.storage, path)) if path is not None else None
    return None


def _sides_in_database(database: QueueDatabase | None, gap: Finding) -> Sequence[tuple[int, int]]:
    """Read the sides of all gaps of a queue: the finding has the number of missing offsets, not the offsets."""
    if database is None or gap.topic is None or gap.queue_id is None:
        return ()
    sides: list[tuple[int, int]] = []
    places, before = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    with suppress(RmqError):
        for offsets, units in database.units(gap.topic, gap.queue_id):
            places = np.concatenate([places[-1:], offsets])
            before = np.concatenate([before[-1:], units["physical_offset"].astype(np.int64)])
            holes = np.flatnonzero(np.diff(places) > 1)
            sides += zip(before[holes].tolist(), before[holes + 1].tolist(), strict=True)
        return sides
    return ()
