"""Transaction checks: producers report the outcome of open half messages, a limited number of times.

A round reads the queue of half messages from the end of the last round on. A checked half message is stored again at
the end of the queue, so that the next round begins after its old offset.

Source: ``TransactionalMessageServiceImpl#check``, ``DefaultTransactionalMessageCheckListener``,
``AbstractTransactionalMessageCheckListener#sendCheckMessage``, ``ProducerManager#getAvailableChannel``.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Final

from rmq_core.broker.access.guard import publish_permission
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.clients import Peer
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.timer.records import stored_messages
from rmq_core.broker.transaction.half import (
    CHECK_TIMES,
    HALF_QUEUE,
    OP_TAG,
    PREPARED_QUEUE_OFFSET,
    OpMessageWriter,
    put_half_again,
    real_queue,
)
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import CheckTransaction
from rmq_core.store.results import GetStatus, PutResult, PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.properties import encode_properties, parse_decimal
from rmq_formats.codecs.record import MessageToStore, StoredMessage, encode_record

log = logging.getLogger("rmq.broker.transactions")
GROUP: Final = "CID_RMQ_SYS_TRANS"
_MAX_ROUND_MS: Final = 60_000
_MAX_OP_MESSAGES_PER_READ: Final = 32
_ENDED_AT_ONCE: Final = 8192  # ended half messages passed before the event loop runs again: some milliseconds
_OPEN_AT_ONCE: Final = 64  # likewise half messages that have to be read
_HOUR_MS: Final = 3_600_000


class TransactionChecks:
    """Periodic checks of half messages."""

    def __init__(self, state: BrokerState, op_messages: OpMessageWriter) -> None:
        self._state = state
        self._op_messages = op_messages
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the checks, maybe within a round, which the next start continues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._state.config.transaction_check_interval_ms / 1000)
            try:
                await self.check()
            except Exception:
                log.exception("a check of half messages failed")

    async def check(self) -> None:
        """Run one round over the half messages."""
        state = self._state
        first, first_op = self._offset(names.HALF_TOPIC), self._offset(names.OP_HALF_TOPIC)
        check_round = _Round(state, self._op_messages, first, first_op)
        try:
            await check_round.run()
        finally:  # after an error, too: no half message may be stored again twice
            if check_round.at != first:
                state.offsets.commit(names.HALF_TOPIC, GROUP, HALF_QUEUE, check_round.at)
            if check_round.ended.done_op_offset != first_op:
                state.offsets.commit(names.OP_HALF_TOPIC, GROUP, HALF_QUEUE, check_round.ended.done_op_offset)
            state.dispatch()

    def _offset(self, topic: str) -> int:
        offset = self._state.offsets.get(topic, GROUP, HALF_QUEUE)
        return self._state.store.min_offset(topic, HALF_QUEUE) if offset == NONE else offset


class _Round:
    """One round over the half messages; ``at`` is the queue offset of the next one."""

    def __init__(self, state: BrokerState, op_messages: OpMessageWriter, first: int, first_op: int) -> None:
        self.at = first
        self.ended = EndedHalfMessages(first_op, first)
        self._state = state
        self._op_messages = op_messages
        self._begin_ms = state.steady_ms()
        self._end = state.store.next_offset(names.HALF_TOPIC, HALF_QUEUE)  # later messages belong to the next round
        self._has_gap = False

    async def run(self) -> None:
        while self._read_op_messages():
            await asyncio.sleep(0)
        work = 0
        has_more = True
        while has_more and self._state.steady_ms() - self._begin_ms <= _MAX_ROUND_MS:
            if self.ended.remove(self.at):
                work += 1
            else:
                has_more = self._check_next()
                work += _ENDED_AT_ONCE // _OPEN_AT_ONCE
            self.at += has_more
            if work >= _ENDED_AT_ONCE:
                work = 0
                await asyncio.sleep(0)

    def _read_op_messages(self) -> bool:
        """Read the next op messages; return False if there are none."""
        offset = self.ended.next_op_offset
        result = self._state.store.get(names.OP_HALF_TOPIC, HALF_QUEUE, offset, _MAX_OP_MESSAGES_PER_READ)
        if result.status is not GetStatus.FOUND:
            # True after old files were deleted, or the log's end was lost.
            self.ended.next_op_offset = result.next_offset
            return result.next_offset != offset
        for op_message in stored_messages(result.slices):
            self.ended.add(op_message.queue_offset, half_offsets(op_message.body) if op_message.tags == OP_TAG else ())
        self.ended.next_op_offset = result.next_offset
        return True

    def _check_next(self) -> bool:
        """Check a half message that no op message ends so far; return False to end the round."""
        store = self._state.store
        if self._op_messages.has(self.at):
            return True
        while self._read_op_messages():  # op messages written meanwhile
            pass
        if self.ended.remove(self.at):
            return True
        result = store.get(names.HALF_TOPIC, HALF_QUEUE, self.at, 1)
        if result.status is not GetStatus.FOUND:
            if result.next_offset == self.at or self._has_gap:
                return False
            log.warning(
                "half messages skip from queue offset %(at)d to %(next)d: %(why)s",
                {"next": result.next_offset, "at": self.at, "why": result.status.value},
            )
            self._has_gap = True
            self.at = result.next_offset - 1
            return True
        half = next(stored_messages(result.slices), None)
        return half is None or self._check_half(half)

    def _check_half(self, half: StoredMessage) -> bool:
        """Check, postpone or discard an open half message; return False to end the round."""
        state, config, properties = self._state, self._state.config, half.properties
        age_ms = state.clock_ms.age_ms(half.born_timestamp_ms, half.physical_offset)
        times = parse_decimal(properties.get(CHECK_TIMES, "0"), -1)
        if times >= config.transaction_check_max or age_ms > state.store.config.file_reserved_hours * _HOUR_MS:
            return self._discard(half, properties)
        if half.queue_offset >= self._end:
            return False
        properties[CHECK_TIMES] = str(times + 1)
        seconds = properties.get(layout.PROPERTY_CHECK_IMMUNITY_SECONDS)
        if seconds is None:
            if 0 <= age_ms < config.transaction_timeout_ms:
                return False
        else:
            immunity_s = parse_decimal(seconds, -1)
            if 0 <= age_ms < (config.transaction_timeout_ms if immunity_s < 0 else immunity_s * 1000):
                return self._postpone(half, properties)
        result = put_half_again(state, half, properties)
        if result.status.is_permanent:
            _log_failed_put(half, result)
            host = half.store_host.to_bytes()
            result = PutResult(PutStatus.PUT_OK, half.physical_offset, half.size, half.queue_offset, store_host=host)
        if result.status is not PutStatus.PUT_OK:
            return False
        send_check(state, half, properties, result)
        return True

    def _postpone(self, half: StoredMessage, properties: dict[str, str]) -> bool:
        """Store a half message again whose own check time has not come: ``checkPrepareQueueOffset``."""
        prepared = parse_decimal(properties.setdefault(PREPARED_QUEUE_OFFSET, str(half.queue_offset)), -1)
        if self.ended.remove(prepared) or self._op_messages.has(prepared):
            return True
        return _is_done(half, put_half_again(self._state, half, properties))

    def _discard(self, half: StoredMessage, properties: dict[str, str]) -> bool:
        """Move an old or often checked half message to another topic: ``resolveDiscardMsg``."""
        state = self._state
        state.topics.get_or_create(names.CHECK_MAX_TIME_TOPIC, 1)
        result = put_half_again(state, half, properties, names.CHECK_MAX_TIME_TOPIC)
        if result.status is not PutStatus.PUT_OK:
            return _is_done(half, result)
        log.warning(
            "a half message at %(physical_offset)d is given up; it is in %(topic)s at %(queue_offset)d",
            {
                "physical_offset": half.physical_offset,
                "topic": names.CHECK_MAX_TIME_TOPIC,
                "queue_offset": result.queue_offset,
            },
        )
        return True


def _is_done(half: StoredMessage, result: PutResult) -> bool:
    """Return whether a half message is stored again or never can be, so that the round may continue."""
    if result.status.is_permanent:
        _log_failed_put(half, result)
    return result.status is PutStatus.PUT_OK or result.status.is_permanent


def _log_failed_put(half: StoredMessage, result: PutResult) -> None:
    log.error(
        "a half message at %(physical_offset)d cannot be stored anew, and stays where it is: %(why)s",
        {"physical_offset": half.physical_offset, "why": result.status.value},
    )


class EndedHalfMessages:
    """Ended half messages that a round has not passed yet, with their op messages. Source: ``fillOpRemoveMap``."""

    def __init__(self, op_offset: int, half_offset: int) -> None:
        """Begin with no op messages, at the offsets of the first op message and the first open half message."""
        self.next_op_offset = op_offset
        self._half_offset = half_offset
        self._op_of: dict[int, int] = {}
        self._open: dict[int, int] = {}  # number of half messages ahead, by op message

    def add(self, op_offset: int, offsets: Iterable[int]) -> None:
        self.next_op_offset = op_offset + 1
        for offset in offsets:
            self.remove(offset)
            self._op_of[offset] = op_offset
            if offset >= self._half_offset:
                self._open[op_offset] = self._open.get(op_offset, 0) + 1

    def remove(self, offset: int) -> bool:
        """Remove a half message and return True, if it is ended."""
        op_offset = self._op_of.pop(offset, None)
        if op_offset is None:
            return False
        if offset >= self._half_offset:
            self._open[op_offset] -= 1
            if not self._open[op_offset]:
                del self._open[op_offset]
        return True

    @property
    def done_op_offset(self) -> int:
        """Queue offset of the first op message to be read again."""
        return min(self._open, default=self.next_op_offset)


def half_offsets(body: bytes) -> list[int]:
    """Return the queue offsets in an op message's body; other text is ignored, as in the original."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 20]


