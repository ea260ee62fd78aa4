"""Comparison of the messages that consumers get before and after queues are replaced.

Both sides are compared queue by queue over arrays. A queue with the same bytes on both sides is not decoded.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.errors import NotAcceptedError
from rmq_formats.read.dirty import read_checkpoint
from rmq_formats.read.query import MAX_LONG
from rmq_formats.read.ranges import edge_message
from rmq_formats.scan.splits import last_record_end
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.rebuild.queue_views import (
    NO_UNITS,
    FileStates,
    QueueIdentity,
    QueueTree,
    QueueView,
    RecordHeads,
    Units,
    open_tree,
    view,
    with_placeholders,
)
from rmq_offline.verify.committed_offsets import (
    CONSUMER_OFFSETS,
    LIGHT_CONSUMER_OFFSETS,
    CommittedOffset,
    parse_consumer_offsets,
    parse_delay_offsets,
)
from rmq_offline.verify.config_files import read_config_texts, read_rocksdb_config
from rmq_offline.verify.findings import FindingList

ALL: Final = "all"
MAX_NAMED: Final = 5  # queues that one line of an error names


@dataclass(frozen=True, slots=True)
class QueueChange:
    """Difference between what consumers get of a queue before and after.

    Attributes:
        least_before, least_after: min offset; None without a queue.
        largest_before, largest_after: max offset; None without a queue.
        messages_before, messages_after: number of messages that consumers can read.
        leaving: number of messages that the queue has before only.
        returning: number of messages that the queue has after only.
        moved: number of messages with another queue offset after.
        leaving_offsets: the first and the last queue offset of the leaving messages.
    """

    topic: str
    queue_id: int
    least_before: int | None
    least_after: int | None
    largest_before: int | None
    largest_after: int | None
    messages_before: int
    messages_after: int
    leaving: int
    returning: int
    moved: int
    leaving_offsets: tuple[int, int] | None

    @property
    def name(self) -> str:
        """Name of the queue for ``--accept``."""
        return f"{self.topic}/{self.queue_id}"

    @property
    def is_harmful(self) -> bool:
        """Return whether a consumer loses a message by the change, or the queue's end is lowered."""
        return bool(self.harm())

    def harm(self) -> str:
        """Describe the loss of consumers by the change; empty without a loss."""
        harms = []
        if self.leaving:
            harms.append(f"{self.leaving} message{'s' * (self.leaving != 1)} leave {self.name}")
        if self.moved:
            harms.append(f"{self.moved} message{'s' * (self.moved != 1)} get another queue offset in {self.name}")
        if (self.largest_after or 0) < (self.largest_before or 0):
            harms.append(
                f"the end of {self.name} goes from {self.largest_before} to {_offset_text(self.largest_after)}"
            )
        return ", ".join(harms)

    def text(self) -> str:
        """Return the change in one line."""
        parts = [f"{self.name}: {_offset_text(self.largest_before)} -> {_offset_text(self.largest_after)}"]
        if self.least_before != self.least_after:
            parts.append(f"least {_offset_text(self.least_before)} -> {_offset_text(self.least_after)}")
        if self.messages_before != self.messages_after:
            parts.append(f"messages {self.messages_before} -> {self.messages_after}")
        if self.leaving_offsets is not None:
            parts.append(
                f"{self.leaving} leave, of the queue offsets {self.leaving_offsets[0]} to {self.leaving_offsets[1]}"
            )
        parts += [f"{self.returning} come back"] * bool(self.returning)
        parts += [f"{self.moved} get another queue offset"] * bool(self.moved)
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON."""
        return {"queue": self.name, **asdict(self), "needs_accept": self.is_harmful}


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Committed offset that would be outside of its queue.

    Attributes:
        group: None is the broker's own delivery of delayed messages.
        least_after: min offset of the queue; None without a queue.
        largest_after: max offset of the queue; None without a queue.
    """

    group: str | None
    topic: str
    queue_id: int
    offset: int
    least_after: int | None
    largest_after: int | None

    def text(self) -> str:
        """Return the change in one line."""
        group = "delayed delivery" if self.group is None else f"group {self.group}"
        reason = "the queue does not exist"
        if self.largest_after is not None:
            reason = f"the queue has the offsets {self.least_after} to {self.largest_after}"
        return f"offset {self.offset} of {group} in {self.topic}/{self.queue_id} would be outside: {reason}"


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """All changes of a store's queues, and the committed offsets that were inside of their queue, and will not be."""

    queues: tuple[QueueChange, ...] = ()
    groups: tuple[GroupChange, ...] = ()

    def needing_accept(self, accept: Collection[str] = ()) -> list[QueueChange]:
        """Return the harmful changes that nobody has accepted."""
        accepted = set(accept)
        return [
            change for change in self.queues if change.is_harmful and not accepted & {ALL, change.topic, change.name}
        ]

    def refuse(self, root: str, accept: Collection[str]) -> None:
        """Refuse harmful changes that nobody has accepted. Raises NotAcceptedError."""
        harmful = self.needing_accept(accept)
        if not harmful:
            return
        harms = "; ".join(change.harm() for change in harmful[:MAX_NAMED])
        more = f"; and {len(harmful) - MAX_NAMED} more queues change" if len(harmful) > MAX_NAMED else ""
        names = [change.name for change in harmful] if len(harmful) <= MAX_NAMED else [ALL]
        raise NotAcceptedError(f"{root}: {harms}{more}", tuple(names))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON."""
        return {
            "queues": [change.to_dict() for change in self.queues],
            "groups_outside": [asdict(change) for change in self.groups],
            "messages_leaving": sum(change.leaving for change in self.queues),
            "messages_returning": sum(change.returning for change in self.queues),
            "needs_accept": [change.name for change in self.needing_accept()],
        }


def _offset_text(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Queues that are compared: those of some directories below the root, and of these all, or some by topic and id."""

    directories: Collection[str]
    queues: Collection[tuple[str, int]] | None = None

    def __contains__(self, name: QueueIdentity) -> bool:
        directory = "batchconsumequeue" if name.is_batch else "consumequeue"
        return directory in self.directories and (self.queues is None or (name.topic, name.queue_id) in self.queues)


