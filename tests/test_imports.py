"""No modules import each other in a circle; imports within functions and for annotations alone count, too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("jobs", "rmq_cli", "rmq_core", "rmq_formats", "rmq_lakehouse", "rmq_offline", "spark_udfs", "tools")


def imported(path: Path, modules: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= members & modules or {node.module}
    return names & modules


def find_circle(root: Path, packages: tuple[str, ...] = PACKAGES) -> list[str]:
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in (root / package).rglob("*.py")
    }
    try:
        TopologicalSorter({name: imported(path, set(paths)) for name, path in paths.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    assert find_circle(ROOT) == []


@pytest.mark.parametrize(
    "line", ["from house.first import x", "def f():\n    import house.first", "from house import first"]
)
def test_a_circle_is_found(tmp_path: Path, line: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "first.py").write_text("if TYPE_CHECKING:\n    from house.second import y\n")
    (house / "second.py").write_text(line)
    assert set(find_circle(tmp_path, ("house",))) == {"house.first", "house.second"}
