"""Machine code of kernels is kept from one process to the next, and dropped when a source of it has changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_formats import kernels
from rmq_formats.kernels import drop_stale_code


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a source, and code that was compiled from it."""
    (tmp_path / "kernel.py").write_text("version = 1\n")
    (tmp_path / "__pycache__").mkdir()
    drop_stale_code(tmp_path, [tmp_path / "kernel.py"])
    for name in ("kernel.walk-1.nbi", "kernel.walk-1.1.nbc", "kernel.cpython-311.pyc"):
        (tmp_path / "__pycache__" / name).touch()
    return tmp_path


def kept(package: Path) -> set[str]:
    return {path.name for path in (package / "__pycache__").iterdir()} - {"kernels.sha256"}


def test_code_of_the_same_sources_is_kept(package: Path) -> None:
    drop_stale_code(package, [package / "kernel.py"])
    assert len(kept(package)) == 3


def test_code_of_another_source_is_dropped_and_nothing_else(package: Path) -> None:
    (package / "kernel.py").write_text("version = 2\n")
    drop_stale_code(package, [package / "kernel.py"])
    assert kept(package) == {"kernel.cpython-311.pyc"}


def test_code_that_inlines_another_package_s_is_dropped_with_a_change_of_that(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A copy of the package of kernels in which one changes, loaded in processes of their own.
    source = Path(kernels.__file__).parent
    changed = tmp_path_factory.mktemp("changed") / "rmq_formats"
    shutil.copytree(
        source.parent,
        changed,
        ignore=shutil.ignore_patterns("__pycache__", "spark", "tasks", "rebuild", "verify", "repair", "write"),
    )
    program = (
        "import sys; from pathlib import Path; from rmq_formats.kernels import drop_stale_code;"
        "package = Path(sys.argv[1]); drop_stale_code(package, [package / 'kernel.py'])"
    )
    command = [sys.executable, "-c", program, str(package)]
    subprocess.run(command, cwd=changed.parent, check=True, timeout=60)
    assert len(kept(package)) == 3
    (changed / "kernels" / "bytes.py").write_text((source / "bytes.py").read_text() + "\n# changed\n")
    subprocess.run(command, cwd=changed.parent, check=True, timeout=60)
    assert kept(package) == {"kernel.cpython-311.pyc"}
