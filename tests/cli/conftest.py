"""What the tests of the command line share."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rmq_cli.main import app

Rmq = Callable[..., Result]


@pytest.fixture(scope="session")
def rmq() -> Rmq:
    """Runs ``rmq`` in this process, on a terminal's 80 columns."""
    runner = CliRunner(env={"COLUMNS": "80"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def copy_of(golden: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A golden store of one's own, to damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(golden(name) / "store", tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def expected_lines(golden: Callable[[str], Path]) -> Callable[[str], list[bytes]]:
    """The lines of a golden store's ``messages.jsonl``, with their ends."""
    return lambda name: (golden(name) / "expected" / "messages.jsonl").read_bytes().splitlines(keepends=True)


def one_line(stderr: str) -> str:
    """The only line on stderr, without its beginning."""
    assert stderr.startswith("rmq: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    return stderr.removeprefix("rmq: ").rstrip("\n")
