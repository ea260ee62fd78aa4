"""Land a store's messages in Delta tables, each once: ``spark-submit jobs/export_delta.py --store DIR --table PATH``.

``docs/lakehouse.md`` says how it holds. The end of what was exported is a transaction version in each table, a
physical offset. A run begins there, whatever its mode: one that follows another adds only what is new, and one
that was killed adds what it owed.
"""

import argparse
import re
import time
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_formats.access.query import Queue
from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.checkpoint import Checkpoint
from rmq_formats.lakehouse.files import set_file_sizes
from rmq_formats.lakehouse.log import check_topics, look
from rmq_formats.lakehouse.maintain import check_maintenance, maintain
from rmq_formats.lakehouse.once import Shape
from rmq_formats.lakehouse.raw import Export, RawExport
from rmq_formats.lakehouse.run import Bounds, Run
from rmq_formats.lakehouse.selection import LeftOut, Selection, identify
from rmq_formats.lakehouse.spec import TypedTopic, load_spec
from rmq_formats.lakehouse.typed import TypedExport
from rmq_formats.segment import commitlog_segments, open_storage
from rmq_formats.spark import option_values as values
from rmq_formats.spark.job import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    job_parser,
    option_name,
    parsed,
    run_job,
)
from rmq_formats.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

DEFAULT_PARTITIONS: Final = "topic,date"
_QUEUE_STARTS: Final = {
    "starting_offsets": "startingOffsets",
    "starting_offsets_by_timestamp": "startingOffsetsByTimestamp",
}
_QUEUE_ENDS: Final = {"ending_offsets": "endingOffsets", "ending_offsets_by_timestamp": "endingOffsetsByTimestamp"}
_QUEUE_BOUNDS: Final = _QUEUE_STARTS | _QUEUE_ENDS
_INTERVAL: Final = re.compile(r"[0-9]{1,9} ?(millisecond|second|minute|hour|day)s?", re.ASCII)


def parser() -> JobParser:
    """The job's arguments."""
    job = job_parser("export_delta", "Land a RocketMQ store's messages in Delta tables, each once.")
    job.add_argument("--store", required=True, help="the store's root directory, or a URI")
    job.add_argument("--table", help="path of the raw Delta table")
    job.add_argument("--typed", metavar="SPEC", help="TOML or JSON file of typed tables; without --table no raw one")
    job.add_argument("--dlq-table", help="path of a Delta table for bodies that the spec's schemas do not fit")
    job.add_argument("--store-id", help="name of the store in the tables; default: its path")
    what = job.add_argument_group("what is landed")
    what.add_argument("--topics", help="comma list; default: all but RocketMQ's own")
    what.add_argument("--system-topics", action="store_true", help="RocketMQ's own topics too")
    what.add_argument("--starting-physical-offset", type=int, default=0)
    what.add_argument("--ending-physical-offset", type=int)
    what.add_argument("--starting-timestamp", help="store time, ms or ISO-8601")
    what.add_argument("--ending-timestamp", help="store time, ms or ISO-8601")
    for name in _QUEUE_BOUNDS:
        what.add_argument(option_name(name), metavar="JSON", help='by topic and queue, as {"Orders":{"0":100}}')
    what.add_argument("--columns", help="comma list of rmq_commitlog's columns; default: all")
    what.add_argument("--fail-on-data-loss", choices=["true", "false"], default="true",
                      help="whether a segment that was deleted before it was exported is an error")  # fmt: skip
    how = job.add_argument_group("how it is landed")
    how.add_argument("--mode", choices=["batch", "available-now", "stream"], default="batch")
    how.add_argument(
        "--checkpoint",
        help="directory of a stream's checkpoint, which a batch does not need; default: within the table's",
    )
    how.add_argument("--trigger-interval", default="10 seconds", help="of --mode stream")
    how.add_argument("--max-bytes-per-trigger", help="of the log in a micro batch, as 512m; default: all there is")
    how.add_argument(
        "--partition-by", help=f"comma list of columns; default: {DEFAULT_PARTITIONS}; date is of store time"
    )
    how.add_argument("--cluster-by", help="comma list of columns, instead of partitions")
    after = job.add_argument_group("afterwards")
    after.add_argument("--optimize", action="store_true", help="make small files into ones of 128 MiB, and cluster")
    after.add_argument("--retention", metavar="DAYS", type=int, help="delete messages that were stored longer ago")
    after.add_argument("--vacuum", metavar="HOURS", type=int, help="delete files that no version of so long has")
    job.set_defaults(typed_topics=None)
    return job


