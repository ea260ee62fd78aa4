"""Replay messages of a store to a cluster: ``spark-submit jobs/replay.py --store DIR --to-namesrv HOST:PORT``.

Delivery is at least once: messages unacknowledged before a crash are sent again, with the same RMQ_ORIGIN.
"""

import argparse
import asyncio
import hashlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_cli.access import access_from_arguments, add_access
from rmq_core.broker.tables.names import NOT_FOR_CLIENTS
from rmq_core.client.access import Access
from rmq_core.client.errors import ClientError
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.loop import loop_factory
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_QUEUE_OFFSET
from rmq_formats.errors import ClusterError, OptionError, StoreError, StoreLayoutError
from rmq_formats.read.query import Include, Queue, ReadOptions
from rmq_formats.read.queue_choice import absent_queues, refuse_absent_queues
from rmq_formats.spark.options.read import commitlog_options, refuse_stream_options
from rmq_formats.spark.options.schemas import COMMITLOG
from rmq_formats.storage.queue_logs import TieredLogs
from rmq_formats.storage.segments import canonical_path
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_lakehouse.selection import store_identifier
from rmq_lakehouse.store_log import check_topics, find_topics_by_spark, snapshot_log
from rmq_offline.job_arguments import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    add_broker_conf,
    apply_broker_conf,
    job_parser,
    option_name,
)
from rmq_offline.replay.batch_messages import ORIGIN
from rmq_offline.replay.checkpoint import ReplayCheckpoint
from rmq_offline.replay.run import count, send
from rmq_offline.replay.selection import ReplaySelection, build_selection, limit_to_backlog
from rmq_offline.replay.source import Counts, MissingRanges, Replay, ReplayRead, plan_replay
from rmq_offline.spark.job import run_job
from rmq_offline.write.commitlog import refuse_write

# Arguments that are options of ``rmq_commitlog``.
_OPTIONS = {
    "topics": "subscribe",
    "queues": "assign",
    "starting_offsets": "startingOffsets",
    "ending_offsets": "endingOffsets",
    "starting_timestamp": "startingTimestamp",
    "ending_timestamp": "endingTimestamp",
    "starting_physical_offset": "startingPhysicalOffset",
    "ending_physical_offset": "endingPhysicalOffset",
    "tags": "tags",
    "include": "include",
    "tier": "tier",
}
_MAX_RATE = 1 << 31


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("replay", "Replay messages of a RocketMQ store to a running cluster, or into another store.")
    job.add_argument("--store", required=True, help="the store's root directory, or a URI")
    add_broker_conf(job)
    target = job.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-namesrv", metavar="HOST:PORT", help="a name server of the cluster to send to")
    target.add_argument("--to-store", metavar="DIR", help="a store to create, or to append to")
    job.add_argument("--tier", metavar="DIR", help="tieredStoreFilePath: read messages that the log lacks")
    job.add_argument("--to-topic", metavar="TOPIC", help="send all to this topic; default: each to its own topic")
    job.add_argument("--topics", help="comma list; default: all but system, retry and dead-letter topics")
    job.add_argument("--queues", metavar="JSON", help='{"Orders": [0, 1]}, instead of --topics')
    job.add_argument("--group", help="only the backlog of this consumer group (consumerOffset.json)")
    job.add_argument("--starting-offsets", metavar="JSON", help='by queue, as {"Orders": {"0": 100}}, inclusive')
    job.add_argument("--ending-offsets", metavar="JSON", help="by queue, exclusive")
    job.add_argument("--starting-timestamp", help="store time, ms or ISO-8601, inclusive")
    job.add_argument("--ending-timestamp", help="store time, ms or ISO-8601, exclusive")
    job.add_argument("--starting-physical-offset", help="bytes, inclusive")
    job.add_argument("--ending-physical-offset", help="bytes, exclusive")
    job.add_argument("--tags", help="tag expression, as TagA || TagB")
    job.add_argument(
        "--include",
        choices=list(Include),
        help="live: what consumers get (default); log: former messages, too; unqueued: these alone",
    )
    job.add_argument("--sql", help="SQL92 expression over message properties")
    job.add_argument("--msg-ids", help="comma list of offset message ids or unique keys; @FILE has one a line")
    job.add_argument("--rate", type=int, metavar="N", help="messages a second; default: no limit")
    job.add_argument("--checkpoint", metavar="DIR", help="directory for the progress; a later run resumes there")
    job.add_argument(
        "--fail-on-data-loss",
        choices=["true", "false"],
        default="true",
        help="false: skip segments that were deleted before they were replayed",
    )
    job.add_argument("--store-id", help="store name in the property RMQ_ORIGIN; default: its path")
    add_access(job)
    job.add_argument("--dry-run", action="store_true", help="count the messages, send none")
    return job


