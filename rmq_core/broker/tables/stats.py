"""Statistics of messages put and got: counters by name and key with their rates, and times of puts and gets.

Source: ``BrokerStatsManager``, ``StatsItem``, ``StoreStatsService``.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from rmq_core.remoting.bodies.stats import BrokerStats, BrokerStatsItem
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX

_RANGES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_RANGE_ENDS_MS: Final = (0, 9, 49, 99, 199, 499, 999, 1999, 2999, 3999, 4999, 9999)
# Upper bounds (ms) of the buckets for percentiles. Source: ``PUT_MESSAGE_ENTIRE_TIME_BUCKETS``.
_BUCKET_ENDS_MS: Final = (
    *range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10), *range(250, 501, 50),
    *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip
_LONGEST_MS: Final = 10_001  # all longer times count as this one
_MINUTE_MS: Final = 60_000
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
PUT: Final = (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)
GOT: Final = (GROUP_GET_NUMS, GROUP_GET_SIZE)
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
# Counters without a key: gets with and without messages; enqueued and delivered timer messages.
GET_FOUND_TIMES: Final = "GET_FOUND_TIMES"
GET_MISS_TIMES: Final = "GET_MISS_TIMES"
TIMER_ENQUEUE_NUMS: Final = "TIMER_ENQUEUE_NUMS"
TIMER_DEQUEUE_NUMS: Final = "TIMER_DEQUEUE_NUMS"
# Counters of the whole broker, under the cluster's name: sums over its topics and groups.
_BROKER_COUNTERS: Final = {"BROKER_PUT_NUMS": TOPIC_PUT_NUMS, "BROKER_GET_NUMS": GROUP_GET_NUMS}
SAMPLE_S: Final = 10
_SAMPLES: Final = {"minute": (1, 7), "hour": (60, 7), "day": (360, 25)}  # store each n-th; number stored
Key = tuple[str, str]
_Sample = tuple[int, dict[Key, tuple[int, int]]]


class StoreTimes:
    """Times of puts and gets, by the clock ``now_s``; maxima and failed puts are those since the start."""

    def __init__(self, clock_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        self.put_max_ms = self.get_max_ms = self.failed_puts = 0
        self.now_s = now_s
        self._clock_ms = clock_ms
        self._puts: Counter[int] = Counter()  # number of puts of the current minute, by duration in ms
        self._last_puts: Counter[int] = Counter()
        self._window_end_ms = clock_ms() + _MINUTE_MS

    def end_put(self, begin_s: float) -> None:
        took_ms = int((self.now_s() - begin_s) * 1000)
        self._puts[min(took_ms, _LONGEST_MS)] += 1
        self.put_max_ms = max(self.put_max_ms, took_ms)

    def end_get(self, begin_s: float) -> None:
        self.get_max_ms = max(self.get_max_ms, int((self.now_s() - begin_s) * 1000))

    def end_minute(self) -> None:
        """Begin a new minute if the current one is over; to be called every few seconds."""
        now_ms = self._clock_ms()
        if now_ms >= self._window_end_ms:
            self._last_puts, self._puts = self._puts, Counter()
            self._window_end_ms = now_ms + _MINUTE_MS

    def _histogram(self, ends_ms: tuple[int, ...]) -> list[int]:
        counts = [0] * (len(ends_ms) + 1)
        for took_ms, count in self._last_puts.items():
            counts[bisect_left(ends_ms, took_ms)] += count
        return counts

    def format_put_ranges(self) -> str:
        """Format the number of puts of the last full minute in each of Java's thirteen ranges of durations."""
        counts = self._histogram(_RANGE_ENDS_MS)
        return "".join(f"{name}:{count} " for name, count in zip(_RANGES, counts, strict=True))

    def put_percentile_ms(self, share: float) -> float:
        """Estimate a percentile of the durations of the last full minute's puts, as Java does."""
        counts = self._histogram(_BUCKET_ENDS_MS)
        rank, passed, begin_ms = int(sum(counts) * share), 0, 0
        for end_ms, count in zip((*_BUCKET_ENDS_MS, _LONGEST_MS), counts, strict=True):
            if rank <= passed + count:
                return begin_ms + (end_ms - begin_ms) * (rank - passed) / count if count else float(begin_ms)
            passed, begin_ms = passed + count, end_ms
        return float(begin_ms)


def pull_key(topic: str, group: str) -> str:
    """Return the key of a group and a topic; all light queues (LMQ) share a key. Source: ``LmqBrokerStatsManager``."""
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        topic = LIGHT_QUEUE_PREFIX
    if group.startswith(LIGHT_QUEUE_PREFIX):
        group = LIGHT_QUEUE_PREFIX
    return f"{topic}@{group}"


