"""Export a store's messages to tables exactly once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

``--store`` may name several stores, and ``--namesrv`` exports a running cluster. ``docs/lakehouse.md`` explains the
guarantees. Each table records its progress, a physical offset, as a transaction version. A run in any mode resumes at
this offset: it adds new messages, and after a kill the missing ones.
"""

import argparse
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_cli.access import settings_from_arguments
from rmq_cli.export_arguments import check_source
from rmq_cli.export_arguments import parser as parser  # noqa: PLC0414 # a part of this job's interface
from rmq_formats.errors import OptionError
from rmq_formats.read.stores import find_stores
from rmq_formats.storage.store_files import open_store
from rmq_lakehouse.cluster.brokers import BrokerQueues, ClusterExportOptions, check_queue_options
from rmq_lakehouse.cluster.sources import ClusterExportSource, QueueExportSource
from rmq_lakehouse.command.arguments import QUEUE_BOUNDS
from rmq_lakehouse.command.options import ExportOptions, export_options, named_tables
from rmq_lakehouse.command.reports import report_of
from rmq_lakehouse.dead_letters import DeadLetters
from rmq_lakehouse.delta.location import DeltaLocation
from rmq_lakehouse.delta.log_store import writer_lease
from rmq_lakehouse.exports import ExportLoop, MessageSource, commit_each
from rmq_lakehouse.files import set_file_sizes
from rmq_lakehouse.formats import table_format
from rmq_lakehouse.raw import Export, PendingMessages, RawExport, commit_all
from rmq_lakehouse.records import SparkPendingRecords
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.store_log import StoreLog, check_topics, find_topics_by_spark, snapshot_log
from rmq_lakehouse.stores import StoreExports, StoreLogs, name_brokers, snapshot_logs
from rmq_lakehouse.stream import ExportCheckpoint, stream_batches
from rmq_lakehouse.table_log import OpenTable
from rmq_lakehouse.table_name import check_hadoop_path
from rmq_lakehouse.tier import TierExportSource, TierQueues
from rmq_lakehouse.typed import TypedExport
from rmq_offline.job_arguments import apply_broker_conf, is_several, option_name
from rmq_offline.spark.job import run_job

_TIMES: Final = tuple(name for name in ("starting_timestamp", "ending_timestamp", *QUEUE_BOUNDS) if "timestamp" in name)


def needs_delta(options: ExportOptions) -> bool:
    """Return whether the tables are Delta tables: Iceberg tables need no JVM libraries."""
    return options.format == "delta"


def check(arguments: argparse.Namespace) -> ExportOptions:
    """Parse the arguments, and refuse unusable ones before a session is started. Raises RmqError."""
    check_source(arguments)
    apply_broker_conf(arguments)
    settings = settings_from_arguments(dict(vars(arguments))).items()
    options = export_options(arguments, {name: value for name, value in settings if value is not None})
    if not options.has_one_log and options.checkpoint is not None:
        raise OptionError("--checkpoint is for streams of one store: the tables have the progress")
    paths = named_tables(options, arguments.typed) if options.format == "delta" else []
    if options.mode != "batch" and options.has_one_log:
        paths.append(("--checkpoint", options.checkpoint or f"{options.table}/_rmq_checkpoint"))
    for option, path in paths:
        check_hadoop_path(option, path)
    if options.has_one_log:
        open_store(options.stores[0]).require_log()
    elif options.namesrv is not None:
        check_cluster(arguments, options)
    elif options.tier is not None:
        check_tier(arguments, options, options.tier)
    else:
        check_several(arguments, options)
    return options


def check_several(arguments: argparse.Namespace, options: ExportOptions) -> None:
    """Refuse arguments that several stores do not support; a broken store is found and reported later."""
    name_brokers(find_stores(options.stores), options.cluster, options.store_id)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if getattr(arguments, name):
            raise OptionError(f"{option_name(name)} takes one store: each log has its own offsets")


