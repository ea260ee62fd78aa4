"""Consumer offsets of all groups, by topic and queue (``consumerOffset.json``).

A broker with light queues (LMQ) keeps them in ``lmqConsumerOffset.json``, in two tables: that of the groups whose names
begin with ``%LMQ%`` has one offset for each light queue.

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
_LIGHT_FILE: Final = "lmqConsumerOffset.json"
_SEPARATOR: Final = "@"
_LIGHT_GROUP: Final = _SEPARATOR + LIGHT_QUEUE_PREFIX  # in the key of such a group
_MOST_LIGHT: Final = 1_000_000  # entries, of some 200 bytes each: anybody may make up light queues and their groups
NONE: Final = -1


class ConsumerOffsets:
    """Table of consumer offsets, by ``topic@group`` and queue: the next message that a group wants."""

    def __init__(self, files: TableFiles, store: MessageStore, clock_ms: Callable[[], int]) -> None:
        """Load the table. Offsets beyond their queue's end, as after a loss of power, are set back to it."""
        self._clock_ms = clock_ms
        self._has_light_queues = store.config.lmq_enabled
        name = _LIGHT_FILE if self._has_light_queues else _FILE
        # A broker that has got light queues begins with the offsets of before: the original begins with none.
        saved = files.load(name if files.has(name) else _FILE, OffsetTable)
        self._version: DataVersion = saved.data_version
        self.table: dict[str, dict[int, int]] = saved.offset_table
        # What the body has: with light queues parts of the table, which may have a million entries, kept as they come.
        self._light: dict[str, int] = {}
        self._others = {} if self._has_light_queues else self.table
        self._adopt(saved)
        self._resets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}  # in memory only, as in the original
        self.file = TableFile(files, name, self.body, progress_store=store)
        self._set_back(store)

    def _set_back(self, store: MessageStore) -> None:
        """Reset offsets to their queue's end, so that groups do not skip the next messages there."""
        beyond = [
            (key, queue_id, offset, end)
            for key, queues in self.table.items()
            for queue_id, offset in queues.items()
            if offset > (end := store.next_offset(key.partition(_SEPARATOR)[0], queue_id))
        ]
        if not beyond:
            return
        for key, queue_id, _, end in beyond:
            self.table[key][queue_id] = end
            self._note(key, self.table[key])
        self.file.changes += 1
        key, queue_id, offset, end = beyond[0]
        log.warning(
            "%(count)d consumer offsets are set back to their queue's end, the first of them of %(key)s in queue "
            "%(queue)d from %(offset)d to %(end)d",
            {"count": len(beyond), "key": key, "queue": queue_id, "offset": offset, "end": end},
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
        self._note(key, queues)
        self.file.changes += 1

    def _note(self, key: str, queues: dict[int, int]) -> None:
        """Note offsets of the table in the part of the body that they are of."""
        if not self._has_light_queues:
            return
        if _LIGHT_GROUP not in key:
            self._others[key] = queues
        elif 0 in queues:
            self._light[key] = queues[0]

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, with a pending reset for the next pull."""
        self.commit(topic, group, queue_id, offset)
        self._resets.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset
        self._pulled.pop(topic + _SEPARATOR + group, None)

    def note_pulled(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Record the offset of a group's next pull; messages between the group's offset and this one are in flight."""
        key = topic + _SEPARATOR + group
        queues = self._pulled.get(key)
        if queues is None:
            if not _has_room(self._pulled, key):
                return
            queues = self._pulled[key] = {}
        queues[queue_id] = next_offset

    def pulled(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset of a group's next pull of a queue; ``NONE`` without a pull since the start."""
        return self._pulled.get(topic + _SEPARATOR + group, {}).get(queue_id, NONE)

    def pop_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Remove and return the pending reset of a queue; None without one."""
        if not self._resets:
            return None
        queues = self._resets.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.pop(queue_id, None)

    def is_reset(self, topic: str, group: str, queue_id: int) -> bool:
        return queue_id in self._resets.get(topic + _SEPARATOR + group, ())

    def of(self, topic: str, group: str) -> dict[int, int]:
        """Return a group's offsets of a topic, by queue."""
        return self.table.get(topic + _SEPARATOR + group, {})

    def topics_of(self, group: str) -> list[str]:
        return [parts[0] for parts in self._keys() if len(parts) == 2 and parts[1] == group]

    def groups_of(self, topic: str) -> list[str]:
        return [parts[1] for parts in self._keys() if len(parts) == 2 and parts[0] == topic]

    def _keys(self) -> list[list[str]]:
        return [key.split(_SEPARATOR) for key in self.table]

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy a group's offsets of a topic to another group."""
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets is not None:
            key = topic + _SEPARATOR + target
            self.table[key] = dict(offsets)
            self._note(key, self.table[key])
            self.file.changes += 1

    def remove_group(self, group: str) -> None:
        self._remove(1, group)

    def remove_topic(self, topic: str) -> None:
        self._remove(0, topic)

    def remove(self, topic: str, group: str) -> None:
        tables: tuple[dict[str, Any], ...] = self.table, self._light, self._others, self._resets, self._pulled
        for table in tables:
            table.pop(topic + _SEPARATOR + group, None)
        self.file.changes += 1

    def _remove(self, part: int, name: str) -> None:
        tables: tuple[dict[str, Any], ...] = self.table, self._light, self._others, self._resets, self._pulled
        for table in tables:
            for key in [key for key in table if key.split(_SEPARATOR)[part : part + 1] == [name]]:
                del table[key]
        self.file.changes += 1

    def adopt(self, offsets: OffsetTable) -> None:
        """Merge the offsets of a master into a slave's; what only the slave has stays."""
        self._adopt(offsets)
        self.file.changes += 1

    def _adopt(self, offsets: OffsetTable) -> None:
        """Add offsets; those of groups of light queues, whose only queue has the id 0, only where there are such."""
        self.table.update(offsets.offset_table)
        if not self._has_light_queues:
            return
        if offsets.lmq_offset_table:
            self.table.update((key, {0: offset}) for key, offset in offsets.lmq_offset_table.items())
        for key, queues in self.table.items():
            self._note(key, queues)

    def body(self) -> OffsetTable:
        """Return the table, as slaves and administrators get it."""
        if not self._has_light_queues:
            return OffsetTable(data_version=self._version, offset_table=self.table)
        return OffsetTable(data_version=self._version, lmq_offset_table=self._light, offset_table=self._others)

    def save(self) -> None:
        if self.file.changes != self.file.written:
            self._version = self._version.next(self._clock_ms())
            self.file.save()


def _has_room(table: dict[str, dict[int, int]], key: str) -> bool:
    """Return whether a table accepts a new key: the number of light queues' keys is limited."""
    is_light = key.startswith(LIGHT_QUEUE_PREFIX) or _LIGHT_GROUP in key
    return not is_light or len(table) < _MOST_LIGHT
