"""What a replay sends, and what its target refuses."""

import logging
from pathlib import Path

import pytest

from tests.replay.recording_sender import RecordingSender, run_replay
from tests.replay.small_stores import make_replay, orders_message
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import FILE_BYTES


def test_messages_that_the_target_refuses_are_counted_and_their_offsets_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    RecordingSender.use(monkeypatch)
    bodies = [b"illegal" if number in (5, 6) else b"legal" for number in range(20)]
    messages = [orders_message(number, body) for number, body in enumerate(bodies)]
    offsets = write_commitlog(tmp_path / "store", messages, FILE_BYTES)
    replay = make_replay(tmp_path / "store", "--checkpoint", str(tmp_path / "checkpoint"))
    with caplog.at_level(logging.WARNING):
        sent = run_replay(replay)
    assert (sent.refused, sent.messages) == (2, 18)
    assert sent.by_queue == {("Orders", 0): 5, ("Orders", 1): 4, ("Orders", 2): 4, ("Orders", 3): 5}
    assert [record.getMessage() for record in caplog.records] == [
        f"small@{offsets[number]}, Orders/{number % 4}: refused by the broker: too large" for number in (5, 6)
    ]
    assert run_replay(replay).messages == 0  # the checkpoint is after them
