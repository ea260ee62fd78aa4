"""Paths and modules that pages, docstrings and comments name are there."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import settings_page

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "benchmarks", "jobs", "notebooks", "rmq_cli", "rmq_core", "rmq_formats", "rmq_lakehouse", "rmq_offline",
    "spark_udfs", "tests", "tools",
)  # fmt: skip
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
OTHERS = [ROOT / "Makefile", ROOT / "pyproject.toml", *sorted((ROOT / "conf").iterdir())]

PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)}|conf|docs)/[\w/.-]*\w")
FILE_OF_PAGE = re.compile(r"`((?:\w+/)*\w+\.py)`")  # the page has named its folder
MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.[a-z_]\w*)+")

# The rule of what not to do; a folder and a file of RocketMQ's own; what tests make up. NAME stands for any name.
NO_NAMES = {
    "util.py", "helpers.py", "tests.no_such_module", "rmq_formats.nosuch",
    "tools/src/main/java/org/apache/rocketmq/tools/command", "tools.yml",
}  # fmt: skip


def test_the_page_of_settings_is_that_of_the_classes() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "run: python -m tools.settings_page"


def is_path(name: str) -> bool:
    return (ROOT / name).exists() or Path(ROOT, f"{name}.py").is_file()


def is_file(name: str) -> bool:
    return any(path.as_posix().endswith(f"/{name}") for path in CODE) or is_path(name)


def is_module(name: str) -> bool:
    """Whether it is a package or module, or a name that stands in one."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    holder = path.parent if path.parent.is_dir() else path.parent.parent  # a module's name, or a class's
    sources = [holder / "__init__.py", path.parent.with_suffix(".py"), path.parent.parent.with_suffix(".py")]
    return any(source.is_file() and re.search(rf"\b{path.name}\b", source.read_text()) for source in sources)


def missing(paths: list[Path], pattern: re.Pattern[str], is_there: Callable[[str], bool]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for name in pattern.findall(line):
                if "NAME" not in name and name not in NO_NAMES and not is_there(name):
                    yield f"{path.relative_to(ROOT)}:{number}: {name}"


@pytest.mark.parametrize(
    ("paths", "pattern", "is_there"),
    [
        (PAGES + CODE + OTHERS, PATH, is_path),
        (PAGES, FILE_OF_PAGE, is_file),
        (PAGES + CODE + OTHERS, MODULE, is_module),
    ],
    ids=["paths", "files that a page names", "modules"],
)
def test_what_is_named_is_there(paths: list[Path], pattern: re.Pattern[str], is_there: Callable[[str], bool]) -> None:
    assert list(missing(paths, pattern, is_there)) == []
