"""How many messages of each topic wait for their time: ``config/timermetrics``, and the answer to code 61.

Source: ``TimerMetrics``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import field

from rmq_core.broker.tables import Run, load_table, run_now, save_table
from rmq_core.remoting.bodies import DataVersion
from rmq_core.remoting.bodies.codec import BodyStruct
from rmq_formats.hashing import java_string_hash

_FILE: Final = "timermetrics"


class TimerCount(BodyStruct, frozen=True, kw_only=True):
    """Messages of a topic that wait.

    Attributes:
        count: how many.
        time_stamp: when that last changed, ms since 1970.
    """

    count: int = 0
    time_stamp: int = 0


class TimerCounts(BodyStruct, frozen=True, kw_only=True):
    """Messages that wait, by topic."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimerCount] = field(default_factory=dict)


class TimerMetrics:
    """The counts."""

    def __init__(self, root: str, clock_ms: Callable[[], int]) -> None:
        """Load the file.

        Args:
            root: the store's directory.
            clock_ms: the time, ms since 1970.
        """
        self._root = root
        self._clock_ms = clock_ms
        saved = load_table(root, _FILE, TimerCounts)
        self._version = saved.data_version
        self._counts = {topic: one.count for topic, one in saved.timing_count.items()}
        self._times = {topic: one.time_stamp for topic, one in saved.timing_count.items()}
        self._changes = 0

    def add(self, topic: str, change: int) -> None:
        """Count messages that begin to wait, or cease to."""
        self._counts[topic] = self._counts.get(topic, 0) + change
        self._times[topic] = self._clock_ms()
        self._changes += 1

    def revise(self, topics: Iterable[str], by_hash: Mapping[int, int]) -> None:
        """Take over what was counted anew. Topics whose names have the same hash keep their counts.

        Args:
            topics: all there are.
            by_hash: messages that wait, by Java's hash of their topic.

        Source: ``TimerMessageStore#checkAndReviseMetrics``.
        """
        names = {*topics, *self._counts}
        sharing = Counter(map(java_string_hash, names))
        for topic in names:
            topic_hash = java_string_hash(topic)
            change = by_hash.get(topic_hash, 0) - self._counts.get(topic, 0)
            if change and sharing[topic_hash] == 1:
                self.add(topic, change)

    def remove(self, topic: str) -> None:
        """Forget a topic."""
        if self._counts.pop(topic, None) is not None:
            self._changes += 1

    def body(self) -> TimerCounts:
        """The table as slaves are told it."""
        counts = {topic: TimerCount(count=count, time_stamp=self._times[topic])
                  for topic, count in self._counts.items()}  # fmt: skip
        return TimerCounts(data_version=self._version, timing_count=counts)

    def save(self, run: Run = run_now) -> None:
        """Write the file, if anything has changed; see ``save_table``."""
        if self._changes:
            self._version = self._version.next(self._clock_ms())
            self._changes = 0
            save_table(self._root, _FILE, self.body(), run)
