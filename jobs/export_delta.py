"""Land a store's messages in Delta tables, each once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

``docs/lakehouse.md`` explains the guarantees. The end of an export is a transaction version in each table, a
physical offset. A run begins there, in any mode: one that follows another adds only new messages, and one after a
kill adds what is missing.
"""

import argparse
import re
import time
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.checkpoint import ExportCheckpoint
from rmq_formats.lakehouse.delta.log_store import alone
from rmq_formats.lakehouse.delta.maintain import check_maintenance, maintain
from rmq_formats.lakehouse.delta.place import DeltaPlace
from rmq_formats.lakehouse.files import set_file_sizes
from rmq_formats.lakehouse.formats import FORMATS, check_installed, table_format
from rmq_formats.lakehouse.log import check_topics, look
from rmq_formats.lakehouse.raw import Export, RawExport
from rmq_formats.lakehouse.run import Bounds, ExportRun
from rmq_formats.lakehouse.selection import ExportSelection, LeftOut, identify
from rmq_formats.lakehouse.spec import TypedTopic, load_spec
from rmq_formats.lakehouse.table_log import Shape
from rmq_formats.lakehouse.table_name import in_catalog
from rmq_formats.lakehouse.typed import TypedExport
from rmq_formats.read.query import Queue
from rmq_formats.spark.job import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    job_parser,
    option_name,
    parsed,
    run_job,
)
from rmq_formats.spark.options import values
from rmq_formats.storage.segments import commitlog_segments, open_storage

DEFAULT_PARTITIONS: Final = "topic,date"
_QUEUE_STARTS: Final = {
    "starting_offsets": "startingOffsets",
    "starting_offsets_by_timestamp": "startingOffsetsByTimestamp",
}
_QUEUE_ENDS: Final = {"ending_offsets": "endingOffsets", "ending_offsets_by_timestamp": "endingOffsetsByTimestamp"}
_QUEUE_BOUNDS: Final = _QUEUE_STARTS | _QUEUE_ENDS
_INTERVAL: Final = re.compile(r"[0-9]{1,9} ?(millisecond|second|minute|hour|day)s?", re.ASCII)


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("export_delta", "Export a RocketMQ store's messages to Delta tables, each exactly once.")
    job.add_argument("--store", required=True, help="the store's root directory, or a URI")
    job.add_argument("--table", help="raw table, one row a message, bodies as bytes: a path, or catalog.schema.name")
    job.add_argument("--format", choices=FORMATS, default="delta", help="of the tables; default: delta")
    job.add_argument("--catalog-option", metavar="KEY=VALUE", action="append", default=[],
                     help="of a catalog that --table names for --format iceberg, such as uri=http://…")  # fmt: skip
    job.add_argument("--table-comment", metavar="TEXT", help="comment of the raw table, when it is created")
    job.add_argument("--table-property", metavar="KEY=VALUE", action="append", default=[],
                     help="property of the raw table, when it is created; may come often")  # fmt: skip
    job.add_argument("--typed", metavar="SPEC", help="spec of typed tables, TOML or JSON; without --table no raw table")
    job.add_argument("--dlq-table", help="path of the dead-letter table, for bodies that do not decode")
    job.add_argument("--store-id", help="identifier of the store in the tables; default: its path")
    what = job.add_argument_group("messages to export")
    what.add_argument("--topics", help="comma list; default: all but system topics")
    what.add_argument("--system-topics", action="store_true", help="export system topics, too")
    what.add_argument("--starting-physical-offset", type=int, default=0, help="bytes, inclusive; default: 0")
    what.add_argument("--ending-physical-offset", type=int, help="bytes, exclusive; default: the log's end")
    what.add_argument("--starting-timestamp", help="store time, ms or ISO-8601, inclusive")
    what.add_argument("--ending-timestamp", help="store time, ms or ISO-8601, exclusive")
    for name in _QUEUE_BOUNDS:
        what.add_argument(option_name(name), metavar="JSON", help='by topic and queue, as {"Orders":{"0":100}}')
    what.add_argument("--columns", help="comma list of rmq_commitlog's columns; default: all")
    what.add_argument("--fail-on-data-loss", choices=["true", "false"], default="true",
                      help="false: skip segments that were deleted before they were exported")  # fmt: skip
    what.add_argument("--from-offset", type=int, metavar="BYTES",
                      help="physical offset from which what is missing lands; default: where tables stand")  # fmt: skip
    how = job.add_argument_group("execution")
    how.add_argument("--mode", choices=["batch", "available-now", "stream"], default="batch", help="default: batch")
    how.add_argument(
        "--checkpoint",
        help="checkpoint directory of a stream; --mode batch needs none; default: inside of --table",
    )
    how.add_argument("--trigger-interval", default="10 seconds", help="for --mode stream; default: 10 seconds")
    how.add_argument("--max-bytes-per-trigger", help="log bytes in a micro batch, such as 512m; default: no limit")
    how.add_argument(
        "--partition-by", help=f"comma list of columns; default: {DEFAULT_PARTITIONS}; date is that of the store time"
    )
    how.add_argument("--cluster-by", help="comma list of columns for liquid clustering, instead of --partition-by")
    after = job.add_argument_group("maintenance after the export")
    after.add_argument("--optimize", action="store_true", help="compact small files to 128 MiB, and cluster")
    after.add_argument("--retention", metavar="DAYS", type=int, help="delete messages stored more than DAYS ago")
    after.add_argument("--vacuum", metavar="HOURS", type=int, help="delete files unused by versions of the last HOURS")
    job.set_defaults(typed_topics=None)
    return job


