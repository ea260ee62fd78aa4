"""The checkpoint of a replay: an invalid file is an error of one line."""

from pathlib import Path

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.replay.checkpoint import ReplayCheckpoint


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"replay": "r", "next_physical_offset": 1e999, "messages": 7}',
     '{"replay": "r", "next_physical_offset": "x", "messages": 7}'],
)  # fmt: skip
def test_a_bent_checkpoint_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "replay.json").write_text(text)
    with pytest.raises(StoreError, match=r"not the checkpoint of a replay$"):
        ReplayCheckpoint(str(tmp_path), "r").load()
