"""Lag of streams over the ``rmq_*`` sources, by the names of Spark's Kafka source.

Spark takes metrics of a source into ``StreamingQueryProgress`` from sources in Java only. But a progress has the offset
where a batch ended and the latest one that there was, from which Kafka's source computes its metrics, too.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
        ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, in messages over the
        queues of ``rmq``, and in bytes of the log for ``rmq_commitlog``; texts, as Spark's metrics are. Empty for other
        sources, and where the progress knows no latest offset.
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
    """Read an offset of ``rmq_commitlog`` or ``rmq``; empty if it is another source's."""
    try:
        return dict(_pairs(json.loads(text or "null")))
    except (TypeError, ValueError):
        return {}


def _pairs(offset: Any) -> Iterator[tuple[tuple[str, str], int]]:
    if not isinstance(offset, Mapping):
        return
    if isinstance(offset.get(PHYSICAL_OFFSET), int):
        yield ("", PHYSICAL_OFFSET), offset[PHYSICAL_OFFSET]
        return
    for topic, queues in offset.items():
        if isinstance(queues, Mapping):
            yield from (((topic, queue), end) for queue, end in queues.items() if isinstance(end, int))


class LagListener(StreamingQueryListener):
    """Logs a line a batch, at INFO to ``rmq_formats.spark.progress``: ``spark.streams.addListener(LagListener())``.

    Subclass it and override ``behind`` to send the figures elsewhere.
    """

    def behind(self, query: str, batch: int, metrics: Mapping[str, str]) -> None:
        """Process the lag of one source of a query after a batch.

        Args:
            query: its name, else its id.
            batch: number of the micro batch.
            metrics: see ``lag``.
        """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 # Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the lag of each of our sources."""
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            metrics = lag(source)
            if metrics:
                _log.info(
                    "%s: batch %d: %d rows, behind by %s at most, %s on average",
                    query,
                    progress.batchId,
                    source.numInputRows,
                    metrics["maxOffsetsBehindLatest"],
                    metrics["avgOffsetsBehindLatest"],
                )
                self.behind(query, progress.batchId, metrics)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
