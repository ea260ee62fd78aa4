"""The work of ``rmq dump``: selects the reader for a kind of file, and writes its rows as text or JSON."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from rmq_cli import output
from rmq_cli.dump import json_lines, text_lines
from rmq_cli.dump import rows as file_rows
from rmq_cli.dump.rows import ReportFault
from rmq_cli.store_path import ClassifiedPath, PathKind, classify_path, is_queue_log, list_path_segments, may_have_gaps
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.errors import OptionError
from rmq_formats.read.query import Include
from rmq_formats.read.unqueued import UNQUEUED_TEXTS, UnqueuedReasons, refuse_log_alone
from rmq_formats.scan.segment import FrameBatch, scan_segment, without_record_sums
from rmq_formats.storage.segments import Segment, Storage
from rmq_formats.store import Store

_WITHOUT_TOPICS: Final = frozenset({PathKind.INDEX, PathKind.CHECKPOINT, PathKind.CONFIG, PathKind.ENTRY_INDEX})
_Reader = Callable[[ClassifiedPath, str | None, int, ReportFault], Iterator[Any]]
_TABLES: Final[Mapping[PathKind, tuple[_Reader, text_lines.TextTable]]] = {
    PathKind.CONSUMEQUEUE: (file_rows.units, text_lines.UNITS),
    PathKind.BATCHCONSUMEQUEUE: (file_rows.batch_units, text_lines.BATCH_UNITS),
    PathKind.QUEUE_DATABASE: (file_rows.database_units, text_lines.TIMED_UNITS),
    PathKind.ENTRY_INDEX: (file_rows.entry_index, text_lines.ENTRY_INDEX_UNITS),
    PathKind.CONSUMEQUEUE_EXT: (file_rows.ext_units, text_lines.EXT_UNITS),
    PathKind.INDEX: (file_rows.entries, text_lines.ENTRIES),
}


@dataclass(slots=True)
class DumpOptions:
    """The options of ``rmq dump``: what to print."""

    as_json: bool
    from_offset: int
    limit: int | None
    topic: str | None
    with_body: bool
    unqueued: bool = False


@dataclass(slots=True)
class Faults:
    """Reports faults on stderr, each after what was printed before it."""

    lines: output.Lines
    count: int = 0

    def report(self, text: str) -> None:
        """Report one fault on one line."""
        self.lines.flush()
        output.warn(text)
        self.count += 1


def run(path: str, options: DumpOptions) -> int:
    """Print what is at a path. Returns the exit code. Raises RmqError."""
    place = classify_path(path)
    if options.topic is not None and place.kind in _WITHOUT_TOPICS:
        raise OptionError(f"--topic: {path} is of the kind {place.kind}, which has no topics to choose from")
    if place.kind is PathKind.TIER:
        raise OptionError(f"{path}: tiered storage; give a queue's COMMIT_LOG or CONSUME_QUEUE directory, or a file")
    if options.unqueued and place.kind is not PathKind.STORE:
        raise OptionError(f"--unqueued: {path} is of the kind {place.kind}; give a store: its queues are needed")
    with output.Lines() as lines:
        faults = Faults(lines)
        heading, pieces = _pieces(place, options, faults)
        is_empty = True
        for piece in pieces:
            if is_empty and not options.as_json:
                lines.write(heading.encode())
            is_empty = False
            lines.write(piece)
        start = f" from {options.from_offset} on" if options.from_offset else ""
        if is_empty and options.topic is not None and options.limit != 0:
            faults.report(f"{path}: has nothing of a topic {options.topic}{start}")
        elif is_empty and not options.as_json:
            lines.write(heading.encode())
            if start and options.limit != 0:
                lines.flush()
                output.warn(f"{path}: has nothing{start}")
    return output.EXIT_FINDINGS if faults.count else output.EXIT_CLEAN


def _pieces(place: ClassifiedPath, options: DumpOptions, faults: Faults) -> tuple[str, Iterator[bytes | memoryview]]:
    """Return the heading for people, and the lines of a path's content in pieces."""
    if options.unqueued:
        return text_lines.RECORD_HEADING, _unqueued_lines(place, options)
    if place.kind in {PathKind.STORE, PathKind.COMMITLOG}:
        segments = list_path_segments(place)
        _note_leftovers(segments)
        batches = _batches(
            place.storage,
            segments,
            options.from_offset,
            faults,
            has_gaps=may_have_gaps(place),
            has_sums=not is_queue_log(place),
        )
        if options.as_json:
            return "", _json_records(batches, options)
        lines = (
            line
            for batch in batches
            for line in text_lines.record_lines(batch, topic=options.topic, with_body=options.with_body)
        )
        return text_lines.RECORD_HEADING, islice(lines, options.limit)
    if place.kind in _TABLES:
        read, table = _TABLES[place.kind]
        rows = islice(read(place, options.topic, options.from_offset, faults.report), options.limit)
        return table.heading, (msgspec.json.encode(row) + b"\n" for row in rows) if options.as_json else table.lines(
            rows
        )
    is_checkpoint = place.kind is PathKind.CHECKPOINT
    whole = Checkpoint.decode(place.storage.read_bytes(place.path)) if is_checkpoint else file_rows.config(place)
    line = msgspec.json.encode(whole)
    return "", iter([(line if options.as_json else msgspec.json.format(line, indent=2)) + b"\n"])