def check(given: argparse.Namespace) -> None:
    """Refuse what can be refused before a session is started."""
    commitlog_segments(*open_storage(given.store))
    if given.table is None and given.typed is None:
        raise OptionError("--table or --typed: one of them says where to")
    for name in ("topics", "system_topics", "columns", "partition_by", "cluster_by"):
        if given.table is None and getattr(given, name):
            raise OptionError(f"{option_name(name)} is for the raw table, --table; the spec has its own")
    if given.dlq_table is not None and given.typed is None:
        raise OptionError("--dlq-table is for bodies that --typed cannot decode")
    if given.typed is not None:
        _typed_topics(given)
    if given.mode != "batch" and given.table is None and given.checkpoint is None:
        raise OptionError(f"--mode {given.mode} without --table needs --checkpoint")
    check_maintenance(given.retention, given.vacuum)
    for name in ("topics", "columns", "partition_by", "cluster_by"):
        _names(given, name)
    if given.partition_by and given.cluster_by:
        raise OptionError("--partition-by and --cluster-by exclude each other")
    ends = ("ending_physical_offset", "ending_timestamp", *_QUEUE_ENDS)
    if given.mode != "batch" and any(getattr(given, name) is not None for name in ends):
        raise OptionError(f"--mode {given.mode} has no end: leave out --ending-…, or use --mode batch")
    _limits(given)
    if _INTERVAL.fullmatch(given.trigger_interval) is None:
        raise OptionError(f"--trigger-interval {given.trigger_interval!r}: a time such as '10 seconds' or '1 minute'")
    for name in ("starting_timestamp", "ending_timestamp"):
        parsed(given, name, values.timestamp_ms)
    _check_queues(given)
    for name in ("starting_physical_offset", "ending_physical_offset"):
        if (getattr(given, name) or 0) < 0:
            raise OptionError(f"{option_name(name)} {getattr(given, name)}: a number of bytes, 0 or more")


def _typed_topics(given: argparse.Namespace) -> list[TypedTopic]:
    """The topics of the spec; its file is read once a run, so that what was checked is what is done."""
    if given.typed is None:
        return []
    if given.typed_topics is None:
        given.typed_topics = load_spec(given.typed)
    topics: list[TypedTopic] = given.typed_topics
    return topics


def _names(given: argparse.Namespace, option: str) -> tuple[str, ...] | None:
    return parsed(given, option, values.names)


def _check_queues(given: argparse.Namespace) -> None:
    """Refuse bounds of queues of topics that nothing is asked of."""
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
    """A bound of queues; none where a word says that all is wanted."""
    if name.endswith("timestamp"):
        return parsed(given, name, values.times) or {}
    if name == "starting_offsets" and (getattr(given, name) or "").strip().lower() == "latest":
        raise OptionError(f"{option_name(name)} 'latest': there would be nothing to export")
    return parsed(given, name, values.offsets(values.EARLIEST if name == "starting_offsets" else values.LATEST)) or {}


def _limits(given: argparse.Namespace) -> dict[str, str]:
    most = parsed(given, "max_bytes_per_trigger", values.size)
    return {} if most is None else {"maxBytesPerTrigger": str(most)}


def selection(given: argparse.Namespace) -> Selection:
    """Which messages the arguments choose."""
    topics = _names(given, "topics")
    everything = topics is not None or given.system_topics
    return Selection(
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
    )


def exports(given: argparse.Namespace, spark: SparkSession) -> list[Export]:
    """What the arguments ask to be landed."""
    clusters = _names(given, "cluster_by") or ()
    partitions = () if clusters else _names(given, "partition_by") or tuple(DEFAULT_PARTITIONS.split(","))
    chosen = selection(given)
    found: list[Export] = []
    if given.table is not None:
        found.append(RawExport(spark, given.table, chosen, _names(given, "columns"), Shape(partitions, clusters)))
    found += [TypedExport(spark, topic, chosen, given.dlq_table) for topic in _typed_topics(given)]
    return found


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Export what is new."""
    begin = time.perf_counter()
    log = look(given.store)
    todo, known = exports(given, spark), log.known_topics()
    for export in todo:
        check_topics(spark, log, known, export.selection.topics or ())
    topics = max(len(export.selection.topics or known) for export in todo)
    set_file_sizes(spark, topics)
    bounds = Bounds(given.ending_physical_offset, given.fail_on_data_loss == "true", topics)
    run = Run(spark, given.store, todo, bounds)
    run.check(log)
    checkpoint = None
    if given.mode != "batch":
        checkpoint = Checkpoint(spark, given.checkpoint or f"{given.table}/_rmq_checkpoint")
        checkpoint.check(identify(given.store, given.store_id))
    run.prepare()
    if checkpoint is None:
        run.batch(log)
    else:
        checkpoint.claim(identify(given.store, given.store_id))
        interval = None if given.mode == "available-now" else given.trigger_interval
        run.stream(checkpoint, interval, _limits(given))
    torn = log.torn if given.ending_physical_offset is None or given.ending_physical_offset > log.end else 0
    for export in todo:
        maintain(spark, export, optimize=given.optimize, retention_days=given.retention, vacuum_hours=given.vacuum)
    return _report(given, run, torn, time.perf_counter() - begin)


def _report(given: argparse.Namespace, run: Run, torn: int, seconds: float) -> tuple[dict[str, Any], int]:
    progress, total = run.progress, run.progress.total
    report = {
        "job": "export_delta",
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
