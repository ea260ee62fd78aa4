"""Write a RocketMQ store from a table: ``spark-submit jobs/import_delta.py --table T --store DIR``.

The table, Delta's or Iceberg's, has columns of ``rmq_commitlog``, such as ``jobs/export_delta.py`` writes; ``topic``
and ``body`` are enough. Bodies may be texts, and integers wider than the store's.
"""

import argparse
import time
from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructField

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.errors import OptionError, StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.values import names, timestamp_ms
from rmq_formats.storage.store_files import configured_log_directories, open_store
from rmq_formats.storage.store_lock import refuse_locked_store
from rmq_lakehouse.command.arguments import FORMATS
from rmq_lakehouse.command.options import check_installed, pairs_of
from rmq_lakehouse.evolution import column
from rmq_lakehouse.formats import table_format
from rmq_lakehouse.table_name import placed
from rmq_offline.job_arguments import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    add_broker_conf,
    add_options,
    apply_broker_conf,
    job_parser,
    parse_argument,
)
from rmq_offline.spark.job import run_job
from rmq_offline.spark.writers import check_columns
from rmq_offline.tasks.options import RESUME, START_ANEW
from rmq_offline.tasks.origin import parse_interrupted_run_policy
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.commitlog import finish_killed_write, refuse_write
from rmq_offline.write.log_end import is_empty

_ALL_BROKERS = "*"
# Options of the sink by the job's arguments.
_SINK_OPTIONS = {
    "commitlog_file_bytes": "commitlogFileBytes",
    "consumequeue_file_bytes": "consumequeueFileBytes",
    "consumequeue_ext_file_bytes": "consumequeueExtFileBytes",
    "index_slots": "indexSlots",
    "index_entries": "indexEntries",
    "delay_levels": "delayLevels",
    "crc_property": "crcProperty",
    "dispatch": "dispatch",
}


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("import_delta", "Write a RocketMQ store from the messages of a table.")
    job.add_argument(
        "--table", type=placed, required=True, help="as export_delta.py writes it: a path, or catalog.schema.name"
    )
    job.add_argument("--format", choices=FORMATS, default="delta", help="of the table; default: delta")
    job.add_argument(
        "--catalog-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="of a catalog that --table names for --format iceberg, such as uri=http://…",
    )
    job.add_argument("--store", required=True, help="the store's root directory, or a URI")
    add_broker_conf(job)
    job.add_argument("--mode", choices=["append", "overwrite"], help="required if the store has messages")
    job.add_argument("--topics", help="comma list; default: all of the table")
    job.add_argument(
        "--broker-name", metavar="NAME", help="of a table of several brokers: whose messages are written; * writes all"
    )
    job.add_argument("--starting-timestamp", help="store time, ms or ISO-8601, inclusive")
    job.add_argument("--ending-timestamp", help="store time, ms or ISO-8601, exclusive")
    job.add_argument("--starting-physical-offset", type=int, help="of the rows in the table, inclusive")
    job.add_argument("--ending-physical-offset", type=int, help="of the rows in the table, exclusive")
    job.add_argument("--dispatch", choices=["true", "false"], default="true", help="make ConsumeQueue and Index")
    job.add_argument("--keep-offsets", action="store_true", help="keep the table's offsets; needs a whole log")
    job.add_argument("--crc-property", choices=["asgiven", "always", "never"], help="__CRC32# in records")
    add_options(job, [RESUME, START_ANEW])
    job.add_argument("--commitlog-file-bytes", type=int, help="default: as in the store, else 1 GiB")
    job.add_argument("--consumequeue-file-bytes", type=int, help="mappedFileSizeConsumeQueue")
    job.add_argument("--consumequeue-ext-file-bytes", type=int, help="mappedFileSizeConsumeQueueExt")
    job.add_argument("--index-slots", type=int, help="maxHashSlotNum")
    job.add_argument("--index-entries", type=int, help="maxIndexNum")
    job.add_argument("--delay-levels", help="the broker's messageDelayLevel")
    return job