def send_check(state: BrokerState, half: StoredMessage, properties: dict[str, str], put_result: PutResult) -> None:
    """Send the check of a half message to one permitted, connected member of its producer group, if there is one.

    ``properties`` and ``put_result`` are those of the new copy; the old properties are sent if these are too long.
    """
    queue, group = real_queue(properties), properties.get(layout.PROPERTY_PRODUCER_GROUP, "")
    if queue is None:
        return
    topic, queue_id = queue
    connection = _pick_member(state, group, topic)
    if connection is None:
        log.info("no member of %(group)s can be asked about a half message", {"group": group})
        return
    encoded = encode_properties(properties)
    if len(encoded) > layout.MAX_PROPERTIES_BYTES:
        encoded = half.properties_bytes
    message = MessageToStore(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties_bytes=encoded,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=half.born_host,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
    )
    fields = CheckTransaction(
        topic=half.topic,
        tran_state_table_offset=put_result.queue_offset,
        commit_log_offset=put_result.physical_offset,
        msg_id=properties.get(layout.PROPERTY_UNIQ_KEY),
        transaction_id=properties.get(layout.PROPERTY_UNIQ_KEY),
        offset_msg_id=put_result.msg_id,
    )
    body = encode_record(
        message,
        queue_offset=put_result.queue_offset,
        physical_offset=put_result.physical_offset,
        store_timestamp_ms=half.store_timestamp_ms,
        max_body_bytes=len(half.body),
    )
    command = request(RequestCode.CHECK_TRANSACTION_STATE, write_fields(fields), body)
    command.ext_fields["bname"] = state.config.broker_name
    connection.send_oneway(command)


def _pick_member(state: BrokerState, group: str, topic: str) -> Peer | None:
    members = [client for client in state.producers.groups.get(group, {}).values() if client.connection.is_ready]
    random.shuffle(members)
    client = state.rights.first_permitted(members, (publish_permission(topic),))
    return None if client is None else client.connection