def check(given: argparse.Namespace) -> None:
    """Refuse unusable arguments before a session is started."""
    commitlog_segments(*open_storage(given.store))
    if given.table is None and given.typed is None:
        raise OptionError("--table or --typed is missing: the tables to export to")
    for name in ("topics", "system_topics", "columns", "partition_by", "cluster_by", "table_comment", "table_property"):
        if given.table is None and getattr(given, name):
            raise OptionError(f"{option_name(name)} needs --table: typed tables have theirs in the spec")
    if given.dlq_table is not None and given.typed is None:
        raise OptionError("--dlq-table needs --typed: it takes the bodies that do not decode")
    if given.typed is not None:
        _typed_topics(given)
    if given.mode != "batch" and given.checkpoint is None and (given.table is None or in_catalog(given.table)):
        raise OptionError(f"--mode {given.mode} without a path as --table needs --checkpoint")
    _check_format(given)
    check_maintenance(given.retention, given.vacuum)
    for name in ("topics", "columns", "partition_by", "cluster_by"):
        _names(given, name)
    if given.partition_by and given.cluster_by:
        raise OptionError("--partition-by and --cluster-by exclude each other")
    ends = ("ending_physical_offset", "ending_timestamp", *_QUEUE_ENDS)
    if given.mode != "batch" and any(getattr(given, name) is not None for name in ends):
        raise OptionError(f"--mode {given.mode} has no end: leave out --ending-…, or use --mode batch")
    if given.mode != "batch" and given.from_offset is not None:
        raise OptionError("--from-offset needs --mode batch: a stream begins where the tables stand")
    _limits(given)
    if _INTERVAL.fullmatch(given.trigger_interval) is None:
        raise OptionError(f"--trigger-interval {given.trigger_interval!r}: a time such as '10 seconds' or '1 minute'")
    for name in ("starting_timestamp", "ending_timestamp"):
        parsed(given, name, values.timestamp_ms)
    _check_queues(given)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if (getattr(given, name) or 0) < 0:
            raise OptionError(f"{option_name(name)} {getattr(given, name)}: expected a number of bytes, 0 or more")


def _check_format(given: argparse.Namespace) -> None:
    """Refuse options that the table format does not have."""
    options = _pairs(given, "catalog_option")
    _pairs(given, "table_property")
    if given.format == "delta":
        if options:
            raise OptionError("--catalog-option needs --format iceberg: Delta's catalogs are Spark's, by --conf")
        return
    check_installed()
    for name in ("cluster_by", "optimize", "retention", "vacuum"):
        if getattr(given, name):
            raise OptionError(f"{option_name(name)} needs --format delta")
    for topic in _typed_topics(given):
        if topic.cluster_by:
            raise OptionError(f"{given.typed}: topic {topic.topic!r}: cluster_by needs --format delta")


def _pairs(given: argparse.Namespace, option: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in getattr(given, option)]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise OptionError(f"{option_name(option)} {name!r}: expected KEY=VALUE")
    return {name: value for name, _, value in pairs}


def _typed_topics(given: argparse.Namespace) -> list[TypedTopic]:
    """Load the topics of the spec; its file is read once a run, so that what was checked is what is done."""
    if given.typed is None:
        return []
    if given.typed_topics is None:
        given.typed_topics = load_spec(given.typed)
    topics: list[TypedTopic] = given.typed_topics
    return topics


def _names(given: argparse.Namespace, option: str) -> tuple[str, ...] | None:
    return parsed(given, option, values.names)


def _check_queues(given: argparse.Namespace) -> None:
    """Refuse bounds of queues of topics that are not exported."""
    chosen = _names(given, "topics") or ()
    if given.table is None:
        chosen = tuple(topic.topic for topic in _typed_topics(given))
    for name in _QUEUE_BOUNDS:
        for topic, queue_id in sorted(_queues(given, name)):
            if topic not in chosen:
                where = "--topics" if given.table is not None else "the spec"
                raise OptionError(
                    f"{option_name(name)}: queue {queue_id} of {topic!r}, a topic that {where} does not name"
                )