def check(arguments: argparse.Namespace) -> argparse.Namespace:
    """Refuse unusable arguments before a session is started, and finish a killed write; return usable arguments."""
    for name in ("starting_timestamp", "ending_timestamp"):
        parse_argument(arguments, name, timestamp_ms)
    parse_argument(arguments, "topics", names)
    if pairs_of(arguments, "catalog_option") and arguments.format == "delta":
        raise OptionError("--catalog-option needs --format iceberg: Delta's catalogs are Spark's, by --conf")
    if arguments.format == "iceberg":
        check_installed()
    leftover = parse_interrupted_run_policy(arguments)
    store = open_store(arguments.store)
    apply_broker_conf(arguments)
    if configured_log_directories(store.root):
        raise StoreLayoutError(
            f"{arguments.config}: storePathCommitLog is not in {store.root}. A store is written as one tree."
        )
    if not store.storage.exists(store.root):
        return arguments
    if finish_killed_write(store.root, ProcessRunner(), leftover):
        raise StoreError(
            f"{arguments.store}: an earlier write that was killed has been completed, its messages are in the store; "
            "give --mode append to add these, or --mode overwrite"
        )
    refuse_write(store.root, overwrite=arguments.mode == "overwrite")
    if store.storage.is_local:
        refuse_locked_store(store.root)
    if arguments.mode is None and not is_empty(store.root):
        raise StoreError(f"{arguments.store}: has messages already; give --mode append or --mode overwrite")
    return arguments


def rows(spark: SparkSession, arguments: argparse.Namespace) -> tuple[DataFrame, list[str]]:
    """Read the selected rows, with the columns that a store has room for; also return the names of other columns.

    Raises StoreError without such a table, and OptionError if it lacks a column or topic, or has another type.
    """
    log = table_format(spark, arguments.format, pairs_of(arguments, "catalog_option"))(arguments.table)
    if not log.exists():
        raise StoreNotFoundError(f"{arguments.table}: no {arguments.format.title()} table")
    try:
        table = log.visible_rows()
    except AnalysisException as error:
        raise StoreError(f"{arguments.table}: cannot be read ({str(error).splitlines()[0]})") from error
    names_by_lower = {name.lower(): name for name in table.columns}  # as Spark compares names
    table = _select_broker(table, names_by_lower, arguments)
    store_columns = {name: names_by_lower[name] for name in schemas.COMMITLOG.fieldNames() if name in names_by_lower}
    frame = table.select(
        *(_as_stored(table.schema[table_column], name).alias(name) for name, table_column in store_columns.items())
    )
    check_columns(
        f"{arguments.table}: a store", frame.schema, schemas.COMMITLOG, ("topic", "body", *_needed(arguments))
    )
    topics = parse_argument(arguments, "topics", names)
    if topics is not None:
        frame = frame.where(F.col("topic").isin(*topics))
        topics_in_table = {row.topic for row in frame.select("topic").distinct().collect()}
        lacking = [topic for topic in topics if topic not in topics_in_table]
        if lacking:
            raise OptionError(f"{arguments.table}: has no topic {', '.join(map(repr, lacking))}")
    starting_ms = parse_argument(arguments, "starting_timestamp", timestamp_ms)
    ending_ms = parse_argument(arguments, "ending_timestamp", timestamp_ms)
    if starting_ms is not None:
        frame = frame.where(F.col("store_timestamp") >= F.timestamp_millis(F.lit(starting_ms)))
    if ending_ms is not None:
        frame = frame.where(F.col("store_timestamp") < F.timestamp_millis(F.lit(ending_ms)))
    if arguments.starting_physical_offset is not None:
        frame = frame.where(F.col("physical_offset") >= arguments.starting_physical_offset)
    if arguments.ending_physical_offset is not None:
        frame = frame.where(F.col("physical_offset") < arguments.ending_physical_offset)
    return frame, [name for name in table.columns if name not in store_columns.values()]


