"""The checkpoint of a replay: an invalid file is an error of one line, and so is the checkpoint of another log."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.replay.checkpoint import ReplayCheckpoint
from rmq_offline.replay.run import count
from tests.replay.recording_sender import RecordingSender, run_replay
from tests.replay.small_stores import make_log, make_replay
from tests.support.stores.verified_stores import FILE_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"replay": "r", "next_physical_offset": 1e999, "messages": 7}',
        '{"replay": "r", "next_physical_offset": "x", "messages": 7}',
    ],
)
def test_a_bent_checkpoint_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "replay.json").write_text(text)
    with pytest.raises(StoreError, match=r"not the checkpoint of a replay$"):
        ReplayCheckpoint(str(tmp_path), "r").load()


OTHER = "or it is another store's; give another --checkpoint"


def saved(directory: Path) -> dict[str, Any]:
    """Read a checkpoint."""
    values: dict[str, Any] = json.loads((directory / "replay.json").read_text())
    return values


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A store whose messages were all replayed, and the argument of its checkpoint."""
    RecordingSender.use(monkeypatch)
    store, options = tmp_path / "store", ["--checkpoint", str(tmp_path / "checkpoint")]
    make_log(store)
    run_replay(make_replay(store, *options))
    return store, options


def test_a_log_that_has_grown_is_replayed_from_the_checkpoint(replayed: tuple[Path, list[str]]) -> None:
    store, options = replayed
    make_log(store, 230)
    assert count(make_replay(store, *options)).messages == 30


@pytest.mark.parametrize("text", ["another", "message"])
def test_another_log_at_the_path_is_refused(replayed: tuple[Path, list[str]], text: str) -> None:
    store, options = replayed
    end = saved(Path(options[1]))["next_physical_offset"]
    shutil.rmtree(store)
    make_log(store, 300, text)
    if text == "message":  # the same messages, stored at other times
        shutil.rmtree(store)
        make_log(store, 300, text, first_ms=1)
    expected = f"bytes {end // FILE_BYTES * FILE_BYTES} to {end} of the CommitLog are not those that were replayed "
    with pytest.raises(
        StoreError, match=f"{expected}with .*replay.json: the log was cut off and written anew, {OTHER}"
    ):
        count(make_replay(store, *options))


def test_a_shorter_log_is_refused(replayed: tuple[Path, list[str]]) -> None:
    store, options = replayed
    end = saved(Path(options[1]))["next_physical_offset"]
    shutil.rmtree(store)
    log_end = make_log(store, 11)[10]
    make_log(store, 10)
    with pytest.raises(
        StoreError, match=rf"the CommitLog ends at {log_end}, but \S+ is at {end}: .*, {re.escape(OTHER)}"
    ):
        count(make_replay(store, *options))


def test_a_checkpoint_of_the_version_before_goes_on_and_gets_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordingSender.use(monkeypatch)
    store, directory = tmp_path / "store", tmp_path / "checkpoint"
    offsets = make_log(store)
    replay = make_replay(store, "--checkpoint", str(directory))
    assert replay.checkpoint is not None
    replay.checkpoint.save(offsets[150] + 1, 151)
    former = saved(directory)
    del former["fingerprint"]
    (directory / "replay.json").write_text(json.dumps(former))
    assert run_replay(replay).messages == 49
    assert saved(directory)["messages"] == 200
    assert json.loads(saved(directory)["fingerprint"])["physical_offset"] == saved(directory)["next_physical_offset"]


def test_a_checkpoint_of_the_version_before_without_progress_is_none(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text('{"replay": "r", "next_physical_offset": 0, "messages": 0}')
    assert ReplayCheckpoint(str(tmp_path), "r").load() is None


def test_a_checkpoint_that_cannot_be_written_is_an_error_before_the_first_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordingSender.use(monkeypatch)
    make_log(tmp_path / "store")
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StoreError, match=r"file/checkpoint/replay\.json: Not a directory"):
        run_replay(make_replay(tmp_path / "store", "--checkpoint", str(tmp_path / "file" / "checkpoint")))
    assert RecordingSender.puts == []
