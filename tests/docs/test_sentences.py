"""No sentence of the pages has more than 35 words."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 35

LIST_ITEM = re.compile(r"(?:[-*+]|\d+\.) +")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[)*_\"”]*\s+(?=[A-Za-z0-9(*\"“\[])")
WORD = re.compile(r"[\w'’/.,%×-]*\w[\w'’/.,%×-]*")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Number of the first line and text of each paragraph and list item; no code, tables and headings."""
    lines: list[str] = []
    first = 0
    in_code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        is_fence = stripped.startswith("```")
        in_code ^= is_fence
        item = LIST_ITEM.match(stripped)
        is_apart = in_code or is_fence or not stripped or stripped.startswith(("|", "#", "<", ":::"))
        if (is_apart or item) and lines:
            yield first, " ".join(lines)
            lines = []
        if not is_apart:
            first = first if lines else number
            lines.append(stripped[item.end() :] if item else stripped)


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; code counts as one word, and a link as its text."""
    return END.split(LINK.sub(r"\1", CODE.sub("CODE", paragraph)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_has_more_than_35_words(page: Path) -> None:
    for number, paragraph in paragraphs(page.read_text("utf-8")):
        for sentence in sentences(paragraph):
            assert len(WORD.findall(sentence)) <= LIMIT, f"{page.relative_to(ROOT)}:{number}: {sentence}"


def test_words_of_sentences_are_counted() -> None:
    text = (
        "# Heading\nOne `two three` four [five](six.md). Two\nlines.\n- An item.\n\n```sh\nno words\n```\n| a | b |\n"
    )
    assert [(number, [len(WORD.findall(s)) for s in sentences(p)]) for number, p in paragraphs(text)] == [
        (2, [4, 2]),
        (4, [2]),
    ]
