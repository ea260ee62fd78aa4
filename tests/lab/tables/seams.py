"""Seams of an export to Delta: the calls between which its driver can be killed, or another have its turn."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from rmq_lakehouse import raw_files, stores
from rmq_lakehouse.delta import keyed
from rmq_lakehouse.delta.table import DeltaTableLog, DeltaTransaction
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.exports import ExportLoop
from rmq_lakehouse.stream import ExportCheckpoint

_SEAMS: tuple[tuple[Any, str], ...] = (
    (stores, "snapshot_log"), (stores, "fsync_log"), (ExportLoop, "export_round"),
    (ExportCheckpoint, "claim"), (ExportCheckpoint, "batch_end"),
    (DeltaTableLog, "create"), (DeltaTableLog, "add_columns"), (DeltaTableLog, "fsync"),
    (ExactlyOnceTable, "prepare"), (ExactlyOnceTable, "progress"), (ExactlyOnceTable, "_start"),
    (keyed, "commit_progress_with_retry"),
    (raw_files, "write_files"), (keyed, "_merge"),
    (DeltaTransaction, "write"), (DeltaTransaction, "commit"),
)  # fmt: skip


class KilledError(Exception):
    """The driver was killed here."""


class Seams:
    """Counts the seams that an export passes, and does something at one of them, once.

    Attributes:
        hit: the seam at which it was done; None if the export ended before.
    """

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.hit: str | None = None
        self._left = at
        self._action = action

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch what exports pass meanwhile."""
        with ExitStack() as stack:
            for owner, name in _SEAMS:
                stack.enter_context(patch.object(owner, name, self._between(getattr(owner, name), name)))
            yield

    def _between(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(call)
        def watched(*arguments: Any, **named: Any) -> Any:
            self._pass(f"before {name}")
            result = call(*arguments, **named)
            self._pass(f"after {name}")
            return result

        return watched

    def _pass(self, seam: str) -> None:
        self._left -= 1
        if self._left < 0 and self.hit is None:
            self.hit = seam
            self._action()


def kill() -> None:
    """Unwind as if the driver had been killed; nothing in an export catches it."""
    raise KilledError("killed")
