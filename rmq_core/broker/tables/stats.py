"""Statistics of messages put and got: counters by name and key, with rates of the last minute, hour and day.

Source: ``BrokerStatsManager``, ``StatsItem``.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from rmq_core.remoting.bodies import BrokerStats, BrokerStatsItem
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
PUT: Final = (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)
GOT: Final = (GROUP_GET_NUMS, GROUP_GET_SIZE)
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"

SAMPLE_S: Final = 10
_SAMPLES: Final = {"minute": (1, 7), "hour": (60, 7), "day": (360, 25)}  # samples between two kept ones; kept ones
Key = tuple[str, str]
_Sample = tuple[int, dict[Key, tuple[int, int]]]


def pull_key(topic: str, group: str) -> str:
    """The key of what a group gets of a topic; all light queues (LMQ) have one. Source: ``LmqBrokerStatsManager``."""
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        topic = LIGHT_QUEUE_PREFIX
    if group.startswith(LIGHT_QUEUE_PREFIX):
        group = LIGHT_QUEUE_PREFIX
    return f"{topic}@{group}"


class _Tally:
    """A counter: its sum, and how often it was added to."""

    __slots__ = ("sum", "times")

    def __init__(self) -> None:
        self.sum = self.times = 0


class Stats:
    """Counters of messages and bytes, by topic and group, with their rates."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Start without counters.

        Args:
            clock_ms: the time, ms since 1970.
        """
        self._clock_ms = clock_ms
        self._tallies: defaultdict[Key, _Tally] = defaultdict(_Tally)
        self._kept: dict[str, deque[_Sample]] = {name: deque(maxlen=kept) for name, (_, kept) in _SAMPLES.items()}
        self._count = 0
        self.sample()

    def count(self, name: str, key: str, number: int) -> None:
        """Add to a counter."""
        tally = self._tallies[name, key]
        tally.sum += number
        tally.times += 1

    def count_messages(self, names: tuple[str, str], key: str, messages: int, size: int) -> None:
        """Add messages and their bytes to the two counters that have these names."""
        tallies = self._tallies
        tally = tallies[names[0], key]
        tally.sum += messages
        tally.times += 1
        tally = tallies[names[1], key]
        tally.sum += size
        tally.times += 1

    def keys(self, name: str) -> list[str]:
        """The keys of the counters with a name."""
        return [key for one, key in self._tallies if one == name]

    def sample(self) -> None:
        """Keep a sample of all counters, for rates; call it every ``SAMPLE_S``."""
        taken = self._clock_ms(), {key: (tally.sum, tally.times) for key, tally in self._tallies.items()}
        for name, (every, _) in _SAMPLES.items():
            if self._count % every == 0:
                self._kept[name].append(taken)
        self._count += 1

    def body(self, name: str, key: str) -> BrokerStats | None:
        """A counter's sums and rates; None if it was never added to."""
        if (name, key) not in self._tallies:
            return None
        minute, hour, day = (self._item(period, (name, key)) for period in _SAMPLES)
        return BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day)

    def _item(self, period: str, key: Key) -> BrokerStatsItem:
        first_ms, tallies = self._kept[period][0]
        (total, count), (total_before, count_before) = self._now(key), tallies.get(key, (0, 0))
        total, count = total - total_before, count - count_before
        seconds = (self._clock_ms() - first_ms) / 1000
        return BrokerStatsItem(
            sum=total, tps=total / seconds if seconds > 0 else 0.0, avgpt=total / count if count else 0.0
        )

    def _now(self, key: Key) -> tuple[int, int]:
        tally = self._tallies.get(key)
        return (0, 0) if tally is None else (tally.sum, tally.times)

    def rate(self, name: str, key: str) -> float:
        """Rate of a counter per second, over the last minute."""
        return self._item("minute", (name, key)).tps

    def total(self, name: str) -> int:
        """The sum of a counter over all keys."""
        return sum(tally.sum for (one, _), tally in self._tallies.items() if one == name)

    def total_rate(self, name: str) -> float:
        """Rate per second of the counters of all keys, over the last minute."""
        return sum(self.rate(name, key) for key in self.keys(name))
