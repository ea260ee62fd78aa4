"""Slices of the work: where they pause, end and fail."""

import asyncio

import pytest

from rmq_core.broker import timers
from rmq_core.broker.timers import Timers
from tests.broker.conftest import Asker, Clock
from tests.timers.test_delivery import SECOND_MS, taken_in

COUNT = 20


def timers_of(asker: Asker) -> Timers:
    """Those of a broker."""
    found = asker.broker._timed
    assert found is not None
    return found


async def sent(asker: Asker) -> None:
    """Send messages that are all due in one interval, none of them yet."""
    for number in range(COUNT):
        properties = {"TIMER_DELAY_SEC": "600", "UNIQ_KEY": f"U{number}"}
        await asker.send("T", str(number).encode(), properties=properties)
    await taken_in(asker, COUNT)


async def test_slices_do_not_multiply_and_end_with_the_broker(
    asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent(asker)
    work, slices = timers_of(asker), 0
    asker.broker._stop_clocks()
    monkeypatch.setattr(timers, "_SLICE_S", -1.0)  # a slice is one step
    step = Timers._step_until

    def counted(self: Timers, deadline_s: float) -> bool:
        nonlocal slices
        slices += 1
        return step(self, deadline_s)

    monkeypatch.setattr(Timers, "_step_until", counted)
    clock.ahead_ms += 700 * SECOND_MS
    for _ in range(3):
        work.run()  # as the clock does while a slice waits for its turn
    slices = 0
    await asyncio.sleep(0)
    assert slices == 1
    work.close()
    work.run()
    await asyncio.sleep(0)
    assert slices == 1
