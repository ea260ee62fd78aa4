"""Read options of the store's sources: named as in Spark's Kafka source where that has one.

An unknown option and a bad value are an OptionError with the option's name: to ignore an option would read wrong rows.
All conditions hold at once (in Kafka's source, an option may take precedence over another).

- ``subscribe``, ``subscribePattern`` (the whole topic must match) and ``assign`` read queues, as consumers do: no half
  messages, no rollbacks of transactions, no damaged ranges. Retry, dead-letter, half-message and schedule topics are
  topics like any other.
- ``startingOffsets`` is inclusive and ``endingOffsets`` exclusive; queues that are not in the JSON are whole.
- ``startingTimestamp`` is inclusive and ``endingTimestamp`` exclusive, by store timestamp. ``…ByTimestamp`` bounds
  queues in the same way.
- ``startingPhysicalOffset`` and ``endingPhysicalOffset`` select the records that begin in the range.
- ``key`` is one of the parts of KEYS, ``uniqKey`` the UNIQ_KEY, as in RocketMQ's Index: no rollbacks.
- ``tags`` is an expression ``a || b``; tags are compared, not their hashes.
- ``path`` may be a pattern, ``/data/broker-*/store``, ``load([...])`` takes a list, and ``stores``, or a path that ends
  in ``.toml``, names a TOML file of several stores (``rmq_formats.read.stores``). Rows have the columns ``cluster``
  and ``broker_name``; in JSON by queue ``"broker-a:0"`` is a queue of a broker, ``"0"`` a queue of each broker.
- ``missingStores`` ``row`` makes a row of a missing store, with ``record_error``.
- ``tier`` is the broker's ``tieredStoreFilePath``, with messages that the CommitLog has no more. ``log`` selects logs:
  ``commitlog``, ``joined`` (the default with a tier), ``tiered`` (the tier alone), ``compacted``.
- ``include`` ``live`` selects the records that consumers get, the default with topics; ``log`` all records, the default
  without; ``unqueued`` records without a queue: of a topic's former life, repeats, leftovers after the log's end.
- ``accessPath`` ``auto`` gives the rows of a scan, and skips segments that are known to have no record of the selected
  times; ``scan`` reads the whole log; ``consumequeue`` and ``index`` give the records that these files name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, Mode
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.errors import OptionError, RmqError
from rmq_formats.read.query import (
    MAX_LONG,
    AccessPath,
    Include,
    Query,
    Queue,
    QueueBounds,
    ReadOptions,
    parse_include,
    parse_tags,
)
from rmq_formats.spark.options import values
from rmq_formats.spark.options.values import EARLIEST, LATEST
from rmq_formats.storage.queue_logs import LogKind, Logs

DEFAULT_SPLIT_BYTES: Final = 256 << 20

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options of a read."""

    path: str  # of the store, absolute or a URI; of several stores the first argument
    stores: tuple[str, ...] | None = None  # paths, patterns and TOML files of several stores; None for a single store
    names_brokers: bool = False  # rows have the columns ``cluster`` and ``broker_name``
    by_broker: Mapping[str, Query] = field(default_factory=dict)  # of brokers with their own offsets or queues
    missing_are_rows: bool = False  # a missing store becomes a row, rather than an error
    columns: tuple[str, ...] | None = None
    read: ReadOptions = field(default_factory=lambda: ReadOptions(columns=()))
    access_path: AccessPath = AccessPath.AUTO
    split_bytes: int = DEFAULT_SPLIT_BYTES  # of a partition, about
    min_partitions: int = 1
    pushdown: bool = False
    starting: int = EARLIEST  # ``startingOffsets`` as a word, EARLIEST or LATEST
    max_trigger_bytes: int | None = None  # log bytes of a stream's micro batch
    max_trigger_offsets: int | None = None  # records of a stream's micro batch
    fail_on_data_loss: bool = True  # offsets of absent queues, and in streams deleted records, are errors

    @property
    def query(self) -> Query:
        """Return the query of brokers without their own query."""
        return self.read.query

    def read_of(self, broker: str | None) -> ReadOptions:
        """Return the options of reading a broker's store."""
        return replace(self.read, query=self.by_broker.get(broker or "", self.query))

    def narrowed(self, narrow: Callable[[Query], Query]) -> "SourceOptions":
        """Return the options with each query narrowed."""
        by_broker = {broker: narrow(query) for broker, query in self.by_broker.items()}
        return replace(self, read=replace(self.read, query=narrow(self.query)), by_broker=by_broker)


OptionFields = Mapping[str, tuple[str, Callable[[str], Any], Any]]
"""By option: the field that the option sets, the parser of the value, and the value without the option."""