@dataclass(slots=True)
class _Counter:
    """Counter: its sum, and the number of additions."""

    sum: int = 0
    times: int = 0


class Stats:
    """Counters of messages and bytes, by topic and group, with their rates.

    ``mornings`` has, by counter, the sums at yesterday's and at this midnight, since the start.
    """

    def __init__(self, clock_ms: Callable[[], int], now_s: Callable[[], float] | None = None) -> None:
        """Start without counters. Puts and gets are measured by ``now_s``, by default the same clock."""
        self._clock_ms = clock_ms
        self.times = StoreTimes(clock_ms, now_s or (lambda: clock_ms() / 1000))
        self.mornings: dict[str, tuple[int, int]] = {TOPIC_PUT_NUMS: (0, 0), GROUP_GET_NUMS: (0, 0)}
        self._day = self._today()
        self._counters: defaultdict[Key, _Counter] = defaultdict(_Counter)
        self._samples: dict[str, deque[_Sample]] = {name: deque(maxlen=count) for name, (_, count) in _SAMPLES.items()}
        self._count = 0
        self.sample()

    def count(self, name: str, key: str, number: int) -> None:
        counter = self._counters[name, key]
        counter.sum += number
        counter.times += 1

    def count_messages(self, names: tuple[str, str], key: str, messages: int, size: int) -> None:
        counters = self._counters
        counter = counters[names[0], key]
        counter.sum += messages
        counter.times += 1
        counter = counters[names[1], key]
        counter.sum += size
        counter.times += 1

    def keys(self, name: str) -> list[str]:
        return [key for counter_name, key in self._counters if counter_name == name]

    def sample(self) -> None:
        """Store a sample of all counters, for rates; to be called every ``SAMPLE_S``."""
        sample = self._clock_ms(), {key: (counter.sum, counter.times) for key, counter in self._counters.items()}
        for name, (every, _) in _SAMPLES.items():
            if self._count % every == 0:
                self._samples[name].append(sample)
        self._count += 1
        self.times.end_minute()
        if self._day != self._today():
            self._day = self._today()
            self.mornings = {name: (today, self.total(name)) for name, (_, today) in self.mornings.items()}

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock_ms() / 1000, UTC).astimezone().date()

    def body(self, name: str, key: str) -> BrokerStats | None:
        """Return a counter's sums and rates; None for an unknown counter."""
        if (name, key) not in self._counters:
            return None
        return self._sum_periods([(name, key)])

    def broker_body(self, name: str, is_system: Callable[[str], bool]) -> BrokerStats | None:
        """Return the sums and rates of a counter of the whole broker, without system topics; None for other names."""
        summed_name = _BROKER_COUNTERS.get(name)
        if summed_name is None:
            return None
        keys = [(summed_name, key) for key in self.keys(summed_name) if not is_system(key.partition("@")[0])]
        return self._sum_periods(keys)

    def _sum_periods(self, keys: list[Key]) -> BrokerStats:
        minute, hour, day = (self._sum_since(self._samples[period][0], keys) for period in _SAMPLES)
        return BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day)

    def _sum_since(self, first_sample: _Sample, keys: list[Key]) -> BrokerStatsItem:
        first_ms, counters = first_sample
        current, earlier = [self._current(key) for key in keys], [counters.get(key, (0, 0)) for key in keys]
        total, count = (
            sum(value[index] for value in current) - sum(value[index] for value in earlier) for index in (0, 1)
        )
        seconds = (self._clock_ms() - first_ms) / 1000
        tps, average = total / seconds if seconds > 0 else 0.0, total / count if count else 0.0
        return BrokerStatsItem(sum=total, tps=tps, avgpt=average)

    def _current(self, key: Key) -> tuple[int, int]:
        counter = self._counters.get(key)
        return (0, 0) if counter is None else (counter.sum, counter.times)

    def rate(self, name: str, key: str) -> float:
        """Return a counter's rate per second over the last minute."""
        return self._sum_since(self._samples["minute"][0], [(name, key)]).tps

    def total(self, name: str) -> int:
        return sum(counter.sum for (counter_name, _), counter in self._counters.items() if counter_name == name)

    def total_rate(self, name: str) -> float:
        """Return the rate per second of the counters of all keys over the last minute."""
        return self.total_rates(name)[1]

    def total_rates(self, name: str) -> tuple[float, float, float]:
        """Return the rates per second of the counters of all keys over ten seconds, a minute and ten minutes."""
        keys, samples = [key for key in self._counters if key[0] == name], self._samples
        firsts = samples["minute"][-1], samples["minute"][0], samples["hour"][max(len(samples["hour"]) - 2, 0)]
        short, minute, long = (self._sum_since(first, keys).tps for first in firsts)
        return short, minute, long
