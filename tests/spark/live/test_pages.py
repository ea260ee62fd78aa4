"""The pages about the running cluster and about replays name what there is, all of it."""

import re
from pathlib import Path

from jobs import replay
from rmq_core.client.access import ACCESS_SETTINGS
from rmq_lakehouse.live.options import ACCESS_OPTIONS, READ_OPTIONS, WRITE_OPTIONS
from rmq_lakehouse.live.write import WRITTEN_COLUMNS

DOCS = Path(__file__).parents[3] / "docs"


def first_cells(text: str) -> set[str]:
    """The words in code font of the first cell of each row of a page's tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_the_page_about_the_cluster_has_each_option_and_column() -> None:
    reading, writing = (DOCS / "live.md").read_text().split("## Write")
    assert {word.split("=")[0] for word in first_cells(reading)} == set(READ_OPTIONS)
    assert first_cells(writing) == set(WRITTEN_COLUMNS)
    told = set(re.findall(r"`(\w+)`", writing.split("Options:")[1].split("\n")[0]))
    assert told == set(WRITE_OPTIONS) - set(ACCESS_OPTIONS)
    assert set(ACCESS_OPTIONS) == set(ACCESS_SETTINGS)


def test_the_page_about_replays_has_each_argument() -> None:
    page = first_cells((DOCS / "replay.md").read_text())
    told = {word for cell in page for word in re.findall(r"--[a-z-]+", cell)}
    there = {
        option for action in replay.parser()._actions for option in action.option_strings if option.startswith("--")
    }
    assert told == there - {"--help", "--report", "--store"}
