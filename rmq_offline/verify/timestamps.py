"""Checks store timestamps in log order: a clock that was set back, or a damaged timestamp."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding
from rmq_offline.verify.log_facts import Longs

CONTEXT: Final = 3  # records on each side of a split boundary that show what happened
CLOCK_STEP_MS: Final = 1000  # ms: time servers correct clocks by less


class Moment(NamedTuple):
    """Physical offset and store timestamp of a record."""

    physical_offset: int
    timestamp_ms: int


def pack_moments(moments: Sequence[Moment]) -> bytes:
    """Pack moments into 16 bytes each, so that a driver has room for some million."""
    return np.array(moments, dtype="<i8").tobytes()


def unpack_moments(packed: bytes) -> list[Moment]:
    """Unpack the result of ``pack_moments``."""
    return [Moment(*row) for row in np.frombuffer(packed, dtype="<i8").reshape(-1, 2).tolist()]


class TimeCheck:
    """Check of the store timestamps in a run of records.

    ``check_boundary`` checks the first and the last record, with their neighbours.

    Args:
        loose: whether a store timestamp may be up to ``CLOCK_STEP_MS`` before the one in front of it.

    Attributes:
        head: the first few records.
        tail: the last few.
        latest_ms: the latest store timestamp; -1 if there was none.
    """

    def __init__(self, *, loose: bool = False) -> None:
        self.loose = loose
        self.head: list[Moment] = []
        self.tail: list[Moment] = []
        self.latest_ms = -1

    def add(
        self, physical_offset: int, positions: Longs, timestamps_ms: Longs, latest_ms: int, *, falls: bool
    ) -> Iterator[Finding]:
        """Check the next records; yield the findings about records whose neighbours have been read.

        Args:
            physical_offset: of position 0.
            falls: whether any timestamp is below the timestamp before it.
        """
        if not len(timestamps_ms):
            return
        before = self.tail
        self.latest_ms = max(self.latest_ms, latest_ms)
        if len(self.head) < CONTEXT:
            self.head += _moments(physical_offset, positions, timestamps_ms, slice(CONTEXT - len(self.head)))
        last = _moments(physical_offset, positions, timestamps_ms, slice(-CONTEXT, None))
        self.tail = [*before, *last][-CONTEXT:]
        falls |= len(before) > 1 and before[-1].timestamp_ms < before[-2].timestamp_ms
        if falls or (before and timestamps_ms[0] < before[-1].timestamp_ms):
            offsets = np.concatenate([[offset for offset, _ in before], positions + physical_offset]).astype(np.int64)
            times = np.concatenate([[ms for _, ms in before], timestamps_ms]).astype(np.int64)
            begin = max(1, len(before) - 1)
            for number in (np.flatnonzero(times[begin:-1] < times[begin - 1 : -2]) + begin).tolist():
                low = max(0, number - 2)
                near = _moments(0, offsets, times, slice(low, number + 2))
                yield _classify(near, number - low, loose=self.loose)


def _moments(physical_offset: int, positions: Longs, timestamps_ms: Longs, part: slice) -> list[Moment]:
    offsets = (positions[part] + physical_offset).tolist()
    return list(map(Moment, offsets, timestamps_ms[part].tolist()))


def check_boundary(before: Sequence[Moment], after: Sequence[Moment], *, loose: bool = False) -> Iterator[Finding]:
    """Check the boundary between two runs of records, which ``TimeCheck`` left open."""
    near = [*before, *after]
    for at in (len(before) - 1, len(before)):
        if 0 < at < len(near) and near[at].timestamp_ms < near[at - 1].timestamp_ms:
            low = max(0, at - 2)
            yield _classify(near[low : at + 2], at - low, loose=loose)


def _classify(near: Sequence[Moment], at: int, *, loose: bool) -> Finding:
    """Classify a timestamp below the timestamp before it, by the records around the two."""
    (before_offset, before_ms), (offset, ms) = near[at - 1], near[at]
    fall_ms = before_ms - ms
    if loose and fall_ms < CLOCK_STEP_MS:
        kind, detail = finding_kinds.LOG_CLOCK_STEP, f"{fall_ms} ms earlier than the record before it"
    elif at + 1 < len(near) and near[at + 1].timestamp_ms >= before_ms:
        kind, detail = finding_kinds.LOG_TIME, f"{fall_ms} ms earlier than the record before it, unlike the next one"
    elif at < 2 or ms >= near[at - 2].timestamp_ms:
        kind, detail = finding_kinds.LOG_TIME, f"{fall_ms} ms later than the record after it"
        return Finding(kind, detail, physical_offset=before_offset, expected=f"at most {ms}", actual=str(before_ms))
    else:
        kind = finding_kinds.LOG_CLOCK if fall_ms >= CLOCK_STEP_MS else finding_kinds.LOG_CLOCK_STEP
        detail = f"time goes back by {fall_ms} ms, and stays there"
    return Finding(kind, detail, physical_offset=offset, expected=f"at least {before_ms}", actual=str(ms))