def check_cluster(arguments: argparse.Namespace, options: ExportOptions) -> None:
    """Refuse arguments that a running cluster does not support."""
    if arguments.max_bytes_per_trigger is not None:
        raise OptionError("--namesrv takes --max-messages-per-trigger: brokers do not tell the bytes of a queue")
    if arguments.starting_physical_offset or arguments.ending_physical_offset is not None or arguments.from_offset:
        raise OptionError("--namesrv: brokers are asked by queue offsets; --from-offset 0 alone can be given")
    check_queue_options(queue_options(options), options.selection)


def check_tier(arguments: argparse.Namespace, options: ExportOptions, tier: str) -> None:
    """Refuse arguments that a store with its tier does not support."""
    if is_several(arguments.store):
        raise OptionError("--tier takes one store: the one whose broker writes it")
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset", "max_bytes_per_trigger", *_TIMES):
        if getattr(arguments, name):
            raise OptionError(f"{option_name(name)}: with --tier queue offsets choose messages, which both have")
    open_store(options.stores[0]).require_log()
    check_queue_options(queue_options(options), options.selection)
    with TierQueues(options.stores[0], tier) as link:
        for topic in options.requested_topics:
            link.queues(topic)


def queue_options(options: ExportOptions) -> ClusterExportOptions:
    """Build the options of an export of a cluster, or of a store with its tier. Raises OptionError."""
    read_options = {"decompress": "false", "failOnDataLoss": str(options.bounds.fail_on_data_loss).lower()}
    selected = options.selection
    if options.tier is not None:
        source: QueueExportSource = TierExportSource(options.stores[0], options.tier)
    else:
        assert options.namesrv is not None  # an export by queue offsets has a cluster or a tier
        times = {"startingTimestamp": selected.starting_timestamp, "endingTimestamp": selected.ending_timestamp}
        read_options |= {name: time for name, time in times.items() if time is not None}
        read_options |= {**options.access, "namesrv": options.namesrv}
        source = ClusterExportSource.of(options.namesrv, read_options)
    topics = None if options.table is not None and selected.topics is None else options.requested_topics
    return ClusterExportOptions(
        source,
        topics,
        selected.excluded_topics,
        read_options,
        options.store_id,
        options.max_messages,
        options.mode == "stream",
    )


BuildExports = Callable[[ExportSelection], list[Export]]
"""Builds the exports of a selection, the messages of one store or broker."""


def build_exports(
    options: ExportOptions, spark: SparkSession, open_table: OpenTable, selected: ExportSelection
) -> list[Export]:
    """Build the exports of the messages of one store or broker."""
    exports: list[Export] = []
    if options.table is not None:
        dlq = options.dlq_table
        exports.append(
            RawExport(
                options.table,
                open_table(options.table),
                selected,
                options.columns,
                options.raw_table_spec(selected),
                decompresses=options.decompresses,
                dead_letters=None if dlq is None else DeadLetters(dlq, open_table(dlq), selected),
            )
        )
    exports += [
        TypedExport(spark, topic, selected, options.dlq_table, open_table, adopts=options.table_spec.adopts)
        for topic in options.typed_topics
    ]
    return exports


