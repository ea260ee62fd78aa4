"""Store timestamps in log order: a clock that was set back, against a timestamp that is damaged."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.findings import Finding
from rmq_formats.verify import kinds

CONTEXT: Final = 3  # records on each side of a seam that tell what happened there
CLOCK_STEP_MS: Final = 1000  # time servers correct clocks by less

Moment = tuple[int, int]  # physical offset, store timestamp in ms


class TimeCheck:
    """Follows the store timestamps of a run of records.

    The first record and the last are left to whoever knows their neighbours, see ``seam_findings``.

    Attributes:
        head: the first few records.
        tail: the last few.
        latest_ms: the latest store timestamp; -1 if there was none.
    """

    def __init__(self) -> None:
        self.head: list[Moment] = []
        self.tail: list[Moment] = []
        self.latest_ms = -1

    def add(
        self,
        physical_offset: int,
        positions: NDArray[np.int64],
        timestamps_ms: NDArray[np.int64],
        latest_ms: int,
        *,
        falls: bool,
    ) -> Iterator[Finding]:
        """Take the next records; yields what is wrong with those whose neighbours are known by now.

        Args:
            physical_offset: of position 0.
            positions: of the records.
            timestamps_ms: of the records.
            latest_ms: the latest of them.
            falls: whether one of them is below the one before.
        """
        if not len(timestamps_ms):
            return
        before = self.tail
        self.latest_ms = max(self.latest_ms, latest_ms)
        if len(self.head) < CONTEXT:
            self.head += _moments(physical_offset, positions, timestamps_ms, slice(CONTEXT - len(self.head)))
        last = _moments(physical_offset, positions, timestamps_ms, slice(-CONTEXT, None))
        self.tail = [*before, *last][-CONTEXT:]
        if falls or _falls(before) or (before and timestamps_ms[0] < before[-1][1]):
            offsets = np.concatenate([[offset for offset, _ in before], positions + physical_offset]).astype(np.int64)
            times = np.concatenate([[ms for _, ms in before], timestamps_ms]).astype(np.int64)
            begin = max(1, len(before) - 1)
            for number in (np.flatnonzero(times[begin:-1] < times[begin - 1 : -2]) + begin).tolist():
                low = max(0, number - 2)
                yield _judge(_moments(0, offsets, times, slice(low, number + 2)), number - low)


def _moments(
    physical_offset: int, positions: NDArray[np.int64], timestamps_ms: NDArray[np.int64], part: slice
) -> list[Moment]:
    offsets = (positions[part] + physical_offset).tolist()
    return list(zip(offsets, timestamps_ms[part].tolist(), strict=True))


def _falls(moments: Sequence[Moment]) -> bool:
    return len(moments) > 1 and moments[-1][1] < moments[-2][1]


def seam_findings(before: Sequence[Moment], after: Sequence[Moment]) -> Iterator[Finding]:
    """What ``TimeCheck`` left open between two runs of records: the last of one, and the first of the other."""
    near = [*before, *after]
    for at in (len(before) - 1, len(before)):
        if 0 < at < len(near) and near[at][1] < near[at - 1][1]:
            low = max(0, at - 2)
            yield _judge(near[low : at + 2], at - low)


def _judge(near: Sequence[Moment], at: int) -> Finding:
    """What a timestamp below the one before it means, by those around the two."""
    (before_offset, before_ms), (offset, ms) = near[at - 1], near[at]
    comes_back = at + 1 < len(near) and near[at + 1][1] >= before_ms
    if comes_back:
        return Finding(
            kinds.LOG_TIME, f"{before_ms - ms} ms before the record ahead of it, and the next one is not",
            physical_offset=offset, expected=f"at least {before_ms}", actual=str(ms),
        )  # fmt: skip
    if at < 2 or ms >= near[at - 2][1]:
        return Finding(
            kinds.LOG_TIME, f"{before_ms - ms} ms after the record behind it",
            physical_offset=before_offset, expected=f"at most {ms}", actual=str(before_ms),
        )  # fmt: skip
    kind = kinds.LOG_CLOCK if before_ms - ms >= CLOCK_STEP_MS else kinds.LOG_CLOCK_STEP
    detail = f"time goes back by {before_ms - ms} ms, and stays there"
    return Finding(kind, detail, physical_offset=offset, expected=f"at least {before_ms}", actual=str(ms))
