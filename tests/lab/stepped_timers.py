"""A broker's timers on a stepped store: each call is a step of their work; of a broker they know no other part."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import cast

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.stats import Stats
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.broker.timer.service import Timers
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.topics import TIMER_TOPIC
from tests.lab.judged_store import Records
from tests.lab.rounds import Round
from tests.store.small_stores import HOST, NOW_MS, NoThreads

_CONFIG = BrokerConfig(timer_log_file_bytes=520, timer_precision_ms=1000, timer_roll_window_slots=8)
_TOPIC = "Timed"
_LONGEST_MS = 20_000  # beyond the roll window: some are stored again on the way
_FAR_MS = 3_600_000
_STEPS_OF_ALL = 100_000
_IDLE_STEPS = 4  # in succession: a round ends with one, and what was behind is taken in by the next round


class SteppedTimers:
    """Timers, and the messages that they were given.

    Attributes:
        now_ms: the time.
    """

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self._loop = asyncio.new_event_loop()
        self._count = 0
        self._timers: Timers
        self._store: MessageStore

    def open(self, store: MessageStore) -> None:
        """Open the timer files of a store, and go on with them."""
        files = TableFiles(store.config.root, store.disk, NoThreads())
        state = SimpleNamespace(
            config=_CONFIG,
            store=store,
            clock_ms=lambda: self.now_ms,
            files=files,
            stats=Stats(lambda: self.now_ms),
            topics=SimpleNamespace(table={_TOPIC: None}),
            dispatch=store.dispatch,
        )
        self._store, self._timers = store, Timers(cast(BrokerState, state))

    def put(self, dice: random.Random) -> PutResult:
        """Have a message wait."""
        due_ms = (self.now_ms + dice.randrange(500, _LONGEST_MS)) // 1000 * 1000
        body = b"%d %d" % (self._count, due_ms)
        self._count += 1
        properties = {
            "TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": _TOPIC, "REAL_QID": "0", "UNIQ_KEY": f"{self._count:032X}",
        }  # fmt: skip
        return self._store.appender.put(
            TIMER_TOPIC, 0, body, encode_properties(properties), self.now_ms, HOST, self.now_ms
        )

    def step(self) -> bool:
        """Do one step of their work; whether there is more to do now."""

        async def one() -> bool:
            return self._timers._step_until(float("-inf"))

        return self._loop.run_until_complete(one())

    def save(self) -> None:
        """Write a checkpoint, if one is due."""
        self._timers.save()

    def close(self) -> None:
        """Stop in order; the store is open still."""
        self._timers.close()

    def abandon(self) -> None:
        """Let go of their files, as a process that was killed does."""
        self._timers.files.close()

    def end(self) -> None:
        """Let go of the loop."""
        self._loop.close()

    def deliver_all(self, one: Round) -> None:
        """Let all messages become due, and be delivered."""
        self.now_ms += _FAR_MS
        idle = 0
        for _ in range(_STEPS_OF_ALL):
            idle = 0 if self.step() else idle + 1
            if idle == _IDLE_STEPS:
                return
        one.demand(False, "timers have no end of work")


def judge_timers(one: Round, records: Records, now_ms: int, *, all_due: bool) -> None:
    """Each timer message is delivered not before its time, not twice, and in the end once."""
    waiting: set[bytes] = set()
    delivered: Counter[bytes] = Counter()
    for _, record in records:
        message = decode_record(record)
        if message.topic == TIMER_TOPIC:
            waiting.add(message.body)
        elif message.topic == _TOPIC:
            delivered[message.body] += 1
            one.demand(int(message.body.split()[1]) <= now_ms, f"{message.body!r} is delivered at {now_ms} already")
    twice = [body for body, times in delivered.items() if times > 1]
    one.demand(not twice, f"delivered more than once: {twice}")
    # A delivery that was forced as little as its message may survive a loss of power that took the message.
    one.demand(not all_due or waiting <= delivered.keys(), f"never delivered: {waiting - delivered.keys()}")