def main(options: ExportOptions, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages that were not exported yet."""
    begin = time.perf_counter()
    source: MessageSource[Export, PendingMessages]
    loop: ExportLoop[Export, PendingMessages]
    run: Callable[[], None]
    open_table = table_format(spark, options.format, options.catalog_options)
    build = partial(build_exports, options, spark, open_table)
    if options.has_one_log:
        source = log = open_store_log(options, spark, build)
        loop = ExportLoop(source, commit_each)
        run = partial(loop.run, None) if options.mode == "batch" else open_stream(options, spark, loop, log)
    else:
        if options.has_queue_source:
            source = open_queues(options, spark, build)
        else:
            source = open_store_logs(options, spark, build)
        loop = ExportLoop(source, commit_all)
        run = partial(loop.run, options.interval_s)
    source.check()
    with writer_lease(spark, _directories(options, spark, source.parts[0].exports)) as loop.check_lease:
        source.prepare()
        run()
        exports = [export for part in source.parts for export in part.exports]
        undecoded = sum(export.resolve_undecoded(options.accepted) for export in exports)
        for export in source.parts[0].exports:
            options.maintenance.do(open_table, export.tables)
    return report_of(options, source, undecoded, time.perf_counter() - begin)


def open_store_log(
    options: ExportOptions, spark: SparkSession, build: BuildExports
) -> StoreLogs[Export, SparkPendingRecords]:
    """Open the log of one store as the source of an export. Raises RmqError."""
    (store,) = options.stores
    log = snapshot_log(store)
    exports, all_topics = build(options.selection), log.known_topics()
    check_topics(partial(find_topics_by_spark, spark), [log], all_topics, options.requested_topics)
    options.check_bounded_queues([store])
    topics = max(len(export.selection.topics or all_topics) for export in exports)
    set_file_sizes(spark, topics)
    return StoreLogs.of_one(log, exports, options.bounds, partial(_pending_records, spark, topics))


def _pending_records(spark: SparkSession, topics: int, export: Export, log: StoreLog, end: int) -> SparkPendingRecords:
    """Return the records of a log that an export lacks and that begin before ``end``."""
    parallelism = spark.sparkContext.defaultParallelism
    return SparkPendingRecords(export.selection, export.source_options(), log, end, topics, parallelism, spark)


def open_stream(
    options: ExportOptions,
    spark: SparkSession,
    loop: ExportLoop[Export, PendingMessages],
    source: StoreLogs[Export, SparkPendingRecords],
) -> Callable[[], None]:
    """Check the checkpoint of a stream of one store, and return the function that runs the stream. Raises RmqError."""
    checkpoint = ExportCheckpoint(spark, options.checkpoint or f"{options.table}/_rmq_checkpoint")
    checkpoint.check(options.selection.store_id)
    max_bytes = options.bounds.max_bytes
    limits = {} if max_bytes is None else {"maxBytesPerTrigger": str(max_bytes)}

    def run() -> None:
        checkpoint.claim(options.selection.store_id)
        stream_batches(spark, loop, source, checkpoint, options.trigger_interval, limits)

    return run


def open_store_logs(
    options: ExportOptions, spark: SparkSession, build: BuildExports
) -> StoreLogs[Export, SparkPendingRecords]:
    """Open the logs of several stores as the source of an export into common tables. Raises RmqError."""

    def find_exports(known_paths: Collection[str] = ()) -> list[StoreExports[Export]]:
        stores = find_stores(options.stores)
        brokers = name_brokers(stores, options.cluster, options.store_id)
        return [
            StoreExports(build(options.select(broker, store.path)), store=store, broker=broker)
            for store, broker in zip(stores, brokers, strict=True)
            if store.path not in known_paths
        ]

    parts = find_exports()
    for part, log in zip(parts, snapshot_logs([part.store for part in parts]), strict=True):
        part.set_log(log)
    logs = [part.log for part in parts if part.log is not None]
    known_topics = frozenset[str]().union(*(log.known_topics() for log in logs))
    check_topics(partial(find_topics_by_spark, spark), logs, known_topics, options.requested_topics)
    options.check_bounded_queues([log.store for log in logs])
    topics = len(options.requested_topics or known_topics)
    set_file_sizes(spark, topics)
    return StoreLogs(parts, options.bounds, partial(_pending_records, spark, topics), find_exports)


def open_queues(options: ExportOptions, spark: SparkSession, build: BuildExports) -> BrokerQueues:
    """Open the queues of a running cluster, or of a store with its tier, as the source of an export."""
    return BrokerQueues(spark, queue_options(options), lambda broker: build(options.select(broker)))


def _directories(options: ExportOptions, spark: SparkSession, exports: Sequence[Export]) -> list[str]:
    """List the directories of Delta tables, for which the writer may need leases."""
    tables = [table for export in exports for table in export.tables]
    return [DeltaLocation(spark, table).directory() for table in tables] if options.format == "delta" else []


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
