"""``# fmt: skip`` stands at tables alone: at literals whose rows a formatter would break apart."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("benchmarks", "jobs", "notebooks", "rmq_cli", "rmq_core", "rmq_formats", "rmq_lakehouse", "rmq_offline",
           "spark_udfs", "tests", "tools")  # fmt: skip
LITERALS = (ast.List, ast.Dict, ast.Set, ast.Tuple)
COMPOUND = (ast.If, ast.While, ast.With, ast.AsyncWith, ast.Try)
SKIP = re.compile(r"# fmt: skip$")


def parts(tree: ast.Module) -> Iterator[tuple[ast.AST, int, int]]:
    """Statements, heads of loops and decorators: what a mark may end, with its first and last line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from ((decorator, decorator.lineno, decorator.end_lineno or 0) for decorator in node.decorator_list)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield node.iter, node.lineno, node.body[0].lineno - 1
        elif isinstance(node, ast.stmt) and not isinstance(node, COMPOUND):
            yield node, node.lineno, node.end_lineno or 0


def is_table(node: ast.AST, begin: int, end: int) -> bool:
    """Whether a literal of several lines takes all lines but the first and the last one."""
    last = end - 1
    return isinstance(node, LITERALS) and node.lineno <= begin + 1 and node.lineno < (node.end_lineno or 0) >= last


def find_marks(source: str) -> list[int]:
    """Find the lines with a mark that ends no table."""
    if "# fmt: skip" not in source:
        return []
    ends = {
        line
        for part, begin, end in parts(ast.parse(source))
        for node in ast.walk(part)
        if is_table(node, begin, end)
        for line in (end, getattr(node, "end_lineno", end))
    }
    return [number for number, line in enumerate(source.splitlines(), 1) if SKIP.search(line) and number not in ends]


def test_tables_alone_are_laid_out_by_hand() -> None:
    marks = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for line in find_marks(path.read_text())
    ]
    assert marks == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = [\n  1, 2,\n  3,\n]  # fmt: skip", []),
        ("x = frozenset({\n  1, 2,\n})  # fmt: skip", []),
        ("for x in (\n  1, 2,\n):  # fmt: skip\n    pass", []),
        ("f(\n  1, 2,\n)  # fmt: skip", [3]),
        ("x = f(\n  1, [2],\n)  # fmt: skip", [3]),
        ("def f(\n  a, b,\n):  # fmt: skip\n    pass", [3]),
    ],
)
def test_a_mark_at_another_statement_is_found(source: str, expected: list[int]) -> None:
    assert find_marks(source) == expected
