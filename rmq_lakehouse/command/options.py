"""Options of an export and of the maintenance after it, parsed and checked once from the job's arguments."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_formats.errors import OptionError
from rmq_formats.read.query import Include, Queue
from rmq_formats.read.queue_choice import refuse_absent_queues as check_stored_queues
from rmq_formats.read.stores import store_paths
from rmq_formats.spark.options import values
from rmq_lakehouse.command.arguments import DEFAULT_PARTITIONS, QUEUE_BOUNDS, QUEUE_ENDS
from rmq_lakehouse.partitions import check_distinct, check_plain, partition_texts
from rmq_lakehouse.selection import BrokerKey, ExcludedTopics, ExportSelection, store_identifier
from rmq_lakehouse.spec import TypedTopic, load_spec
from rmq_lakehouse.stores import ExportBounds
from rmq_lakehouse.table_log import OpenTable, TableSpec
from rmq_lakehouse.table_name import in_catalog, table_place
from rmq_offline.job_arguments import is_several, option_name, parse_argument
from rmq_offline.verify.phases.plan import refuse_inside_store

_MAX_DAYS: Final = 3_650_000  # limit: tables have times of the years 1 to 9999; Delta's interval ends at 106,751,991
_SAFE_VACUUM_HOURS: Final = 168  # Delta's own bound: an export or reader that runs longer would lose its files
_INTERVAL: Final = re.compile(r"([0-9]{1,9}) ?(millisecond|second|minute|hour|day)s?", re.ASCII)
_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RAW_OPTIONS: Final = (
    "topics", "system_topics", "columns", "partition_by", "cluster_by", "table_comment", "table_property", "decompress",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintenance of each table of a run.

    Attributes:
        optimize: compact files to the target size of ``files``, and cluster a table with clustering columns.
        retention_days: delete rows of messages that were stored longer ago.
        vacuum_hours: delete files that no version has had for this time.

    Raises OptionError: files in use would be deleted.
    """

    optimize: bool
    retention_days: int | None
    vacuum_hours: int | None

    def __post_init__(self) -> None:
        if self.retention_days is not None and not 1 <= self.retention_days <= _MAX_DAYS:
            raise OptionError(f"--retention {self.retention_days}: expected a number of days, 1 to {_MAX_DAYS}")
        if self.vacuum_hours is not None and self.vacuum_hours < _SAFE_VACUUM_HOURS:
            raise OptionError(
                f"--vacuum {self.vacuum_hours}: at least {_SAFE_VACUUM_HOURS} hours; younger files may be in use by "
                "a reader"
            )
        if self.vacuum_hours is not None and self.vacuum_hours > 24 * _MAX_DAYS:
            raise OptionError(f"--vacuum {self.vacuum_hours}: at most {24 * _MAX_DAYS} hours")

    def do(self, open_table: OpenTable, tables: Mapping[str, str]) -> None:
        """Maintain the tables of an export, given with their columns of store times. Raises StoreError."""
        for table, time_column in tables.items():
            table_log = open_table(table)
            if self.retention_days is not None:
                table_log.delete_older(time_column, self.retention_days)
            if self.optimize:
                table_log.compact(time_column)
            if self.vacuum_hours is not None:
                table_log.vacuum(self.vacuum_hours)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        stores: paths and patterns of the stores; empty for a running cluster.
        tier: the broker's ``tieredStoreFilePath``; None exports the CommitLog alone.
        store_id: identifier of the store or of the clusters in the tables; None is made of path or names.
        max_messages: limit of messages of queues in a round.
        columns: columns of the raw table; None is all.
        decompresses: whether bodies are written into the raw table as they were sent.
        table_spec: specification of the raw table.
        accepted: topics and tables whose undecoded messages are reported no more.
        checkpoint: checkpoint directory of a stream of one store; None is within the raw table.
        trigger_interval: time between micro batches, as text of Spark; None unless the mode is ``stream``.
        interval_s: ``trigger_interval`` in seconds.
        access: credentials and TLS of a cluster, by the names of options of the source ``rmq``.
    """

    stores: Sequence[str]
    namesrv: str | None
    tier: str | None
    cluster: str | None
    store_id: str | None
    selection: ExportSelection
    bounds: ExportBounds
    bounded_queues: frozenset[Queue]
    max_messages: int | None
    format: str
    catalog_options: Mapping[str, str] = field(repr=False)
    table: str | None
    columns: tuple[str, ...] | None
    decompresses: bool
    table_spec: TableSpec
    typed_topics: Sequence[TypedTopic]
    dlq_table: str | None
    accepted: tuple[str, ...]
    mode: str
    checkpoint: str | None
    trigger_interval: str | None
    interval_s: float | None
    maintenance: Maintenance
    access: Mapping[str, str] = field(repr=False)

    @property
    def has_queue_source(self) -> bool:
        """True if queue offsets select the messages: those of a running cluster, or of a store with its tier."""
        return self.namesrv is not None or self.tier is not None

    @property
    def has_one_log(self) -> bool:
        """True if the messages are those of one store's log."""
        return not self.has_queue_source and not is_several(list(self.stores))

    @property
    def requested_topics(self) -> tuple[str, ...]:
        return (*(self.selection.topics or ()), *(topic.topic for topic in self.typed_topics))

    def select(self, broker: BrokerKey, path: str | None = None) -> ExportSelection:
        """Return the selection of the messages of a broker, and of its store if the broker has one."""
        if path is None:
            return replace(self.selection, broker=broker)
        return replace(self.selection, broker=broker, store=path, store_id=store_identifier(path, self.store_id))

    def raw_table_spec(self, selected: ExportSelection) -> TableSpec:
        whose = f"store {selected.store_id}" if selected.broker is None else f"cluster {selected.broker.table_id}"
        comment = self.table_spec.comment or f"messages of the RocketMQ {whose}, one row each"
        return replace(self.table_spec, comment=comment)

    def check_bounded_queues(self, stores: Sequence[str]) -> None:
        """Refuse bounds of queues that no store has; a warning with --fail-on-data-loss false. Raises OptionError."""
        check_stored_queues(dict.fromkeys(stores, self.bounded_queues), fails=self.bounds.fail_on_data_loss)


