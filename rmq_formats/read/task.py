"""Executes the tasks of a plan, one or several by threads: reads bytes, yields Arrow batches in log order.

Kernels, CRCs and reads release the interpreter's lock, so threads work in parallel.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from queue import Queue, SimpleQueue
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from rmq_formats.arrow.batches import RowSelector, error_batch, record_batches
from rmq_formats.arrow.schema import Mode, schema_of
from rmq_formats.codecs import paths
from rmq_formats.codecs.hashing import tags_code
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, SCHEDULE_TOPIC
from rmq_formats.read.plan import PointReadTask, QueuesTask, ScanTask, Task
from rmq_formats.read.point_reads import Points, read_points
from rmq_formats.read.query import Include, Query, ReadOptions
from rmq_formats.read.queue_logs import PartSelector, QueueLogsTask, part_frames, queue_log_query
from rmq_formats.read.queue_offset_lookup import QueueOffsetLookup
from rmq_formats.read.queues import ConsumeQueue, message_units
from rmq_formats.read.ranges import record_size
from rmq_formats.read.row_filter import RowFilter
from rmq_formats.scan.segment import FrameBatch
from rmq_formats.scan.splits import split_frames
from rmq_formats.storage.queue_files import topic_queues
from rmq_formats.storage.segments import Storage, open_storage
from rmq_formats.storage.store_files import StoreFiles, open_store

_BATCHES_AHEAD: Final = 4  # of one task, each of some 8 MiB at most; the next read waits until one is consumed
_TASKS_AHEAD: Final = 1  # beside the tasks that threads work on

_Item: TypeAlias = pa.RecordBatch | BaseException | None


def read_task(root: str, task: Task, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the records of one task, in log order.

    Raises:
        FormatError: in FAILFAST, at the first damage of the task.
        StoreError: a file that cannot be read.
    """
    if isinstance(task, QueueLogsTask):
        yield from _read_queue_logs(task, options)
        return
    store = open_store(root)
    lookup = _queue_offset_lookup(store, task, options.query)
    selector = None if options.query == Query() else RowFilter(options.query, lookup)
    if isinstance(task, ScanTask):
        with store.storage.open(task.split.path) as file:
            frames = split_frames(file, task.split, begin=task.begin, verify_crc=options.verifies_crc)
            yield from _batches(frames, options, task.split.path, selector)
        return
    if isinstance(task, PointReadTask):
        points = _points(store.storage, task)
    else:
        points = _unit_points(store, task, options.query)
    for segment in task.segments:
        frames = read_points(store.storage, [segment], points, verify_crc=options.verifies_crc)
        yield from _batches(frames, options, segment.path, selector)