SameQueue = tuple[QueueIdentity, FileStates, FileStates]  # with the states of its files before and after


def find_changes(
    store: StoreFiles,
    segments: list[Segment],
    before: str,
    after: str,
    selection: QueueSelection,
    lost: Sequence[tuple[int, int]] = (),
    placeholder_ends: Mapping[tuple[str, int], int] = MappingProxyType({}),
    *,
    lists_new: bool = True,
    same_queues: set[SameQueue] | None = None,
) -> QueueChanges:
    """Compare the queues below one directory or URI with those below another. Raises StoreError.

    Args:
        store: the store whose groups are compared with the queues.
        segments: of the CommitLog; at least one.
        lost: (begin, end) physical offsets of ranges whose records are lost. The units of these records count for the
            ends of queues only.
        placeholder_ends: by queue, the end that placeholders for lost messages will give the queue.
        lists_new: report new queues as changes even if the store had no queue before.
        same_queues: queues that an earlier comparison found equal; equal queues of this one are added.
    """
    same_queues = set() if same_queues is None else same_queues

    @cache
    def heads() -> RecordHeads:
        log_end = last_record_end(store.storage, segments)
        missing = [(log_end, MAX_LONG)] if _lacks_last_files(store, segments, log_end) else []
        return RecordHeads(segments, log_end, is_local=store.storage.is_local, lost=[*lost, *missing])

    queue_changes: list[QueueChange] = []
    sides: dict[tuple[str, int], tuple[QueueView | None, QueueView | None]] = {}
    with open_tree(before) as old_tree, open_tree(after) as new_tree:
        if not old_tree.names and not lists_new:
            return QueueChanges()
        for name in sorted(old_tree.names | new_tree.names):
            if name not in selection or _is_same(name, old_tree, new_tree, same_queues):
                continue
            record_heads = heads()
            old, new = (view(name, tree.units(name), record_heads) for tree in (old_tree, new_tree))
            new = with_placeholders(new, placeholder_ends.get((name.topic, name.queue_id), 0))
            change = compare_views(name, old, new)
            if change is not None:
                queue_changes.append(change)
                sides[name.topic, name.queue_id] = old, new
    groups = _groups_outside(read_committed_offsets(store) if sides else (), sides)
    return QueueChanges(tuple(queue_changes), tuple(groups))


