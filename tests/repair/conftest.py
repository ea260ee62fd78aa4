"""Fixtures of the repair's tests."""

from pathlib import Path

import pytest

from rmq_offline.repair import checkpoint, journal
from rmq_offline.tasks import publish
from tests.support.stores.verified_stores import sound_store


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits for all that the machine writes; no test here loses power."""
    for module in (publish, checkpoint, journal):
        monkeypatch.setattr(module, "sync_file_system", lambda _directory: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five log files and what belongs to them."""
    root = tmp_path / "store"
    sound_store(root, 120)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Orders":{},"Clicks":{}}}')
    assert len(list((root / "commitlog").iterdir())) >= 5
    return root