def export_options(
    arguments: argparse.Namespace, access: Mapping[str, str], *, streams_by_checkpoint: bool = True
) -> ExportOptions:
    """Parse the options, and refuse unusable options and combinations. Raises OptionError.

    Args:
        streams_by_checkpoint: whether a stream of one store has a checkpoint, as in Spark.
    """
    if arguments.table is None and arguments.typed is None:
        raise OptionError("--table or --typed is missing: the tables to export to")
    for name in _RAW_OPTIONS:
        if arguments.table is None and getattr(arguments, name):
            raise OptionError(f"{option_name(name)} needs --table: typed tables have theirs in the spec")
    if arguments.partition_by and arguments.cluster_by:
        raise OptionError("--partition-by and --cluster-by exclude each other")
    bounds = {name: _queues_of(arguments, name) for name in QUEUE_BOUNDS}
    is_batch, is_stream, interval_s = arguments.mode == "batch", arguments.mode == "stream", _interval_s(arguments)
    has_several_stores = arguments.store is not None and is_several(arguments.store)
    max_bytes = parse_argument(arguments, "max_bytes_per_trigger", values.size)
    options = ExportOptions(
        stores=tuple(arguments.store or ()),
        namesrv=arguments.namesrv,
        tier=arguments.tier,
        cluster=arguments.cluster,
        store_id=arguments.store_id,
        selection=_selection(arguments, bounds),
        bounds=ExportBounds(
            arguments.ending_physical_offset,
            arguments.fail_on_data_loss == "true",
            None if is_batch else max_bytes,
            follows=is_stream or (not is_batch and not has_several_stores),
        ),
        bounded_queues=frozenset(queue for queues in bounds.values() for queue in queues),
        max_messages=None if is_batch else parse_argument(arguments, "max_messages_per_trigger", values.positive),
        format=arguments.format,
        catalog_options=pairs_of(arguments, "catalog_option"),
        table=arguments.table,
        columns=_names_of(arguments, "columns"),
        decompresses=arguments.decompress,
        table_spec=TableSpec(
            _partitions_of(arguments),
            _names_of(arguments, "cluster_by") or (),
            initial_properties=tuple(pairs_of(arguments, "table_property").items()),
            comment=arguments.table_comment or "",
            adopts=arguments.adopt,
        ),
        typed_topics=() if arguments.typed is None else tuple(load_spec(arguments.typed)),
        dlq_table=arguments.dlq_table,
        accepted=_names_of(arguments, "accept_undecoded") or (),
        mode=arguments.mode,
        checkpoint=arguments.checkpoint,
        trigger_interval=arguments.trigger_interval if is_stream else None,
        interval_s=interval_s if is_stream else None,
        maintenance=Maintenance(arguments.optimize, arguments.retention, arguments.vacuum),
        access=access,
    )
    _check_tables(options, arguments.typed)
    _check_outside_stores(arguments, options)
    _check_format(options, arguments.typed)
    needs_checkpoint = streams_by_checkpoint and options.has_one_log
    _check_mode(arguments, options, needs_checkpoint=needs_checkpoint)
    _check_topics(options, bounds)
    return options


