"""Slices of the work: where they pause, end and fail."""

import asyncio
from collections import Counter

import pytest

from rmq_core.broker.timer import service
from rmq_core.broker.timer.service import Timers
from tests.broker.conftest import Asker, Clock, messages
from tests.broker.timer.test_delivery import SECOND_MS, pulled, taken_in

COUNT = 20


def timers_of(asker: Asker) -> Timers:
    """Those of a broker."""
    timers = asker.broker._timer_service
    assert timers is not None
    return timers


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
    asker.broker._stop_periodic_work()
    monkeypatch.setattr(service, "_SLICE_S", -1.0)  # a slice is one step
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


async def delivered_some(asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: Exception | None) -> None:
    """Have the store take nothing any more after half of an interval, or fail there once."""
    await sent(asker)
    deliver, count = Timers._deliver, 0

    def limited(self: Timers, physical_offset: int, write_time_ms: int, rolls: bool, recalled: Counter[str]) -> bool:
        nonlocal count
        count += 1
        if count == COUNT // 2 and fault is not None:
            raise fault
        return (fault is not None or count < COUNT // 2) and deliver(
            self, physical_offset, write_time_ms, rolls, recalled
        )

    monkeypatch.setattr(Timers, "_deliver", limited)
    clock.ahead_ms += 700 * SECOND_MS


async def test_a_stop_within_an_interval_repeats_nothing(
    asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await delivered_some(asker, clock, patch, None)
        timers_of(asker).run()
        asker.broker.store.dispatch()
        await pulled(asker, "T", COUNT // 2 - 1)
        await asker.broker.close()
    await asker.broker.start()
    await came_once(asker, clock)


async def test_an_error_within_an_interval_repeats_nothing(
    asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await delivered_some(asker, clock, patch, ValueError("once"))
        await came_once(asker, clock)


async def came_once(asker: Asker, clock: Clock) -> None:
    """All are there, and still so when another one has come that was due later."""
    await pulled(asker, "T", COUNT)
    await asker.send("Mark", properties={"TIMER_DELAY_SEC": "60"})
    clock.ahead_ms += 100 * SECOND_MS
    await pulled(asker, "Mark")
    found = [int(one.body) for one in messages(await asker.pull("T"))]
    assert found == list(range(COUNT))
