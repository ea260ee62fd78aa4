"""Pops in order: which messages of a queue are under way for a group, in ``consumerOrderInfo.json``.

A queue is blocked while a message of the last take is neither acknowledged nor visible again.

Source: ``ConsumerOrderInfoManager``, ``ConsumerOrderInfoLockManager``.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

import msgspec

from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.broker.wall_clock import WallClock
from rmq_core.remoting.bodies.codec import BodyStruct
from rmq_core.store.store import MessageStore

_FILE: Final = "consumerOrderInfo.json"
_KEPT_MS: Final = 24 * 3_600_000  # what nobody has popped for so long is forgotten


class OrderInfo(BodyStruct, frozen=True, kw_only=True):
    """The last take of a queue in order.

    Attributes:
        a: attempt that took it.
        cm: bits of the acknowledged ones.
        i: for how long they are invisible, ms.
        l: when they were taken last.
        o: queue offset of the first, and the distances of the others from it.
        oc: how often each was taken before, by queue offset.
        ot: when each is visible again, where that was changed.
        pop_time: when they were taken.
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
        """Queue offsets."""
        return [self.o[0] + (distance if number else 0) for number, distance in enumerate(self.o)]

    def is_acknowledged(self, number: int) -> bool:
        """Whether a message of it is acknowledged."""
        return bool(self.cm >> number & 1)

    def visible_ms(self, offset: int) -> int:
        """When a message is visible again."""
        return self.ot.get(offset, self.pop_time + self.i)

    @property
    def free_ms(self) -> int | None:
        """When it blocks its queue no more, if nobody acknowledges; None if all of it is acknowledged."""
        offsets = enumerate(self.offsets)
        left = (self.visible_ms(offset) for number, offset in offsets if not self.is_acknowledged(number))
        return max(left, default=None)

    def is_blocked(self, now_ms: int) -> bool:
        """Whether a message of it is neither acknowledged nor visible again."""
        free_ms = self.free_ms
        return free_ms is not None and free_ms > now_ms

    @property
    def next_offset(self) -> int:
        """Queue offset of the first message that is not acknowledged, or one past the last."""
        offsets = self.offsets
        return next((one for number, one in enumerate(offsets) if not self.is_acknowledged(number)), offsets[-1] + 1)


class OrderInfos(BodyStruct, frozen=True, kw_only=True):
    """The file: by ``topic@group`` and queue."""

    table: dict[str, dict[int, OrderInfo]] = msgspec.field(default_factory=dict)