def _note_leftovers(segments: list[Segment]) -> None:
    """Print on stderr where a log ends, if leftovers follow the log's end."""
    for segment in segments:
        if segment.log_bytes is not None:
            output.warn(
                f"the log ends at {segment.start_offset + segment.log_bytes}; a recovery left the records after it"
            )
            return


def _json_records(batches: Iterator[FrameBatch], options: DumpOptions) -> Iterator[bytes | memoryview]:
    renderer = json_lines.RecordRenderer(topic=options.topic, with_body=options.with_body)
    remaining = options.limit
    while remaining != 0 and (batch := next(batches, None)) is not None:
        for piece, count in renderer.render(batch, remaining):
            yield piece
            remaining = None if remaining is None else remaining - count


def _batches(
    storage: Storage, segments: list[Segment], begin: int, faults: Faults, *, has_gaps: bool, has_sums: bool
) -> Iterator[FrameBatch]:
    """Yield batches of record frames from a physical offset on; report faults on the way.

    Args:
        has_gaps: whether files may be missing.
        has_sums: whether records have valid CRCs; those in the log of a single queue do not.
    """
    expected: int | None = None
    for segment in segments:
        if expected is not None and not has_gaps and segment.start_offset > max(expected, begin):
            missing = segment.start_offset - expected
            faults.report(f"no file holds the log at offset {expected} ({missing} bytes)")
        expected = segment.end_offset
        if begin >= segment.end_offset:
            continue
        with storage.open(segment.path) as file:
            start = max(0, begin - segment.head_bytes - segment.start_offset)
            frame_batches = scan_segment(
                file,
                segment.start_offset,
                segment.size_bytes,
                start=start,
                data_end=segment.data_end(file),
                head_bytes=segment.head_bytes,
            )
            for batch in frame_batches if has_sums else without_record_sums(frame_batches):
                for damage in batch.all_damages():
                    place = f"damage at offset {damage.physical_offset}, {damage.size} bytes"
                    faults.report(f"{place}: {damage.code.text}")
                yield batch


def _unqueued_lines(place: ClassifiedPath, options: DumpOptions) -> Iterator[bytes]:
    """Yield the lines of messages that no queue has, in the order of the log. Raises StoreLayoutError without queues.

    In JSON the key ``reason`` follows those of a record.
    """
    refuse_log_alone(place.files)
    reasons = UnqueuedReasons(place.files)
    begin = options.from_offset
    messages = Store(place.path).messages(options.topic, from_physical_offset=begin, include=Include.UNQUEUED)
    for message in islice(messages, options.limit):
        reason = reasons.of((message.topic, message.queue_id), message.physical_offset)
        if options.as_json:
            line = json_lines.message_line(message, with_body=options.with_body)
            yield line.removesuffix(b"}\n") + b',"reason":"%b"}\n' % reason.encode()
        else:
            head, _, rest = text_lines.record_text(message, with_body=options.with_body).partition("\n")
            yield f"{head}  {reason}: {UNQUEUED_TEXTS[reason]}\n{rest}".encode("utf-8", "replace")
