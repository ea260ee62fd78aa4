"""Reads an offset range of a queue of a running cluster into Arrow batches, in Spark's Python workers."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.batches import pulled_frames, record_batches
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import BROKER_NAME, schema_of
from rmq_formats.errors import ClusterError
from rmq_formats.kernels import inner_batches
from rmq_formats.kernels.scan import POSITION
from rmq_formats.read.query import Query, parse_tags
from rmq_formats.read.row_filter import RowFilter
from rmq_formats.scan.segment import FrameBatch
from rmq_lakehouse.live.client import ClusterConnection
from rmq_lakehouse.live.options import ALL_TAGS, ClusterReadOptions
from rmq_lakehouse.live.plan import Span, missing_offsets_message

_log = logging.getLogger("rmq_formats.spark")


def read_span(span: Span, options: ClusterReadOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the messages of an offset range, in queue order, as batches of some columns.

    Raises:
        ClusterError: the cluster does not answer or refuses, or messages were deleted and failOnDataLoss is true.
        FormatError: in FAILFAST, a record that fails a check; in any mode, bytes that are no records.
    """
    message_columns = [name for name in columns if name != BROKER_NAME]
    schema = schema_of(message_columns or ["queue_offset"])
    # Brokers compare hashes of tags and choose offsets by time; what is given out is compared exactly.
    query = Query(tags=parse_tags(options.tags), first_ms=options.first_ms, end_ms=options.end_ms)
    selector = None if query == Query() else RowFilter(query)
    with ClusterConnection(options.namesrv, options.group, options.access) as link:
        batches = record_batches(
            _frames(link, span, options),
            schema,
            mode=options.mode,
            decompress=options.decompress,
            selector=selector,
            path=f"{span.queue.topic} {span.queue.name}",
        )
        for batch in batches:
            if BROKER_NAME in columns:
                broker_names = pa.repeat(pa.scalar(span.queue.broker), batch.num_rows)
                yield batch.append_column(BROKER_NAME, broker_names).select(list(columns))
            else:
                yield batch


def _frames(link: ClusterConnection, span: Span, options: ClusterReadOptions) -> Iterator[FrameBatch]:
    # Brokers go on behind messages whose file was just deleted, and say so only now and then (MESSAGE_WAS_REMOVING is
    # answered as "none matches"): without a filter every offset has a message, and an offset without one was deleted.
    is_whole = options.tags == ALL_TAGS and options.sql is None
    at, frames = span.begin, None
    for records, deleted_before in link.read(span.queue, span.begin, span.end, options.tags, options.sql):
        if deleted_before is not None and not is_whole:
            _fail_or_warn(missing_offsets_message(span.queue, span.begin, min(deleted_before, span.end)), options)
        if not records:
            continue
        frames = pulled_frames(records, span.begin, span.end, verify_crc=options.verify_crc)
        if is_whole:
            at = _next_offset(span, at, frames, options)
        yield frames
    if is_whole and at < span.end and frames is not None and len(frames.frames):
        at = int(_batch_ends(frames)[-1])
    if is_whole and at < span.end:
        _fail_or_warn(missing_offsets_message(span.queue, at, span.end), options)


def _next_offset(span: Span, at: int, frames: FrameBatch, options: ClusterReadOptions) -> int:
    """Return the offset after the last read one; report gaps before and between the offsets."""
    offsets = FrameRows(frames.data, frames.frames).queue_offsets
    before = np.concatenate(([at], offsets + 1))
    if np.any(before[:-1] < offsets):
        before = np.concatenate(([at], _batch_ends(frames)))
    for hole in np.flatnonzero(before[:-1] < offsets).tolist():
        _fail_or_warn(missing_offsets_message(span.queue, int(before[hole]), int(offsets[hole])), options)
    return int(before[-1])


def _batch_ends(frames: FrameBatch) -> NDArray[np.int64]:
    """Return the offset after each record, int64[n]; a record of a batch topic may be several messages."""
    ends = FrameRows(frames.data, frames.frames).queue_offsets + 1
    batches = np.empty((len(frames.frames), inner_batches.BATCH_COLUMNS), dtype=np.int64)
    batches = batches[: inner_batches.find_inner_batches(frames.data, 0, frames.frames, batches)]
    rows = np.searchsorted(frames.frames[:, POSITION], batches[:, inner_batches.BATCH_PHYSICAL_OFFSET])
    ends[rows] += batches[:, inner_batches.BATCH_MESSAGES] - 1
    return ends


def _fail_or_warn(lost: str, options: ClusterReadOptions) -> None:
    if options.fail_on_data_loss:
        raise ClusterError(f"{lost}: deleted while they were read")
    _log.warning("%s", lost)
