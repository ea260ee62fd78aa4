"""Consumer offsets of all groups, by topic and queue (``consumerOffset.json``).

Source: ``ConsumerOffsetManager``.
"""

import logging
from collections.abc import Callable
from typing import Final

from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies import DataVersion, OffsetTable
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.offsets")
_FILE: Final = "consumerOffset.json"
_SEPARATOR: Final = "@"
NONE: Final = -1


class ConsumerOffsets:
    """The table of consumer offsets: the next message that a group wants of each queue.

    Attributes:
        table: offsets by ``topic@group`` and queue.
        file: where it is kept.
    """

    def __init__(self, files: TableFiles, store: MessageStore, clock_ms: Callable[[], int]) -> None:
        """Load the table. Offsets beyond their queue's end in the store are set back to it.

        Args:
            files: where the table is kept.
            store: whose messages they count; a loss of power may have cost it some.
            clock_ms: the time, ms since 1970.
        """
        self._clock_ms = clock_ms
        saved = files.load(_FILE, OffsetTable)
        self._version: DataVersion = saved.data_version
        self.table: dict[str, dict[int, int]] = saved.offset_table
        self._resets: dict[str, dict[int, int]] = {}
        self.file = TableFile(files, _FILE, self.body, progress_in=store)
        self._set_back(store)

    def _set_back(self, store: MessageStore) -> None:
        """Set offsets back to their queue's end, lest a group pass over the messages that come there next."""
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
        self.file.changes += 1
        key, queue_id, offset, end = beyond[0]
        log.warning(
            "%(count)d consumer offsets are set back to their queue's end, the first of them of %(key)s in queue "
            "%(queue)d from %(offset)d to %(end)d",
            {"count": len(beyond), "key": key, "queue": queue_id, "offset": offset, "end": end},
        )

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """A group's offset; ``NONE`` where it has none. A reset that is still pending counts."""
        key = topic + _SEPARATOR + group
        reset = self._resets.get(key, {}).get(queue_id)
        return self.table.get(key, {}).get(queue_id, NONE) if reset is None else reset

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, as it commits it."""
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        queues[queue_id] = offset
        self.file.changes += 1

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, and keep a pending reset for its next pull."""
        self.commit(topic, group, queue_id, offset)
        self._resets.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Take the pending reset of a queue, for a pull; None if there is none."""
        if not self._resets:
            return None
        queues = self._resets.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.pop(queue_id, None)

    def is_reset(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a queue has a pending reset."""
        return queue_id in self._resets.get(topic + _SEPARATOR + group, ())

    def of(self, topic: str, group: str) -> dict[int, int]:
        """A group's offsets of a topic, by queue."""
        return self.table.get(topic + _SEPARATOR + group, {})

    def topics_of(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        return [parts[0] for parts in self._keys() if len(parts) == 2 and parts[1] == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets of a topic."""
        return [parts[1] for parts in self._keys() if len(parts) == 2 and parts[0] == topic]

    def _keys(self) -> list[list[str]]:
        return [key.split(_SEPARATOR) for key in self.table]

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy a group's offsets of a topic to another group."""
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets is not None:
            self.table[topic + _SEPARATOR + target] = dict(offsets)
            self.file.changes += 1

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        self._remove(1, group)

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets of a topic."""
        self._remove(0, topic)

    def _remove(self, part: int, name: str) -> None:
        for table in (self.table, self._resets):
            for key in [key for key in table if key.split(_SEPARATOR)[part : part + 1] == [name]]:
                del table[key]
        self.file.changes += 1

    def adopt(self, offsets: OffsetTable) -> None:
        """Merge the offsets of a master into a slave's; what only the slave has stays."""
        self.table.update(offsets.offset_table)
        self.file.changes += 1

    def body(self) -> OffsetTable:
        """The table, as slaves and administrators get it."""
        return OffsetTable(data_version=self._version, offset_table=self.table)

    def save(self) -> None:
        """Write the file, if anything has changed; see ``TableFile.save``."""
        if self.file.changes != self.file.written:
            self._version = self._version.next(self._clock_ms())
            self.file.save()
