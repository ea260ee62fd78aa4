"""``docs/coverage.md`` names tests and pages that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text("utf-8")


def test_each_test_that_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert named
    for path, function in named:
        text = (ROOT / path).read_text("utf-8")
        assert f"def {function or 'test_'}" in text, f"{path}::{function}"


def test_each_page_that_it_names_is_there() -> None:
    for page in re.findall(r"\]\((\w+\.md)\)", PAGE):
        assert (ROOT / "docs" / page).is_file(), page
