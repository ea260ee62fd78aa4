"""Land a store's messages in a Delta table, each once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

The end of what was exported is the transaction version of each commit, a physical offset. A run begins
there, so one that follows another adds only what is new, and one that was killed adds what it owed.
"""

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import OptionError, StoreError
from rmq_formats.offline.plan import frozen_end, torn_bytes
from rmq_formats.segment import commitlog_segments, open_storage
from rmq_formats.spark.delta import DeltaTableLog
from rmq_formats.spark.job import EXIT_CLEAN, EXIT_FINDINGS, JobParser, job_parser, run_job

STORE_PROPERTY = "rmq.store"


def parser() -> JobParser:
    """The job's arguments."""
    job = job_parser("export_delta", "Land a RocketMQ store's messages in a Delta table, each once.")
    job.add_argument("--store", required=True, help="the store's root directory, or a URI")
    job.add_argument("--table", required=True, help="path of the Delta table")
    job.add_argument("--mode", choices=["batch"], default="batch")
    job.add_argument("--topics", help="comma list; default: all")
    job.add_argument("--starting-physical-offset", type=int, default=0)
    job.add_argument("--ending-physical-offset", type=int)
    job.add_argument("--starting-timestamp", help="store time, ms or ISO-8601")
    job.add_argument("--ending-timestamp", help="store time, ms or ISO-8601")
    job.add_argument("--partition-by", default="topic,date", help="comma list of columns; date is the store time's")
    job.add_argument("--columns", help="comma list of rmq_commitlog's columns; default: all")
    job.add_argument("--store-id", help="name of the store in the table; default: its path")
    return job


def check(given: argparse.Namespace) -> None:
    """Refuse what can be refused before a session is started."""
    commitlog_segments(*open_storage(given.store))
    if given.topics is not None and not _names(given.topics):
        raise OptionError(f"--topics {given.topics!r}: names no topic")


def _names(text: str) -> list[str]:
    return sorted({name.strip() for name in text.split(",") if name.strip()})


def store_id(given: argparse.Namespace) -> str:
    """Which store this is: offsets of two stores must not be taken for one another's."""
    if given.store_id:
        return str(given.store_id)
    return given.store if "://" in given.store else str(Path(given.store).resolve())


def application_id(given: argparse.Namespace) -> str:
    """Delta's ``txnAppId``: one for each store and selection of its messages."""
    selection = "|".join(_names(given.topics)) if given.topics else "*"
    selection += f"|{given.starting_timestamp}|{given.ending_timestamp}|{given.starting_physical_offset}"
    return f"rmq-export:{store_id(given)}:{hashlib.sha256(selection.encode()).hexdigest()[:16]}"


def messages(spark: SparkSession, given: argparse.Namespace, start: int, end: int) -> DataFrame:
    """The store's sound and damaged rows of ``[start, end)``, with the column ``date``."""
    reader = spark.read.format("rmq_commitlog").option("accessPath", "scan")
    options = {
        "subscribe": ",".join(_names(given.topics)) if given.topics else None,
        "startingPhysicalOffset": start,
        "endingPhysicalOffset": end,
        "startingTimestamp": given.starting_timestamp,
        "endingTimestamp": given.ending_timestamp,
        "columns": ",".join(sorted({*_names(given.columns), *_required(given)})) if given.columns else None,
    }
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load(given.store).withColumn("date", F.to_date("store_timestamp"))


def _required(given: argparse.Namespace) -> set[str]:
    partition = {name for name in _names(given.partition_by) if name != "date"}
    return {"physical_offset", "size", "store_timestamp", "record_error", *partition}


def _check_table(table: DeltaTableLog, given: argparse.Namespace) -> None:
    """Refuse a table that is not this store's, before anything is written."""
    owner = table.configuration().get(STORE_PROPERTY)
    if owner is None:
        raise StoreError(f"{given.table}: a Delta table that no export wrote; give another --table")
    if owner != store_id(given):
        raise StoreError(
            f"{given.table}: holds the messages of {owner}, not of {store_id(given)}; "
            "give another --table, or --store-id if the store has moved"
        )
    if table.partition_columns() != given.partition_by.split(","):
        raise StoreError(
            f"{given.table}: is partitioned by {','.join(table.partition_columns())}, not {given.partition_by}"
        )


def without_exported(frame: DataFrame, spark: SparkSession, path: str, start: int, end: int) -> DataFrame:
    """Leave out rows that an export of another selection of the same store has landed already."""
    landed = spark.read.format("delta").load(path).where(F.col("physical_offset").between(start, end - 1))
    if landed.select("physical_offset").limit(1).count() == 0:
        return frame
    return frame.join(landed.select("physical_offset"), "physical_offset", "left_anti").select(*frame.columns)


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export what is new."""
    begin = time.perf_counter()
    table = DeltaTableLog(spark, given.table)
    exists = table.exists()
    app_id = application_id(given)
    if exists:
        _check_table(table, given)
    start = max(given.starting_physical_offset, table.transaction_version(app_id) if exists else -1)
    storage, root = open_storage(given.store)
    segments = commitlog_segments(storage, root)
    end, torn = frozen_end(storage, segments), 0
    if given.ending_physical_offset is not None and given.ending_physical_offset <= end:
        end = given.ending_physical_offset
    else:
        torn = torn_bytes(storage, segments, end)
    counts = {"messages": 0, "bytes": 0, "damaged": 0}
    if start < end:
        counts = _write(spark, given, exists, app_id, start, end)
    seconds = time.perf_counter() - begin
    report = {
        "job": "export_delta",
        "store": given.store,
        "table": given.table,
        "starting_physical_offset": start,
        "ending_physical_offset": end,
        **counts,
        "torn_bytes": torn,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(counts["bytes"] / seconds),
    }
    return report, EXIT_FINDINGS if counts["damaged"] or torn else EXIT_CLEAN


def _write(
    spark: SparkSession, given: argparse.Namespace, exists: bool, app_id: str, start: int, end: int
) -> dict[str, int]:
    frame = messages(spark, given, start, end)
    seen = Observation("export")
    sound = F.col("record_error").isNull()
    frame = (
        frame.observe(
            seen,
            F.count_if(sound).alias("messages"),
            F.sum(F.when(sound, F.col("size"))).alias("bytes"),
            F.count_if(~sound).alias("damaged"),
        )
        .where(sound)
        .drop("record_error")
    )
    if exists:
        frame = without_exported(frame, spark, given.table, start, end)
    partitions = given.partition_by.split(",")
    if not exists:
        table = DeltaTable.createIfNotExists(spark).location(given.table).addColumns(frame.schema)
        table.partitionedBy(*partitions).property(STORE_PROPERTY, store_id(given)).execute()
    writer = frame.write.format("delta").mode("append").partitionBy(*partitions)
    writer.option("txnAppId", app_id).option("txnVersion", end).save(given.table)
    return {name: int(seen.get[name] or 0) for name in ("messages", "bytes", "damaged")}


if __name__ == "__main__":
    run_job(parser(), main, check=check)