def _lacks_last_files(store: StoreFiles, segments: Sequence[Segment], log_end: int) -> bool:
    """Return whether files are missing after the log's last one: it is full, and a stopped broker had flushed more."""
    if log_end != segments[-1].end_offset or store.storage.exists(paths.abort_file(store.root)):
        return False
    checkpoint, last = read_checkpoint(store), edge_message(store.storage, segments, last=True)
    if checkpoint is None or last is None:
        return False
    return checkpoint.physic_msg_timestamp_ms > last.store_timestamp_ms


def _is_same(name: QueueIdentity, before: QueueTree, after: QueueTree, same_queues: set[SameQueue]) -> bool:
    states = name, before.file_states(name), after.file_states(name)
    if states not in same_queues:
        if not before.has_same_files(name, after):
            return False
        same_queues.add(states)
    return True


def compare_views(name: QueueIdentity, old: QueueView | None, new: QueueView | None) -> QueueChange | None:
    """Compare two views of a queue; None if consumers get the same messages."""
    old_units, new_units = (NO_UNITS if side is None else side.units for side in (old, new))
    leaves = ~np.isin(old_units.physical_offsets, new_units.physical_offsets)
    returns = ~np.isin(new_units.physical_offsets, old_units.physical_offsets)
    moved = _moved(_in_log_order(old_units.select(~leaves)), _in_log_order(new_units.select(~returns)))
    leaving = old_units.queue_offsets[leaves]
    change = QueueChange(
        name.topic,
        name.queue_id,
        None if old is None else old.least,
        None if new is None else new.least,
        None if old is None else old.largest,
        None if new is None else new.largest,
        0 if old is None else old.message_count,
        0 if new is None else new.message_count,
        int(old_units.counts[leaves].sum()),
        int(new_units.counts[returns].sum()),
        moved,
        (int(leaving.min()), int(leaving.max())) if len(leaving) else None,
    )
    is_same = change.least_before == change.least_after and change.largest_before == change.largest_after
    return None if is_same and not (leaves.any() or returns.any() or moved) else change


def _in_log_order(units: Units) -> Units:
    return units.select(np.lexsort((units.queue_offsets, units.physical_offsets)))


def _moved(old: Units, new: Units) -> int:
    """Count the units whose message has another queue offset after; both sides have the same messages, in log order.

    A message may have several queue offsets.
    """
    if np.array_equal(old.physical_offsets, new.physical_offsets):
        return int((old.queue_offsets != new.queue_offsets).sum())
    pairs, new_pairs = (np.rec.fromarrays([units.physical_offsets, units.queue_offsets]) for units in (old, new))
    return int((~np.isin(pairs, new_pairs)).sum())


def read_committed_offsets(store: StoreFiles) -> list[CommittedOffset]:
    """Read the offsets of consumer groups and of the delayed delivery; files that cannot be read have none."""
    texts = read_config_texts(store.storage, paths.config_dir(store.root), FindingList())
    stored = read_rocksdb_config(store, FindingList())
    committed_offsets = [
        committed
        for name in (CONSUMER_OFFSETS, LIGHT_CONSUMER_OFFSETS)
        for committed in parse_consumer_offsets(texts.get(name, "{}"))
    ]
    if stored.committed_offsets is not None:
        committed_offsets = list(stored.committed_offsets)
    return committed_offsets + list(parse_delay_offsets(texts.get("delayOffset.json", "{}")))


def _groups_outside(
    committed_offsets: Iterable[CommittedOffset],
    sides: dict[tuple[str, int], tuple[QueueView | None, QueueView | None]],
) -> Iterator[GroupChange]:
    """List the committed offsets that are outside of a changed queue after, and were inside before."""
    for committed in committed_offsets:
        old, new = sides.get((committed.topic, committed.queue_id), (None, None))
        if old is None or not old.least <= committed.queue_offset <= old.largest:
            continue
        if new is None or not new.least <= committed.queue_offset <= new.largest:
            yield GroupChange(
                committed.group,
                committed.topic,
                committed.queue_id,
                committed.queue_offset,
                None if new is None else new.least,
                None if new is None else new.largest,
            )
