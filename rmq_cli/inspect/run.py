"""The work of ``rmq inspect``: gathers the facts of a path, and prints them as tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from rmq_cli import output
from rmq_cli.dump import rows as file_rows
from rmq_cli.inspect import file_summaries
from rmq_cli.inspect.file_summaries import (
    ConfigFacts,
    EntryIndexFacts,
    ExtFacts,
    IndexFacts,
    QueueFileFacts,
    QueueLogFacts,
)
from rmq_cli.inspect.log_summary import CommitLogFacts, log_facts
from rmq_cli.output import bytes_text, counted, printable, time_text
from rmq_cli.store_path import ClassifiedPath, PathKind, classify_path, is_queue_log, list_path_segments
from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.errors import FormatError, OptionError, StoreError, without_secrets
from rmq_formats.read.unqueued import UNQUEUED_TEXTS, unqueued_sums
from rmq_formats.storage.store_files import configured_log_directories
from rmq_formats.storage.store_layouts import StoreLayout, queue_database_layout
from rmq_offline.diagnosis.recovery import BYTES_PER_SECOND, StartEstimate, estimate_start
from rmq_offline.verify.findings import Finding

LISTED: Final = 20  # rows of damage, of files: --json has all


@dataclass(slots=True)
class Facts:
    """The content of a path: all parts of a store, or the one part that the path is.

    Parts that the path lacks are None. Queues are sorted by topic and queue id.

    Attributes:
        batchconsumequeue: for a path below ``compactionCq``, the queues of compacted topics.
        queue_logs: logs of single queues by kind: those of a store's compacted topics, or in tiered storage.
        index: oldest file first.
        abort: whether the file ``abort`` exists: a broker runs on the store, or was killed.
        errors: files that cannot be read or decoded.
        start: what a broker's start reads of a store's log.
        layouts: a store's layouts beside the classic one, each with the file that proves it; of a database its path.
    """

    kind: PathKind
    path: str
    commitlog: CommitLogFacts | None = None
    consumequeue: tuple[QueueFileFacts, ...] | None = None
    consumequeue_ext: tuple[ExtFacts, ...] | None = None
    batchconsumequeue: tuple[QueueFileFacts, ...] | None = None
    queue_logs: dict[str, tuple[QueueLogFacts, ...]] = field(default_factory=dict)
    index: tuple[IndexFacts, ...] | None = None
    checkpoint: Checkpoint | None = None
    config: Any = None
    abort: bool | None = None
    rocksdb_config: ConfigFacts | None = None
    entry_index: EntryIndexFacts | None = None
    rocksdbstore: dict[str, int] | None = None
    errors: tuple[str, ...] = ()
    layouts: dict[str, str] | None = None
    start: StartEstimate | None = None

    @property
    def is_clean(self) -> bool:
        """Return whether the facts have no fault."""
        broken_index = any(file.error for file in self.index or ())
        broken_index |= bool(self.entry_index and self.entry_index.faults)
        return not (self.errors or broken_index or (self.commitlog and self.commitlog.finding_count))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for JSON; parts that the path does not have are left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if self.commitlog is not None:
            fields["commitlog"]["findings"] = [finding.to_dict() for finding in self.commitlog.findings]
        fields |= fields.pop("queue_logs")
        return {name: value for name, value in fields.items() if value is not None}


Reader = Callable[[ClassifiedPath], object]
_READERS: Final[Mapping[PathKind, tuple[str, Reader]]] = {  # fields of ``Facts``
    PathKind.CONSUMEQUEUE: ("consumequeue", file_summaries.queue_facts),
    PathKind.CONSUMEQUEUE_EXT: ("consumequeue_ext", file_summaries.ext_facts),
    PathKind.BATCHCONSUMEQUEUE: ("batchconsumequeue", file_summaries.batch_queue_facts),
    PathKind.QUEUE_DATABASE: ("consumequeue", lambda part: file_summaries.database_facts(part.storage, part.path)),
    PathKind.ENTRY_INDEX: ("entry_index", file_summaries.entry_index_facts),
    PathKind.TIER: ("queue_logs", lambda part: {"tier": file_summaries.tier_facts(part)}),
    PathKind.INDEX: ("index", file_summaries.index_facts),
    PathKind.CHECKPOINT: ("checkpoint", file_summaries.checkpoint),
    PathKind.CONFIG: ("config", file_rows.config),
}


def run(path: str, as_json: bool) -> int:
    """Inspect a path. Returns the exit code. Raises RmqError."""
    facts = gather(classify_path(path))
    if as_json:
        output.print_json(facts.to_dict())
    else:
        show(facts, output.console())
    return output.EXIT_CLEAN if facts.is_clean else output.EXIT_FINDINGS


def run_unqueued(path: str, as_json: bool) -> int:
    """Sum up the messages of a store that no queue has. Returns the exit code. Raises RmqError."""
    place = classify_path(path)
    if place.kind is not PathKind.STORE:
        raise OptionError(f"--unqueued: {path} is of the kind {place.kind}; give a store: its queues are needed")
    sums = unqueued_sums(place.files)
    if as_json:
        output.print_json({"path": without_secrets(place.path), "unqueued": msgspec.to_builtins(sums)})
        return output.EXIT_CLEAN
    table = output.table("topic", ">messages", ">size", "stored from", "to", "reason")
    for item in sums:
        times = time_text(item.first_store_timestamp), time_text(item.last_store_timestamp)
        reason = f"{item.reason}: {UNQUEUED_TEXTS[item.reason]}"
        table.add_row(printable(item.topic), f"{item.messages:,}", bytes_text(item.bytes), *times, reason)
    output.console().print(table if sums else Text("each message of the log is in its queue"))
    return output.EXIT_CLEAN


def gather(place: ClassifiedPath) -> Facts:
    """Return the facts of a path."""
    facts = Facts(place.kind, without_secrets(place.path))
    parts = [place]
    if place.kind is PathKind.QUEUE_DATABASE:
        layout = queue_database_layout(place.storage, place.path)
        facts.layouts = {layout.value: facts.path} if layout is not None else None
    if place.kind is PathKind.STORE:
        kinds = [kind for kind in PathKind if kind not in {PathKind.STORE, PathKind.CONFIG, PathKind.TIER}]
        parts = [place.child(kind) for kind in kinds if place.storage.exists(f"{place.path}/{kind}")]
        facts.abort = place.storage.exists(paths.abort_file(place.path))
        layouts = place.files.layouts
        facts.layouts = {layout.value: without_secrets(path) for layout, path in layouts.evidence.items()} or None
        if StoreLayout.DLEDGER in layouts or configured_log_directories(place.path):  # the log is in other directories
            parts = [place, *(part for part in parts if part.kind is not PathKind.COMMITLOG)]
        readers: dict[str, Reader] = {}
        database = layouts.only_queue_database
        if database is not None:
            parts = [part for part in parts if part.kind is not PathKind.CONSUMEQUEUE]
            readers["consumequeue"] = lambda place: file_summaries.database_facts(place.storage, database)
        if StoreLayout.ROCKSDB_CONFIG in layouts:
            readers["rocksdb_config"] = file_summaries.config_facts
        readers["rocksdbstore"] = file_summaries.rocksdbstore_facts
        for name, read in readers.items():
            try:
                setattr(facts, name, read(place))
            except (FormatError, StoreError) as error:
                facts.errors += (str(error),)
        with suppress(StoreError, FormatError):
            facts.start = estimate_start(place.files, list_path_segments(place))
        facts.queue_logs = file_summaries.store_log_facts(place)
        if not any(part.kind in {PathKind.COMMITLOG, PathKind.STORE} for part in parts):
            try:
                place.files.require_log()
            except StoreError as error:
                facts.errors += (without_secrets(str(error)),)
    for part in parts:
        try:
            _gather_part(facts, part)
        except FormatError as error:
            if place.kind is not PathKind.STORE:
                raise
            facts.errors += (without_secrets(f"{part.path}: {error}"),)
    return facts


def _gather_part(facts: Facts, part: ClassifiedPath) -> None:
    if part.kind in {PathKind.COMMITLOG, PathKind.STORE}:
        segments = list_path_segments(part)
        total = sum(segment.size_bytes for segment in segments)
        with output.progress("Reading the CommitLog", total) as advance:
            facts.commitlog = log_facts(part.storage, segments, advance, is_of_queue=is_queue_log(part))
    else:
        name, read = _READERS[part.kind]
        setattr(facts, name, read(part))


def show(facts: Facts, console: Console) -> None:
    """Print facts for people."""
    console.print(Text(f"{facts.path}  ", style="bold").append(_kind_text(facts), style="dim"), soft_wrap=True)
    console.print()
    rows: list[tuple[str, str | Text]] = []
    if facts.commitlog is not None:
        rows += _log_rows(facts.commitlog)
    if facts.consumequeue is not None:
        rows += _queue_rows("ConsumeQueue", facts.consumequeue)
    if facts.consumequeue_ext is not None:
        rows += _queue_rows("ConsumeQueueExt", facts.consumequeue_ext)
    if facts.batchconsumequeue is not None:
        rows += _queue_rows("batch queues", facts.batchconsumequeue)
    for name, logs in facts.queue_logs.items():
        size = bytes_text(sum(log.size_bytes for log in logs))
        files = counted(sum(log.files for log in logs), "file")
        rows.append((name, f"{counted(len(logs), 'queue')}, their logs {files} of {size}"))
    if facts.index is not None:
        entries = sum(file.entries for file in facts.index)
        size = bytes_text(sum(file.size_bytes for file in facts.index))
        rows.append(("Index", f"{counted(len(facts.index), 'file')} of {size}: {counted(entries, 'entry')}"))
    if facts.entry_index is not None:
        rows += _entry_index_rows(facts.entry_index)
    if facts.checkpoint is not None:
        rows += _checkpoint_rows(facts.checkpoint)
    if facts.rocksdb_config is not None:
        config = facts.rocksdb_config
        groups = f"{counted(config.groups, 'consumer group')} with settings"
        offsets = f"offsets by topic and group: {config.group_topics}"
        rows.append(("config", f"{counted(config.topics, 'topic')}, {groups}, {offsets}; in RocksDB"))
    for what, count in (facts.rocksdbstore or {}).items():
        rows.append((file_summaries.OWN_ROCKSDB, Text(f"{what}: {counted(count, 'pair')}", style="yellow")))
    if facts.abort is not None:
        closed = Text("no abort file: the last broker stopped in order, none is running")
        running = Text("abort file: a broker is running, or was killed", style="yellow")
        rows.append(("state", running if facts.abort else closed))
    if facts.start is not None:
        rows.append(("start", _start_text(facts.start)))
    rows += [("layout", Text(f"{name}: {path}", style="yellow")) for name, path in (facts.layouts or {}).items()]
    rows += [("error", Text(error, style="red")) for error in facts.errors]
    console.print(output.facts(*rows)) if rows else None
    if facts.kind is PathKind.STORE and not facts.is_clean:
        output.print_next(console, "rmq verify", facts.path)
    for table in _tables(facts):
        console.print()
        console.print(table)
    if facts.config is not None:
        console.print_json(data=facts.config)


def _kind_text(facts: Facts) -> str:
    return {
        PathKind.STORE: "a store",
        PathKind.TIER: "tiered storage",
        PathKind.CHECKPOINT: "a checkpoint",
        PathKind.CONFIG: "a config file",
        PathKind.QUEUE_DATABASE: "a ConsumeQueue in a database",
        PathKind.ENTRY_INDEX: "the index of a DLedger CommitLog",
    }.get(facts.kind, facts.kind)


def _start_text(start: StartEstimate) -> str:
    rate = bytes_text(BYTES_PER_SECOND)
    return (
        f"a start will read {counted(start.files, 'file')}, {bytes_text(start.bytes)}, about {start.seconds:g} s at "
        f"{rate}/s, because {start.reason}"
    )


def _log_rows(log: CommitLogFacts) -> list[tuple[str, str | Text]]:
    files = f"{counted(len(log.files), 'file')} of {bytes_text(log.size_bytes)}, {bytes_text(log.used_bytes)} used"
    rows: list[tuple[str, str | Text]] = [("CommitLog", files)]
    rows.append(("  messages", f"{log.messages:,} in {bytes_text(log.bytes)}"))
    if log.messages:
        offsets = f"{log.first_physical_offset} to {log.last_physical_offset}, end {log.end_physical_offset}"
        rows.append(("  offsets", offsets))
        stored = f"{time_text(log.first_store_timestamp)} to {time_text(log.last_store_timestamp)}"
        rows.append(("  stored", stored))
    if log.without_queue:
        rows.append(("  no queue", f"{counted(log.without_queue, 'message')}, prepared or rolled back"))
    if log.finding_count:
        rows.append(("  damage", Text(f"{counted(log.finding_count, 'finding')}, see below", style="red")))
    else:
        rows.append(("  damage", "none"))
    return rows


def _queue_rows(name: str, queues: Sequence[QueueFileFacts | ExtFacts]) -> list[tuple[str, str | Text]]:
    count = sum(queue.files for queue in queues)
    size = bytes_text(sum(queue.size_bytes for queue in queues))
    place = f"{counted(count, 'file')} of {size}" if count else "in a database"
    topics = counted(len({queue.topic for queue in queues}), "topic")
    units = counted(sum(queue.units for queue in queues), "unit")
    return [(name, f"{place}: {topics}, {counted(len(queues), 'queue')}, {units}")]


def _entry_index_rows(index: EntryIndexFacts) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = [
        ("index", f"{counted(index.files, 'file')} of {bytes_text(index.size_bytes)}: {counted(index.units, 'unit')}")
    ]
    if index.units:
        rows.append(("  entries", f"{index.first_index} to {index.last_index}, log end {index.end_position}"))
        rows.append(("  terms", f"{index.first_term} to {index.last_term}"))
    if index.faults:
        rows.append(("  damage", Text(f"{counted(index.faults, 'place')} without a unit", style="red")))
    return rows


def _checkpoint_rows(checkpoint: Checkpoint) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = [
        ("checkpoint", f"CommitLog     flushed up to {time_text(checkpoint.physic_msg_timestamp_ms)}"),
        ("", f"ConsumeQueue  flushed up to {time_text(checkpoint.logics_msg_timestamp_ms)}"),
        ("", f"Index         flushed up to {time_text(checkpoint.index_msg_timestamp_ms)}"),
        ("", f"confirmed offset {checkpoint.confirm_physical_offset}, of master {checkpoint.master_flushed_offset}"),
    ]
    if checkpoint.logics_physical_offset:
        flushed_to = f"flushed up to offset {checkpoint.logics_physical_offset}, by a broker 5.5 or later"
        rows.append(("", f"ConsumeQueue  {flushed_to}"))
    return rows


def _tables(facts: Facts) -> list[RenderableType]:
    tables: list[RenderableType] = []
    if facts.commitlog is not None:
        if facts.commitlog.findings:
            tables.append(_finding_table(facts.commitlog))
        if facts.kind is PathKind.COMMITLOG and len(facts.commitlog.files) > 1:
            tables.append(_file_table(facts.commitlog))
        if facts.commitlog.topics:
            tables.append(_topic_table(facts.commitlog, facts.consumequeue))
    elif facts.consumequeue:
        tables.append(_queue_table(facts.consumequeue))
    if facts.batchconsumequeue and facts.commitlog is None:
        tables.append(_queue_table(facts.batchconsumequeue))
    tables += [_queue_log_table(logs) for logs in facts.queue_logs.values() if logs]
    if facts.index:
        tables.append(_index_table(facts.index))
    return tables


def _topic_table(log: CommitLogFacts, queues: Sequence[QueueFileFacts] | None) -> RenderableType:
    """Topics of the log, beside the units that their queues have."""
    columns = ["topic", ">queues", ">messages", ">min", ">max", ">size"]
    table = output.table(*columns, *([">units"] if queues is not None else []))
    units: Counter[str | None] = Counter()
    for queue in queues or ():
        units[queue.topic] += queue.units
    for topic in log.topics:
        cells = [printable(topic.topic), len(topic.queues), topic.messages, topic.min_offset, topic.max_offset]
        shown = [str(cell) for cell in cells] + [bytes_text(topic.bytes)]
        table.add_row(*shown, *([str(units[topic.topic])] if queues is not None else []))
    return table


def _file_table(log: CommitLogFacts) -> RenderableType:
    table = output.table("file", ">size", ">used", ">messages", ">damaged")
    for file in log.files:
        name = file.path.rpartition("/")[2]
        damaged = str(file.damaged_stretches) if file.damaged_stretches else "-"
        table.add_row(name, bytes_text(file.size_bytes), bytes_text(file.used_bytes), str(file.messages), damaged)
    return table


def _finding_table(log: CommitLogFacts) -> RenderableType:
    table = output.table(">offset", ">size", "what")
    findings: Sequence[Finding] = log.findings
    for finding in findings[:LISTED]:
        offset = "-" if finding.physical_offset is None else str(finding.physical_offset)
        table.add_row(offset, "-" if finding.size is None else str(finding.size), Text(finding.detail, style="red"))
    if log.finding_count > LISTED:
        table.add_row("…", "", f"{log.finding_count - LISTED:,} more; --json lists {len(findings):,}")
    return table


def _queue_table(queues: Sequence[QueueFileFacts]) -> RenderableType:
    table = output.table("topic", ">queue", ">files", ">min", ">max", ">units", ">size")
    for queue in queues:
        queue_id = "-" if queue.queue_id is None else str(queue.queue_id)
        numbers = map(str, (queue.files, queue.min_offset, queue.max_offset, queue.units))
        table.add_row(printable(queue.topic or "-"), queue_id, *numbers, bytes_text(queue.size_bytes))
    return table


def _queue_log_table(logs: Sequence[QueueLogFacts]) -> RenderableType:
    """Return the logs of single queues, of tiered storage with their brokers."""
    table = output.table("log of", ">queue", ">files", ">size", ">from", ">to", ">unit files")
    for log in logs:
        name = log.topic if log.broker is None else f"{log.broker}: {log.topic}"
        cells = (log.queue_id, log.files, bytes_text(log.size_bytes), log.min_place, log.max_place, log.unit_files)
        table.add_row(printable(name), *map(str, cells))
    return table


def _index_table(files: Sequence[IndexFacts]) -> RenderableType:
    table = output.table("index file", ">entries", "first stored", "last stored")
    for file in files:
        name = file.path.rpartition("/")[2]
        if file.error:
            table.add_row(name, "-", Text(file.error, style="red"))
        elif file.entries:
            times = (time_text(file.begin_timestamp), time_text(file.end_timestamp))
            table.add_row(name, str(file.entries), *times)
        else:
            table.add_row(name, "0")
    return table
