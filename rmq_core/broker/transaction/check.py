"""Transaction checks: asks the producers of half messages that are not ended, and gives up after some times.

A round goes over the queue of half messages from where the last one ended. A message that its producer is asked
about is stored again at the end of the queue, so that the next round begins behind its old place.

Source: ``TransactionalMessageServiceImpl#check``, ``DefaultTransactionalMessageCheckListener``.
"""

import asyncio
import logging
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.timer.stored_messages import stored_messages
from rmq_core.broker.transaction.check_back import ask_producer
from rmq_core.broker.transaction.half import (
    CHECK_TIMES,
    HALF_QUEUE,
    IMMUNITY_SECONDS,
    PREPARED_QUEUE_OFFSET,
    put_half_again,
)
from rmq_core.broker.transaction.op_queue import Ended, half_offsets
from rmq_core.broker.transaction.op_writer import OP_TAG, OpNotes
from rmq_core.store.results import GetStatus, PutResult, PutStatus
from rmq_formats.codecs.record import StoredMessage

log = logging.getLogger("rmq.broker.transactions")
GROUP: Final = "CID_RMQ_SYS_TRANS"
_MOST_ROUND_MS: Final = 60_000
_NOTES_AT_ONCE: Final = 32
_ENDED_AT_ONCE: Final = 8192  # ended half messages passed before the event loop runs again: some milliseconds
_OPEN_AT_ONCE: Final = 64  # likewise half messages that have to be read
_HOUR_MS: Final = 3_600_000


