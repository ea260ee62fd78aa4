"""Report of a repair: the steps planned or done, and what the verification afterwards found."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import RmqError
from rmq_formats.read.variants.rocksdb_queues import QueueDatabase, opened_queues
from rmq_formats.rebuild.publication import Outcome
from rmq_formats.repair.filler import Fill
from rmq_formats.repair.plan import RepairPlan
from rmq_formats.storage import store_variants
from rmq_formats.storage.segments import LocalStorage, opened, read_range
from rmq_formats.verify import finding_kinds
from rmq_formats.verify.findings import Finding, Kind

_DONE: Final = {
    Fill.FILLER: "copy aside, write a filler over it",
    Fill.END: "copy aside, end the file here",
    Fill.BYTES: "copy aside, write what must stand there",
    Fill.ZEROS: "copy aside, write zeros over it",
    Fill.NONE: "copy aside, cut it off",
}

_Sides = Callable[[Finding], Sequence[tuple[int, int]]]
"""Gives the physical offsets of the messages on both sides of each hole that a finding tells of; none if unknown."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair, in words.

    Attributes:
        action: what, in words.
        path: to what, from the store's root.
        why: code of the finding, or words.
        physical_offset: where in the log.
        size: bytes concerned.
    """

    action: str
    path: str
    why: str
    physical_offset: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Steps, findings and outcome of a repair or of its dry run.

    Attributes:
        store: the store.
        is_applied: whether it was done.
        is_resumed: whether a repair that was killed was brought to its end.
        directory: of the bytes and files that were put aside; None if there are none.
        steps: in the order in which they are done.
        lost: messages that queues name in damaged stretches.
        before: faults by kind before.
        left: faults that cannot be repaired; after a repair, those that a verification still finds.
        explained: messages that queues lack because they were quarantined, by this repair or an earlier one.
        outcome: what consumers get, or would get, and where the former queues are.
        disturbed: queues that were not to be replaced, and have other bytes than before.
        seconds: from the first look at the store to the last.
    """

    store: str
    is_applied: bool
    is_resumed: bool
    directory: str | None
    steps: tuple[Step, ...]
    lost: int
    before: dict[Kind, int]
    left: tuple[Finding, ...]
    explained: int
    outcome: Outcome
    disturbed: tuple[str, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether the store is sound: nothing is left, and nothing is still to be done."""
        is_undisturbed = not self.disturbed and not self.outcome.taken
        return not self.left and is_undisturbed and (self.is_applied or not self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the JSON report."""
        return {
            "job": "repair",
            "store": self.store,
            "applied": self.is_applied,
            "resumed": self.is_resumed,
            "clean": self.is_clean,
            "seconds": self.seconds,
            "quarantine": self.directory,
            "steps": [asdict(step) for step in self.steps],
            "messages_lost": self.lost,
            "messages_quarantined": self.explained,
            "finding_counts": {kind.code: count for kind, count in self.before.items()},
            "left": [finding.to_dict() for finding in self.left],
            "changes": None if self.outcome.changes is None else self.outcome.changes.to_dict(),
            "taken_unaccepted": self.outcome.taken,
            "replaced": self.outcome.former,
            "replaced_bytes": self.outcome.former_bytes,
            "bring_back": self.outcome.bring_back,
            "queues_disturbed": list(self.disturbed),
        }


def steps(plan: RepairPlan) -> tuple[Step, ...]:
    """List a plan's steps in words."""
    return tuple(_steps(plan))


def _steps(plan: RepairPlan) -> Iterator[Step]:
    for stretch in plan.stretches:
        action = _DONE[stretch.fill] if stretch.held else _DONE[stretch.fill].removeprefix("copy aside, ")
        size = stretch.held if stretch.fill is Fill.END else stretch.size
        yield Step(action, stretch.path, stretch.code, stretch.physical_offset, size or None)
    made = {stretch.path for stretch in plan.stretches if stretch.code == finding_kinds.SEGMENT_MISSING.code}
    for path, size in plan.sizes:
        if path in made:
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


def without_quarantined(
    root: str, findings: Iterable[Finding], repairs: Sequence[RepairPlan]
) -> tuple[tuple[Finding, ...], int]:
    """Drop findings of queue places whose messages were quarantined; also return how many places these are.

    Args:
        root: of the store.
        findings: of a verification.
        repairs: all that were done.
    """
    stretches = sorted(
        (stretch.physical_offset, stretch.physical_offset + stretch.size)
        for plan in repairs
        for stretch in plan.stretches
        if stretch.fill is not Fill.BYTES
    )
    found = tuple(findings)
    gaps = {finding for finding in found if finding.kind == finding_kinds.QUEUE_OFFSET_GAP} if repairs else set()
    if not gaps:
        return found, 0
    with _sides_of(root, repairs[-1].store_sizes.consumequeue_file_bytes) as sides_of:
        told = {gap for gap in gaps if _is_quarantined(sides_of(gap), stretches)}
    return tuple(one for one in found if one not in told), sum(one.count for one in found if one in told)


def _is_quarantined(sides: Sequence[tuple[int, int]], stretches: Sequence[tuple[int, int]]) -> bool:
    """Return whether something was quarantined between the messages on both sides of each hole in a queue."""
    return bool(sides) and all(
        any(begin < stretch_end and stretch_begin < end for stretch_begin, stretch_end in stretches)
        for begin, end in sides
    )


@contextmanager
def _sides_of(root: str, file_bytes: int) -> Iterator[_Sides]:
    """Give what reads the sides of holes, from files or from RocksDB."""
    storage = LocalStorage()
    place = store_variants.only_queue_database(root, store_variants.recognise(storage, root))
    if place is None:
        yield partial(_sides_in_files, root, file_bytes)
        return
    with ExitStack() as stack:
        database = None
        with suppress(RmqError):  # verify tells of it
            database = stack.enter_context(opened_queues(storage, place))
        yield partial(_sides_in_database, database)


def _sides_in_database(database: QueueDatabase | None, gap: Finding) -> Sequence[tuple[int, int]]:
    """Read the sides of all holes of a queue: its finding tells how many places they have, and not which."""
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


def _sides_in_files(root: str, file_bytes: int, gap: Finding) -> Sequence[tuple[int, int]]:
    if gap.topic is None or gap.queue_id is None or gap.queue_offset is None or not file_bytes:
        return ()
    directory = paths.queue_dir(paths.consumequeue_dir(root), gap.topic, gap.queue_id)
    begin = _physical_offset(directory, gap.queue_offset - 1, file_bytes)
    end = _physical_offset(directory, gap.queue_offset + gap.count, file_bytes)
    return () if begin is None or end is None else ((begin, end),)


def _physical_offset(directory: str, queue_offset: int, file_bytes: int) -> int | None:
    """Read the physical offset that a unit names."""
    at = queue_offset * UNIT_BYTES
    start = at // file_bytes * file_bytes
    path = Path(directory, paths.segment_name(start))
    try:
        with opened(LocalStorage(), str(path)) as file:
            return Unit.decode(read_range(file, at - start, UNIT_BYTES)).physical_offset
    except RmqError:
        return None
