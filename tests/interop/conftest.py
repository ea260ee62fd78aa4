"""Stores that Java rebuilds, on a disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory on a disk, wherever other tests keep theirs.

    Java names an IndexFile by the millisecond of its creation. In memory it creates two small ones in one, and loses
    the first; on a disk it has to force the one before, which takes longer.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
