"""Export a store's messages to tables exactly once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

``--store`` may name several stores, and ``--namesrv`` exports a running cluster. ``docs/lakehouse.md`` explains the
guarantees. Each table records its progress, a physical offset, as a transaction version. A run in any mode resumes at
this offset: it adds new messages, and after a kill the missing ones.
"""

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_core.cli.access import add_access, settings_from_arguments
from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.cluster.run import ClusterExportOptions, ClusterRun, check_queue_options
from rmq_formats.lakehouse.cluster.sources import ClusterSource, QueueSource
from rmq_formats.lakehouse.command.argument_values import (
    check_queues,
    interval_s,
    limits,
    names_of,
    pairs_of,
    queues_of,
    typed_topics,
)
from rmq_formats.lakehouse.command.arguments import (
    DEFAULT_PARTITIONS,
    QUEUE_BOUNDS,
    QUEUE_ENDS,
    export_parser,
    maintenance,
)
from rmq_formats.lakehouse.command.checkpoint import ExportCheckpoint
from rmq_formats.lakehouse.command.reports import report_of_cluster, report_of_store, report_of_stores
from rmq_formats.lakehouse.command.several import StoreExports, StoresRun, make_parts, name_brokers, snapshot_logs
from rmq_formats.lakehouse.delta.location import DeltaLocation
from rmq_formats.lakehouse.delta.log_store import writer_lease
from rmq_formats.lakehouse.files import set_file_sizes
from rmq_formats.lakehouse.formats import check_installed, table_format
from rmq_formats.lakehouse.raw import Export, RawExport
from rmq_formats.lakehouse.run import Bounds, ExportRun, repeat
from rmq_formats.lakehouse.selection import BrokerKey, ExcludedTopics, ExportSelection, store_identifier
from rmq_formats.lakehouse.store_log import StoreLog, check_topics, snapshot_log
from rmq_formats.lakehouse.table_log import TableSpec
from rmq_formats.lakehouse.table_name import in_catalog
from rmq_formats.lakehouse.tier.queues import TierQueues
from rmq_formats.lakehouse.tier.source import TierSource
from rmq_formats.lakehouse.typed import TypedExport
from rmq_formats.read.query import Include
from rmq_formats.read.stores import find_stores
from rmq_formats.spark.job import (
    JobParser,
    follow_broker_conf,
    is_several,
    option_name,
    parse_argument,
    run_job,
)
from rmq_formats.spark.options import values
from rmq_formats.storage.commitlog import commitlog_segments
from rmq_formats.storage.segments import open_storage

_TIMES: Final = tuple(name for name in ("starting_timestamp", "ending_timestamp", *QUEUE_BOUNDS) if "timestamp" in name)


def parser() -> JobParser:
    """Define the job's arguments."""
    job = export_parser()
    add_access(job)
    return job


def needs_delta(arguments: argparse.Namespace) -> bool:
    """Return whether the tables are Delta tables: Iceberg tables need no JVM libraries."""
    return str(arguments.format) == "delta"


def check(arguments: argparse.Namespace) -> None:
    """Refuse unusable arguments before a session is started."""
    _check_source(arguments)
    follow_broker_conf(arguments)
    if arguments.namesrv is not None:
        check_cluster(arguments)
    elif arguments.tier is not None:
        check_tier(arguments)
    elif is_several(arguments.store):
        check_several(arguments)
    else:
        commitlog_segments(*open_storage(arguments.store[0]))
    if arguments.table is None and arguments.typed is None:
        raise OptionError("--table or --typed is missing: the tables to export to")
    for name in ("topics", "system_topics", "columns", "partition_by", "cluster_by", "table_comment", "table_property",
                 "decompress"):  # fmt: skip
        if arguments.table is None and getattr(arguments, name):
            raise OptionError(f"{option_name(name)} needs --table: typed tables have theirs in the spec")
    if arguments.dlq_table is not None and arguments.typed is None:
        raise OptionError("--dlq-table needs --typed: it takes the bodies that do not decode")
    check_accepted(arguments)
    streams = (
        arguments.mode != "batch"
        and arguments.namesrv is None
        and arguments.tier is None
        and not is_several(arguments.store)
    )
    if streams and arguments.checkpoint is None and (arguments.table is None or in_catalog(arguments.table)):
        raise OptionError(f"--mode {arguments.mode} without a path as --table needs --checkpoint")
    _check_format(arguments)
    maintenance(arguments)
    for name in ("topics", "columns", "partition_by", "cluster_by"):
        names_of(arguments, name)
    if arguments.partition_by and arguments.cluster_by:
        raise OptionError("--partition-by and --cluster-by exclude each other")
    if arguments.mode != "batch" and arguments.include == Include.UNQUEUED:
        raise OptionError("--include unqueued needs --mode batch: new records wait for their queues")
    ends = ("ending_physical_offset", "ending_timestamp", *QUEUE_ENDS)
    if arguments.mode != "batch" and any(getattr(arguments, name) is not None for name in ends):
        raise OptionError(f"--mode {arguments.mode} has no end: leave out --ending-…, or use --mode batch")
    if arguments.mode != "batch" and arguments.from_offset is not None:
        raise OptionError("--from-offset needs --mode batch: a stream always resumes from the tables' progress")
    limits(arguments)
    interval_s(arguments)
    for name in ("starting_timestamp", "ending_timestamp"):
        parse_argument(arguments, name, values.timestamp_ms)
    check_queues(arguments)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if (getattr(arguments, name) or 0) < 0:
            raise OptionError(f"{option_name(name)} {getattr(arguments, name)}: expected a number of bytes, 0 or more")


