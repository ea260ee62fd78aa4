"""Replay in two passes over the CommitLog: the first counts, the second sends.

Messages go through one process, since each queue is to stay in order; a queue has one request on its way, and
all queues have theirs at once. What is sent is the log's order; how far it is answered, without a gap, is the
checkpoint: a file that is replaced atomically, bound to one store, choice of messages and target.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_core.client.access import Access
from rmq_core.client.bulk.send import BulkSender
from rmq_core.client.errors import NoRouteError
from rmq_core.client.options import ClientOptions
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_formats.arrow.sql_filter import distinct_rows
from rmq_formats.errors import ClusterError, StoreError
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.plan import Task, plan_read
from rmq_formats.read.query import COMMITLOG_ONLY, Include, LogKind, Logs, Queue, ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.scan.splits import frozen_end
from rmq_formats.storage.contained import replace_file, root_directory
from rmq_formats.storage.store_files import open_store
from rmq_offline.replay.batch_messages import COLUMNS, Origin, QueueBatch, encode_rows
from rmq_offline.replay.selection import ReplaySelection, filter_rows

_FILE = "replay.json"
BATCH_BYTES: Final = 256 << 10  # some hundred messages a request; a batch has to fit into one file of the log
_GROUP: Final = "RMQ_REPLAY"
_PLAIN: Final = Access()
_SAVE_EVERY_S: Final = 1.0
_PACES_PER_S: Final = 10  # with a rate, portions a second


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of a replay.

    Attributes:
        replay: identity of the replay; a checkpoint of another replay is refused.
        next_physical_offset: the target has all selected records before this offset.
        messages: number of messages sent in all runs; one that was sent again counts again.
    """

    replay: str
    next_physical_offset: int
    messages: int


