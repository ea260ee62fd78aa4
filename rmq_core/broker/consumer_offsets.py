"""How far groups are in queues: ``consumerOffset.json``.

Source: ``ConsumerOffsetManager``.
"""

from collections.abc import Callable
from typing import Final

from rmq_core.broker.tables import Run, load_table, run_now, save_table
from rmq_core.remoting.bodies import DataVersion, OffsetTable

_FILE: Final = "consumerOffset.json"
_SEPARATOR: Final = "@"
NONE: Final = -1


class ConsumerOffsets:
    """The table of offsets: the next message that a group wants of each queue.

    Attributes:
        table: offsets by ``topic@group`` and queue.
    """

    def __init__(self, root: str, clock_ms: Callable[[], int]) -> None:
        """Load the table."""
        self._root = root
        self._clock_ms = clock_ms
        saved = load_table(root, _FILE, OffsetTable)
        self._version: DataVersion = saved.data_version
        self.table: dict[str, dict[int, int]] = saved.offset_table
        self._resets: dict[str, dict[int, int]] = {}
        self._is_changed = False

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """A group's offset; ``NONE`` where it has none. A reset that was not told yet counts as done."""
        key = topic + _SEPARATOR + group
        reset = self._resets.get(key, {}).get(queue_id)
        return self.table.get(key, {}).get(queue_id, NONE) if reset is None else reset

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Note how far a group is."""
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        queues[queue_id] = offset
        self._is_changed = True

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set a group's offset, and have its next pull be told."""
        self.commit(topic, group, queue_id, offset)
        self._resets.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The reset that the next pull has to be told, once; None if there is none."""
        if not self._resets:
            return None
        queues = self._resets.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.pop(queue_id, None)

    def is_reset(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a reset was not told yet."""
        return queue_id in self._resets.get(topic + _SEPARATOR + group, ())

    def of(self, topic: str, group: str) -> dict[int, int]:
        """A group's offsets of a topic, by queue."""
        return self.table.get(topic + _SEPARATOR + group, {})

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets of."""
        return [parts[0] for parts in self._keys() if len(parts) == 2 and parts[1] == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets of a topic."""
        return [parts[1] for parts in self._keys() if len(parts) == 2 and parts[0] == topic]

    def _keys(self) -> list[list[str]]:
        return [key.split(_SEPARATOR) for key in self.table]

    def clone(self, source: str, target: str, topic: str) -> None:
        """Have a group be as far as another one."""
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets is not None:
            self.table[topic + _SEPARATOR + target] = dict(offsets)
            self._is_changed = True

    def remove_group(self, group: str) -> None:
        """Forget a group."""
        self._remove(1, group)

    def remove_topic(self, topic: str) -> None:
        """Forget a topic."""
        self._remove(0, topic)

    def _remove(self, part: int, name: str) -> None:
        for table in (self.table, self._resets):
            for key in [key for key in table if key.split(_SEPARATOR)[part : part + 1] == [name]]:
                del table[key]
        self._is_changed = True

    def adopt(self, offsets: OffsetTable) -> None:
        """Have the offsets of a master, as a slave does; what only the slave knows stays."""
        self.table.update(offsets.offset_table)
        self._is_changed = True

    def body(self) -> OffsetTable:
        """The table as slaves are told it."""
        return OffsetTable(data_version=self._version, offset_table=self.table)

    def save(self, run: Run = run_now) -> None:
        """Write the file, if anything has changed; see ``save_table``."""
        if self._is_changed:
            self._is_changed = False
            self._version = self._version.next(self._clock_ms())
            save_table(self._root, _FILE, self.body(), run)
