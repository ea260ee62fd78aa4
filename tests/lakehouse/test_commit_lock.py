"""One export at a time commits to a Delta table in this machine's file system."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError, StoreLockedError
from rmq_lakehouse.delta import local_commits
from rmq_lakehouse.delta import table as delta
from rmq_lakehouse.delta.local_commits import LOCK_NAME, commit_lock
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_standing import orders, spec

HOLDER = """
import sys
from pathlib import Path
from rmq_lakehouse.delta.local_commits import commit_lock
with commit_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table's directory."""
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


def test_another_process_waits_and_a_killed_one_holds_it_no_more(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", HOLDER, str(table)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with monkeypatch.context() as patch:
            patch.setattr(local_commits, "_LONGEST_LOCK_S", 0)
            with (
                pytest.raises(StoreLockedError, match="another export has been committing for 0 s"),
                commit_lock(table),
            ):
                pass
        holder.kill()
    with commit_lock(table):
        pass


def test_threads_take_turns(table: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def turn(number: int) -> None:
        for _ in range(20):
            with commit_lock(table):
                inside.append(number)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 60


def test_a_log_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{LOCK_NAME}: No such file or directory"), commit_lock(tmp_path):
        pass


def test_a_file_system_without_locks_is_one_line(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(local_commits.fcntl, "flock", fails)
    with pytest.raises(StoreError, match=rf"{LOCK_NAME}: cannot be locked \(No locks available\)"), commit_lock(table):
        pass


def commits(table: Path) -> set[str]:
    return {path.name for path in (table / "_delta_log").glob("*.json")}


@pytest.mark.spark
@pytest.mark.long
def test_each_commit_is_made_under_the_lock(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    under: dict[str, set[str]] = {"table": set(), "orders": set(), "dead": set()}

    @contextmanager
    def noted(path: Path) -> Iterator[None]:
        with commit_lock(path):
            before = commits(path)
            yield
            under[path.name] |= commits(path) - before

    monkeypatch.setattr(delta, "commit_lock", noted)
    write(exporter.store, orders(8))
    exporter.run(*spec(exporter), "--retention", "1", "--optimize", "--vacuum", "168")
    assert under == {name: commits(exporter.work / name) for name in under}
