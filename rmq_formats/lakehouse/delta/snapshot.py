"""One version of a Delta table."""

from collections.abc import Callable
from typing import Any

from rmq_formats.lakehouse.progress import TableCommit


class DeltaSnapshot:
    """One version of a table."""

    def __init__(self, snapshot: Any, commit: Callable[[int], TableCommit | None]) -> None:
        self._snapshot = snapshot
        self.commit = commit

    @property
    def version(self) -> int:
        return -1 if self._snapshot is None else int(self._snapshot.version())

    def transaction_version(self, app_id: str) -> int:
        version = self._snapshot.transactions().get(app_id)
        return int(version.get()) if version.isDefined() else -1

    def app_ids(self) -> list[str]:
        keys = self._snapshot.transactions().keysIterator()
        app_ids = []
        while keys.hasNext():
            app_ids.append(str(keys.next()))
        return app_ids

    def drops_transactions(self) -> bool:
        """Return whether transaction versions expire, by ``delta.setTransactionRetentionDuration``."""
        return bool(self._snapshot.minSetTransactionRetentionTimestamp().isDefined())