def _selection(arguments: argparse.Namespace, bounds: Mapping[str, Mapping[Queue, int]]) -> ExportSelection:
    for name in ("starting_timestamp", "ending_timestamp"):
        parse_argument(arguments, name, values.timestamp_ms)
    for name in ("starting_physical_offset", "ending_physical_offset", "from_offset"):
        if (getattr(arguments, name) or 0) < 0:
            raise OptionError(f"{option_name(name)} {getattr(arguments, name)}: expected a number of bytes, 0 or more")
    _check_order(arguments)
    store = arguments.namesrv or arguments.store[0]
    topics = _names_of(arguments, "topics")
    everything = topics is not None or arguments.system_topics
    return ExportSelection(
        store=store,
        store_id=store_identifier(store, arguments.store_id),
        topics=None if topics is None else tuple(sorted(set(topics))),
        excluded_topics=None if everything else ExcludedTopics(tuple(sorted(SYSTEM_TOPICS)), SYSTEM_TOPIC_PREFIX),
        include=arguments.include,
        starting_timestamp=arguments.starting_timestamp,
        ending_timestamp=arguments.ending_timestamp,
        starting_physical_offset=arguments.starting_physical_offset,
        queue_bounds=tuple((option, getattr(arguments, name)) for name, option in QUEUE_BOUNDS.items() if bounds[name]),
        from_offset=arguments.from_offset,
        with_tier=arguments.tier is not None,
    )


def _check_order(arguments: argparse.Namespace) -> None:
    """Refuse bounds that select nothing: an end before its start. Raises OptionError."""
    for kind, parse in (("timestamp", values.timestamp_ms), ("physical_offset", int)):
        start, end = (getattr(arguments, f"{edge}_{kind}") for edge in ("starting", "ending"))
        if start is not None and end is not None and parse(start) > parse(end):
            names = option_name(f"starting_{kind}"), option_name(f"ending_{kind}")
            raise OptionError(
                f"{names[0]} {start}: is after {names[1]} {end}, which selects nothing; give an earlier one"
            )


def named_tables(options: ExportOptions, spec: str | None) -> list[tuple[str, str]]:
    """List the tables of an export, each with the option or the member of the spec that names it."""
    named = [("--table", options.table), ("--dlq-table", options.dlq_table)]
    named += [(f"{spec}: topic {topic.topic!r}: table", topic.table) for topic in options.typed_topics]
    return [(option, table) for option, table in named if table is not None]


def _check_tables(options: ExportOptions, spec: str | None) -> None:
    """Refuse tables without a name, one table for two purposes, and unusable properties. Raises OptionError."""
    places: dict[str, str] = {}
    for option, table in named_tables(options, spec):
        if not table.strip("/. "):
            raise OptionError(f"{option} {table!r}: expected a path, or catalog.schema.name")
        place = table_place(table)
        if place in places:
            raise OptionError(f"{option} {table}: is the table of {places[place]}, too; give another one")
        places[place] = option
    for place, option in places.items():
        around = next((str(path) for path in Path(place).parents if str(path) in places), None)
        if around is not None and not Path(place).exists():
            raise OptionError(f"{option} {place}: is within the table {around}; give another one")
    _check_properties("--table-property", dict(options.table_spec.initial_properties), options.format)
    for topic in options.typed_topics:
        _check_properties(f"{spec}: topic {topic.topic!r}: property", topic.properties, options.format)


def _check_outside_stores(arguments: argparse.Namespace, options: ExportOptions) -> None:
    """Refuse tables and files inside of a store: an export reads stores only. Raises OptionError."""
    tables = [(option, table) for option, table in named_tables(options, arguments.typed) if not in_catalog(table)]
    outputs = [*tables, ("--checkpoint", options.checkpoint)]
    for store in filter(None, (*store_paths(options.stores), options.tier)):
        for option, path in outputs:
            refuse_inside_store(store, option, path)


def _check_properties(option: str, properties: Mapping[str, str], table_format: str) -> None:
    """Refuse properties of a new table that exports set, or cannot work with. Raises OptionError."""
    for name, value in properties.items():
        if name.startswith("rmq."):
            raise OptionError(f"{option} {name}: exports set the properties rmq.*; give another name")
        if table_format == "iceberg" and name == "format-version" and value != "2":
            raise OptionError(f"{option} {name}={value}: exports write version 2. Leave the property out")


