"""Land a store's messages in Delta tables, each once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

So it does with those of several stores, and with ``--namesrv`` those of a running cluster. ``docs/lakehouse.md``
explains the guarantees. The end of an export is a transaction version in each table, a physical offset. A run begins
there, in any mode: one that follows another adds only new messages, and one after a kill adds what is missing.
"""

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_core.cli.access import add_access, take_settings
from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.cluster.run import ClusterChoice, ClusterRun, check_choice
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
from rmq_formats.lakehouse.command.several import StoreExports, StoresRun, brokers_of, look_at_all, parts_of
from rmq_formats.lakehouse.delta.log_store import alone
from rmq_formats.lakehouse.delta.place import DeltaPlace
from rmq_formats.lakehouse.files import set_file_sizes
from rmq_formats.lakehouse.formats import check_installed, table_format
from rmq_formats.lakehouse.log import StoreLog, check_topics, look
from rmq_formats.lakehouse.raw import Export, RawExport
from rmq_formats.lakehouse.run import Bounds, ExportRun, repeat
from rmq_formats.lakehouse.selection import Broker, ExportSelection, LeftOut, identify
from rmq_formats.lakehouse.table_log import Shape
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
    parsed,
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


def needs_delta(given: argparse.Namespace) -> bool:
    """Return whether the tables are Delta's: Iceberg's need nothing of Java's."""
    return str(given.format) == "delta"


def check(given: argparse.Namespace) -> None:
    """Refuse unusable arguments before a session is started."""
    _check_source(given)
    follow_broker_conf(given)
    if given.namesrv is not None:
        check_cluster(given)
    elif given.tier is not None:
        check_tier(given)
    elif is_several(given.store):
        check_several(given)
    else:
        commitlog_segments(*open_storage(given.store[0]))
    if given.table is None and given.typed is None:
        raise OptionError("--table or --typed is missing: the tables to export to")
    for name in ("topics", "system_topics", "columns", "partition_by", "cluster_by", "table_comment", "table_property"):
        if given.table is None and getattr(given, name):
            raise OptionError(f"{option_name(name)} needs --table: typed tables have theirs in the spec")
    if given.dlq_table is not None and given.typed is None:
        raise OptionError("--dlq-table needs --typed: it takes the bodies that do not decode")
    check_accepted(given)
    streams = given.mode != "batch" and given.namesrv is None and given.tier is None and not is_several(given.store)
    if streams and given.checkpoint is None and (given.table is None or in_catalog(given.table)):
        raise OptionError(f"--mode {given.mode} without a path as --table needs --checkpoint")
    _check_format(given)
    maintenance(given)
    for name in ("topics", "columns", "partition_by", "cluster_by"):
        names_of(given, name)
    if given.partition_by and given.cluster_by:
        raise OptionError("--partition-by and --cluster-by exclude each other")
    if given.mode != "batch" and given.include == Include.UNQUEUED:
        raise OptionError("--include unqueued needs --mode batch: new records wait for their queues")
    ends = ("ending_physical_offset", "ending_timestamp", *QUEUE_ENDS)
    if given.mode != "batch" and any(getattr(given, name) is not None for name in ends):
        raise OptionError(f"--mode {given.mode} has no end: leave out --ending-…, or use --mode batch")
    if given.mode != "batch" and given.from_offset is not None:
        raise OptionError("--from-offset needs --mode batch: a stream begins where the tables stand")
    limits(given)
    interval_s(given)
    for name in ("starting_timestamp", "ending_timestamp"):
        parsed(given, name, values.timestamp_ms)
    check_queues(given)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if (getattr(given, name) or 0) < 0:
            raise OptionError(f"{option_name(name)} {getattr(given, name)}: expected a number of bytes, 0 or more")


def check_accepted(given: argparse.Namespace) -> None:
    """Refuse to accept undecoded messages of a topic that the spec does not have."""
    topics = {topic.topic for topic in typed_topics(given)}
    for name in names_of(given, "accept_undecoded") or ():
        if name not in topics:
            raise OptionError(f"--accept-undecoded {name}: --typed names no such topic")


