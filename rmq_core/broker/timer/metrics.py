"""Number of waiting timer messages by topic: ``config/timermetrics``, and the response to request code 61.

Source: ``TimerMetrics``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import field

from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies.codec import BodyStruct
from rmq_core.remoting.bodies.configs import DataVersion
from rmq_formats.codecs.hashing import java_string_hash

_FILE: Final = "timermetrics"


class TimerCount(BodyStruct, frozen=True, kw_only=True):
    """Waiting timer messages of a topic; ``time_stamp`` is that of the last change, ms since 1970."""

    count: int = 0
    time_stamp: int = 0


class TimerCounts(BodyStruct, frozen=True, kw_only=True):
    """Waiting timer messages by topic."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimerCount] = field(default_factory=dict)


class TimerMetrics:
    """Counts of waiting timer messages by topic, in ``timermetrics``."""

    def __init__(self, files: TableFiles, clock_ms: Callable[[], int]) -> None:
        self._file = TableFile(files, _FILE, self.body)
        self._clock_ms = clock_ms
        saved = files.load(_FILE, TimerCounts)
        self._version = saved.data_version
        self._counts = saved.timing_count

    def add(self, topic: str, change: int) -> None:
        """Add to a topic's count; recalls and deliveries subtract."""
        self._counts[topic] = TimerCount(count=self._count(topic) + change, time_stamp=self._clock_ms())
        self._file.changes += 1

    def _count(self, topic: str) -> int:
        return self._counts[topic].count if topic in self._counts else 0

    def revise(self, topics: Iterable[str], by_hash: Mapping[int, int]) -> None:
        """Correct counts by a recount, unless topics share Java's hash. Source: ``checkAndReviseMetrics``."""
        names = {*topics, *self._counts}
        sharing = Counter(map(java_string_hash, names))
        for topic in names:
            topic_hash = java_string_hash(topic)
            change = by_hash.get(topic_hash, 0) - self._count(topic)
            if change and sharing[topic_hash] == 1:
                self.add(topic, change)

    def remove(self, topic: str) -> None:
        if self._counts.pop(topic, None) is not None:
            self._file.changes += 1

    def body(self) -> TimerCounts:
        return TimerCounts(data_version=self._version, timing_count=self._counts)

    def save(self) -> None:
        if self._file.changes != self._file.written:
            self._version = self._version.next(self._clock_ms())
            self._file.save()
