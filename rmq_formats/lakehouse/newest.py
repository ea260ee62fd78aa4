"""The newest row of a selection that has landed: by it a RESTORE is seen whose commit was cleaned up.

A transaction version of each selection tells which row that is. A RESTORE leaves the version and takes the row away.
Another selection's export may land that row again, and not the others that are gone: so who is about to land rows looks
first whether those of the others are there, and notes for good what is not.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rmq_formats.lakehouse.evolution import column
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.table_log import TableLog, TableSnapshot

NEWEST: Final = ":newest"  # behind an application id: the newest row that has landed
GONE: Final = -1  # it is gone, and whoever landed it knows
_MARKED_BELOW: Final = -1  # a smaller version is the mark of a row that was found gone


def _marked(newest: int) -> int:
    """Return the transaction version that marks a row as gone; twice gives the row."""
    return -2 - newest


class NewestRows:
    """Rows of a table by which it is told how far selections have landed.

    Args:
        log: of the table.
        selection: of the store whose rows they are.
        offset: the table's column of physical offsets.
        broker_columns: its columns of cluster and broker, where it has rows of several brokers.
        later: see ``ExactlyOnceTable``.
    """

    def __init__(
        self,
        log: TableLog,
        selection: ExportSelection,
        offset: str,
        broker_columns: tuple[str, str],
        later: str | None,
    ) -> None:
        self._log, self._broker = log, selection.broker
        self._offset, self._broker_columns, self._later = offset, broker_columns, later

    def offsets(self, version: int) -> DataFrame | None:
        """Read the physical offsets of the store's rows in a version; None if there are no rows."""
        if self._broker is None:
            return self._log.rows(version, [self._offset])
        held = self._log.rows(version, [self._offset, *self._broker_columns])
        cluster, name = map(column, self._broker_columns)
        broker = self._broker
        return None if held is None else held.where((cluster == broker.cluster) & (name == broker.name))

    def lost(self, snapshot: TableSnapshot, app_id: str) -> str | None:
        """Tell where the newest row of a selection was, if it is not there any more, or was not at some time."""
        newest = snapshot.transaction_version(app_id + NEWEST)
        if newest < _MARKED_BELOW:
            return self._place(_marked(newest))
        return self._place(newest) if newest >= 0 and self._is_gone(snapshot, newest) else None

    def marks(self, snapshot: TableSnapshot, app_ids: Iterable[str], begin: int, end: int) -> dict[str, int]:
        """Return the transaction versions that mark the newest rows of selections that are gone.

        Args:
            snapshot: the version that a transaction reads.
            app_ids: of the others, with ``NEWEST`` behind them.
            begin: physical offset of the first row that the transaction may land.
            end: exclusive.
        """
        found = {name: snapshot.transaction_version(name) for name in app_ids}
        return {
            name: _marked(newest)
            for name, newest in found.items()
            if newest >= 0 and self._may_hide(newest, begin, end) and self._is_gone(snapshot, newest)
        }

    def _may_hide(self, newest: int, begin: int, end: int) -> bool:
        """Return whether rows of a range may be taken for the newest one of another selection."""
        if self._later is None:
            return begin <= newest < end
        return self._later != self._offset or newest < end

    def _is_gone(self, snapshot: TableSnapshot, newest: int) -> bool:
        if self._later is None:
            held, there = self.offsets(snapshot.version), column(self._offset) == newest
        else:
            later = column(self._later)
            held = self._log.rows(snapshot.version, [self._later])
            there = (later if self._later == self._offset else F.unix_millis(later)) >= newest
        return held is None or held.where(there).isEmpty()

    def _place(self, newest: int) -> str:
        return f"at {newest}" if self._later in {None, self._offset} else f"stored at {newest} ms"
