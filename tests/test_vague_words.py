"""``tools/vague_words.py``: which names and sentences it counts."""

from pathlib import Path

import pytest

from tools.vague_words import vague_places


@pytest.mark.parametrize("source", [
    "found = 1", "def land(rows): ...", "class NewsTold: ...", "def write(told): ...", '"""What is written."""',
    'def write():\n    """Tell the broker."""', "for one in []: ...",
])  # fmt: skip
def test_a_vague_word_is_counted(tmp_path: Path, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert len(list(vague_places(module))) == 1


@pytest.mark.parametrize("source", [
    "progress = 1", "def island(rows): ...", '"""Commit the rows. What is left stays."""', "import found",
])  # fmt: skip
def test_words_of_the_field_are_not(tmp_path: Path, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert not list(vague_places(module))
