"""The lag of streams, from what Spark tells of their progress."""

import json
import logging
import uuid
from collections.abc import Mapping

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, SourceProgress, StreamingQueryProgress

from rmq_formats.spark.progress import LagListener, lag


def source(end: object, latest: object) -> SourceProgress:
    offsets = {"startOffset": "null", "endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    rates = {"numInputRows": 3, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    return SourceProgress.fromJson({"description": "a source", **offsets, **rates})


def test_the_lag_of_queues_is_counted_as_kafkas_source_does() -> None:
    end = {"Orders": {"broker-a:0": 17, "broker-a:1": 5}, "Clicks": {"broker-b:0": 9}}
    latest = {"Orders": {"broker-a:0": 27, "broker-a:1": 5}, "Clicks": {"broker-b:0": 11, "broker-b:1": 4}}
    wanted = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "10", "avgOffsetsBehindLatest": "4.0"}
    assert lag(source(end, latest)) == wanted


@pytest.mark.parametrize(
    ("end", "latest"),
    [(None, None), ({"physicalOffset": 7}, None), (17, 20), ({"a": 1}, {"a": 2}), ([1], [2]), ({"a": {"b": "c"}}, {})],
)
def test_offsets_of_other_sources_give_no_lag(end: object, latest: object) -> None:
    assert lag(source(end, latest)) == {}


class Kept(LagListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Mapping[str, str]]] = []

    def behind(self, query: str, batch: int, metrics: Mapping[str, str]) -> None:
        """Keep the figures."""
        self.seen.append((query, batch, metrics))


def test_a_listener_tells_and_hands_on_the_lag_of_our_sources(caplog: pytest.LogCaptureFixture) -> None:
    ours = json.loads(source({"physicalOffset": 100}, {"physicalOffset": 350}).json)
    other = json.loads(source(17, 20).json)
    sink = {"description": "a sink", "numOutputRows": 3}
    rates = {"numInputRows": 3, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    progress = {
        "id": str(uuid.uuid4()), "runId": str(uuid.uuid4()), "name": "followed", "timestamp": "2026-01-01T00:00:00Z",
        "batchId": 7, "batchDuration": 5, "durationMs": {}, "stateOperators": [], "sources": [ours, other],
        "sink": sink, "observedMetrics": {}, **rates,
    }  # fmt: skip
    kept = Kept()
    with caplog.at_level(logging.INFO, "rmq_formats.spark.progress"):
        kept.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(progress)))
    wanted = {"minOffsetsBehindLatest": "250", "maxOffsetsBehindLatest": "250", "avgOffsetsBehindLatest": "250.0"}
    assert kept.seen == [("followed", 7, wanted)]
    assert caplog.messages == ["followed: batch 7: 3 rows, behind by 250 at most, 250.0 on average"]
