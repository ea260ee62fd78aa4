"""Slices of the event loop's time."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from rmq_core.broker import slices
from rmq_core.broker.slices import Slices


async def test_all_long_work_shares_one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)  # a slice is one item
    shared, steps, turns = Slices(), list[str](), list[int]()

    def work(name: str) -> Iterator[str]:
        for _ in range(5):
            steps.append(name)
            yield name

    both = [shared.collect(work("a")), shared.collect(work("b"))]
    while not all(one.done() for one in both):
        turns.append(len(steps))
        await asyncio.sleep(0)
    assert steps == ["a", "b"] * 5
    assert max(after - before for before, after in pairwise(turns)) == 1
    assert [(await one).items for one in both] == [["a"] * 5, ["b"] * 5]


async def test_items_that_are_waited_for_are_given_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
    shared = Slices()
    other = shared.collect(range(100))
    assert [one async for one in shared.each(range(50))] == list(range(50))
    assert not other.done()
    assert (await other).items == list(range(100))


async def test_what_an_iterator_raises_its_future_has_and_others_go_on() -> None:
    shared = Slices()
    failing, other = shared.collect(1 // one for one in (1, 0)), shared.collect("ab")
    with pytest.raises(ZeroDivisionError):
        await failing
    assert (await other).items == ["a", "b"]


async def test_what_nobody_waits_for_any_more_runs_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
    shared, items = Slices(), iter(range(100))
    cancelled, other = shared.collect(items), shared.collect("ab")
    cancelled.cancel()
    assert (await other).items == ["a", "b"]
    assert next(items) == 0
