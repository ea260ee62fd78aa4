"""Export on one machine, without Spark, by the arguments of the job ``export_delta.py``."""

import argparse
import time
from importlib.util import find_spec
from typing import Any

from rmq_formats.storage.store_files import open_store
from rmq_lakehouse.command.options import ExportOptions, export_options, named_tables
from rmq_lakehouse.command.reports import report_of
from rmq_lakehouse.exports import ExportLoop, commit_each
from rmq_lakehouse.local.raw import LocalExport, LocalRawExport, LocalRunner
from rmq_lakehouse.local.table_log import NeedsSparkError, OpenLocalTable
from rmq_lakehouse.local.typed import LocalTypedExport, check_topic
from rmq_lakehouse.partitions import parse_partition
from rmq_lakehouse.records import PendingRecords
from rmq_lakehouse.store_log import StoreLog, check_topics, find_topics, snapshot_log
from rmq_lakehouse.stores import StoreLogs
from rmq_lakehouse.table_name import in_catalog
from rmq_offline.job_arguments import apply_broker_conf, is_several, option_name

_SPARK_OPTIONS = ("namesrv", "tier", "adopt", "checkpoint", "cluster_by", "optimize", "retention")


def check(arguments: argparse.Namespace) -> ExportOptions:
    """Parse the arguments, and refuse unusable arguments and those that need Spark. Raises RmqError."""
    for name in _SPARK_OPTIONS:
        if getattr(arguments, name) not in (None, False):
            raise NeedsSparkError(f"{option_name(name)} is an option of the job")
    if is_several(arguments.store):
        raise NeedsSparkError("several stores are for the job")
    if arguments.format == "delta" and find_spec("deltalake") is None:
        raise NeedsSparkError("delta-rs is not installed (pip install 'rmq-lake[delta]')")
    options = export_options(arguments, {}, streams_by_checkpoint=False)
    for topic in options.typed_topics:
        check_topic(topic, options.format)
    for text in options.table_spec.partitions:
        if parse_partition(text).transform != "identity":
            raise NeedsSparkError(f"--partition-by {text}, a transform, is an option of the job")
    for option, table in named_tables(options, arguments.typed):
        if options.format == "delta" and ("://" in table or in_catalog(table)):
            raise NeedsSparkError(f"{option} {table}: no directory of this machine, is for the job")
    apply_broker_conf(arguments)
    open_store(options.stores[0]).require_log()
    return options


def export(options: ExportOptions, runner: LocalRunner) -> tuple[dict[str, Any], int]:
    """Export the messages of one store that were not exported yet; return the report and the exit code."""
    begin = time.perf_counter()
    (store,) = options.stores
    log, open_table = snapshot_log(store), _table_opener(options)
    exports, all_topics = _build_exports(options, runner, open_table), log.known_topics()
    check_topics(find_topics, [log], all_topics, options.requested_topics)
    options.check_bounded_queues([store])

    def pending_records(export: LocalExport, pending_log: StoreLog, end: int) -> PendingRecords:
        topics = len(export.selection.topics or all_topics)
        return PendingRecords(export.selection, export.source_options(), pending_log, end, topics, runner.parallelism)

    source = StoreLogs.of_one(log, exports, options.bounds, pending_records)
    loop = ExportLoop(source, commit_each)
    source.check()
    source.prepare()
    loop.run(options.interval_s)
    undecoded = sum(export.resolve_undecoded(options.accepted) for export in exports)
    if options.maintenance.vacuum_hours is not None:
        for table in (table for export in exports for table in export.tables):
            open_table(table).vacuum(options.maintenance.vacuum_hours)
    return report_of(options, source, undecoded, time.perf_counter() - begin)


def _build_exports(options: ExportOptions, runner: LocalRunner, open_table: OpenLocalTable) -> list[LocalExport]:
    selected, exports = options.selection, list[LocalExport]()
    if options.table is not None:
        exports.append(
            LocalRawExport(
                options.table,
                open_table(options.table),
                runner,
                selected,
                options.columns,
                options.raw_table_spec(selected),
                decompresses=options.decompresses,
            )
        )
    exports += [
        LocalTypedExport(topic, selected, options.dlq_table, open_table, runner) for topic in options.typed_topics
    ]
    return exports


def _table_opener(options: ExportOptions) -> OpenLocalTable:
    if options.format == "iceberg":
        from rmq_lakehouse.iceberg.catalog import IcebergLocation  # noqa: PLC0415 # an extra of the wheel
        from rmq_lakehouse.local.iceberg_log import LocalIcebergLog  # noqa: PLC0415

        return lambda table: LocalIcebergLog(IcebergLocation(table, options.catalog_options))
    from rmq_lakehouse.local.delta_log import DeltaRsTableLog  # noqa: PLC0415 # likewise

    return DeltaRsTableLog
