"""Changes of committed offsets: planned first, then written with the store locked and the former files saved.

The tables of ``config/`` are read as a broker reads them; other members of a table's file do not change.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumer_offsets_json import check_consumer_offsets, check_delay_offsets, offsets_document
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import OptionError, StoreError, StoreLayoutError
from rmq_formats.read.broker_config import offsets_file, read_config, stored_offsets
from rmq_formats.read.config_documents import LIGHT_TABLE, OFFSETS
from rmq_formats.read.queue_offset_lookup import QueueOffsetLookup
from rmq_formats.storage.contained import parent_directory, read_file, replace_file
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import StoreFiles, open_store, refuse_no_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.storage.store_lock import store_lock
from rmq_formats.store import Store, Time
from rmq_offline.offsets.positions import Position, read_positions
from rmq_offline.tasks.quarantine import QUARANTINE
from rmq_offline.verify.committed_offsets import (
    CommittedOffset,
    list_offsets,
    parse_consumer_offsets,
    parse_delay_offsets,
)
from rmq_offline.verify.config_files import config_fault

DELAY_OFFSETS: Final = "delayOffset.json"

NewOffset = Callable[[Position], int]
Check = Callable[[Sequence["OffsetChange"]], None]
"""Refuses changes by an exception."""


@dataclass(frozen=True, slots=True)
class OffsetsDocument:
    """A table of committed offsets; ``name`` is the file in ``config/``, None for a table in RocksDB."""

    name: str | None
    content: dict[str, Any]
    committed_offsets: tuple[CommittedOffset, ...]

    def with_offsets(self, committed_offsets: Iterable[CommittedOffset]) -> bytes:
        """Encode the file with other offsets; its other members do not change."""
        content: dict[str, Any] = json.loads(json.dumps(self.content))
        for committed in committed_offsets:
            if committed.group is None:
                content.setdefault(OFFSETS.table, {})[str(committed.queue_id + 1)] = committed.queue_offset
                continue
            key = f"{committed.topic}@{committed.group}"
            light = content.get(LIGHT_TABLE)
            if isinstance(light, dict) and (key in light or committed.group.startswith(LIGHT_QUEUE_PREFIX)):
                light[key] = committed.queue_offset
            else:
                queues = content.setdefault(OFFSETS.table, {}).setdefault(key, {})
                queues[str(committed.queue_id)] = committed.queue_offset
        return json.dumps(content, indent=1).encode()


def read_documents(store: StoreFiles) -> list[OffsetsDocument]:
    """Read the offsets of consumer groups and of delay levels.

    Raises:
        StoreLayoutError: the config has files of a broker with light queues (LMQ), and of one without.
        StoreError: neither a file nor its ``.bak`` can be read, or not the RocksDB.
        FormatError: the offsets are in a RocksDB that is damaged.
    """
    documents = []
    if StoreLayout.ROCKSDB_CONFIG in store.layouts:
        documents.append(OffsetsDocument(None, {}, tuple(list_offsets(stored_offsets(store)))))
    else:
        name = offsets_file(store)
        content, text = read_config(store, name, _parser(check_consumer_offsets)) or ({}, "{}")
        documents.append(OffsetsDocument(name, content, tuple(parse_consumer_offsets(text))))
    content, text = read_config(store, DELAY_OFFSETS, _parser(check_delay_offsets)) or ({}, "{}")
    documents.append(OffsetsDocument(DELAY_OFFSETS, content, tuple(parse_delay_offsets(text))))
    return documents


def _parser(check: Callable[[dict[str, Any]], None]) -> Callable[[str], tuple[dict[str, Any], str]]:
    """Return a function that parses and checks a file; it returns the document and the text."""

    def parse(text: str) -> tuple[dict[str, Any], str]:
        document = offsets_document(text)
        check(document)
        return document, text

    return parse


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of the offsets that are shown or changed; None is all."""

    group: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    delay_level: int | None = None

    def includes(self, committed: CommittedOffset) -> bool:
        """Return whether a committed offset is selected."""
        if self.delay_level is not None:
            return committed.group is None and committed.queue_id == self.delay_level - 1
        return (
            self.group in {None, committed.group}
            and self.topic in {None, committed.topic}
            and self.queue_id in {None, committed.queue_id}
        )


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A committed offset that is changed."""

    position: Position
    new_offset: int

    @property
    def skipped(self) -> int:
        """Stored messages that the group will not get; negative: messages that it gets again."""
        least, end = self.position.min_offset, self.position.max_offset
        return min(max(self.new_offset, least), end) - clamped_offset(self.position)


@dataclass(frozen=True, slots=True)
class OffsetsPlan:
    """Positions of a store's groups and the planned changes.

    ``quarantine`` is the directory with the replaced files; None if nothing was written.
    """

    root: str
    positions: tuple[Position, ...]
    changes: tuple[OffsetChange, ...] = ()
    quarantine: str | None = None


def plan_changes(
    root: str, selection: Selection, new_offset: NewOffset | None, check: Check | None = None
) -> OffsetsPlan:
    """Plan changes of offsets, without writing.

    Args:
        root: path or URI of the store.
        new_offset: returns the new offset of a position; None shows the positions alone.

    Raises:
        StoreError: config, queues or log cannot be read.
        FormatError: config or queues are in a damaged RocksDB.
        OptionError: no offset is selected, or a new one is refused.
    """
    plan, _ = _plan(root, selection, new_offset)
    if check is not None:
        check(plan.changes)
    return plan


def apply_changes(root: str, selection: Selection, new_offset: NewOffset, check: Check | None = None) -> OffsetsPlan:
    """Change the offsets of a store at rest. Arguments and errors are those of ``plan_changes``.

    Raises:
        StoreLockedError: a running broker has the store.
        StoreLayoutError: the offsets are in RocksDB.
    """
    if "://" in root:
        raise OptionError(f"{root}: offsets are set on a local disk or a shared mount")
    plan_changes(root, selection, new_offset, check)  # a refusal comes before the lock, which is a file
    with store_lock(root):
        plan, documents = _plan(root, selection, new_offset)
        if not plan.changes:
            return plan
        files = list(_changed_files(root, documents, plan.changes))
        return replace(plan, quarantine=_write(root, files))


def _plan(root: str, selection: Selection, new_offset: NewOffset | None) -> tuple[OffsetsPlan, list[OffsetsDocument]]:
    store = open_store(root)
    store.require_readable()
    refuse_no_store(store.storage, store.root)
    documents = read_documents(store)
    committed_offsets = [
        committed for document in documents for committed in document.committed_offsets if selection.includes(committed)
    ]
    if not committed_offsets and selection != Selection():
        raise OptionError(f"{root}: no committed offset of that group, topic, queue or delay level")
    positions = read_positions(store, committed_offsets)
    if new_offset is None:
        return OffsetsPlan(root, tuple(positions)), documents
    changes = (OffsetChange(position, new_offset(position)) for position in positions)
    changed = tuple(change for change in changes if change.new_offset != change.position.committed.queue_offset)
    return OffsetsPlan(root, tuple(positions), changed), documents


def _changed_files(
    root: str, documents: Sequence[OffsetsDocument], changes: Sequence[OffsetChange]
) -> Iterator[tuple[str, bytes]]:
    """Encode the files that change, by their names."""
    for document in documents:
        committed_offsets = [
            replace(change.position.committed, queue_offset=change.new_offset)
            for change in changes
            if change.position.committed in document.committed_offsets
        ]
        if committed_offsets and document.name is None:
            raise StoreLayoutError(
                f"{paths.config_dir(root)}: the offsets are in RocksDB, which rmq offsets does not write. "
                "Convert the store (rmq convert --to classic), or reset the group at the running broker "
                "(mqadmin resetOffsetByTime)."
            )
        if committed_offsets and document.name is not None:
            yield document.name, document.with_offsets(committed_offsets)


def _write(root: str, files: Sequence[tuple[str, bytes]]) -> str:
    """Write files of ``config/``, the former ones to the quarantine and to ``.bak``; return the quarantine's directory.

    After a kill each file is the old one or the new one. A file that does not parse does not replace its ``.bak``,
    from which the offsets were read. Source: ``MixAll#string2File``.
    """
    quarantine = f"{QUARANTINE}/offsets-{_next_number(root):04d}"
    for name, data in files:
        before = read_file(root, f"config/{name}")
        for former in (name, f"{name}.bak"):
            content = read_file(root, f"config/{former}")
            if content is not None:
                _replace(root, f"{quarantine}/config/{former}", content)
        if before is not None and config_fault(name, before) is None:
            _replace(root, f"config/{name}.bak", before)
        _replace(root, f"config/{name}", data)
    return f"{root}/{quarantine}"


def _replace(root: str, path: str, data: bytes) -> None:
    try:
        with parent_directory(root, path, create=True) as (directory, name):
            replace_file(directory, name, data)
    except OSError as error:
        raise StoreError(f"{root}/{path}: cannot be written ({error.strerror})") from error


def _next_number(root: str) -> int:
    """Return the number of the next quarantine of offsets."""
    names = [entry.name for entry in LocalStorage().entries(f"{root}/{QUARANTINE}")]
    numbers = [name.removeprefix("offsets-") for name in names if name.startswith("offsets-")]
    return max((int(number) for number in numbers if number.isascii() and number.isdecimal()), default=0) + 1


def offset_inside(offset: int) -> NewOffset:
    """Return a rule that sets an offset, and refuses one outside of the queue."""

    def new_offset(position: Position) -> int:
        if not position.min_offset <= offset <= position.max_offset:
            raise OptionError(
                f"--offset {offset}: {position.committed.topic}/{position.committed.queue_id} has the offsets "
                f"{position.min_offset} to {position.max_offset}"
            )
        return offset

    return new_offset


def clamped_offset(position: Position) -> int:
    """Return the offset of a queue that is nearest to a committed one."""
    return min(max(position.committed.queue_offset, position.min_offset), position.max_offset)


def offset_at_time(root: str, time: Time) -> NewOffset:
    """Return a rule for the offset of the first message stored at a time or later; the end without such a message."""
    store, files = Store(root), open_store(root)

    def new_offset(position: Position) -> int:
        committed = position.committed
        # Messages of a light queue have the offsets of the queue that they were sent to.
        if committed.topic.startswith(LIGHT_QUEUE_PREFIX):
            raise OptionError(f"--time: {committed.topic} is a light queue (LMQ), which is not searched by time")
        if position.min_offset == position.max_offset:
            return position.max_offset
        messages = store.query(topic=committed.topic, queue_id=committed.queue_id, time=time)
        offset = _place_in_queue(files, messages[0]) if messages else position.max_offset
        if position.min_offset < position.min_offset_in_log and offset <= position.min_offset_in_log:
            raise OptionError(
                f"--time: {committed.topic}/{committed.queue_id} has offsets from {position.min_offset} on, and the "
                f"log from {position.min_offset_in_log} on; tiered storage and compacted logs have no search by time. "
                "Find the offset by rmq query --tier, or rmq dump of the compacted log, and give it by rmq offsets set"
            )
        return offset

    return new_offset


def _place_in_queue(store: StoreFiles, message: StoredMessage) -> int:
    """Return the queue offset of a message as consumers count: where a gap was closed, its record states another."""
    lookup = QueueOffsetLookup(store, message.physical_offset, message.physical_offset + 1)
    place = lookup.find_queue_offsets(
        [(message.topic, message.queue_id)],
        np.zeros(1, dtype=np.int64),
        np.array([message.physical_offset]),
        np.array([message.queue_offset]),
    ).item()
    return message.queue_offset if place < 0 else place