# Fields of ``QueueBounds``, each with an option by queue and its parser.
_BOUNDS: Final[Mapping[str, tuple[str, Callable[[str], dict[Queue, int]]]]] = {
    "first_offset": ("startingOffsets", values.offsets(EARLIEST)),
    "end_offset": ("endingOffsets", values.offsets(LATEST)),
    "first_ms": ("startingOffsetsByTimestamp", values.times),
    "end_ms": ("endingOffsetsByTimestamp", values.times),
}
_QUERY: Final[OptionFields] = {
    "startingTimestamp": ("first_ms", values.timestamp_ms, None),
    "endingTimestamp": ("end_ms", values.timestamp_ms, None),
    "startingPhysicalOffset": ("first_physical_offset", values.natural, 0),
    "endingPhysicalOffset": ("end_physical_offset", values.natural, MAX_LONG),
    "tags": ("tags", parse_tags, None),
    "key": ("key", values.text, None),
    "uniqKey": ("uniq_key", values.text, None),
    "msgId": ("msg_id", decode_message_id, None),
    "include": ("include", parse_include, None),
}
_RECORDS: Final[OptionFields] = {
    "verifyCrc": ("verify_crc", values.boolean, True),
    "decompress": ("decompress", values.boolean, False),
}
_COMMITLOG: Final[OptionFields] = {
    "accessPath": ("access_path", values.access_path, AccessPath.AUTO),
    "pushdown": ("pushdown", values.boolean, False),
    "maxBytesPerTrigger": ("max_trigger_bytes", values.size, None),
    "maxOffsetsPerTrigger": ("max_trigger_offsets", values.positive, None),
    "missingStores": ("missing_are_rows", values.missing_stores, False),
}
_PARTITIONS: Final[OptionFields] = {
    "splitBytes": ("split_bytes", values.size, DEFAULT_SPLIT_BYTES),
    "minPartitions": ("min_partitions", values.positive, 1),
}
_COMMON: Final = ("path", "paths", "stores", "columns", "mode", *_PARTITIONS)
_QUEUES: Final = ("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "failOnDataLoss")
COMMITLOG_OPTIONS: Final = (
    *_COMMON, *_QUEUES, "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", *_QUERY, *_RECORDS, *_COMMITLOG,
    "log", "tier",
)  # fmt: skip
CONSUMEQUEUE_OPTIONS: Final = (*_COMMON, *_QUEUES)
INDEX_OPTIONS: Final = _COMMON


class OptionParser:
    """Case-insensitive options by name; a value that does not parse raises an error that names the option."""

    def __init__(self, source: str, options: Mapping[str, str], known_names: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known_names}
        for name in options:
            if name.lower() not in names:
                raise OptionError(f"unknown option {name!r} of {source}; there are {', '.join(known_names)}")
        self._source = source
        self._values = {names[name.lower()]: str(value) for name, value in options.items()}

    def get(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """Parse an option's value; None if the option is absent. Raises OptionError."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except (ValueError, RmqError) as error:
            shown = value if len(value) <= 80 else value[:77] + "..."
            raise OptionError(f"option {name} of {self._source} cannot be {shown!r}: {error}") from error

    def get_or(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        """Parse an option's value, or return the default. Raises OptionError."""
        value = self.get(name, parse)
        return default if value is None else value

    def fields(self, options: OptionFields) -> dict[str, Any]:
        """Parse the values of a table of options, by field. Raises OptionError."""
        return {field: self.get_or(name, parse, default) for name, (field, parse, default) in options.items()}

    def names(self) -> frozenset[str]:
        """Return the names of the options that are present."""
        return frozenset(self._values)


def commitlog_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``rmq_commitlog``. Raises OptionError, which names the option."""
    parser = OptionParser("rmq_commitlog", options, COMMITLOG_OPTIONS)
    common = common_options(parser)
    conditions = parser.fields(_QUERY)
    common = _with_queues(common, parser).narrowed(lambda query: replace(query, **conditions))
    options_of_log = parser.fields(_COMMITLOG)
    if options_of_log["missing_are_rows"] and common.columns is not None and "record_error" not in common.columns:
        raise OptionError("option missingStores=row needs the column record_error")
    logs = Logs.of(parser.get("log", values.log_kind), parser.get("tier", values.path))
    return replace(common, read=replace(common.read, **parser.fields(_RECORDS), logs=logs), **options_of_log)


def consumequeue_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``rmq_consumequeue``. Raises OptionError."""
    parser = OptionParser("rmq_consumequeue", options, CONSUMEQUEUE_OPTIONS)
    return _with_queues(common_options(parser), parser)


def index_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``rmq_index``. Raises OptionError."""
    return common_options(OptionParser("rmq_index", options, INDEX_OPTIONS))


def refuse_stream_options(options: SourceOptions) -> SourceOptions:
    """Return the options of a batch. Raises OptionError: ``startingOffsets=latest``, as in Kafka's source."""
    if options.starting == LATEST:
        raise OptionError("option startingOffsets cannot be latest for a batch: there would be nothing to read")
    return options


def refuse_batch_options(options: SourceOptions) -> SourceOptions:
    """Return the options of a stream. Raises OptionError: an option that only a batch can have."""
    if options.stores is not None or options.names_brokers:
        raise OptionError("a stream reads one store: begin a query for each, with a checkpoint of its own")
    query = options.query
    ends = [query.end_physical_offset, *(bounds.end_offset for bounds in query.bounds.values())]
    if query.end_ms is not None or min(ends) < MAX_LONG or any(b.end_ms < MAX_LONG for b in query.bounds.values()):
        raise OptionError("a stream has no end: leave out the ending… options, or read a batch")
    if options.read.logs.kind is not LogKind.COMMITLOG:
        raise OptionError("a stream follows the CommitLog: leave out log and tier, or read a batch")
    if query.included is Include.UNQUEUED:
        raise OptionError("option include cannot be unqueued for a stream: new records wait for their queues")
    if options.access_path not in (AccessPath.AUTO, AccessPath.SCAN):
        raise OptionError(f"option accessPath cannot be {options.access_path} for a stream: it scans what is new")
    return options


def common_options(parser: OptionParser) -> SourceOptions:
    """Parse the options of all sources over stores: stores, columns, mode, sizes of tasks. Raises OptionError."""
    ways = sorted(parser.names() & {"path", "paths", "stores"})
    if len(ways) > 1:
        raise OptionError(f"options {' and '.join(ways)} exclude each other")
    path = parser.get("path", values.path)
    stores = parser.get("paths", values.path_list)
    if stores is None and (file := parser.get("stores", values.toml_path)) is not None:
        stores = (file,)
    if stores is None and path is not None and _names_several(path):
        stores = (path,)
    if path is None and stores is None:
        raise OptionError("option path is missing: give the store's root to load()")
    columns = parser.get("columns", values.names)
    return SourceOptions(
        path=path or (stores or ("",))[0],
        stores=stores,
        names_brokers=stores is not None or bool({CLUSTER, BROKER_NAME} & set(columns or ())),
        columns=columns,
        read=ReadOptions(columns=(), mode=parser.get_or("mode", values.mode, Mode.PERMISSIVE)),
        **parser.fields(_PARTITIONS),
    )


def _names_several(path: str) -> bool:
    if not path.endswith(".toml") and not set("*?[") & set(path):
        return False
    from rmq_formats.read.stores import names_several  # noqa: PLC0415 # kernels, see ``commitlog.batch``

    return names_several(path)


def _with_queues(options: SourceOptions, parser: OptionParser) -> SourceOptions:
    """Add the options of queues: the query, a query for each named broker, the starting word, data loss."""
    named: set[str] = set()
    for name in ("assign", *(name for name, _ in _BOUNDS.values())):
        named |= parser.get(name, values.brokers_named) or frozenset()
    if named and not options.names_brokers:
        raise OptionError(f"queues of broker {min(named)}: name brokers where several stores are read")
    by_broker = {broker: _queue_query(parser, broker) for broker in sorted(named)}
    return replace(
        options,
        read=replace(options.read, query=_queue_query(parser, None)),
        by_broker=by_broker,
        starting=parser.get_or("startingOffsets", values.word_or_json, EARLIEST),
        fail_on_data_loss=parser.get_or("failOnDataLoss", values.boolean, True),
    )


def _queue_query(parser: OptionParser, broker: str | None) -> Query:
    ways = sorted(parser.names() & {"subscribe", "subscribePattern", "assign"})
    if len(ways) > 1:
        raise OptionError(f"options {' and '.join(ways)} exclude each other")
    topics = parser.get("subscribe", values.names)
    query = Query(
        topics=None if topics is None else frozenset(topics),
        topic_pattern=parser.get("subscribePattern", values.pattern),
        queues=parser.get("assign", lambda text: values.assignment(values.for_broker(text, broker))),
    )
    bounds: dict[Queue, dict[str, int]] = {}
    for bound, (name, parse) in _BOUNDS.items():
        by_queue: dict[Queue, int] = parser.get_or(name, partial(_parse_by_queue, parse, broker), {})
        for queue, value in by_queue.items():
            bounds.setdefault(queue, {})[bound] = value
    for topic, queue_id in sorted(bounds):
        if not query.reads_queues:
            raise OptionError("offsets of queues need subscribe, subscribePattern or assign")
        if query.queue_bounds(topic, queue_id).first_offset == query.queue_bounds(topic, queue_id).end_offset:
            raise OptionError(f"offsets are given for queue {queue_id} of {topic!r}, which is not subscribed to")
    return replace(query, bounds={queue: QueueBounds(**bounds[queue]) for queue in sorted(bounds)})


def _parse_by_queue(parse: Callable[[str], dict[Queue, int]], broker: str | None, text: str) -> dict[Queue, int]:
    return parse(values.for_broker(text, broker))