def check_accepted(arguments: argparse.Namespace) -> None:
    """Refuse accepted topics that the spec does not have."""
    topics = {topic.topic for topic in typed_topics(arguments)}
    for name in names_of(arguments, "accept_undecoded") or ():
        if name not in topics:
            raise OptionError(f"--accept-undecoded {name}: --typed names no such topic")


def _check_source(arguments: argparse.Namespace) -> None:
    """Refuse options that belong to another kind of source."""
    if (arguments.store is None) == (arguments.namesrv is None):
        raise OptionError("one of --store and --namesrv is needed: what to export")
    if arguments.cluster is not None and (arguments.store is None or not is_several(arguments.store)):
        raise OptionError("--cluster is for several stores: it names the cluster of stores without one")
    if arguments.tier is not None and arguments.store is None:
        raise OptionError("--tier needs --store: the store of the broker whose tier it is")
    if arguments.include is not None and (arguments.namesrv is not None or arguments.tier is not None):
        raise OptionError("--include chooses among the records of a CommitLog: it needs --store without --tier")
    if arguments.namesrv is None:
        given_settings = [
            name for name, value in settings_from_arguments(dict(vars(arguments))).items() if value is not None
        ]
        if given_settings:
            raise OptionError("credentials and TLS are for --namesrv")
        if arguments.max_messages_per_trigger is not None and arguments.tier is None:
            raise OptionError("--max-messages-per-trigger is for --namesrv and --tier")


def check_several(arguments: argparse.Namespace) -> None:
    """Refuse arguments that several stores do not support; a broken store is found and reported later."""
    name_brokers(find_stores(arguments.store), arguments.cluster, arguments.store_id)
    _check_loop(arguments)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if getattr(arguments, name):
            raise OptionError(f"{option_name(name)} takes one store: each log has its own offsets")


def _check_loop(arguments: argparse.Namespace) -> None:
    """Refuse options that only a stream of one store supports."""
    if arguments.checkpoint is not None:
        raise OptionError("--checkpoint is for streams of one store: the tables have the progress")


def check_cluster(arguments: argparse.Namespace) -> None:
    """Refuse arguments that a running cluster does not support."""
    _check_loop(arguments)
    if arguments.max_bytes_per_trigger is not None:
        raise OptionError("--namesrv takes --max-messages-per-trigger: brokers do not tell the bytes of a queue")
    if arguments.starting_physical_offset or arguments.ending_physical_offset is not None or arguments.from_offset:
        raise OptionError("--namesrv: brokers are asked by queue offsets; --from-offset 0 alone can be given")
    check_queue_options(cluster_options(arguments), selection(arguments))


def check_tier(arguments: argparse.Namespace) -> None:
    """Refuse arguments that a store with its tier does not support."""
    if is_several(arguments.store):
        raise OptionError("--tier takes one store: the one whose broker writes it")
    _check_loop(arguments)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset", "max_bytes_per_trigger", *_TIMES):
        if getattr(arguments, name):
            raise OptionError(f"{option_name(name)}: with --tier queue offsets choose messages, which both have")
    commitlog_segments(*open_storage(arguments.store[0]))
    check_queue_options(tier_options(arguments), selection(arguments))
    with TierQueues(arguments.store[0], arguments.tier) as link:
        for topic in requested_topics(arguments):
            link.queues(topic)


def tier_options(arguments: argparse.Namespace) -> ClusterExportOptions:
    """Build the options of an export of a store with its tier. Raises OptionError."""
    options = {"decompress": "false", "failOnDataLoss": arguments.fail_on_data_loss}
    return _queue_options(arguments, TierSource(arguments.store[0], arguments.tier), options)


def _queue_options(
    arguments: argparse.Namespace, source: QueueSource, options: Mapping[str, str]
) -> ClusterExportOptions:
    selected = selection(arguments)
    topics = None if arguments.table is not None and selected.topics is None else requested_topics(arguments)
    max_messages = (
        None if arguments.mode == "batch" else parse_argument(arguments, "max_messages_per_trigger", values.positive)
    )
    return ClusterExportOptions(
        source, topics, selected.excluded_topics, options, arguments.store_id, max_messages, arguments.mode == "stream"
    )


