"""Small files that are replaced below a root."""

import errno
import os
from pathlib import Path

import pytest

from rmq_formats.storage.contained import replace_file, root_directory


def test_a_full_disk_leaves_a_small_file_and_its_directory_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "checkpoint").write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", fail)
    with root_directory(tmp_path) as directory, pytest.raises(OSError, match="No space left"):
        replace_file(directory, "checkpoint", b"after")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"checkpoint": b"before"}
