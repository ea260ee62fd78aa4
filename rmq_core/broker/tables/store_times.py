"""Times of puts and gets: maxima, and the puts of the last minute by range.

Source: ``StoreStatsService``.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

_RANGES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_RANGE_ENDS_MS: Final = (0, 9, 49, 99, 199, 499, 999, 1999, 2999, 3999, 4999, 9999)
# Upper bounds of the buckets that a percentile is read from, ms. Source: ``PUT_MESSAGE_ENTIRE_TIME_BUCKETS``.
_BUCKET_ENDS_MS: Final = (
    *range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10), *range(250, 501, 50),
    *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip
_LONGEST_MS: Final = 10_001  # all above are one
_WINDOW_MS: Final = 60_000


class StoreTimes:
    """Times of puts and gets.

    Attributes:
        put_max_ms: of all puts since the start.
        get_max_ms: of all gets since the start.
        failed_puts: puts that the store has refused.
        now_s: the clock that puts and gets are measured by, s.
    """

    def __init__(self, clock_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        self.put_max_ms = self.get_max_ms = self.failed_puts = 0
        self.now_s = now_s
        self._clock_ms = clock_ms
        self._puts: Counter[int] = Counter()  # by ms, of the minute that is under way
        self._last_puts: Counter[int] = Counter()
        self._window_end_ms = clock_ms() + _WINDOW_MS

    def end_put(self, begin_s: float) -> None:
        took_ms = int((self.now_s() - begin_s) * 1000)
        self._puts[min(took_ms, _LONGEST_MS)] += 1
        self.put_max_ms = max(self.put_max_ms, took_ms)

    def end_get(self, begin_s: float) -> None:
        self.get_max_ms = max(self.get_max_ms, int((self.now_s() - begin_s) * 1000))

    def end_minute(self) -> None:
        """Begin a new minute if the one that is under way is over; call this every few seconds."""
        now_ms = self._clock_ms()
        if now_ms >= self._window_end_ms:
            self._last_puts, self._puts = self._puts, Counter()
            self._window_end_ms = now_ms + _WINDOW_MS

    def format_put_ranges(self) -> str:
        """Format how many puts of the last full minute took how long: thirteen ranges, as Java has them."""
        counts = [0] * len(_RANGES)
        for took_ms, count in self._last_puts.items():
            counts[bisect_left(_RANGE_ENDS_MS, took_ms)] += count
        return "".join(f"{name}:{count} " for name, count in zip(_RANGES, counts, strict=True))

    def put_percentile_ms(self, share: float) -> float:
        """Estimate the time within which a share of the last full minute's puts ended, as Java does."""
        counts = [0] * (len(_BUCKET_ENDS_MS) + 1)
        for took_ms, count in self._last_puts.items():
            counts[bisect_left(_BUCKET_ENDS_MS, took_ms)] += count
        rank, passed, begin_ms = int(sum(counts) * share), 0, 0
        for end_ms, count in zip((*_BUCKET_ENDS_MS, _LONGEST_MS), counts, strict=True):
            if rank <= passed + count:
                return begin_ms + (end_ms - begin_ms) * (rank - passed) / count if count else float(begin_ms)
            passed, begin_ms = passed + count, end_ms
        return float(begin_ms)
