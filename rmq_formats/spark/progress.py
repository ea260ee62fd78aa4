"""Lag of streams over the ``rmq_*`` sources, by the names of Spark's Kafka source.

Spark accepts metrics for ``StreamingQueryProgress`` only from sources in Java. But a progress has the end offset of a
batch and the latest offset, from which Kafka's source computes its metrics, too.
"""

import json
import logging
from collections.abc import Mapping
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

PHYSICAL_OFFSET: Final = "physicalOffset"

_log = logging.getLogger("rmq_formats.spark.progress")


def lag(source: SourceProgress) -> dict[str, str]:
    """Compute the lag of one source of a streaming progress, with the metrics of ``org.apache.spark.sql.kafka010``.

    Args:
        source: of ``query.lastProgress.sources``, or of a listener's event.

    Returns:
        ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` as texts, in messages over
        the queues of ``rmq``, and in bytes of the log of ``rmq_commitlog``. Empty for other sources, and for a progress
        without a latest offset.
    """
    ends, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    behind = [max(0, latest[name] - end) for name, end in ends.items() if name in latest]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    """Read an offset of ``rmq_commitlog`` or ``rmq`` by topic and queue; empty for another source."""
    try:
        offset = json.loads(text or "null")
    except (TypeError, ValueError):
        return {}
    if not isinstance(offset, dict):
        return {}
    if isinstance(offset.get(PHYSICAL_OFFSET), int):
        return {("", PHYSICAL_OFFSET): offset[PHYSICAL_OFFSET]}
    offsets: dict[tuple[str, str], int] = {}
    for topic, queues in offset.items():
        if isinstance(queues, dict):
            offsets |= {(topic, queue): end for queue, end in queues.items() if isinstance(end, int)}
    return offsets


class LagListener(StreamingQueryListener):
    """Logs a line a batch, at INFO to ``rmq_formats.spark.progress``: ``spark.streams.addListener(LagListener())``.

    A subclass may override ``behind`` to send the figures elsewhere.
    """

    def behind(self, query: str, batch: int, metrics: Mapping[str, str]) -> None:
        """Process the metrics of one source after a micro batch, see ``lag``; ``query`` is a name, else an id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 # Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the lag of each ``rmq_*`` source."""
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            metrics = lag(source)
            if metrics:
                most, average = metrics["maxOffsetsBehindLatest"], metrics["avgOffsetsBehindLatest"]
                line = "%s: batch %d: %d rows, behind by %s at most, %s on average"
                _log.info(line, query, progress.batchId, source.numInputRows, most, average)
                self.behind(query, progress.batchId, metrics)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
