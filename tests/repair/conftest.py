"""Fixtures of the repair's tests."""

import pytest

from rmq_formats.offline import publish, repair_checkpoint, repair_journal


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits for all that the machine writes; no test here loses power."""
    for module in (publish, repair_checkpoint, repair_journal):
        monkeypatch.setattr(module, "sync_file_system", lambda _directory: None)
