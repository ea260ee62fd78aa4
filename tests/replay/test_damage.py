"""Damage of the log that a replay finds: counted, told by the exit code, and the rest is replayed."""

from pathlib import Path

import pytest

from tests.replay.small_stores import log_files, make_log, run_dry
from tests.support.stores.verified_stores import FILE_BYTES


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store of 200 messages, of which ten behind each other are overwritten, with their headers."""
    offsets = make_log(tmp_path / "store")
    begin, end = offsets[5], offsets[15]
    path = log_files(tmp_path / "store")[0]
    data = bytearray(path.read_bytes())
    assert end < FILE_BYTES
    data[begin:end] = b"\xff" * (end - begin)
    path.write_bytes(data)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ([], 190),
        (["--sql", "KEYS IS NULL"], 0),
        (["--msg-ids", "U0007,U0100"], 1),
        (["--tags", "T0"], 64),
        (["--starting-timestamp", "0"], 190),
    ],
)
def test_a_damaged_range_is_counted_where_no_topic_is_named(damaged: Path, more: list[str], messages: int) -> None:
    report, code = run_dry(damaged, *more)
    assert (code, report["damaged"], report["messages"]) == (1, 1, messages)


def test_a_damaged_range_outside_of_the_part_that_is_read_is_not_counted(damaged: Path) -> None:
    report, code = run_dry(damaged, "--starting-physical-offset", str(FILE_BYTES))
    assert (code, report["damaged"]) == (0, 0)
