"""A reader of pages, which the tests of several pages share."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Reader


@pytest.fixture
def reader() -> Iterator[Reader]:
    """A reader in a directory of a short path: that of ``tmp_path`` folds the tables of commands."""
    directory = tempfile.mkdtemp(prefix="page", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    yield Reader(Path(directory))
    shutil.rmtree(directory, ignore_errors=True)
