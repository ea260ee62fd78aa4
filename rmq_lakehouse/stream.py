"""Stream of a store's exports: micro batches of Spark while the log grows."""

import logging
import threading

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_lakehouse.checkpoint import ExportCheckpoint
from rmq_lakehouse.exports import ExportCounts
from rmq_lakehouse.message_source import ExportLoop, stopping
from rmq_lakehouse.raw import Export, PendingMessages
from rmq_lakehouse.records import SparkPendingRecords
from rmq_lakehouse.stores import StoreLogs

_WAIT_S = 0.5  # how long until a signal is noticed
# Spark gives a stream's planning process ten seconds to start, without a setting: a busy machine needs more.
_STARTS = 5
_NOT_STARTED = "Python worker failed to connect back"

_log = logging.getLogger("rmq_lakehouse")


def stream_batches(
    spark: SparkSession,
    loop: ExportLoop[Export, PendingMessages],
    source: StoreLogs[Export, SparkPendingRecords],
    checkpoint: ExportCheckpoint,
    interval: str | None,
    limits: dict[str, str],
) -> None:
    """Commit records as they arrive, until the query ends or a signal stops it.

    A micro batch is a range of the log. Its rows are read from the progress of the table, not from the checkpoint.
    The checkpoint may be lost, or differ from the progress in either direction.

    Args:
        source: the log of the loop's one store, which it follows.
        interval: time between micro batches, as ``10 seconds``; None ends the query at the current end of the log.
        limits: options of the source that bound a micro batch.
    """
    (part,) = source.parts
    source.checkpoint_end = checkpoint.committed_end()  # a new table has not seen what the checkpoint has
    loop.export_round()
    stream = spark.readStream.format("rmq_commitlog").options(**limits).option("columns", "physical_offset")
    stream = stream.option("startingPhysicalOffset", part.start)
    stream = stream.option("failOnDataLoss", str(source.bounds.fail_on_data_loss).lower())
    writer = stream.load(part.store.path).writeStream.option("checkpointLocation", checkpoint.path)
    with stopping() as stopped:
        commit_lock = threading.Lock()

        def export_batch(_frame: DataFrame, batch_id: int) -> None:
            with commit_lock:
                if not stopped.is_set():  # else the next run exports it, from the table's progress
                    source.checkpoint_end = end = checkpoint.batch_end(batch_id)
                    added, _ = loop.export_round()
                    _log_batch(batch_id, added, part.snapshot.end - end)

        writer = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
        writer = writer.foreachBatch(export_batch)
        for start in range(1, _STARTS + 1):
            try:
                _await(writer.start(), stopped, commit_lock)
                break
            except StreamingQueryException as error:
                if _NOT_STARTED not in str(error) or start == _STARTS:
                    raise
                _log.warning("the stream's Python process was too slow to start, retrying: %s", error)


def _log_batch(batch_id: int, counts: ExportCounts, lag_bytes: int) -> None:
    _log.info(
        "batch %d: %d rows, %d files, %d bytes; %d bytes of the log behind",
        batch_id, counts.messages, counts.files, counts.bytes, lag_bytes,
    )  # fmt: skip


def _await(query: StreamingQuery, stopped: threading.Event, commit_lock: threading.Lock) -> None:
    try:
        while not stopped.is_set() and not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type]
            pass
    finally:
        with commit_lock:  # waits for the batch that is being committed, so that the report includes it
            pass
        query.stop()