def cluster_options(arguments: argparse.Namespace) -> ClusterExportOptions:
    """Build the options of an export of a cluster. Raises OptionError."""
    given_options = {
        **settings_from_arguments(dict(vars(arguments))),
        "namesrv": arguments.namesrv,
        "startingTimestamp": arguments.starting_timestamp,
        "endingTimestamp": arguments.ending_timestamp,
        "failOnDataLoss": arguments.fail_on_data_loss,
        "decompress": "false",
    }
    options = {name: value for name, value in given_options.items() if value is not None}
    return _queue_options(arguments, ClusterSource.of(arguments.namesrv, options), options)


def _check_format(arguments: argparse.Namespace) -> None:
    """Refuse options that the table format does not support."""
    options = pairs_of(arguments, "catalog_option")
    pairs_of(arguments, "table_property")
    if arguments.format == "delta":
        if options:
            raise OptionError("--catalog-option needs --format iceberg: Delta's catalogs are Spark's, by --conf")
        return
    check_installed()
    if arguments.cluster_by:
        raise OptionError("--cluster-by needs --format delta")
    for topic in typed_topics(arguments):
        if topic.cluster_by:
            raise OptionError(f"{arguments.typed}: topic {topic.topic!r}: cluster_by needs --format delta")


def selection(
    arguments: argparse.Namespace, broker: BrokerKey | None = None, path: str | None = None
) -> ExportSelection:
    """Build the selection of messages: of the one store, or of a broker and its store."""
    store = path or arguments.namesrv or arguments.store[0]
    topics = names_of(arguments, "topics")
    everything = topics is not None or arguments.system_topics
    return ExportSelection(
        store=store,
        store_id=store_identifier(store, arguments.store_id),
        broker=broker,
        topics=None if topics is None else tuple(sorted(set(topics))),
        excluded_topics=None if everything else ExcludedTopics(tuple(sorted(SYSTEM_TOPICS)), SYSTEM_TOPIC_PREFIX),
        include=arguments.include,
        starting_timestamp=arguments.starting_timestamp,
        ending_timestamp=arguments.ending_timestamp,
        starting_physical_offset=arguments.starting_physical_offset,
        queue_bounds=tuple(
            (option, getattr(arguments, name)) for name, option in QUEUE_BOUNDS.items() if queues_of(arguments, name)
        ),
        from_offset=arguments.from_offset,
        with_tier=arguments.tier is not None,
    )


def build_exports(arguments: argparse.Namespace, spark: SparkSession, selected: ExportSelection) -> list[Export]:
    """Build the exports of one store's messages from the arguments."""
    clusters = names_of(arguments, "cluster_by") or ()
    partitions = () if clusters else names_of(arguments, "partition_by") or tuple(DEFAULT_PARTITIONS.split(","))
    open_table = table_format(spark, arguments.format, pairs_of(arguments, "catalog_option"))
    exports: list[Export] = []
    if arguments.table is not None:
        whose = f"store {selected.store_id}" if selected.broker is None else f"cluster {selected.broker.table_id}"
        comment = arguments.table_comment or f"messages of the RocketMQ {whose}, one row each"
        initial_properties = tuple(pairs_of(arguments, "table_property").items())
        table_spec = TableSpec(partitions, clusters, initial_properties=initial_properties, comment=comment)
        columns = names_of(arguments, "columns")
        exports.append(
            RawExport(
                arguments.table, open_table(arguments.table), selected, columns, table_spec,
                decompresses=arguments.decompress,
            )
        )  # fmt: skip
    exports += [
        TypedExport(spark, topic, selected, arguments.dlq_table, open_table) for topic in typed_topics(arguments)
    ]
    return exports


def requested_topics(arguments: argparse.Namespace) -> tuple[str, ...]:
    """List the topics that arguments and spec name."""
    return (*sorted(set(names_of(arguments, "topics") or ())), *(topic.topic for topic in typed_topics(arguments)))