class ReplayCheckpoint:
    """Loads and saves the progress of a replay."""

    def __init__(self, directory: str, replay: str) -> None:
        """Create the checkpoint of a directory.

        Args:
            directory: the checkpoint's directory; created on the first write.
        """
        self._path = Path(directory) / _FILE
        self._replay = replay

    def load(self) -> ReplayProgress | None:
        """Load the progress of the runs before; None before the first run.

        Raises:
            StoreError: the checkpoint cannot be read, or is that of another replay.
        """
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            progress = ReplayProgress(values["replay"], int(values["next_physical_offset"]), int(values["messages"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StoreError(f"{self._path}: not the checkpoint of a replay") from error
        if progress.replay != self._replay:
            raise StoreError(
                f"{self._path}: the checkpoint of another replay ({progress.replay}); "
                f"this one is {self._replay}: give another --checkpoint"
            )
        return progress

    def save(self, next_physical_offset: int, messages: int) -> None:
        """Replace the file. Raises StoreError."""
        text = json.dumps({"replay": self._replay, "next_physical_offset": next_physical_offset, "messages": messages})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with root_directory(self._path.parent) as directory:
                replace_file(directory, self._path.name, f"{text}\n".encode())
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Replay:
    """The source, the messages and the target of a replay.

    Attributes:
        store_id: the store's name in the property RMQ_ORIGIN.
        to_topic: the topic to send all messages to; None keeps each message's topic.
        rate: messages a second; None is no limit.
        logs: the store's logs in reading order: a tier before the CommitLog.
    """

    store: str
    store_id: str
    choice: ReplaySelection
    namesrv: str
    to_topic: str | None = None
    rate: int | None = None
    checkpoint: ReplayCheckpoint | None = None
    access: Access = _PLAIN
    logs: Logs = COMMITLOG_ONLY

    @property
    def origin(self) -> Origin:
        """Origin of each message: its physical offset; with a tier, its queue offset, which a tier preserves."""
        return Origin(self.store_id, by_queue=self.logs.kind is not LogKind.COMMITLOG)


@dataclass(slots=True)
class Counts:
    """The numbers of messages found, or sent.

    Attributes:
        by_queue: number of messages by topic and queue id.
        bytes: size of the records together.
        damaged: number of records that fail a check; they are not sent.
        refused: number of records that no broker accepts.
        begin: the physical offset at which reading starts.
        end: physical offset of the log's end when the replay began.
    """

    by_queue: dict[Queue, int] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    refused: int = 0
    begin: int = 0
    end: int = 0


def count(replay: Replay) -> Counts:
    """Count the messages to send, up to the present end of the log.

    Raises:
        StoreError: the store cannot be read, or the checkpoint is that of another replay.
    """
    progress = None if replay.checkpoint is None else replay.checkpoint.load()
    counts = Counts(begin=0 if progress is None else progress.next_physical_offset, end=_log_end(replay))
    columns = {"topic", "queue_id", "size", "record_error", *replay.choice.columns()}
    for rows in read_chosen(replay.store, *read_plan(replay, counts, tuple(columns)), replay.choice):
        sound = _filter_sound(rows, counts)
        firsts, groups = distinct_rows([sound["topic"], sound["queue_id"]], sound.num_rows)
        for row, messages in zip(firsts.tolist(), np.bincount(groups).tolist(), strict=True):
            queue = sound["topic"][row].as_py(), sound["queue_id"][row].as_py()
            counts.by_queue[queue] = counts.by_queue.get(queue, 0) + messages
        counts.messages += sound.num_rows
        counts.bytes += pc.sum(sound["size"]).as_py() or 0
    return counts


async def send(replay: Replay, counts: Counts) -> Counts:
    """Send the messages that were counted.

    Returns:
        What is stored at the target.

    Raises:
        ClusterError: a topic that is not there; nothing is sent then.
        RemotingError: the cluster does not answer, or refuses.
        StoreError: the store cannot be read, or the checkpoint not written.
    """
    options, credentials = ClientOptions(tls=replay.access.tls), replay.access.credentials
    async with BulkSender(
        replay.namesrv, _GROUP, batch_bytes=BATCH_BYTES, options=options, credentials=credentials
    ) as sender:
        targets = await _targets(replay, sender, counts)
        await sender.check_access()
        return await _SendPass(replay, sender, targets, counts).run()


async def _targets(replay: Replay, sender: BulkSender, counts: Counts) -> dict[str, Sequence[MessageQueue]]:
    """Resolve the queues of each target topic; raise ClusterError for a missing topic."""
    target_of = {topic: replay.to_topic or topic for topic, _ in counts.by_queue}
    targets: dict[str, Sequence[MessageQueue]] = {}
    missing = []
    for target in sorted(set(target_of.values()) | ({replay.to_topic} if replay.to_topic else set())):
        try:
            targets[target] = await sender.queues(target)
        except NoRouteError:
            missing.append(target)
    if missing:
        raise ClusterError(
            f"no topic {', '.join(missing)} at the name server {replay.namesrv}: create it, or give --to-topic"
        )
    return {topic: targets[target] for topic, target in target_of.items()}


class _SendPass:
    """One pass over the log that sends."""

    def __init__(
        self, replay: Replay, sender: BulkSender, targets: dict[str, Sequence[MessageQueue]], counts: Counts
    ) -> None:
        self._replay = replay
        self._sender = sender
        self._targets = targets
        self._sent = Counts(begin=counts.begin, end=counts.end)
        self._unfinished: deque[_Batch] = deque()
        self._acknowledged = counts.begin  # everything before it is stored
        progress = None if replay.checkpoint is None else replay.checkpoint.load()
        self._messages_before = 0 if progress is None else progress.messages  # of the runs before
        self._begin_s = self._saved_s = time.monotonic()

    async def run(self) -> Counts:
        replay, sent = self._replay, self._sent
        batches = read_chosen(replay.store, *read_plan(replay, sent, _columns(replay.choice)), replay.choice)
        try:
            # The next rows are decoded while those before them are on their way.
            while (rows := await asyncio.to_thread(next, batches, None)) is not None:
                await self._send(rows)
                self._save(_SAVE_EVERY_S)
            await self._sender.flush()
            self._acknowledged = sent.end
        finally:
            self._save(0.0)
        return sent

    async def _send(self, rows: pa.RecordBatch) -> None:
        sound = _filter_sound(rows, self._sent)
        step = max(1, (self._replay.rate or 0) // _PACES_PER_S) if self._replay.rate else max(1, sound.num_rows)
        for begin in range(0, sound.num_rows, step):
            part = sound.slice(begin, step)
            batch = _Batch(part["physical_offset"][part.num_rows - 1].as_py() + 1)
            self._unfinished.append(batch)
            encoded = await asyncio.to_thread(encode_rows, part, self._replay.origin, BATCH_BYTES)
            self._sent.refused += encoded.refused
            for piece in encoded.batches:
                await self._put(piece, batch)
            self._sent.messages += encoded.messages
            self._sent.bytes += encoded.record_bytes
            batch.is_whole = True
            self._advance()
            await self._pace()
            self._save(_SAVE_EVERY_S)  # here: with a rate, what was read at once takes long to send

    async def _put(self, piece: QueueBatch, batch: "_Batch") -> None:
        queues = self._targets[piece.topic]
        queue = queues[piece.queue_id % len(queues)]
        batch.unanswered += 1

        def done() -> None:
            batch.unanswered -= 1
            self._advance()

        await self._sender.put(queue, piece.data, piece.messages, sys_flag=piece.sys_flag, done=done)
        by_queue = self._sent.by_queue
        by_queue[piece.topic, piece.queue_id] = by_queue.get((piece.topic, piece.queue_id), 0) + piece.messages

    def _advance(self) -> None:
        """Advance the checkpoint over the leading answered batches: batches are answered in any order."""
        while self._unfinished and self._unfinished[0].is_whole and self._unfinished[0].unanswered == 0:
            self._acknowledged = self._unfinished.popleft().end

    async def _pace(self) -> None:
        if self._replay.rate is not None:
            due_s = self._begin_s + self._sent.messages / self._replay.rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _save(self, every_s: float) -> None:
        now = time.monotonic()
        if self._replay.checkpoint is not None and now - self._saved_s >= every_s:
            self._replay.checkpoint.save(self._acknowledged, self._messages_before + self._sender.messages)
            self._saved_s = now


@dataclass(slots=True)
class _Batch:
    """Rows that are sent together.

    Attributes:
        end: one past the physical offset of the last of them.
    """

    end: int
    unanswered: int = 0
    is_whole: bool = False


def _columns(choice: ReplaySelection) -> tuple[str, ...]:
    return (*COLUMNS, *(name for name in choice.columns() if name not in COLUMNS))


def read_plan(replay: Replay, bounds: Counts, columns: tuple[str, ...]) -> tuple[tuple[Task, ...], ReadOptions]:
    """Plan tasks, in log order, that read the wanted records between two physical offsets. Raises StoreError."""
    query = replay.choice.query
    query = replace(
        query,
        first_physical_offset=max(query.first_physical_offset, bounds.begin),
        end_physical_offset=min(query.end_physical_offset, bounds.end),
    )
    store = open_store(replay.store)
    return plan_read(store, query, logs=replay.logs).tasks, ReadOptions(columns, query, logs=replay.logs)


def read_chosen(
    store: str, tasks: Iterable[Task], options: ReadOptions, choice: ReplaySelection
) -> Iterator[pa.RecordBatch]:
    """Yield the chosen records of some tasks, in log order; a batch may be empty."""
    for task in tasks:
        yield from filter_rows(read_task(store, task, options), choice)


def _filter_sound(rows: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
    sound = rows.filter(pc.is_null(rows["record_error"]))
    counts.damaged += rows.num_rows - sound.num_rows
    return sound


def _log_end(replay: Replay) -> int:
    """Find the end of the log, or of the leftovers after the log if messages in no queue are replayed."""
    store = open_store(replay.store)
    is_unqueued = replay.choice.query.included is Include.UNQUEUED
    return frozen_end(store.storage, store.segments if is_unqueued else readable_segments(store))
