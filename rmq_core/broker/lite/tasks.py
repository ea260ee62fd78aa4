"""Background tasks of lite topics: one per key at a time."""

import asyncio
from collections.abc import Coroutine, Hashable

from rmq_core.broker.tables.table_file import log


class BackgroundTasks:
    """Running background tasks."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Return whether the task of a key runs."""
        return key in self._running

    def start(self, key: Hashable, work: Coroutine[None, None, None]) -> None:
        """Start a task unless its key runs; exceptions are logged."""
        if key in self._running:
            work.close()
            return
        task = self._running[key] = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: Hashable, task: "asyncio.Task[None]") -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on lite topics failed: %(error)s", {"error": error}, exc_info=error)

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._running.values():
            task.cancel()
