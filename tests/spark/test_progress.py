"""The lag of streams, from what Spark tells of their progress."""

import json
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, SourceProgress, StreamingQueryProgress

from rmq_formats.spark.progress import LagListener, lag
from tests.interop.test_namesrv_against_java import wait_for
from tests.spark.commitlog.test_stream import Stream, offset_of, write


def source(end: object, latest: object) -> SourceProgress:
    offsets = {"startOffset": "null", "endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    rates = {"numInputRows": 3, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    return SourceProgress.fromJson({"description": "a source", **offsets, **rates})


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_of_a_store_tells_the_bytes_that_it_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "store", 60)
    kept = Kept()
    spark.streams.addListener(kept)
    try:
        batches = Stream(spark, tmp_path / "store", tmp_path).run(maxOffsetsPerTrigger=25)
        ends = [offset_of(batch, "endOffset") for batch in batches if batch["numInputRows"]]
        wait_for(lambda: len({batch for _, batch, _ in kept.seen}) >= len(ends))
    finally:
        spark.streams.removeListener(kept)
    left = [ends[-1] - end for end in ends]
    assert len(ends) == 3
    assert left[0] > left[1] > left[2] == 0
    told = {batch: metrics["maxOffsetsBehindLatest"] for _, batch, metrics in kept.seen}
    assert [told[batch] for batch in sorted(told)][:3] == [str(behind) for behind in left]
    progress = [StreamingQueryProgress.fromJson(batch) for batch in batches]
    assert [lag(one.sources[0])["minOffsetsBehindLatest"] for one in progress][:3] == [str(behind) for behind in left]


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
