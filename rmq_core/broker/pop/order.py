"""Pops in order: the unacknowledged messages of queues by group, in ``consumerOrderInfo.json``.

A queue is blocked while a message of the last pop is neither acknowledged nor visible. Source: ``ConsumerOrderInfo``.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

import msgspec

from rmq_core.broker.state import WallClock
from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies.codec import BodyStruct
from rmq_core.store.store import MessageStore

_FILE: Final = "consumerOrderInfo.json"
_RETENTION_MS: Final = 24 * 3_600_000  # since the last pop of a queue: ``autoClean``


class OrderInfo(BodyStruct, frozen=True, kw_only=True):
    """Last pop of a queue in order.

    Attributes:
        a: id of the attempt that popped.
        cm: bits of the acknowledged messages.
        i: invisible time, ms.
        l: time of the last pop.
        o: queue offset of the first message, then the distances of the other messages to the first.
        oc: number of earlier pops of a message, by queue offset.
        ot: changed times at which messages are visible again, by queue offset.
        pop_time: time of the pop.
    """

    a: str = ""
    cm: int = 0
    i: int = 0
    l: int = 0  # noqa: E741 # the name in the file
    o: list[int] = msgspec.field(default_factory=list)
    oc: dict[int, int] = msgspec.field(default_factory=dict)
    ot: dict[int, int] = msgspec.field(default_factory=dict)
    pop_time: int = 0

    @property
    def offsets(self) -> list[int]:
        return [self.o[0] + (distance if number else 0) for number, distance in enumerate(self.o)]

    @property
    def unacknowledged(self) -> list[int]:
        """Queue offsets of the messages that are not acknowledged."""
        return [offset for number, offset in enumerate(self.offsets) if not self.cm >> number & 1]

    def visible_ms(self, offset: int) -> int:
        return self.ot.get(offset, self.pop_time + self.i)

    @property
    def free_ms(self) -> int | None:
        """Time at which the queue is free without further acknowledgements; None if all messages are acknowledged."""
        return max(map(self.visible_ms, self.unacknowledged), default=None)

    def is_blocked(self, now_ms: int) -> bool:
        """Return whether a message is neither acknowledged nor visible again."""
        free_ms = self.free_ms
        return free_ms is not None and free_ms > now_ms

    @property
    def next_offset(self) -> int:
        """Queue offset of the first message that is not acknowledged, or one past the last."""
        offsets = self.offsets
        return next((offset for bit, offset in enumerate(offsets) if not self.cm >> bit & 1), offsets[-1] + 1)


class OrderInfos(BodyStruct, frozen=True, kw_only=True):
    """Content of the file, by ``topic@group`` and queue."""

    table: dict[str, dict[int, OrderInfo]] = msgspec.field(default_factory=dict)


class ConsumerOrderInfo:
    """Last pops in order of each queue and group."""

    def __init__(self, files: TableFiles | None, store: MessageStore, clock_ms: WallClock) -> None:
        """Load the file; without ``files`` the table is in memory only, as for lite topics."""
        self._clock_ms = clock_ms
        # Lead of the time of day over the steady clock, at the last pop of a queue.
        self._leads_ms: dict[tuple[str, str, int], int] = {}
        saved = OrderInfos().table if files is None else files.load(_FILE, OrderInfos).table
        self._table = {
            key: {queue_id: info for queue_id, info in queues.items() if info.o} for key, queues in saved.items()
        }
        self._file: TableFile | None = None
        if files is not None:
            self._file = TableFile(files, _FILE, lambda: OrderInfos(table=self._table), progress_store=store)
        self._free_times: list[tuple[int, str, str, int]] = []  # a heap: time, topic, group, queue id
        self._next_free_ms: dict[tuple[str, str, int], int] = {}  # earliest time of each queue in the heap
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            for queue_id, info in queues.items():
                self._schedule_free(topic, group, queue_id, info)

    @property
    def count(self) -> int:
        return len(self._table)

    def topic_groups(self) -> list[tuple[str, str]]:
        return [(topic, group) for topic, _, group in (key.partition("@") for key in self._table)]

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt: str | None, now_ms: int) -> bool:
        """Return whether a queue returns no messages now; the attempt of the last pop may repeat that pop.

        The caller of a blocked queue retries when ``free_queues`` returns the queue. ``free_queues`` may have returned
        the queue before: the steady clock may be ahead of the time of day by less than a step of the clock.
        """
        info = self._get(topic, group, queue_id)
        if info is None or (attempt and attempt == info.a):
            return False
        is_blocked = info.is_blocked(now_ms + self._shift_ms(topic, group, queue_id))
        if is_blocked:
            self._schedule_free(topic, group, queue_id, info)
        return is_blocked

    def _lead_ms(self, topic: str, group: str, queue_id: int) -> int:
        return self._leads_ms.get((topic, group, queue_id), self._clock_ms.lead_ms)

    def _shift_ms(self, topic: str, group: str, queue_id: int) -> int:
        """Return the correction of a time of day by the changes of the clock since the last pop of a queue."""
        return self._lead_ms(topic, group, queue_id) - self._clock_ms.lead_ms

    def free_queues(self, now_ms: int, most: int | None = None) -> list[tuple[str, str, int]]:
        """Remove and return topic, group and queue id of up to ``most`` free queues, by the steady clock's time."""
        queues: list[tuple[str, str, int]] = []
        while self._free_times and self._free_times[0][0] <= now_ms and (most is None or len(queues) < most):
            free_ms, topic, group, queue_id = heappop(self._free_times)
            if self._next_free_ms.get((topic, group, queue_id)) != free_ms:
                continue  # replaced by an earlier time
            del self._next_free_ms[topic, group, queue_id]
            info = self._get(topic, group, queue_id)
            if info is not None and not info.is_blocked(now_ms + self._lead_ms(topic, group, queue_id)):
                queues.append((topic, group, queue_id))
            elif info is not None:
                self._schedule_free(topic, group, queue_id, info)
        return queues

    def _schedule_free(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        """Schedule the next check of a queue for the earliest time at which the queue is free.

        A time earlier by less than a second is ignored: repeated changes would make the heap long.
        """
        free_ms, key = info.free_ms, (topic, group, queue_id)
        if free_ms is not None:
            free_ms -= self._lead_ms(*key)
        if free_ms is not None and free_ms // 1000 < self._next_free_ms.get(key, free_ms + 1000) // 1000:
            self._next_free_ms[key] = free_ms
            heappush(self._free_times, (free_ms, *key))

    def record_pop(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: list[int],
        attempt: str | None,
        now_ms: int,
        invisible_ms: int,
    ) -> dict[int, int]:
        """Record a pop; return the number of earlier pops of each of its messages that has any."""
        before, counts = self._get(topic, group, queue_id), dict[int, int]()
        if before is not None and attempt and attempt == before.a:
            counts = before.oc
        elif before is not None:  # acknowledged messages count as well: they return with an unacknowledged one
            counts = {offset: before.oc.get(offset, 0) + 1 for offset in before.offsets}
        counts = {offset: counts[offset] for offset in offsets if offset in counts}
        info = OrderInfo(
            a=attempt or "",
            i=invisible_ms,
            l=now_ms,
            o=[offsets[0], *(offset - offsets[0] for offset in offsets[1:])],
            oc=counts,
            pop_time=now_ms,
        )
        self._leads_ms[topic, group, queue_id] = self._clock_ms.lead_ms
        self._put(topic, group, queue_id, info)
        return counts

    def acknowledge(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int | None:
        """Acknowledge a message; return the offset to commit, None for an earlier pop's handle. Raises ValueError."""
        info = self._get_popped(topic, group, queue_id, offset, pop_time_ms)
        if info is None:
            return None
        info = msgspec.structs.replace(info, cm=info.cm | 1 << info.offsets.index(offset))
        self._put(topic, group, queue_id, info)
        return info.next_offset

    def change(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, visible_ms: int) -> bool:
        """Change when a message is visible again; return False for an earlier pop's handle. Raises ValueError."""
        info = self._get_popped(topic, group, queue_id, offset, pop_time_ms)
        if info is None:
            return False
        visible_ms += self._shift_ms(topic, group, queue_id)
        self._put(topic, group, queue_id, msgspec.structs.replace(info, ot={**info.ot, offset: visible_ms}))
        return True

    def suspend(self, topic: str, group: str, queue_id: int, pop_time_ms: int, visible_ms: int) -> None:
        """Hide the messages of a queue's last pop until a time, without counting the pop. Source: ``suspendQueue``."""
        info = self._get(topic, group, queue_id)
        if info is None or info.pop_time != pop_time_ms:
            return
        counts = {offset: max(0, times - 1) for offset, times in info.oc.items()}
        visible_ms += self._shift_ms(topic, group, queue_id)
        info = msgspec.structs.replace(info, oc=counts, ot={}, i=visible_ms - info.pop_time)
        self._put(topic, group, queue_id, info)

    def last_pop_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        info = self._get(topic, group, queue_id)
        return None if info is None else info.pop_time

    def _get_popped(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> OrderInfo | None:
        """Return the last pop, None for another time. Raises ValueError if the last pop does not contain a message."""
        info = self._get(topic, group, queue_id)
        if info is None or offset not in info.offsets:
            raise ValueError(f"{topic}@{queue_id}: offset {offset} is not in the last pop of group {group}")
        return info if info.pop_time == pop_time_ms else None

    def _get(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def _put(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self._schedule_free(topic, group, queue_id, info)
        self._mark_changed()

    def remove(self, topic: str, group: str, queue_id: int) -> None:
        """Remove a queue whose offset was reset."""
        key = f"{topic}@{group}"
        queues = self._table.get(key, {})
        self._leads_ms.pop((topic, group, queue_id), None)
        if queues.pop(queue_id, None) is not None:
            if not queues:
                del self._table[key]
            self._mark_changed()

    def remove_acknowledged(self, topic: str, group: str, queue_id: int) -> None:
        """Remove a queue whose last pop is acknowledged completely."""
        info = self._get(topic, group, queue_id)
        if info is not None and info.free_ms is None:
            self.remove(topic, group, queue_id)

    def auto_clean(self, exists: Callable[[str, str], bool]) -> None:
        """Remove old pops, and those of deleted topics or groups; to be called periodically."""
        now_ms, retained = self._clock_ms(), {}
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            recent = {
                queue_id: info
                for queue_id, info in queues.items()
                if now_ms + self._shift_ms(topic, group, queue_id) - info.l < _RETENTION_MS
            }
            if recent and exists(topic, group):
                retained[key] = recent
        if retained != self._table:
            self._table = retained
            self._leads_ms = {key: lead_ms for key, lead_ms in self._leads_ms.items() if self._get(*key) is not None}
            self._mark_changed()

    def _mark_changed(self) -> None:
        if self._file is not None:
            self._file.changes += 1

    def save(self) -> None:
        if self._file is not None and self._file.changes != self._file.written:
            self._file.save()
