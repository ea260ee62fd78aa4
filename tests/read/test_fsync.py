"""Forcing a log before it is read."""

import errno
import os
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError
from rmq_formats.read.fsync import fsync_log
from rmq_formats.storage.store_files import open_store

FILE_BYTES = 4096


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        path = tmp_path / "commitlog" / f"{number * FILE_BYTES:020d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(FILE_BYTES))
    return tmp_path


def forced(root: Path, begin: int, end: int, monkeypatch: pytest.MonkeyPatch, fault: int = 0) -> list[str]:
    """Names of the files that are forced."""
    found: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        if fault:
            raise OSError(fault, os.strerror(fault))
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115, PTH119
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    files = open_store(str(root))
    fsync_log(files.storage, files.segments, begin, end)
    return found


@pytest.mark.parametrize(
    ("begin", "end", "numbers"),
    [
        (0, 3 * FILE_BYTES, [0, 1, 2]),
        (FILE_BYTES, FILE_BYTES + 1, [1]),
        (FILE_BYTES - 1, FILE_BYTES + 1, [0, 1]),
        (0, 0, []),
        (3 * FILE_BYTES, 3 * FILE_BYTES, []),
    ],
)
def test_the_files_of_a_range_are_forced(
    root: Path, begin: int, end: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forced(root, begin, end, monkeypatch) == [f"{number * FILE_BYTES:020d}" for number in numbers]


def test_a_disk_that_cannot_keep_a_file_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="00000000000000000000: cannot be forced to the disk: Input/output error"):
        forced(root, 0, FILE_BYTES, monkeypatch, errno.EIO)


def test_where_nobody_writes_there_is_nothing_to_force(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert forced(root, 0, FILE_BYTES, monkeypatch, errno.EROFS) == []