def _check_source(given: argparse.Namespace) -> None:
    """Refuse options of another kind of source than the one that is given."""
    if (given.store is None) == (given.namesrv is None):
        raise OptionError("one of --store and --namesrv is needed: what to export")
    if given.cluster is not None and (given.store is None or not is_several(given.store)):
        raise OptionError("--cluster is for several stores that do not tell theirs")
    if given.tier is not None and given.store is None:
        raise OptionError("--tier needs --store: the store of the broker whose tier it is")
    if given.include is not None and (given.namesrv is not None or given.tier is not None):
        raise OptionError("--include chooses among the records of a CommitLog: it needs --store without --tier")
    if given.namesrv is None:
        given_settings = [name for name, value in take_settings(dict(vars(given))).items() if value is not None]
        if given_settings:
            raise OptionError("credentials and TLS are for --namesrv")
        if given.max_messages_per_trigger is not None and given.tier is None:
            raise OptionError("--max-messages-per-trigger is for --namesrv and --tier")


def check_several(given: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used for several stores; a broken one is found out later, and reported."""
    brokers_of(find_stores(given.store), given.cluster, given.store_id)
    _check_loop(given)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if getattr(given, name):
            raise OptionError(f"{option_name(name)} takes one store: each log has its own offsets")


def _check_loop(given: argparse.Namespace) -> None:
    """Refuse options of a stream of one store."""
    if given.checkpoint is not None:
        raise OptionError("--checkpoint is for streams of one store: the tables have the progress")


def check_cluster(given: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used for a running cluster."""
    _check_loop(given)
    if given.max_bytes_per_trigger is not None:
        raise OptionError("--namesrv takes --max-messages-per-trigger: brokers do not tell the bytes of a queue")
    if given.starting_physical_offset or given.ending_physical_offset is not None or given.from_offset:
        raise OptionError("--namesrv: brokers are asked by queue offsets; --from-offset 0 alone can be given")
    check_choice(cluster_choice(given), selection(given))


def check_tier(given: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used for a store with its tier."""
    if is_several(given.store):
        raise OptionError("--tier takes one store: the one whose broker writes it")
    _check_loop(given)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset", "max_bytes_per_trigger", *_TIMES):
        if getattr(given, name):
            raise OptionError(f"{option_name(name)}: with --tier queue offsets choose messages, which both have")
    commitlog_segments(*open_storage(given.store[0]))
    check_choice(tier_choice(given), selection(given))
    with TierQueues(given.store[0], given.tier) as link:
        for topic in asked_topics(given):
            link.queues(topic)


def tier_choice(given: argparse.Namespace) -> ClusterChoice:
    """Build what is exported of a store with its tier from the arguments. Raises OptionError."""
    options = {"decompress": "false", "failOnDataLoss": given.fail_on_data_loss}
    return _choice(given, TierSource(given.store[0], given.tier), options)


def _choice(given: argparse.Namespace, source: QueueSource, options: Mapping[str, str]) -> ClusterChoice:
    chosen = selection(given)
    topics = None if given.table is not None and chosen.topics is None else asked_topics(given)
    most = None if given.mode == "batch" else parsed(given, "max_messages_per_trigger", values.positive)
    return ClusterChoice(source, topics, chosen.left_out, options, given.store_id, most, given.mode == "stream")


def cluster_choice(given: argparse.Namespace) -> ClusterChoice:
    """Build what is exported of a cluster from the arguments. Raises OptionError."""
    asked = {
        **take_settings(dict(vars(given))),
        "namesrv": given.namesrv,
        "startingTimestamp": given.starting_timestamp,
        "endingTimestamp": given.ending_timestamp,
        "failOnDataLoss": given.fail_on_data_loss,
        "decompress": "false",
    }
    options = {name: value for name, value in asked.items() if value is not None}
    return _choice(given, ClusterSource.of(given.namesrv, options), options)


def _check_format(given: argparse.Namespace) -> None:
    """Refuse options that the table format does not have."""
    options = pairs_of(given, "catalog_option")
    pairs_of(given, "table_property")
    if given.format == "delta":
        if options:
            raise OptionError("--catalog-option needs --format iceberg: Delta's catalogs are Spark's, by --conf")
        return
    check_installed()
    if given.cluster_by:
        raise OptionError("--cluster-by needs --format delta")
    for topic in typed_topics(given):
        if topic.cluster_by:
            raise OptionError(f"{given.typed}: topic {topic.topic!r}: cluster_by needs --format delta")


def selection(given: argparse.Namespace, broker: Broker | None = None, path: str | None = None) -> ExportSelection:
    """Build the selection of messages from the arguments: of the one store, or of a broker and its store."""
    store = path or given.namesrv or given.store[0]
    topics = names_of(given, "topics")
    everything = topics is not None or given.system_topics
    return ExportSelection(
        store=store,
        store_id=identify(store, given.store_id),
        broker=broker,
        topics=None if topics is None else tuple(sorted(set(topics))),
        left_out=None if everything else LeftOut(tuple(sorted(SYSTEM_TOPICS)), SYSTEM_TOPIC_PREFIX),
        include=given.include,
        starting_timestamp=given.starting_timestamp,
        ending_timestamp=given.ending_timestamp,
        starting_physical_offset=given.starting_physical_offset,
        queue_bounds=tuple(
            (option, getattr(given, name)) for name, option in QUEUE_BOUNDS.items() if queues_of(given, name)
        ),
        from_offset=given.from_offset,
        with_tier=given.tier is not None,
    )


def exports(given: argparse.Namespace, spark: SparkSession, chosen: ExportSelection) -> list[Export]:
    """Build the exports that the arguments ask for, of the messages of one store."""
    clusters = names_of(given, "cluster_by") or ()
    partitions = () if clusters else names_of(given, "partition_by") or tuple(DEFAULT_PARTITIONS.split(","))
    opened = table_format(spark, given.format, pairs_of(given, "catalog_option"))
    found: list[Export] = []
    if given.table is not None:
        whose = f"store {chosen.store_id}" if chosen.broker is None else f"cluster {chosen.broker.table_id}"
        comment = given.table_comment or f"messages of the RocketMQ {whose}, one row each"
        more = tuple(pairs_of(given, "table_property").items())
        shape, columns = Shape(partitions, clusters, more=more, comment=comment), names_of(given, "columns")
        found.append(RawExport(given.table, opened(given.table), chosen, columns, shape))
    found += [TypedExport(spark, topic, chosen, given.dlq_table, opened) for topic in typed_topics(given)]
    return found


def asked_topics(given: argparse.Namespace) -> tuple[str, ...]:
    """List the topics that the tables ask for by name."""
    return (*sorted(set(names_of(given, "topics") or ())), *(topic.topic for topic in typed_topics(given)))


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages that have not been exported yet."""
    if given.namesrv is not None or given.tier is not None:
        return main_queues(given, spark)
    if is_several(given.store):
        return main_several(given, spark)
    begin = time.perf_counter()
    (store,) = given.store
    log = look(store)
    todo, known = exports(given, spark, selection(given)), log.known_topics()
    check_topics(spark, [log], known, asked_topics(given))
    topics = max(len(export.selection.topics or known) for export in todo)
    set_file_sizes(spark, topics)
    bounds = Bounds(given.ending_physical_offset, given.fail_on_data_loss == "true", topics)
    run = ExportRun(spark, store, todo, bounds)
    run.check(log)
    checkpoint = None
    if given.mode != "batch":
        checkpoint = ExportCheckpoint(spark, given.checkpoint or f"{given.table}/_rmq_checkpoint")
        checkpoint.check(identify(store, given.store_id))
    with alone(spark, _places(given, spark, todo)) as run.still_alone:
        run.prepare()
        if checkpoint is None:
            run.batch(log)
        else:
            checkpoint.claim(identify(store, given.store_id))
            interval = None if given.mode == "available-now" else given.trigger_interval
            run.stream(checkpoint, interval, limits(given))
        undecoded = _undecoded(given, todo)
        _maintain(given, spark, todo)
    torn = log.torn if given.ending_physical_offset is None or given.ending_physical_offset > log.end else 0
    return report_of_store(given, run, torn, undecoded, time.perf_counter() - begin)


def _undecoded(given: argparse.Namespace, todo: Sequence[Export]) -> int:
    """Return how many messages are undecoded by now, in this run and former ones, and report them."""
    accepted = names_of(given, "accept_undecoded") or ()
    return sum(export.settle_undecoded(accepted) for export in todo)


def _maintain(given: argparse.Namespace, spark: SparkSession, todo: Sequence[Export]) -> None:
    """Do the maintenance of the exports' tables that is asked for."""
    opened = table_format(spark, given.format, pairs_of(given, "catalog_option"))
    for export in todo:
        maintenance(given).do(opened, export.tables)


def _places(given: argparse.Namespace, spark: SparkSession, todo: list[Export]) -> list[str]:
    """List the directories of Delta tables, of which each exporter may have to have the lease."""
    tables = [table for export in todo for table in export.tables]
    return [DeltaPlace(spark, table).directory() for table in tables] if given.format == "delta" else []


def main_several(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages of several stores into common tables."""
    begin = time.perf_counter()
    stores = find_stores(given.store)
    brokers, logs = brokers_of(stores, given.cluster, given.store_id), look_at_all(stores)
    read = [log for log in logs if isinstance(log, StoreLog)]
    known = frozenset[str]().union(*(log.known_topics() for log in read))
    check_topics(spark, read, known, asked_topics(given))
    topics = len(asked_topics(given) or known)
    set_file_sizes(spark, topics)
    bounds = Bounds(None, given.fail_on_data_loss == "true", topics)

    def make(broker: Broker, path: str) -> list[Export]:
        return exports(given, spark, selection(given, broker, path))

    def appeared(known: Collection[str]) -> list[StoreExports]:
        found = find_stores(given.store)
        named = zip(found, brokers_of(found, given.cluster, given.store_id), strict=True)
        new = [(store, broker) for store, broker in named if store.path not in known]
        waiting = ["its log has not been read yet"] * len(new)
        return parts_of(spark, [store for store, _ in new], [broker for _, broker in new], waiting, bounds, make)

    parts = parts_of(spark, stores, brokers, logs, bounds, make)
    run = StoresRun(parts, appeared)
    run.check()
    with alone(spark, _places(given, spark, list(parts[0].exports))) as run.still_alone:
        run.prepare()
        limit = None if given.mode == "batch" else parsed(given, "max_bytes_per_trigger", values.size)
        repeat(partial(run.follow if given.mode == "stream" else run.land, limit), interval_s(given))
        undecoded = _undecoded(given, [export for part in run.parts for export in part.exports])
        _maintain(given, spark, parts[0].exports)
    return report_of_stores(given, run, undecoded, time.perf_counter() - begin)


def main_queues(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages of a running cluster, or of a store with its tier, by queue offsets."""
    begin = time.perf_counter()

    def make(broker: Broker) -> list[Export]:
        return exports(given, spark, selection(given, broker))

    choice = cluster_choice(given) if given.tier is None else tier_choice(given)
    run = ClusterRun(spark, choice, make)
    run.prepare()
    todo = list(run.parts[0].exports)
    with alone(spark, _places(given, spark, todo)) as run.still_alone:
        repeat(run.land, interval_s(given))
        undecoded = _undecoded(given, [export for part in run.parts for export in part.exports])
        _maintain(given, spark, todo)
    return report_of_cluster(given, run, undecoded, time.perf_counter() - begin)


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
