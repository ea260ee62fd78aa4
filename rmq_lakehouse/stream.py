"""Stream of a store's exports: micro batches of Spark while the log grows, and the checkpoint of their query."""

import json
import logging
import threading
import uuid
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_formats.errors import StoreError
from rmq_lakehouse.exports import ExportLoop, stop_event_on_signal
from rmq_lakehouse.java import java_class, read_file
from rmq_lakehouse.raw import Export, PendingMessages
from rmq_lakehouse.records import SparkPendingRecords
from rmq_lakehouse.stores import StoreLogs

_MARKER: Final = "rmq-export.json"
_OFFSETS: Final = "offsets"
_WAIT_S = 0.5  # how long until a signal is noticed
# Spark gives a stream's planning process ten seconds to start, without a setting: a busy machine needs more.
_STARTS = 5
_NOT_STARTED = "Python worker failed to connect back"
_log = logging.getLogger("rmq_lakehouse")


class ExportCheckpoint:
    """Checkpoint directory of an export's query, read by Hadoop's file systems, as Spark itself opens it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark._jvm
        self.path = path
        self._root = java_class(self._jvm, "org.apache.hadoop.fs.Path")(path)
        self._files = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def check(self, store_id: str) -> None:
        """Refuse a directory that is no checkpoint of the store's exports. Raises StoreError."""
        marker = self._path(_MARKER)
        if not self._files.exists(marker):
            if self._files.exists(self._path(_OFFSETS)):
                raise StoreError(f"{self.path}: a checkpoint that no export wrote; give another --checkpoint")
            return
        try:
            owner = json.loads(self._read(_MARKER))["store"]
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{self.path}/{_MARKER}: not written by an export; give another --checkpoint") from None
        if owner != store_id:
            raise StoreError(f"{self.path}: a checkpoint of {owner}, not of {store_id}; give another --checkpoint")

    def claim(self, store_id: str) -> None:
        """Mark a checked directory as the store's, once; the mark is written atomically. Raises StoreError."""
        marker = self._path(_MARKER)
        if self._files.exists(marker):
            return
        temporary = self._path(f"{_MARKER}.{uuid.uuid4().hex}")
        stream = self._files.create(temporary, True)
        stream.write(bytearray(json.dumps({"store": store_id}).encode()))
        stream.close()
        if not self._files.rename(temporary, marker):
            self._files.delete(temporary, False)
            if not self._files.exists(marker):  # not because another export was faster
                raise StoreError(f"{self.path}/{_MARKER}: cannot be written")

    def committed_end(self) -> int:
        """Return the physical offset up to which the query has committed; 0 without a query."""
        commits = self._path("commits")
        if not self._files.exists(commits):
            return 0
        names = [status.getPath().getName() for status in self._files.listStatus(commits)]
        batches = [int(name) for name in names if name.isdigit()]
        return self.batch_end(max(batches)) if batches else 0

    def batch_end(self, batch_id: int) -> int:
        """Return the physical offset where a micro batch ends, which Spark writes before the batch begins.

        Raises StoreError: the file is missing or cut off.
        """
        try:
            *_, line = self._read(f"{_OFFSETS}/{batch_id}").splitlines()
            return int(json.loads(line)["physicalOffset"])
        except (ValueError, KeyError, TypeError, Py4JJavaError):
            raise StoreError(
                f"{self.path}/{_OFFSETS}/{batch_id}: is missing or cut off, as after a power cut. Delete {self.path}: "
                "the table itself has the progress"
            ) from None

    def _read(self, name: str) -> str:
        return read_file(self._files, self._path(name)).decode()

    def _path(self, name: str) -> Any:
        return java_class(self._jvm, "org.apache.hadoop.fs.Path")(self._root, name)


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
    with stop_event_on_signal() as stopped:
        commit_lock = threading.Lock()

        def export_batch(_frame: DataFrame, batch_id: int) -> None:
            with commit_lock:
                if not stopped.is_set():  # else the next run exports it, from the table's progress
                    source.checkpoint_end = end = checkpoint.batch_end(batch_id)
                    added, _ = loop.export_round()
                    text = "batch %d: %d rows, %d files, %d bytes; %d bytes of the log behind"
                    lag_bytes = part.snapshot.end - end
                    _log.info(text, batch_id, added.messages, added.files, added.bytes, lag_bytes)

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


def _await(query: StreamingQuery, stopped: threading.Event, commit_lock: threading.Lock) -> None:
    try:
        while not stopped.is_set() and not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type]
            pass
    finally:
        with commit_lock:  # waits for the batch that is being committed, so that the report includes it
            pass
        query.stop()