def main(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages that were not exported yet."""
    if arguments.namesrv is not None or arguments.tier is not None:
        return main_queues(arguments, spark)
    if is_several(arguments.store):
        return main_several(arguments, spark)
    begin = time.perf_counter()
    (store,) = arguments.store
    log = snapshot_log(store)
    exports, all_topics = build_exports(arguments, spark, selection(arguments)), log.known_topics()
    check_topics(spark, [log], all_topics, requested_topics(arguments))
    topics = max(len(export.selection.topics or all_topics) for export in exports)
    set_file_sizes(spark, topics)
    bounds = Bounds(arguments.ending_physical_offset, arguments.fail_on_data_loss == "true", topics)
    run = ExportRun(spark, store, exports, bounds)
    run.check(log)
    checkpoint = None
    if arguments.mode != "batch":
        checkpoint = ExportCheckpoint(spark, arguments.checkpoint or f"{arguments.table}/_rmq_checkpoint")
        checkpoint.check(store_identifier(store, arguments.store_id))
    with writer_lease(spark, _directories(arguments, spark, exports)) as run.check_lease:
        run.prepare()
        if checkpoint is None:
            run.batch(log)
        else:
            checkpoint.claim(store_identifier(store, arguments.store_id))
            interval = None if arguments.mode == "available-now" else arguments.trigger_interval
            run.stream(checkpoint, interval, limits(arguments))
        undecoded = _resolve_undecoded(arguments, exports)
        _maintain(arguments, spark, exports)
    torn = log.torn if arguments.ending_physical_offset is None or arguments.ending_physical_offset > log.end else 0
    return report_of_store(arguments, run, torn, undecoded, time.perf_counter() - begin)


def _resolve_undecoded(arguments: argparse.Namespace, exports: Sequence[Export]) -> int:
    """Return how many messages are undecoded, counting those of former runs, and report them."""
    accepted = names_of(arguments, "accept_undecoded") or ()
    return sum(export.resolve_undecoded(accepted) for export in exports)


def _maintain(arguments: argparse.Namespace, spark: SparkSession, exports: Sequence[Export]) -> None:
    """Maintain the tables of the exports."""
    open_table = table_format(spark, arguments.format, pairs_of(arguments, "catalog_option"))
    for export in exports:
        maintenance(arguments).do(open_table, export.tables)


def _directories(arguments: argparse.Namespace, spark: SparkSession, exports: list[Export]) -> list[str]:
    """List the directories of Delta tables, for which the writer may need leases."""
    tables = [table for export in exports for table in export.tables]
    return [DeltaLocation(spark, table).directory() for table in tables] if arguments.format == "delta" else []


def main_several(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages of several stores into common tables."""
    begin = time.perf_counter()
    stores = find_stores(arguments.store)
    brokers, logs = name_brokers(stores, arguments.cluster, arguments.store_id), snapshot_logs(stores)
    read = [log for log in logs if isinstance(log, StoreLog)]
    known_topics = frozenset[str]().union(*(log.known_topics() for log in read))
    check_topics(spark, read, known_topics, requested_topics(arguments))
    topics = len(requested_topics(arguments) or known_topics)
    set_file_sizes(spark, topics)
    bounds = Bounds(None, arguments.fail_on_data_loss == "true", topics)

    def make_exports(broker: BrokerKey, path: str) -> list[Export]:
        return build_exports(arguments, spark, selection(arguments, broker, path))

    def find_new(known_paths: Collection[str]) -> list[StoreExports]:
        stores = find_stores(arguments.store)
        with_brokers = zip(stores, name_brokers(stores, arguments.cluster, arguments.store_id), strict=True)
        new_stores = [(store, broker) for store, broker in with_brokers if store.path not in known_paths]
        not_read_yet = ["its log has not been read yet"] * len(new_stores)
        return make_parts(
            spark,
            [store for store, _ in new_stores],
            [broker for _, broker in new_stores],
            not_read_yet,
            bounds,
            make_exports,
        )

    parts = make_parts(spark, stores, brokers, logs, bounds, make_exports)
    run = StoresRun(parts, find_new)
    run.check()
    with writer_lease(spark, _directories(arguments, spark, list(parts[0].exports))) as run.check_lease:
        run.prepare()
        limit = None if arguments.mode == "batch" else parse_argument(arguments, "max_bytes_per_trigger", values.size)
        repeat(
            partial(run.follow_round if arguments.mode == "stream" else run.export_round, limit), interval_s(arguments)
        )
        undecoded = _resolve_undecoded(arguments, [export for part in run.parts for export in part.exports])
        _maintain(arguments, spark, parts[0].exports)
    return report_of_stores(arguments, run, undecoded, time.perf_counter() - begin)


def main_queues(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages of a running cluster, or of a store with its tier, by queue offsets."""
    begin = time.perf_counter()

    def make_exports(broker: BrokerKey) -> list[Export]:
        return build_exports(arguments, spark, selection(arguments, broker))

    options = cluster_options(arguments) if arguments.tier is None else tier_options(arguments)
    run = ClusterRun(spark, options, make_exports)
    run.prepare()
    exports = list(run.parts[0].exports)
    with writer_lease(spark, _directories(arguments, spark, exports)) as run.check_lease:
        repeat(run.export_round, interval_s(arguments))
        undecoded = _resolve_undecoded(arguments, [export for part in run.parts for export in part.exports])
        _maintain(arguments, spark, exports)
    return report_of_cluster(arguments, run, undecoded, time.perf_counter() - begin)


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
