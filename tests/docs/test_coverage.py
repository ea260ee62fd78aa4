"""The pages that say which test shows what name tests and pages that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text("utf-8") for name in ("coverage.md", "reliability.md")}


@pytest.mark.parametrize("page", PAGES)
def test_each_test_that_it_names_is_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGES[page])
    assert named
    for path, function in named:
        text = (ROOT / path).read_text("utf-8")
        assert f"def {function or 'test_'}" in text, f"{path}::{function}"


@pytest.mark.parametrize("page", PAGES)
def test_each_page_that_it_names_is_there(page: str) -> None:
    for named in re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", PAGES[page]):
        assert (ROOT / "docs" / named).is_file(), named