def _check_format(options: ExportOptions, spec: str | None) -> None:
    partitions = {f"{spec}: topic {topic.topic!r}: partition_by": topic.partition_by for topic in options.typed_topics}
    partitions["--partition-by"] = options.table_spec.partitions
    for option, texts in partitions.items():
        check_distinct(texts, option)
        if options.format == "delta":
            check_plain(texts, option)
    if options.format == "delta":
        if options.catalog_options:
            raise OptionError("--catalog-option needs --format iceberg: Delta's catalogs are Spark's, by --conf")
        return
    check_installed()
    if options.table_spec.clusters:
        raise OptionError("--cluster-by needs --format delta")
    for topic in options.typed_topics:
        if topic.cluster_by:
            raise OptionError(f"{spec}: topic {topic.topic!r}: cluster_by needs --format delta")


def _check_mode(arguments: argparse.Namespace, options: ExportOptions, *, needs_checkpoint: bool) -> None:
    """Refuse options that a stream does not support."""
    mode = options.mode
    if mode == "batch":
        return
    has_path = options.table is not None and not in_catalog(options.table)
    if needs_checkpoint and options.checkpoint is None and not has_path:
        raise OptionError(f"--mode {mode} without a path as --table needs --checkpoint")
    if arguments.include == Include.UNQUEUED:
        raise OptionError("--include unqueued needs --mode batch: new records wait for their queues")
    ends = ("ending_physical_offset", "ending_timestamp", *QUEUE_ENDS)
    if any(getattr(arguments, name) is not None for name in ends):
        raise OptionError(f"--mode {mode} has no end: leave out --ending-…, or use --mode batch")
    if arguments.from_offset is not None:
        raise OptionError("--from-offset needs --mode batch: a stream always resumes from the tables' progress")


def _check_topics(options: ExportOptions, bounds: Mapping[str, Mapping[Queue, int]]) -> None:
    """Refuse accepted names, and bounds of queues, of topics and tables that are not exported."""
    typed = [topic.topic for topic in options.typed_topics]
    for name in options.accepted:
        if name not in {options.table, *typed}:
            raise OptionError(f"--accept-undecoded {name}: --typed names no such topic, and --table is another")
    topics, source = (typed, "the spec") if options.table is None else (options.selection.topics or (), "--topics")
    for name, queues in bounds.items():
        for topic, queue_id in sorted(queues):
            if topic not in topics:
                raise OptionError(
                    f"{option_name(name)}: queue {queue_id} of {topic!r}, a topic that {source} does not name"
                )


def pairs_of(arguments: argparse.Namespace, option: str) -> dict[str, str]:
    """Parse an argument that may come often, KEY=VALUE. Raises OptionError."""
    pairs = [text.partition("=") for text in getattr(arguments, option)]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise OptionError(f"{option_name(option)} {name!r}: expected KEY=VALUE")
    return {name: value for name, _, value in pairs}


def _names_of(arguments: argparse.Namespace, option: str) -> tuple[str, ...] | None:
    return parse_argument(arguments, option, values.names)


def _partitions_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Parse the partitions of the raw table: columns, or transforms of Iceberg; none of a clustered table."""
    if arguments.cluster_by:
        return ()
    return parse_argument(arguments, "partition_by", partition_texts) or tuple(DEFAULT_PARTITIONS.split(","))


def _queues_of(arguments: argparse.Namespace, name: str) -> dict[Queue, int]:
    """Parse a bound of queues; empty for words that mean all messages."""
    if name.endswith("timestamp"):
        return parse_argument(arguments, name, values.times) or {}
    if name == "starting_offsets" and (getattr(arguments, name) or "").strip().lower() == "latest":
        raise OptionError(f"{option_name(name)} 'latest': there would be nothing to export")
    word = values.EARLIEST if name == "starting_offsets" else values.LATEST
    return parse_argument(arguments, name, values.offsets(word)) or {}


def _interval_s(arguments: argparse.Namespace) -> float:
    match = _INTERVAL.fullmatch(arguments.trigger_interval)
    if match is None:
        raise OptionError(
            f"--trigger-interval {arguments.trigger_interval!r}: a time such as '10 seconds' or '1 minute'"
        )
    return int(match[1]) * _SECONDS[match[2]]


def check_installed() -> None:
    """Refuse Iceberg where pyiceberg is missing. Raises OptionError."""
    try:
        import pyiceberg.catalog.sql  # noqa: F401, PLC0415 # an extra of the wheel
    except ImportError as error:
        raise OptionError(f"--format iceberg needs pip install 'rmq-lake[iceberg]': {error}") from error
