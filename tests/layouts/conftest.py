"""Stores of other layouts to work on, and a proof that nothing in them was touched."""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq, rmq
from tests.conftest import LAYOUT_STORES

__all__ = ["rmq"]  # a fixture
_READ_BYTES = 4 << 20  # of larger files, which are all but holes, only the stat is compared
Untouched = Callable[[Path], AbstractContextManager[None]]


def fingerprint(root: Path) -> dict[str, tuple[int, ...] | str]:
    """Inode, time of change, size and content of all that is below a directory, but for a broker's lock file."""
    found: dict[str, tuple[int, ...] | str] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        name = str(path.relative_to(root))
        status = path.lstat()
        if name == "lock" or path == root:
            continue
        found[name] = (status.st_ino, status.st_mtime_ns if path.is_file() else 0, status.st_size)
        if path.is_file() and status.st_size <= _READ_BYTES:
            found[f"{name} content"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="session")
def untouched() -> Untouched:
    """A context in which nothing below a directory may change."""

    @contextmanager
    def check(root: Path) -> Iterator[None]:
        before = fingerprint(root)
        yield
        assert fingerprint(root) == before

    return check


@pytest.fixture(params=list(LAYOUT_STORES))
def layout_name(request: pytest.FixtureRequest) -> str:
    """Name of each golden store of another layout, in turn."""
    return str(request.param)


@pytest.fixture
def golden_copy(golden: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copies a golden store for one test; holes stay holes."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        subprocess.run(["cp", "-a", "--sparse=always", str(golden(name) / "store"), str(target)], check=True)
        return target

    return copy


def refusal(run: Rmq, *arguments: object) -> str:
    """The one line of a command that ends with exit code 2 and prints nothing else."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("rmq: ")


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a file's lock as a broker holds that of a RocksDB: in another process."""
    lock.touch()
    holds = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", holds, lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
    finally:
        holder.communicate(b"\n", timeout=30)
