"""Stores of one test each, shut down when it ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_core.store.store import MessageStore
from tests.store.small_stores import NOW_MS, config_of, opened

Opener = Callable[..., MessageStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opener]:
    """Opens the test's store, again and again if it likes; keywords are settings."""
    stores: list[MessageStore] = []

    def open_it(
        *,
        now_ms: int = NOW_MS,
        disk: Disk | None = None,
        threads: Threads | None = None,
        name: str = "store",
        **changes: Any,
    ) -> MessageStore:
        stores.append(opened(config_of(tmp_path / name, **changes), now_ms, disk, threads))
        return stores[-1]

    yield open_it
    for store in stores:
        if "shutdown" not in store.refusals:
            store.shutdown()