class TransactionChecks:
    """Checks half messages periodically."""

    def __init__(self, state: BrokerState, notes: OpNotes) -> None:
        self._state = state
        self._notes = notes
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the checks, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the checks, in the middle of a round perhaps: the next one continues there."""
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
        this = _Round(state, self._notes, first, first_op)
        try:
            await this.go()
        finally:  # after an error, too: what was stored again must not be stored once more
            if this.at != first:
                state.offsets.commit(names.HALF_TOPIC, GROUP, HALF_QUEUE, this.at)
            if this.ended.done_op_offset != first_op:
                state.offsets.commit(names.OP_HALF_TOPIC, GROUP, HALF_QUEUE, this.ended.done_op_offset)
            state.dispatch()

    def _offset(self, topic: str) -> int:
        offset = self._state.offsets.get(topic, GROUP, HALF_QUEUE)
        return self._state.store.min_offset(topic, HALF_QUEUE) if offset == NONE else offset


class _Round:
    """One round over the half messages.

    Attributes:
        at: queue offset of the next half message.
        ended: half messages that are known to be ended.
    """

    def __init__(self, state: BrokerState, notes: OpNotes, first: int, first_op: int) -> None:
        self.at = first
        self.ended = Ended(first_op, first)
        self._state = state
        self._notes = notes
        self._begin_ms = state.steady_ms()
        self._end = state.store.next_offset(names.HALF_TOPIC, HALF_QUEUE)  # what is stored from now on is of the next
        self._has_gap = False

    async def go(self) -> None:
        """Check one half message after the other."""
        while self._read_notes():
            await asyncio.sleep(0)
        work = 0
        is_going = True
        while is_going and self._state.steady_ms() - self._begin_ms <= _MOST_ROUND_MS:
            if self.ended.take(self.at):
                work += 1
            else:
                is_going = self._look()
                work += _ENDED_AT_ONCE // _OPEN_AT_ONCE
            self.at += is_going
            if work >= _ENDED_AT_ONCE:
                work = 0
                await asyncio.sleep(0)

    def _read_notes(self) -> bool:
        """Read the next op messages; False if there are none."""
        found = self._state.store.get(names.OP_HALF_TOPIC, HALF_QUEUE, self.ended.next_op_offset, _NOTES_AT_ONCE)
        if found.status is not GetStatus.FOUND:
            moved = found.next_offset != self.ended.next_op_offset  # old files are gone, or the log's end was lost
            self.ended.next_op_offset = found.next_offset
            return moved
        for note in stored_messages(found.slices):
            self.ended.add(note.queue_offset, half_offsets(note.body) if note.tags == OP_TAG else ())
        self.ended.next_op_offset = found.next_offset
        return True

    def _look(self) -> bool:
        """Check a half message that no op message read so far ends; False ends the round."""
        store = self._state.store
        if self._notes.has(self.at):
            return True
        while self._read_notes():  # op messages written meanwhile
            pass
        if self.ended.take(self.at):
            return True
        found = store.get(names.HALF_TOPIC, HALF_QUEUE, self.at, 1)
        if found.status is not GetStatus.FOUND:
            if found.next_offset == self.at or self._has_gap:
                return False
            log.warning(
                "half messages skip from queue offset %(at)d to %(next)d: %(why)s",
                {"next": found.next_offset, "at": self.at, "why": found.status.value},
            )
            self._has_gap = True
            self.at = found.next_offset - 1
            return True
        half = next(stored_messages(found.slices), None)
        return half is None or self._judge(half)

    def _judge(self, half: StoredMessage) -> bool:
        """Ask about a half message that is not ended, leave it alone or give it up; False ends the round."""
        state, config, properties = self._state, self._state.config, half.properties
        age_ms = state.clock_ms.age_ms(half.born_timestamp_ms, half.physical_offset)
        times = _number(properties.get(CHECK_TIMES, "0"))
        if times >= config.transaction_check_max or age_ms > state.store.config.file_reserved_hours * _HOUR_MS:
            return self._give_up(half, properties)
        if half.queue_offset >= self._end:
            return False
        properties[CHECK_TIMES] = str(times + 1)
        seconds = properties.get(IMMUNITY_SECONDS)
        if seconds is None:
            if 0 <= age_ms < config.transaction_timeout_ms:
                return False
        else:
            given = _number(seconds)
            if 0 <= age_ms < (config.transaction_timeout_ms if given < 0 else given * 1000):
                return self._leave_alone(half, properties)
        result = put_half_again(state, half, properties)
        if result.status.is_hopeless:
            _tell(half, result)
            result = PutResult(
                PutStatus.PUT_OK, half.physical_offset, half.size, half.queue_offset,
                store_host=half.store_host.to_bytes(),
            )  # fmt: skip
        if result.status is not PutStatus.PUT_OK:
            return False
        ask_producer(state, half, properties, result)
        return True

    def _leave_alone(self, half: StoredMessage, properties: dict[str, str]) -> bool:
        """Store a message again whose own check time has not come: ``checkPrepareQueueOffset``."""
        prepared = _number(properties.setdefault(PREPARED_QUEUE_OFFSET, str(half.queue_offset)))
        if self.ended.take(prepared) or self._notes.has(prepared):
            return True
        return _is_done(half, put_half_again(self._state, half, properties))

    def _give_up(self, half: StoredMessage, properties: dict[str, str]) -> bool:
        """Move a message to another topic that was checked too often, or is too old: ``resolveDiscardMsg``."""
        state = self._state
        state.topics.make(names.CHECK_MAX_TIME_TOPIC, 1)
        result = put_half_again(state, half, properties, names.CHECK_MAX_TIME_TOPIC)
        if result.status is not PutStatus.PUT_OK:
            return _is_done(half, result)
        log.warning(
            "a half message at %(physical_offset)d is given up; it is in %(topic)s at %(queue_offset)d",
            {
                "physical_offset": half.physical_offset, "topic": names.CHECK_MAX_TIME_TOPIC,
                "queue_offset": result.queue_offset,
            },
        )  # fmt: skip
        return True


def _is_done(half: StoredMessage, result: PutResult) -> bool:
    """Whether a half message is stored again, or never will be, so that the round can go on behind it."""
    if result.status.is_hopeless:
        _tell(half, result)
    return result.status is PutStatus.PUT_OK or result.status.is_hopeless


def _tell(half: StoredMessage, result: PutResult) -> None:
    log.error(
        "a half message at %(physical_offset)d cannot be stored anew, and stays where it is: %(why)s",
        {"physical_offset": half.physical_offset, "why": result.status.value},
    )


def _number(text: str) -> int:
    """Parse a number; -1 if it is none."""
    return int(text) if text.isdecimal() and len(text) < 19 else -1