def check(arguments: argparse.Namespace) -> argparse.Namespace:
    """Refuse unusable arguments before a session is started; return usable arguments."""
    apply_broker_conf(arguments)
    open_store(arguments.store).require_log()
    if arguments.rate is not None and not 0 < arguments.rate < _MAX_RATE:
        raise OptionError(f"--rate {arguments.rate}: expected messages a second, 1 or more")
    if arguments.tier is not None and arguments.checkpoint is not None:
        raise OptionError(
            "--checkpoint and --tier: cannot be combined; a checkpoint is a physical offset of the CommitLog."
        )
    if arguments.to_store is not None:
        if canonical_path(arguments.to_store) == canonical_path(arguments.store):
            raise OptionError(f"--to-store {arguments.to_store}: is the replayed store itself")
        if canonical_path(arguments.store) in canonical_path(arguments.to_store).parents:
            raise OptionError(f"--to-store {arguments.to_store}: is inside of the replayed store")
        for name in ("to_topic", "rate", "checkpoint"):
            if getattr(arguments, name) is not None:
                raise OptionError(f"{option_name(name)} is for --to-namesrv: a store is written whole, or not at all")
        refuse_write(arguments.to_store, overwrite=False)
    _access(arguments)
    choice = choice_of(arguments)
    _refuse_batch_topics(arguments.store, choice)
    _check_queues(arguments)
    retries = sorted(topic for topic in choice.query.named_topics or () if topic.startswith("%RETRY%"))
    if retries and arguments.to_namesrv and not arguments.to_topic:
        raise OptionError(f"--topics {retries[0]}: brokers take no batches for retry topics; give --to-topic")
    if arguments.to_namesrv:
        _refuse_system_topics(arguments.to_topic, choice)
    return arguments


def _refuse_system_topics(to_topic: str | None, choice: ReplaySelection) -> None:
    """Refuse topics to which brokers let no client send. Raises OptionError."""
    topics = sorted(NOT_FOR_CLIENTS & ({to_topic} if to_topic else choice.query.named_topics or set()))
    if topics:
        source = "--to-topic" if to_topic else "topic"
        raise OptionError(f"{source} {topics[0]}: brokers let no client send to this topic; give another --to-topic")


def _refuse_batch_topics(store: str, choice: ReplaySelection) -> None:
    """Refuse topics with inner batches: each would be sent as one message with the batch for a body."""
    layouts = open_store(store).layouts
    batch_topics = sorted(filter(choice.query.wants_topic, layouts.batch_topics))
    if batch_topics:
        raise StoreLayoutError(
            f"{layouts.evidence[StoreLayout.BATCH_QUEUES]}: topic {batch_topics[0]} has inner batches, "
            "which rmq does not split; choose other topics with --topics"
        )


def choice_of(arguments: argparse.Namespace) -> ReplaySelection:
    """Build the choice of messages from the arguments. Raises OptionError, StoreError."""
    query = _read(arguments).query
    if arguments.group is not None:
        query = limit_to_backlog(arguments.store, arguments.group, query)
    return build_selection(query, arguments.sql, _ids(arguments.msg_ids))


def _read(arguments: argparse.Namespace) -> ReadOptions:
    """Build query and logs from the arguments that are options of ``rmq_commitlog``."""
    options = {
        option: getattr(arguments, name) for name, option in _OPTIONS.items() if getattr(arguments, name) is not None
    }
    return refuse_stream_options(commitlog_options({"path": arguments.store, **options})).read


def _check_queues(arguments: argparse.Namespace) -> None:
    """Refuse queues that neither the store nor its tier has. Raises OptionError, StoreError."""
    query, tiered = _read(arguments).query, _tiered_queues(arguments)
    named = {(topic, queue_id) for topic, queue_ids in (query.queues or {}).items() for queue_id in queue_ids}
    absent = sorted(absent_queues(open_store(arguments.store), named - tiered))
    if absent:
        names = ", ".join(f"queue {queue_id} of {topic!r}" for topic, queue_id in absent)
        raise OptionError(f"--queues: {arguments.store} has no {names}")
    refuse_absent_queues(
        {arguments.store: query.bounds.keys() - tiered - named}, fails=arguments.fail_on_data_loss == "true"
    )


def _tiered_queues(arguments: argparse.Namespace) -> frozenset[Queue]:
    """List the queues that the store's broker has in its tier. Raises StoreNotFoundError."""
    if arguments.tier is None:
        return frozenset()
    return frozenset(TieredLogs.open(open_store(arguments.store), arguments.tier).queues())


