"""Arguments of a replay that are refused before anything is read or sent."""

from pathlib import Path

import pytest

from rmq_formats.errors import OptionError, StoreError
from tests.replay.small_stores import make_log, make_replay, run_dry
from tests.support.stores.store_with_queues import write_config


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with topics.json, in which the topic Orders has its default queues."""
    make_log(tmp_path / "store")
    write_config(tmp_path / "store", "Orders")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--queues", '{"Orders": [0, 99]}'], "--queues: .* has no queue 99 of 'Orders'"),
        (
            ["--topics", "Orders", "--starting-offsets", '{"Orders": {"99": 5}}'],
            "offsets are given for queue 99 of 'Orders', which is not there",
        ),
        (["--topics", "Orders", "--ending-offsets", '{"Orders": {"99": 5}}'], "queue 99 of 'Orders'"),
    ],
)
def test_queues_that_the_store_does_not_have_are_refused(store: Path, more: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_replay(store, *more)


def test_offsets_of_absent_queues_are_a_warning_without_fail_on_data_loss(store: Path) -> None:
    offsets = '{"Orders": {"0": 5, "99": 5}}'
    more = ["--topics", "Orders", "--starting-offsets", offsets, "--fail-on-data-loss", "false"]
    report, code = run_dry(store, *more)
    assert (code, report["messages"]) == (0, 195)


def test_a_checkpoint_belongs_to_the_ids_in_the_file_of_msg_ids(store: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    more = ["--msg-ids", f"@{ids}", "--checkpoint", str(tmp_path / "checkpoint")]
    ids.write_text("U0003\nU0007\n")
    checkpoint = make_replay(store, *more).checkpoint
    assert checkpoint is not None
    checkpoint.save(0, 0)
    ids.write_text("U0007\nU0003\n")
    again = make_replay(store, *more).checkpoint
    assert again is not None
    assert again.load() is not None
    ids.write_text("U0007\nU0009\n")
    other = make_replay(store, *more).checkpoint
    assert other is not None
    with pytest.raises(StoreError, match="the checkpoint of another replay"):
        other.load()
