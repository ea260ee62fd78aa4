"""Arguments of ``jobs/export_delta.py``."""

from typing import Final

from rmq_formats.read.query import Include
from rmq_lakehouse.table_name import placed
from rmq_offline.job_arguments import JobParser, add_broker_conf, add_stores, job_parser, option_name

FORMATS: Final = ("delta", "iceberg")
DEFAULT_PARTITIONS: Final = "topic,date"
QUEUE_STARTS: Final = {
    "starting_offsets": "startingOffsets",
    "starting_offsets_by_timestamp": "startingOffsetsByTimestamp",
}
QUEUE_ENDS: Final = {"ending_offsets": "endingOffsets", "ending_offsets_by_timestamp": "endingOffsetsByTimestamp"}
QUEUE_BOUNDS: Final = QUEUE_STARTS | QUEUE_ENDS


def export_parser() -> JobParser:
    """Define the job's arguments, but for the access to a cluster."""
    job = job_parser("export_delta", "Export a RocketMQ store's messages to Delta tables, each exactly once.")
    add_stores(job, required=False)
    add_broker_conf(job)
    job.add_argument("--namesrv", metavar="HOST:PORT", help="name servers of a running cluster, instead of --store")
    job.add_argument("--tier", metavar="DIR", help="the broker's tieredStoreFilePath: export messages from there, too")
    job.add_argument("--cluster", metavar="NAME", help="cluster name for stores without one")
    job.add_argument(
        "--table", type=placed, help="raw table, one row a message, bodies as bytes: a path, or catalog.schema.name"
    )
    job.add_argument("--format", choices=FORMATS, default="delta", help="of the tables; default: delta")
    job.add_argument(
        "--catalog-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="of a catalog that --table names for --format iceberg, such as uri=http://…",
    )
    job.add_argument("--table-comment", metavar="TEXT", help="comment of the raw table, when it is created")
    job.add_argument(
        "--table-property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="property of the raw table, when it is created; may come often",
    )
    job.add_argument("--typed", metavar="SPEC", help="spec of typed tables, TOML or JSON; without --table no raw table")
    job.add_argument(
        "--dlq-table", type=placed, help="path of the dead-letter table, for messages that do not decode or fit"
    )
    job.add_argument(
        "--accept-undecoded", metavar="TOPICS", help="comma list: their undecoded messages are reported no more"
    )
    job.add_argument(
        "--adopt", action="store_true", help="export into tables that their owner made by DDL; they stay as they are"
    )
    job.add_argument("--store-id", help="identifier of the store in the tables; default: its path")
    messages = job.add_argument_group("messages to export")
    messages.add_argument("--topics", help="comma list; default: all but system topics")
    messages.add_argument("--system-topics", action="store_true", help="export system topics, too")
    messages.add_argument("--starting-physical-offset", type=int, default=0, help="bytes, inclusive; default: 0")
    messages.add_argument("--ending-physical-offset", type=int, help="bytes, exclusive; default: the log's end")
    messages.add_argument("--starting-timestamp", help="store time, ms or ISO-8601, inclusive")
    messages.add_argument("--ending-timestamp", help="store time, ms or ISO-8601, exclusive")
    for name in QUEUE_BOUNDS:
        messages.add_argument(option_name(name), metavar="JSON", help='by topic and queue, as {"Orders":{"0":100}}')
    messages.add_argument(
        "--include",
        choices=list(Include),
        help="live: what consumers get, the default with --topics; log: all; unqueued: what no queue has",
    )
    messages.add_argument("--columns", help="comma list of rmq_commitlog's columns; default: all")
    messages.add_argument(
        "--decompress", action="store_true", help="write bodies into --table as they were sent; sys_flag says so"
    )
    messages.add_argument(
        "--fail-on-data-loss",
        choices=["true", "false"],
        default="true",
        help="false: skip segments that were deleted before they were exported",
    )
    messages.add_argument(
        "--from-offset",
        type=int,
        metavar="BYTES",
        help="re-export missing messages from this physical offset (default: resume)",
    )
    execution = job.add_argument_group("execution")
    execution.add_argument(
        "--mode", choices=["batch", "available-now", "stream"], default="batch", help="default: batch"
    )
    execution.add_argument(
        "--checkpoint", help="checkpoint directory of a stream; --mode batch needs none; default: inside of --table"
    )
    execution.add_argument("--trigger-interval", default="10 seconds", help="for --mode stream; default: 10 seconds")
    execution.add_argument(
        "--max-bytes-per-trigger", help="log bytes in a micro batch, such as 512m; default: no limit"
    )
    execution.add_argument(
        "--max-messages-per-trigger", metavar="N", help="of a --namesrv's micro batch; default: no limit"
    )
    execution.add_argument(
        "--partition-by",
        help=f"comma list of columns, date, hour, born_date, born_hour, or transforms of Iceberg such as "
        f"hour(store_timestamp); default: {DEFAULT_PARTITIONS}",
    )
    execution.add_argument(
        "--cluster-by", help="comma list of columns for liquid clustering, instead of --partition-by"
    )
    maintenance = job.add_argument_group("maintenance after the export")
    maintenance.add_argument("--optimize", action="store_true", help="compact small files to 128 MiB, and cluster")
    maintenance.add_argument("--retention", metavar="DAYS", type=int, help="delete messages stored more than DAYS ago")
    maintenance.add_argument(
        "--vacuum", metavar="HOURS", type=int, help="delete files unused by versions of the last HOURS"
    )
    return job