def gap_batch(start: int, end: int, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Build a row for a deleted range of the log, if damage becomes rows."""
    if options.mode is Mode.PERMISSIVE and options.query.includes_damage:
        yield error_batch([(start, end - start, "segment deleted")], schema_of(options.columns))


def _queue_offset_lookup(
    store: StoreFiles, task: ScanTask | PointReadTask | QueuesTask, query: Query
) -> QueueOffsetLookup | None:
    """Create the look-up of a task's records in their queues; None if the query includes all of the log."""
    if query.included is Include.LOG:
        return None
    if isinstance(task, ScanTask):
        split = task.split
        begin = split.file_offset + (split.start if task.begin is None else task.begin)
        end = split.file_offset + split.limit + split.head_bytes  # a split owns the records whose headers begin in it
    elif isinstance(task, QueuesTask):
        begin, end = task.begin, task.end
    else:
        begin, end = min(task.physical_offsets), max(task.physical_offsets) + 1
    return QueueOffsetLookup(store, begin, end, finds_unqueued=query.included is Include.UNQUEUED)


def _batches(
    frames: Iterable[FrameBatch], options: ReadOptions, path: str, selector: RowSelector | None
) -> Iterator[pa.RecordBatch]:
    return record_batches(
        frames,
        schema_of(options.columns),
        mode=options.mode,
        decompress=options.decompress,
        selector=selector,
        path=path,
        by_topic=options.by_topic,
    )


def _read_queue_logs(task: QueueLogsTask, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    storage, _ = open_storage(task.directory)
    query = queue_log_query(options.query, options.logs)
    options = replace(options, by_topic=False)  # a part has one topic
    for part in task.parts:
        frames = part_frames(storage, part, verify_crc=options.verifies_crc)
        for batch in _batches(frames, options, part.split.path, PartSelector(part, query)):
            yield _with_queue(batch, {"topic": part.topic, "queue_id": part.queue_id})


def _with_queue(batch: pa.RecordBatch, queue: dict[str, str | int]) -> pa.RecordBatch:
    """Fill the columns of topic and queue id in rows of damaged ranges of a queue's log."""
    for number, field in enumerate(batch.schema):
        if field.name in queue and batch.column(number).null_count == batch.num_rows:
            named = pa.repeat(pa.scalar(queue[field.name], field.type), batch.num_rows)
            batch = batch.set_column(number, field, named)
    return batch


def _points(storage: Storage, task: PointReadTask) -> Points:
    """Read the sizes of the records at a task's offsets from the records' headers."""
    points: list[tuple[int, int]] = []
    for segment in task.segments:
        offsets = [offset for offset in task.physical_offsets if segment.start_offset <= offset < segment.end_offset]
        if not offsets:
            continue
        with storage.open(segment.path) as file:
            for offset in offsets:
                size = record_size(file, offset - segment.start_offset)
                if size is not None:
                    points.append((offset, size))
    table = np.array(points, dtype=np.int64).reshape(-1, 2)
    return Points.of(table[:, 0], table[:, 1])


def _unit_points(store: StoreFiles, task: QueuesTask, query: Query) -> Points:
    """Collect the offsets and sizes in the queues' units within the task's range of the log."""
    codes = None
    if query.tags is not None:
        codes = np.array([tags_code(tag) for tag in sorted(query.tags)], dtype=np.int64)
    offsets, sizes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    directory = paths.consumequeue_dir(store.root)
    for queue in chain.from_iterable(topic_queues(store.storage, directory, topic) for topic in task.topics):
        bounds = query.queue_bounds(queue.topic, queue.queue_id)
        for _, units in ConsumeQueue(store.storage, queue).units_in_log_range(
            task.begin, task.end, bounds.first_offset, bounds.end_offset
        ):
            physical_offsets = units["physical_offset"].astype(np.int64)
            selected = message_units(units) & (physical_offsets >= task.begin) & (physical_offsets < task.end)
            if codes is not None and queue.topic != SCHEDULE_TOPIC:  # tags codes of delayed messages are times
                unit_codes = units["tags_code"].astype(np.int64)
                selected &= np.isin(unit_codes, codes) | (unit_codes <= EXT_MAX_ADDRESS)
            offsets.append(physical_offsets[selected])
            sizes.append(units["size"][selected].astype(np.int64))
    return Points.of(np.concatenate(offsets), np.concatenate(sizes))


class _Output(NamedTuple):
    """The batches of one task; None or an exception is the last item."""

    task: Task
    items: Queue[_Item]


def read_tasks(root: str, tasks: Sequence[Task], options: ReadOptions, threads: int) -> Iterator[pa.RecordBatch]:
    """Read the records of tasks, in log order. Closing the iterator stops the work.

    At most ``threads + 1`` tasks are in progress, each with at most four batches of some 8 MiB. One thread, or the
    thread of one task, is the caller's. Raises as ``read_task``.
    """
    if threads > 1 and len(tasks) > 1:
        yield from _read_in_threads(root, tasks, options, min(threads, len(tasks)))
        return
    for task in tasks:
        yield from read_task(root, task, options)


def _read_in_threads(root: str, tasks: Sequence[Task], options: ReadOptions, threads: int) -> Iterator[pa.RecordBatch]:
    work: SimpleQueue[_Output | None] = SimpleQueue()
    stopped = threading.Event()
    # Daemons: a reader that nobody closed must not delay the interpreter's end.
    workers = [
        threading.Thread(target=_work, args=(root, options, work, stopped), name="rmq-read", daemon=True)
        for _ in range(threads)
    ]
    outputs = (_Output(task, Queue(_BATCHES_AHEAD)) for task in tasks)
    begun: deque[_Output] = deque()
    for worker in workers:
        worker.start()
    try:
        for output in islice(outputs, threads + _TASKS_AHEAD):
            begun.append(output)
            work.put(output)
        while begun:
            while (item := begun[0].items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
            begun.popleft()
            for output in islice(outputs, 1):
                begun.append(output)
                work.put(output)
    finally:
        stopped.set()  # ends each thread at its next batch
        for _ in workers:
            work.put(None)
        for output in begun:
            while not output.items.empty():  # makes room for the next batch
                output.items.get_nowait()
        for worker in workers:
            if worker is not threading.current_thread():  # garbage collection may close the reader in any thread
                worker.join()


def _work(root: str, options: ReadOptions, work: "SimpleQueue[_Output | None]", stopped: threading.Event) -> None:
    """Read tasks in a thread until None comes, or until the reader is closed."""
    while (output := work.get()) is not None:
        end: _Item = None
        try:
            for batch in read_task(root, output.task, options):
                if stopped.is_set():
                    return
                output.items.put(batch)
        except BaseException as error:  # the reader raises it
            end = error
        if stopped.is_set():
            return
        output.items.put(end)