class OrderTable:
    """The takes in order that are under way."""

    def __init__(
        self, files: TableFiles | None, store: MessageStore, clock_ms: WallClock, steady_ms: Callable[[], int]
    ) -> None:
        """Load them; without ``files`` they are kept in memory only, as those of lite topics are."""
        self._clock_ms = clock_ms
        self._steady_ms = steady_ms
        self._leads_ms: dict[tuple[str, str, int], int] = {}  # of the time of day over the steady clock, at each take
        saved = OrderInfos().table if files is None else files.load(_FILE, OrderInfos).table
        self._table = {key: {one: info for one, info in queues.items() if info.o} for key, queues in saved.items()}
        self._file: TableFile | None = None
        if files is not None:
            self._file = TableFile(files, _FILE, lambda: OrderInfos(table=self._table), progress_in=store)
        self._frees: list[tuple[int, str, str, int]] = []  # a heap: when, topic, group, queue id
        self._awaited: dict[tuple[str, str, int], int] = {}  # the earliest time in it of each queue
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            for queue_id, info in queues.items():
                self._await(topic, group, queue_id, info)

    @property
    def count(self) -> int:
        """Number of groups' topics that it has takes of."""
        return len(self._table)

    def places(self) -> list[tuple[str, str]]:
        """Topic and group of all."""
        return [(topic, group) for topic, _, group in (key.partition("@") for key in self._table)]

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt: str | None, now_ms: int) -> bool:
        """Whether a queue gives nothing now, unless the same attempt asks again."""
        info = self._find(topic, group, queue_id)
        if info is None or (attempt and attempt == info.a):
            return False
        return info.is_blocked(now_ms + self._shift_ms(topic, group, queue_id))

    def _lead_ms(self, topic: str, group: str, queue_id: int) -> int:
        return self._leads_ms.get((topic, group, queue_id), self._clock_ms.lead_ms)

    def _shift_ms(self, topic: str, group: str, queue_id: int) -> int:
        """What makes of a time of day now one as it was told when a queue was taken: else the clock was set since."""
        return self._lead_ms(topic, group, queue_id) - self._clock_ms.lead_ms

    def freed(self, now_ms: int, most: int | None = None) -> list[tuple[str, str, int]]:
        """Topic, group and queue of those that have become free as their messages are visible again.

        Args:
            now_ms: the time of the steady clock.
            most: how many; those that are left are given later.
        """
        freed: list[tuple[str, str, int]] = []
        while self._frees and self._frees[0][0] <= now_ms and (most is None or len(freed) < most):
            free_ms, topic, group, queue_id = heappop(self._frees)
            if self._awaited.get((topic, group, queue_id)) != free_ms:
                continue  # an earlier time took its place
            del self._awaited[topic, group, queue_id]
            info = self._find(topic, group, queue_id)
            if info is not None and not info.is_blocked(now_ms + self._lead_ms(topic, group, queue_id)):
                freed.append((topic, group, queue_id))
            elif info is not None:
                self._await(topic, group, queue_id, info)
        return freed

    def _await(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        """Look at a queue again when it becomes free: one time of it is awaited, the earliest that it was told.

        A time earlier by less than a second is passed over: who moves it again and again would make the heap long.
        """
        free_ms, key = info.free_ms, (topic, group, queue_id)
        if free_ms is not None:
            free_ms -= self._lead_ms(*key)
        if free_ms is not None and free_ms // 1000 < self._awaited.get(key, free_ms + 1000) // 1000:
            self._awaited[key] = free_ms
            heappush(self._frees, (free_ms, *key))

    def took(
        self, topic: str, group: str, queue_id: int, offsets: list[int], attempt: str | None, now_ms: int,
        invisible_ms: int,
    ) -> dict[int, int]:  # fmt: skip
        """Note a take; returns how often each of its messages was taken before, if it was."""
        before, counts = self._find(topic, group, queue_id), dict[int, int]()
        if before is not None and attempt and attempt == before.a:
            counts = before.oc
        elif before is not None:  # those that were acknowledged count, too: they come again with one that was not
            counts = {one: before.oc.get(one, 0) + 1 for one in before.offsets}
        counts = {one: counts[one] for one in offsets if one in counts}
        info = OrderInfo(
            a=attempt or "", i=invisible_ms, l=now_ms, o=[offsets[0], *(one - offsets[0] for one in offsets[1:])],
            oc=counts, pop_time=now_ms,
        )  # fmt: skip
        self._leads_ms[topic, group, queue_id] = self._clock_ms.lead_ms
        self._put(topic, group, queue_id, info)
        return counts

    def acknowledge(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int | None:
        """Acknowledge a message; returns the queue offset to commit, None where there is nothing to change.

        Raises:
            ValueError: the take has no such message.
        """
        info = self._of(topic, group, queue_id, offset, pop_time_ms)
        if info is None:
            return None
        info = msgspec.structs.replace(info, cm=info.cm | 1 << info.offsets.index(offset))
        self._put(topic, group, queue_id, info)
        return info.next_offset

    def change(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, visible_ms: int) -> bool:
        """Change when a message is visible again; False where there is nothing to change.

        Raises:
            ValueError: the take has no such message.
        """
        info = self._of(topic, group, queue_id, offset, pop_time_ms)
        if info is None:
            return False
        visible_ms += self._shift_ms(topic, group, queue_id)
        self._put(topic, group, queue_id, msgspec.structs.replace(info, ot={**info.ot, offset: visible_ms}))
        return True

    def suspend(self, topic: str, group: str, queue_id: int, pop_time_ms: int, visible_ms: int) -> None:
        """Have all messages of a take be invisible until some time, and not count it, where that is the last take.

        Source: ``MemoryConsumerOrderInfoManager#suspendQueue``.
        """
        info = self._find(topic, group, queue_id)
        if info is None or info.pop_time != pop_time_ms:
            return
        counts = {offset: max(0, times - 1) for offset, times in info.oc.items()}
        visible_ms += self._shift_ms(topic, group, queue_id)
        self._put(
            topic, group, queue_id,
            msgspec.structs.replace(info, oc=counts, ot={}, i=visible_ms - info.pop_time),
        )  # fmt: skip

    def taken_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        """When the take of a queue was that is under way; None if there is none."""
        info = self._find(topic, group, queue_id)
        return None if info is None else info.pop_time

    def _of(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> OrderInfo | None:
        info = self._find(topic, group, queue_id)
        if info is None or offset not in info.offsets:
            raise ValueError(f"{topic}@{queue_id}: offset {offset} is not under way for {group}")
        return info if info.pop_time == pop_time_ms else None

    def _find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def _put(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self._await(topic, group, queue_id, info)
        self._changed()

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Forget a queue, as its offset was reset."""
        key = f"{topic}@{group}"
        queues = self._table.get(key, {})
        self._leads_ms.pop((topic, group, queue_id), None)
        if queues.pop(queue_id, None) is not None:
            if not queues:
                del self._table[key]
            self._changed()

    def forget_acknowledged(self, topic: str, group: str, queue_id: int) -> None:
        """Forget a take if all of it is acknowledged: none of it comes again."""
        info = self._find(topic, group, queue_id)
        if info is not None and info.free_ms is None:
            self.forget(topic, group, queue_id)

    def keep_house(self, has: Callable[[str, str], bool]) -> None:
        """Forget what is old, and what topics or groups are gone; to be called periodically.

        Args:
            has: whether a topic and a group exist.
        """
        now_ms, kept = self._clock_ms(), {}
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            left = {
                one: info
                for one, info in queues.items()
                if now_ms + self._shift_ms(topic, group, one) - info.l < _KEPT_MS
            }
            if left and has(topic, group):
                kept[key] = left
        if kept != self._table:
            self._table = kept
            self._leads_ms = {key: lead_ms for key, lead_ms in self._leads_ms.items() if self._find(*key) is not None}
            self._changed()

    def _changed(self) -> None:
        if self._file is not None:
            self._file.changes += 1

    def save(self) -> None:
        """Write the file, if anything has changed; see ``TableFile.save``."""
        if self._file is not None and self._file.changes != self._file.written:
            self._file.save()
