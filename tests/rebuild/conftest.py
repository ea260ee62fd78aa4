"""Fixtures of the rebuild's tests."""

import pytest

from rmq_offline.tasks import publish


@pytest.fixture(autouse=True)
def _no_flush(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits for all that the machine writes; no test here loses power."""
    if "real_flush" not in request.fixturenames:
        monkeypatch.setattr(publish, "sync_file_system", lambda _directory: None)


@pytest.fixture
def real_flush() -> None:
    """Asked for by tests of the flush itself."""