def _ids(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    if text.startswith("@"):
        try:
            words = Path(text[1:]).read_text(encoding="utf-8").split()
        except OSError as error:
            raise OptionError(f"--msg-ids {text}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise OptionError(f"--msg-ids {text}: not text in UTF-8, at byte {error.start}") from error
    else:
        words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise OptionError(f"--msg-ids {text!r}: names no message")
    return frozenset(words)


def replay_of(arguments: argparse.Namespace) -> Replay:
    """Build the replay from the arguments."""
    store_id = store_identifier(arguments.store, arguments.store_id)
    choices = {
        name: getattr(arguments, name) for name in (*_OPTIONS, "group", "sql", "msg_ids", "to_namesrv", "to_topic")
    }
    if arguments.msg_ids is not None and arguments.msg_ids.startswith("@"):  # the file may have other ids the next time
        choices["msg_ids"] = sorted(_ids(arguments.msg_ids) or ())
    selection = hashlib.sha256(repr(sorted(choices.items())).encode()).hexdigest()[:16]
    checkpoint = ReplayCheckpoint(arguments.checkpoint, f"{store_id}#{selection}") if arguments.checkpoint else None
    return Replay(
        arguments.store,
        store_id,
        choice_of(arguments),
        arguments.to_namesrv,
        arguments.to_topic,
        arguments.rate,
        checkpoint,
        _access(arguments),
        _read(arguments).logs,
        fail_on_data_loss=arguments.fail_on_data_loss == "true",
    )


def _access(arguments: argparse.Namespace) -> Access:
    """Build the access to the target cluster; raises OptionError."""
    return Access() if arguments.to_namesrv is None else access_from_arguments(dict(vars(arguments)))


def needs_delta(_given: argparse.Namespace) -> bool:
    """Return whether Delta is needed: messages go from a store to a cluster or a store."""
    return False


def main(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Count the chosen messages, and send or write them."""
    begin = time.perf_counter()
    replay = replay_of(arguments)
    if topics := _read(arguments).query.named_topics:
        log = snapshot_log(arguments.store)
        check_topics(
            partial(find_topics_by_spark, spark),
            [log],
            log.known_topics() | {topic for topic, _ in _tiered_queues(arguments)},
            tuple(sorted(topics)),
        )
    counts = count(replay)
    done = counts
    if not arguments.dry_run and arguments.to_namesrv is not None:
        done = _send(replay, counts)
    elif not arguments.dry_run:
        _write(spark, arguments, replay, counts)
    seconds = time.perf_counter() - begin
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, queue_id), messages in sorted(done.by_queue.items()):
        by_topic.setdefault(topic, {})[str(queue_id)] = messages
    report = {
        "job": "replay",
        "store": arguments.store,
        "target": arguments.to_namesrv or arguments.to_store,
        "dry_run": arguments.dry_run,
        "delivery": "at least once",
        "starting_physical_offset": done.begin,
        "ending_physical_offset": done.end,
        "messages": done.messages,
        "bytes": done.bytes,
        "damaged": done.damaged,
        "refused": done.refused,
        "missing_bytes": done.missing.size_bytes,
        "topics": by_topic,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(done.bytes / seconds),
        "messages_per_second": round(done.messages / seconds),
    }
    if arguments.msg_ids is not None:
        report["unknown_ids"] = len(counts.unknown_ids)
    has_findings = done.damaged or done.refused or done.missing.size_bytes or counts.unknown_ids
    return report, EXIT_FINDINGS if has_findings else EXIT_CLEAN


def _send(replay: Replay, counts: Counts) -> Counts:
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(send(replay, counts))
    except ClientError as error:
        raise ClusterError(f"cluster of the name server {replay.namesrv}: {error.remark}") from error
    except RemotingError as error:
        raise ClusterError(f"cluster of the name server {replay.namesrv}: {error}") from error


def _write(spark: SparkSession, arguments: argparse.Namespace, replay: Replay, counts: Counts) -> None:
    """Append the records to a store, or create one: new offsets, with ConsumeQueue and Index."""
    if counts.messages:
        writer = messages(spark, replay, counts).write.format("rmq_commitlog").mode("append")
        writer.option("dispatch", "true").save(arguments.to_store)


def messages(spark: SparkSession, replay: Replay, counts: Counts) -> DataFrame:
    """Read the chosen records as rows of ``rmq_commitlog``; ORIGIN is among their properties."""
    columns = tuple(name for name in COMMITLOG.fieldNames() if name != "record_error")
    missing_bytes = counts.missing.size_bytes
    read = plan_replay(replay, counts, (*columns, "record_error"))
    if counts.missing.size_bytes > missing_bytes:
        raise StoreError(f"{replay.store}: the CommitLog lost files while the replay began: run it again")
    numbers = spark.sparkContext.parallelize([(number,) for number in range(len(read.tasks))], max(1, len(read.tasks)))
    rows = numbers.toDF("task int").mapInArrow(partial(_read_tasks, read), COMMITLOG)
    frame = rows.where("record_error IS NULL").select(*columns)
    places = ("topic", "queue_id", "queue_offset") if replay.origin.by_queue else ("physical_offset",)
    place = F.concat_ws("/", *(F.col(name).cast("string") for name in places))
    origin = F.concat(F.lit(f"{replay.store_id}@"), place)
    # A light queue's offsets are those of the old store: with them the new one would have units at their places.
    other_properties = F.map_filter("properties", lambda name, _: ~name.isin(ORIGIN, PROPERTY_INNER_MULTI_QUEUE_OFFSET))
    return frame.withColumn("properties", F.map_concat(other_properties, F.create_map(F.lit(ORIGIN), origin)))


def _read_tasks(read: ReplayRead, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read tasks; a file that is deleted meanwhile is an error, for the messages have been counted."""
    for batch in numbers:
        yield from read.rows(MissingRanges(read.store), batch["task"].to_pylist())


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