def _queues(given: argparse.Namespace, name: str) -> dict[Queue, int]:
    """Parse a bound of queues; none where a word says that all is wanted."""
    if name.endswith("timestamp"):
        return parsed(given, name, values.times) or {}
    if name == "starting_offsets" and (getattr(given, name) or "").strip().lower() == "latest":
        raise OptionError(f"{option_name(name)} 'latest': there would be nothing to export")
    return parsed(given, name, values.offsets(values.EARLIEST if name == "starting_offsets" else values.LATEST)) or {}


def _limits(given: argparse.Namespace) -> dict[str, str]:
    most = parsed(given, "max_bytes_per_trigger", values.size)
    return {} if most is None else {"maxBytesPerTrigger": str(most)}


def selection(given: argparse.Namespace) -> ExportSelection:
    """Build the selection of messages from the arguments."""
    topics = _names(given, "topics")
    everything = topics is not None or given.system_topics
    return ExportSelection(
        store=given.store,
        store_id=identify(given.store, given.store_id),
        topics=None if topics is None else tuple(sorted(set(topics))),
        left_out=None if everything else LeftOut(tuple(sorted(SYSTEM_TOPICS)), SYSTEM_TOPIC_PREFIX),
        starting_timestamp=given.starting_timestamp,
        ending_timestamp=given.ending_timestamp,
        starting_physical_offset=given.starting_physical_offset,
        queue_bounds=tuple(
            (option, getattr(given, name)) for name, option in _QUEUE_BOUNDS.items() if _queues(given, name)
        ),
        from_offset=given.from_offset,
    )


def exports(given: argparse.Namespace, spark: SparkSession) -> list[Export]:
    """Build the exports that the arguments ask for."""
    clusters = _names(given, "cluster_by") or ()
    partitions = () if clusters else _names(given, "partition_by") or tuple(DEFAULT_PARTITIONS.split(","))
    chosen = selection(given)
    opened = table_format(spark, given.format, _pairs(given, "catalog_option"))
    found: list[Export] = []
    if given.table is not None:
        comment = given.table_comment or f"messages of the RocketMQ store {chosen.store_id}, one row each"
        more = tuple(_pairs(given, "table_property").items())
        shape, columns = Shape(partitions, clusters, more=more, comment=comment), _names(given, "columns")
        found.append(RawExport(given.table, opened(given.table), chosen, columns, shape))
    found += [TypedExport(spark, topic, chosen, given.dlq_table, opened) for topic in _typed_topics(given)]
    return found


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export the messages that have not been exported yet."""
    begin = time.perf_counter()
    log = look(given.store)
    todo, known = exports(given, spark), log.known_topics()
    for export in todo:
        check_topics(spark, log, known, export.selection.topics or ())
    topics = max(len(export.selection.topics or known) for export in todo)
    set_file_sizes(spark, topics)
    bounds = Bounds(given.ending_physical_offset, given.fail_on_data_loss == "true", topics)
    run = ExportRun(spark, given.store, todo, bounds)
    run.check(log)
    checkpoint = None
    if given.mode != "batch":
        checkpoint = ExportCheckpoint(spark, given.checkpoint or f"{given.table}/_rmq_checkpoint")
        checkpoint.check(identify(given.store, given.store_id))
    tables = [table for export in todo for table in export.tables]
    places = [DeltaPlace(spark, table).directory() for table in tables] if given.format == "delta" else []
    with alone(spark, places) as run.still_alone:
        run.prepare()
        if checkpoint is None:
            run.batch(log)
        else:
            checkpoint.claim(identify(given.store, given.store_id))
            interval = None if given.mode == "available-now" else given.trigger_interval
            run.stream(checkpoint, interval, _limits(given))
        for export in todo:
            maintain(spark, export, optimize=given.optimize, retention_days=given.retention, vacuum_hours=given.vacuum)
    torn = log.torn if given.ending_physical_offset is None or given.ending_physical_offset > log.end else 0
    return _report(given, run, torn, time.perf_counter() - begin)


def _report(given: argparse.Namespace, run: ExportRun, torn: int, seconds: float) -> tuple[dict[str, Any], int]:
    progress, total = run.progress, run.progress.total
    report = {
        "job": f"export_{given.format}",
        "store": given.store,
        "table": given.table,
        "mode": given.mode,
        "starting_physical_offset": progress.start,
        "ending_physical_offset": progress.end,
        "messages": total.messages,
        "bytes": total.bytes,
        "damaged": total.damaged,
        "undecoded": total.undecoded,
        "missing_bytes": progress.missing_bytes,
        "torn_bytes": torn,
        "files": total.files,
        "exports": {name: landed.messages for name, landed in progress.landed.items()},
        "batches": progress.batches,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    lost = total.undecoded if given.dlq_table is None else 0
    findings = total.damaged or lost or torn or progress.missing_bytes
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN


if __name__ == "__main__":
    run_job(parser(), main, check=check)
