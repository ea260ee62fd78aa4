"""Consumer offsets of all groups, by topic and queue (``consumerOffset.json``).

A broker with light queues (LMQ) has the offsets in ``lmqConsumerOffset.json``, in two tables. The table of groups whose
names begin with ``%LMQ%`` has one offset for each light queue.

Source: ``ConsumerOffsetManager``, ``LmqConsumerOffsetManager``.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies.configs import DataVersion, OffsetTable
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX

log = logging.getLogger("rmq.broker.offsets")
_FILE: Final = "consumerOffset.json"
_SEPARATOR: Final = "@"
_LMQ_GROUP: Final = _SEPARATOR + LIGHT_QUEUE_PREFIX  # part of the key of an LMQ group
_MAX_LMQ_ENTRIES: Final = 1_000_000  # of some 200 bytes each; clients name light queues and their groups freely
NONE: Final = -1


class ConsumerOffsets:
    """Table of consumer offsets by ``topic@group`` and queue: the queue offset that a group consumes next."""

    def __init__(self, files: TableFiles, store: MessageStore, clock_ms: Callable[[], int]) -> None:
        """Load the table; limit offsets to their queue's end, which a loss of power may have moved."""
        self._clock_ms = clock_ms
        self._lmq_enabled = store.config.lmq_enabled
        name = "lmqConsumerOffset.json" if self._lmq_enabled else _FILE
        # With light queues just enabled, the earlier file is loaded; the original starts without offsets.
        saved = files.load(name if files.has(name) else _FILE, OffsetTable)
        self._version: DataVersion = saved.data_version
        self.table: dict[str, dict[int, int]] = saved.offset_table
        # The two tables of the body, with light queues. They are updated with each change, as they may be large.
        self._lmq_offsets: dict[str, int] = {}
        self._plain_offsets = {} if self._lmq_enabled else self.table
        self._adopt(saved)
        self._resets: dict[str, dict[int, int]] = {}
        self._next_pull_offsets: dict[str, dict[int, int]] = {}  # in memory only, as in the original
        self.file = TableFile(files, name, self.body, progress_store=store)
        self._limit_to_queue_ends(store)

    def _limit_to_queue_ends(self, store: MessageStore) -> None:
        """Limit offsets to their queue's end, so that groups do not skip the next messages."""
        invalid_offsets = [
            (key, queue_id, offset, end)
            for key, queues in self.table.items()
            for queue_id, offset in queues.items()
            if offset > (end := store.next_offset(key.partition(_SEPARATOR)[0], queue_id))
        ]
        if not invalid_offsets:
            return
        for key, queue_id, _, end in invalid_offsets:
            self.table[key][queue_id] = end
            self._update_body(key, self.table[key])
        self.file.changes += 1
        key, queue_id, offset, end = invalid_offsets[0]
        log.warning(
            "%(count)d consumer offsets are set back to their queue's end: the first is that of %(key)s in queue "
            "%(queue)d from %(offset)d to %(end)d",
            {"count": len(invalid_offsets), "key": key, "queue": queue_id, "offset": offset, "end": end},
        )

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """Return a group's offset or its pending reset; ``NONE`` without one."""
        key = topic + _SEPARATOR + group
        reset = self._resets.get(key, {}).get(queue_id)
        return self.table.get(key, {}).get(queue_id, NONE) if reset is None else reset

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            if not _has_room(self.table, key):
                return
            queues = self.table[key] = {}
        queues[queue_id] = offset
        self._update_body(key, queues)
        self.file.changes += 1

    def _update_body(self, key: str, queues: dict[int, int]) -> None:
        if not self._lmq_enabled:
            return
        if _LMQ_GROUP not in key:
            self._plain_offsets[key] = queues
        elif 0 in queues:
            self._lmq_offsets[key] = queues[0]

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, with a pending reset for the next pull."""
        self.commit(topic, group, queue_id, offset)
        self._resets.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset
        self._next_pull_offsets.pop(topic + _SEPARATOR + group, None)

    def record_next_pull(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Record the offset of a group's next pull; messages between the group's offset and this one are in flight."""
        key = topic + _SEPARATOR + group
        queues = self._next_pull_offsets.get(key)
        if queues is None:
            if not _has_room(self._next_pull_offsets, key):
                return
            queues = self._next_pull_offsets[key] = {}
        queues[queue_id] = next_offset

    def next_pull_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset of a group's next pull of a queue; ``NONE`` without a pull since the start."""
        return self._next_pull_offsets.get(topic + _SEPARATOR + group, {}).get(queue_id, NONE)

    def pop_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Remove and return the pending reset of a queue; None without one."""
        if not self._resets:
            return None
        queues = self._resets.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.pop(queue_id, None)

    def is_reset(self, topic: str, group: str, queue_id: int) -> bool:
        return queue_id in self._resets.get(topic + _SEPARATOR + group, ())

    def of(self, topic: str, group: str) -> dict[int, int]:
        return self.table.get(topic + _SEPARATOR + group, {})

    def topics_of(self, group: str) -> list[str]:
        return [parts[0] for parts in self._keys() if len(parts) == 2 and parts[1] == group]

    def groups_of(self, topic: str) -> list[str]:
        return [parts[1] for parts in self._keys() if len(parts) == 2 and parts[0] == topic]

    def _keys(self) -> list[list[str]]:
        return [key.split(_SEPARATOR) for key in self.table]

    def clone(self, source: str, target: str, topic: str) -> None:
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets is not None:
            key = topic + _SEPARATOR + target
            self.table[key] = dict(offsets)
            self._update_body(key, self.table[key])
            self.file.changes += 1

    def remove_group(self, group: str) -> None:
        self._remove_keys(1, group)

    def remove_topic(self, topic: str) -> None:
        self._remove_keys(0, topic)

    def _tables(self) -> tuple[dict[str, Any], ...]:
        return self.table, self._lmq_offsets, self._plain_offsets, self._resets, self._next_pull_offsets

    def remove(self, topic: str, group: str) -> None:
        for table in self._tables():
            table.pop(topic + _SEPARATOR + group, None)
        self.file.changes += 1

    def _remove_keys(self, part: int, name: str) -> None:
        for table in self._tables():
            for key in [key for key in table if key.split(_SEPARATOR)[part : part + 1] == [name]]:
                del table[key]
        self.file.changes += 1

    def adopt(self, offsets: OffsetTable) -> None:
        """Merge a master's offsets into the slave's table; entries that only the slave has remain."""
        self._adopt(offsets)
        self.file.changes += 1

    def _adopt(self, offsets: OffsetTable) -> None:
        """Add offsets, with light queues also those of LMQ groups, whose only queue has the id 0."""
        self.table.update(offsets.offset_table)
        if not self._lmq_enabled:
            return
        if offsets.lmq_offset_table:
            self.table.update((key, {0: offset}) for key, offset in offsets.lmq_offset_table.items())
        for key, queues in self.table.items():
            self._update_body(key, queues)

    def body(self) -> OffsetTable:
        if not self._lmq_enabled:
            return OffsetTable(data_version=self._version, offset_table=self.table)
        return OffsetTable(
            data_version=self._version, lmq_offset_table=self._lmq_offsets, offset_table=self._plain_offsets
        )

    def save(self) -> None:
        if self.file.changes != self.file.written:
            self._version = self._version.next(self._clock_ms())
            self.file.save()


def _has_room(table: dict[str, dict[int, int]], key: str) -> bool:
    """Return whether a table accepts a new key: the number of light queues' keys is limited."""
    is_lmq_key = key.startswith(LIGHT_QUEUE_PREFIX) or _LMQ_GROUP in key
    return not is_lmq_key or len(table) < _MAX_LMQ_ENTRIES
