"""Replay in two passes over the CommitLog: the first counts, the second sends.

Messages go through one process in the log's order, since each queue must stay in order. A queue has one request in
flight, and all queues have theirs at once. The checkpoint is the offset up to which all messages are acknowledged.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_core.client.bulk.send import BulkSender, RefusedMessage
from rmq_core.client.errors import NoRouteError
from rmq_core.client.options import ClientOptions
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_formats.arrow.sql_filter import distinct_rows
from rmq_formats.codecs.layout import FLAG_INNER_BATCH
from rmq_formats.errors import ClusterError, StoreLayoutError
from rmq_formats.storage.queue_logs import LogKind
from rmq_offline.replay.batch_messages import COLUMNS, ORIGIN, QueueBatch, encode_rows
from rmq_offline.replay.source import Counts, MissingRanges, Replay, open_log, plan_replay

_log = logging.getLogger("rmq_offline")

BATCH_BYTES: Final = 256 << 10  # some hundred messages a request; a batch has to fit into one file of the log
_GROUP: Final = "RMQ_REPLAY"
_LOGGED_REFUSALS: Final = 100  # the report counts the others
_LOGGED_IDS: Final = 100  # that no message has; likewise
_SAVE_EVERY_S: Final = 1.0
_PORTIONS_PER_S: Final = 10
_PORTIONS_IN_FLIGHT: Final = 2  # with a rate: those that wait for a broker are sent at once when it is back


def count(replay: Replay) -> Counts:
    """Count the messages to send, up to the present end of the log. Raises StoreError, also for inner batches."""
    counts = _begin_counts(replay)
    found_ids: set[str] = set()
    columns = ("topic", "queue_id", "physical_offset", "size", "sys_flag", "record_error", *replay.choice.columns())
    for rows in plan_replay(replay, counts, columns).rows(counts.missing):
        sound = _filter_sound(rows, counts)
        _refuse_inner_batches(replay, sound)
        if replay.choice.ids is not None:
            found_ids.update(sound["msg_id"].to_pylist(), sound["uniq_key"].to_pylist())
        firsts, groups = distinct_rows([sound["topic"], sound["queue_id"]], sound.num_rows)
        for row, messages in zip(firsts.tolist(), np.bincount(groups).tolist(), strict=True):
            queue = sound["topic"][row].as_py(), sound["queue_id"][row].as_py()
            counts.by_queue[queue] = counts.by_queue.get(queue, 0) + messages
        counts.messages += sound.num_rows
        counts.bytes += pc.sum(sound["size"]).as_py() or 0
    if replay.checkpoint is None or replay.checkpoint.load() is None:
        ids = sorted(replay.choice.ids or ())
        counts.unknown_ids = tuple(text for text in ids if found_ids.isdisjoint({text, text.upper()}))
    for unknown_id in counts.unknown_ids[:_LOGGED_IDS]:
        _log.warning("%s: no chosen message has the id or the unique key %s", replay.store, unknown_id)
    return counts


def _refuse_inner_batches(replay: Replay, rows: pa.RecordBatch) -> None:
    """Refuse an inner batch, which would be sent as one message with the batch for a body. Raises StoreLayoutError."""
    is_batch = (np.asarray(rows["sys_flag"]) & FLAG_INNER_BATCH) != 0
    if is_batch.any():
        row = int(np.flatnonzero(is_batch)[0])
        raise StoreLayoutError(
            f"{replay.store}: topic {rows['topic'][row]} has an inner batch at {rows['physical_offset'][row]}, "
            "which rmq does not split; choose other topics with --topics"
        )


def _begin_counts(replay: Replay) -> Counts:
    log = open_log(replay)
    # What had expired before the first run is not missing.
    first = log.segments[0].start_offset if log.segments else log.end
    begin = max(first, min(replay.choice.query.first_physical_offset, log.end))
    if replay.logs.kind is not LogKind.COMMITLOG:
        begin = 0
    elif replay.checkpoint is not None and (progress := replay.checkpoint.load()) is not None:
        log.check(progress, str(replay.checkpoint.path))
        begin = progress.next_physical_offset
    missing = MissingRanges(replay.store, fails=replay.fail_on_data_loss)
    return Counts(missing, begin=begin, end=max(begin, log.end))


async def send(replay: Replay, counts: Counts) -> Counts:
    """Send the messages that were counted; return the counts of the messages that the target has stored.

    Raises:
        ClusterError: a missing topic; nothing is sent then.
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
        self._sent = Counts(counts.missing, begin=counts.begin, end=counts.end)
        self._unfinished: deque[_Batch] = deque()
        self._acknowledged = counts.begin  # everything before it is stored
        progress = None if replay.checkpoint is None else replay.checkpoint.load()
        self._messages_before = 0 if progress is None else progress.messages  # of the runs before
        self._fingerprint = None if progress is None else progress.fingerprint
        self._log = open_log(replay)
        self._saved_s = time.monotonic()
        self._pace = None if replay.rate is None else Pace(replay.rate, self._saved_s)

    async def run(self) -> Counts:
        sent = self._sent
        columns = tuple(dict.fromkeys([*COLUMNS, *self._replay.choice.columns()]))
        batches = plan_replay(self._replay, sent, columns).rows(sent.missing)
        self._save(0.0)  # a directory that cannot be written is an error before the first send
        try:
            # The next rows are decoded while those before them are on their way.
            while (rows := await asyncio.to_thread(next, batches, None)) is not None:
                await self._send(rows)
                self._save(_SAVE_EVERY_S)
            await self._sender.flush()
            self._acknowledged = sent.end
            sent.by_queue = {queue: messages for queue, messages in sent.by_queue.items() if messages}
        finally:
            self._save(0.0)
        return sent

    async def _send(self, rows: pa.RecordBatch) -> None:
        sound = _filter_sound(rows, self._sent)
        step = max(1, sound.num_rows) if self._pace is None else self._pace.portion
        for begin in range(0, sound.num_rows, step):
            part = sound.slice(begin, step)
            last = part.slice(part.num_rows - 1).select(["physical_offset", "size"]).to_pylist()[0]
            if self._pace is not None:
                most = max(0, _PORTIONS_IN_FLIGHT * self._pace.portion - part.num_rows)
                await self._sender.wait_until(partial(self._has_few_unfinished, most))
            batch = _Batch(last["physical_offset"] + last["size"], part.num_rows)
            self._unfinished.append(batch)
            encoded = await asyncio.to_thread(encode_rows, part, self._replay.origin, BATCH_BYTES)
            self._sent.refused += encoded.refused
            for piece in encoded.batches:
                await self._put(piece, batch)
            self._sent.messages += encoded.messages
            self._sent.bytes += encoded.record_bytes
            batch.is_whole = True
            self._advance()
            if self._pace is not None:
                await asyncio.sleep(self._pace.pause_s(encoded.messages, time.monotonic()))
            self._save(_SAVE_EVERY_S)  # here: with a rate, what was read at once takes long to send

    def _has_few_unfinished(self, most: int) -> bool:
        return sum(batch.messages for batch in self._unfinished) <= most

    async def _put(self, piece: QueueBatch, batch: "_Batch") -> None:
        queues = self._targets[piece.topic]
        queue = queues[piece.queue_id % len(queues)]
        batch.unanswered += 1

        def done() -> None:
            batch.unanswered -= 1
            self._advance()

        def refused(message: RefusedMessage) -> None:
            self._sent.refused += 1
            self._sent.messages -= 1
            self._sent.by_queue[piece.topic, piece.queue_id] -= 1
            if self._sent.refused <= _LOGGED_REFUSALS:
                origin, remark = message.properties.get(ORIGIN), message.error.remark
                _log.warning("%s, %s/%d: refused by the broker: %s", origin, piece.topic, piece.queue_id, remark)

        by_queue = self._sent.by_queue
        by_queue[piece.topic, piece.queue_id] = by_queue.get((piece.topic, piece.queue_id), 0) + piece.messages
        await self._sender.put(queue, piece.data, piece.messages, sys_flag=piece.sys_flag, done=done, refused=refused)

    def _advance(self) -> None:
        """Advance the checkpoint over the leading answered batches: batches are answered in any order."""
        while self._unfinished and self._unfinished[0].is_whole and self._unfinished[0].unanswered == 0:
            self._acknowledged = self._unfinished.popleft().end

    def _save(self, every_s: float) -> None:
        now = time.monotonic()
        if self._replay.checkpoint is not None and now - self._saved_s >= every_s:
            self._fingerprint = self._log.fingerprint(self._acknowledged) or self._fingerprint
            messages = self._messages_before + self._sender.messages
            self._replay.checkpoint.save(self._acknowledged, messages, self._fingerprint)
            self._saved_s = now


@dataclass(slots=True)
class _Batch:
    """Rows that are sent together.

    Attributes:
        end: physical offset after the last row: a record that a cut log gets there later is still to be read.
    """

    end: int
    messages: int
    unanswered: int = 0
    is_whole: bool = False


def _filter_sound(rows: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
    sound = rows.filter(pc.is_null(rows["record_error"]))
    counts.damaged += rows.num_rows - sound.num_rows
    return sound


class Pace:
    """Pauses between portions of messages, for a rate of messages a second.

    Time that passes without sends, as in a long scan or while a broker restarts, gives credit for a single portion.
    """

    def __init__(self, rate: int, now_s: float) -> None:
        self.portion = max(1, rate // _PORTIONS_PER_S)
        self._rate = rate
        self._due_s = now_s

    def pause_s(self, messages: int, now_s: float) -> float:
        """Return the seconds to wait after some messages that were sent now."""
        self._due_s = max(self._due_s, now_s - self.portion / self._rate) + messages / self._rate
        return max(0.0, self._due_s - now_s)
