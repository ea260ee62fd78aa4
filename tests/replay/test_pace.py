"""A rate of a replay holds, also after time in which nothing was sent."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_offline.replay import run
from rmq_offline.replay.run import Pace
from tests.replay.recording_sender import RecordingSender, run_replay
from tests.replay.small_stores import make_log, make_replay


def send_until(pace: Pace, now_s: float, end_s: float) -> int:
    """Send portions up to a time; return the number of messages."""
    messages = 0
    while now_s < end_s:
        messages += pace.portion
        now_s += pace.pause_s(pace.portion, now_s)
    return messages


@pytest.mark.parametrize("rate", [1, 7, 200, 5000])
def test_a_rate_holds_after_a_long_stall(rate: int) -> None:
    pace = Pace(rate, 100.0)
    assert send_until(pace, 100.0, 110.0) == pytest.approx(10 * rate, abs=pace.portion)
    assert send_until(pace, 500.0, 510.0) == pytest.approx(10 * rate, abs=2 * pace.portion)


def test_a_portion_that_was_late_is_made_up_for() -> None:
    pace = Pace(200, 0.0)
    assert pace.pause_s(20, 0.0) == pytest.approx(0.1)
    assert pace.pause_s(20, 0.15) == pytest.approx(0.05)
    assert pace.pause_s(20, 0.2) == pytest.approx(0.1)


class StalledSender(RecordingSender):
    """Sender whose broker stores nothing for a while."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self._waiting: list[Callable[[], None]] = []

    async def put(self, queue: MessageQueue, data: bytes, messages: int, **callbacks: Any) -> None:
        self._waiting.append(callbacks.pop("done"))
        await super().put(queue, data, messages, done=lambda: None, **callbacks)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            raise TimeoutError
        await asyncio.sleep(0)


def test_with_a_rate_two_portions_at_most_wait_for_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RecordingSender.use(monkeypatch)
    monkeypatch.setattr(run, "BulkSender", StalledSender)
    make_log(tmp_path / "store")
    with pytest.raises(TimeoutError):
        run_replay(make_replay(tmp_path / "store", "--rate", "200"))
    assert 20 < sum(messages for _, _, messages, _ in RecordingSender.puts) <= 40