def _select_broker(table: DataFrame, names_by_lower: Mapping[str, str], arguments: argparse.Namespace) -> DataFrame:
    """Select the rows of the broker that the arguments name. Raises OptionError where they have to name one.

    A name that brokers of several clusters have is ``cluster/name``.
    """
    if BROKER_NAME not in names_by_lower:
        if arguments.broker_name is not None:
            raise OptionError(f"--broker-name {arguments.broker_name}: {arguments.table} has no column {BROKER_NAME}")
        return table
    if arguments.broker_name == _ALL_BROKERS:
        return table
    name = column(names_by_lower[BROKER_NAME])
    cluster = column(names_by_lower[CLUSTER]) if CLUSTER in names_by_lower else F.lit(None)
    clusters_by_broker: dict[str | None, set[str | None]] = {}
    for broker, broker_cluster in table.select(name, cluster).distinct().collect():
        clusters_by_broker.setdefault(broker, set()).add(broker_cluster)
    conditions = {}
    for broker, clusters in clusters_by_broker.items():
        is_broker = name.eqNullSafe(F.lit(broker))
        if len(clusters - {None}) < 2:  # what does not name its cluster may be of the one that the others name
            conditions[_shown(broker)] = is_broker
        else:
            conditions |= {
                f"{_shown(cluster_name)}/{_shown(broker)}": is_broker & cluster.eqNullSafe(F.lit(cluster_name))
                for cluster_name in clusters
            }
    listed = ", ".join(sorted(conditions)) or "none"
    if arguments.broker_name is None and len(conditions) > 1:
        raise OptionError(
            f"{arguments.table}: has messages of the brokers {listed}, whose queues have the same numbers. "
            "Give --broker-name NAME for one broker's, or --broker-name '*' for all in one store"
        )
    if arguments.broker_name is not None and arguments.broker_name not in conditions:
        raise OptionError(
            f"--broker-name {arguments.broker_name}: {arguments.table} has no such broker, it has {listed}"
        )
    return table if arguments.broker_name is None else table.where(conditions[arguments.broker_name])


def _shown(name: str | None) -> str:
    return "(null)" if name is None else name


def _as_stored(field: StructField, stored_name: str) -> Column:
    """Convert a table's column to the type of the store's column: texts of bodies to UTF-8, and integers of any width.

    The import fails at an integer that the store's type cannot hold.
    """
    value, kind = column(field.name), schemas.COMMITLOG[stored_name].dataType
    if isinstance(field.dataType, StringType) and isinstance(kind, BinaryType):
        return value.cast(kind)
    if not isinstance(field.dataType, IntegralType) or not isinstance(kind, IntegralType):
        return value
    narrowed = value.try_cast(kind)
    message = F.concat(F.lit(f"column {field.name}: "), value, F.lit(f" is no {kind.simpleString()}"))
    return F.when(value.isNull() | narrowed.isNotNull(), narrowed).otherwise(F.raise_error(message).cast(kind))


def _needed(arguments: argparse.Namespace) -> list[str]:
    """List the columns that the arguments name."""
    columns = ["physical_offset", "queue_offset"] if arguments.keep_offsets else []
    if arguments.starting_physical_offset is not None or arguments.ending_physical_offset is not None:
        columns.append("physical_offset")
    if arguments.starting_timestamp is not None or arguments.ending_timestamp is not None:
        columns.append("store_timestamp")
    return columns


def needs_delta(arguments: argparse.Namespace) -> bool:
    """Return whether the table is Delta's: Iceberg tables need no JVM libraries."""
    return str(arguments.format) == "delta"


def main(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Write the store."""
    begin = time.perf_counter()
    frame, left_out = rows(spark, arguments)
    observation = Observation("import")
    sound = F.col("record_error").isNull() if "record_error" in frame.columns else F.lit(True)
    # Delta cannot read deletion vectors in the plan of a write through a sink in Python, so the rows have a plan apart.
    planned_rows = frame._jdf.queryExecution().toRdd()
    frame = DataFrame(spark._jsparkSession.internalCreateDataFrame(planned_rows, frame._jdf.schema(), False), spark)
    frame = frame.observe(
        observation,
        F.count_if(sound).alias("messages"),
        F.sum(F.when(sound, F.length("body"))).alias("bytes"),
        F.count_if(~sound).alias("damaged"),
    )
    conf = apply_broker_conf(arguments)
    settings = {} if conf is None else dict(conf.sizes)
    if "delay_levels_ms" in settings:
        settings["delay_levels"] = " ".join(f"{delay_ms // 1000}s" for delay_ms in settings["delay_levels_ms"])
    writer = frame.write.format("rmq_commitlog").mode(arguments.mode or "append")
    for argument, option in _SINK_OPTIONS.items():
        value = getattr(arguments, argument) or settings.get(argument)
        if value is not None:
            writer = writer.option(option, str(value))
    writer.option("keepOffsets", str(arguments.keep_offsets).lower()).save(arguments.store)
    counts = {name: int(observation.get[name] or 0) for name in ("messages", "bytes", "damaged")}
    seconds = time.perf_counter() - begin
    report = {
        "job": "import_delta",
        "store": arguments.store,
        "table": arguments.table,
        "mode": arguments.mode or "append",
        **counts,
        "columns_left_out": left_out,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(counts["bytes"] / seconds),
    }
    return report, EXIT_FINDINGS if counts["damaged"] else EXIT_CLEAN


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
