"""The timer wheel in memory: for each interval of time a slot, with the newest unit of its chain in ``timerlog``.

The file is written only with a checkpoint, page by page, so that it never points beyond the flushed part of
``timerlog``. Pages that were never used take no memory. Source: ``TimerWheel``.
"""

import mmap
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.timer import NO_POSITION, SLOT, SLOT_BYTES, WHEEL_FILE_BYTES, WHEEL_SLOTS, TimerSlot

PAGE_BYTES: Final = 4096
_SLOTS_A_PAGE: Final = PAGE_BYTES // SLOT_BYTES
_EMPTY: Final = bytes(SLOT_BYTES)
_SEARCH_SLOTS: Final = 1 << 12  # slots that one step of a search tests
_DTYPE: Final = np.dtype([("time_index", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
assert _DTYPE.itemsize == SLOT_BYTES


class TimerWheel:
    """``timerwheel``: one slot for each interval of ``precision_ms``."""

    def __init__(self, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        # A private map: in a shared one, the default, pages that are only read would take memory, too.
        self._memory = mmap.mmap(-1, WHEEL_FILE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._slots = np.frombuffer(self._memory, dtype=_DTYPE)
        self._dirty: set[int] = set()

    def load(self, image: NDArray[np.uint8]) -> None:
        """Load a file's content; pages of zeros are skipped."""
        pages = image.reshape(-1, PAGE_BYTES)
        for page in np.flatnonzero(pages.any(axis=1)).tolist():
            self._memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = pages[page].tobytes()

    def slot(self, time_ms: int) -> TimerSlot | None:
        """Return the slot of a time; None if nothing is due then."""
        time_index = time_ms // self.precision_ms
        slot = TimerSlot(*SLOT.unpack_from(self._memory, time_index % WHEEL_SLOTS * SLOT_BYTES))
        return slot if slot.time_index == time_index else None

    def last_position(self, time_ms: int) -> int:
        """Return the position of the newest unit that is due at a time; -1 without a unit."""
        time_index = time_ms // self.precision_ms
        stored_index, _, last, _, _ = SLOT.unpack_from(self._memory, time_index % WHEEL_SLOTS * SLOT_BYTES)
        return int(last) if stored_index == time_index else NO_POSITION

    def add(self, time_ms: int, position: int, change: int) -> None:
        """Make a new unit the head of a slot's chain, and add ``change`` to its count: 1, or -1 for a recall."""
        time_index = time_ms // self.precision_ms
        index = time_index % WHEEL_SLOTS
        stored_index, first, _last, count, magic = SLOT.unpack_from(self._memory, index * SLOT_BYTES)
        if stored_index != time_index:
            first, count, magic = position, 0, 0
        SLOT.pack_into(self._memory, index * SLOT_BYTES, time_index, first, position, count + change, magic)
        self._dirty.add(index // _SLOTS_A_PAGE)

    def clear(self, time_ms: int, last: int) -> None:
        """Empty a slot if the head of its chain is at position ``last``."""
        if self.last_position(time_ms) == last:
            index = time_ms // self.precision_ms % WHEEL_SLOTS
            self._memory[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = _EMPTY
            self._dirty.add(index // _SLOTS_A_PAGE)

    def clear_before(self, time_ms: int) -> None:
        """Empty all slots before a time: their messages have been delivered."""
        times = self._slots["time_index"]
        self._clear_all(np.flatnonzero((times != 0) & (times < time_ms // self.precision_ms)))

    def clear_beyond(self, position: int) -> list[tuple[int, int]]:
        """Empty the slots whose chain head is at or after a position of ``timerlog``; return times (ms) and heads."""
        indices = np.flatnonzero((self._slots["time_index"] != 0) & (self._slots["last"] >= position))
        cleared = self._slots[indices]
        self._clear_all(indices)
        slots = zip(cleared["time_index"].tolist(), cleared["last"].tolist(), strict=True)
        return [(time_index * self.precision_ms, last) for time_index, last in slots]  # a damaged index may be huge

    def _clear_all(self, indices: NDArray[np.int64]) -> None:
        for index in indices.tolist():
            self._memory[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = _EMPTY
        self._dirty.update(np.unique(indices // _SLOTS_A_PAGE).tolist())

    def next_time_ms(self, begin_ms: int, end_ms: int) -> int | None:
        """Return the earliest time in ``[begin_ms, end_ms)`` at which a message is due; None without one."""
        begin, end = max(begin_ms // self.precision_ms, 1), end_ms // self.precision_ms  # index 0 marks an unused slot
        if end - begin > WHEEL_SLOTS:
            times = self._slots["time_index"]
            due = times[(times >= begin) & (times < end)]
            return int(due.min()) * self.precision_ms if len(due) else None
        while begin < end:
            index = begin % WHEEL_SLOTS
            width = min(_SEARCH_SLOTS, end - begin, WHEEL_SLOTS - index)
            times = self._slots["time_index"][index : index + width]
            due_indices = np.flatnonzero(times == np.arange(begin, begin + width))
            if len(due_indices):
                return (begin + int(due_indices[0])) * self.precision_ms
            begin += width
        return None

    def count(self, time_ms: int) -> int:
        """Return the number of messages that are due at a time, less recalls."""
        slot = self.slot(time_ms)
        return 0 if slot is None else slot.count

    def count_from(self, begin_ms: int) -> int:
        """Count the messages that are due at a time or later, less recalls. Source: ``TimerWheel#getAllNum``."""
        slots = self._slots
        return int(slots["count"][slots["time_index"] >= max(begin_ms // self.precision_ms, 1)].sum(dtype=np.int64))

    def are_linked(self, times_ms: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the units, by due time and position, that are in the chain of their slot."""
        indices = times_ms // self.precision_ms
        slots = self._slots[indices % WHEEL_SLOTS]
        is_there: NDArray[np.bool_] = (indices > 0) & (slots["time_index"] == indices)
        is_there &= (slots["first"] <= positions) & (positions <= slots["last"])
        return is_there

    def collect_changes(self) -> list[tuple[int, bytes]]:
        """Collect the pages that changed since the last call: file position and content of each."""
        positions = [page * PAGE_BYTES for page in sorted(self._dirty)]
        self._dirty.clear()
        return [(position, self._memory[position : position + PAGE_BYTES]) for position in positions]

    def touch(self, positions: list[int]) -> None:
        """Mark pages as changed again, as they could not be written."""
        self._dirty.update(position // PAGE_BYTES for position in positions)
