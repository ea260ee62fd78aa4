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

WATERMARK_SUFFIX: Final = ":newest"  # behind an application id: the newest row that has landed
WATERMARK_LOST: Final = -1  # it is gone, and whoever landed it knows
_FIRST_LOST: Final = -1  # a smaller version is the mark of a row that was found gone


def _lost_version(offset: int) -> int:
    """Return the transaction version that marks a row as gone; twice gives the row."""
    return -2 - offset


class HighWatermark:
    """Rows of a table by which it is told how far selections have landed.

    Args:
        log: of the table.
        selection: of the store whose rows they are.
        offset: the table's column of physical offsets.
        broker_columns: its columns of cluster and broker, where it has rows of several brokers.
        order_column: see ``ExactlyOnceTable``.
    """

    def __init__(
        self,
        log: TableLog,
        selection: ExportSelection,
        offset: str,
        broker_columns: tuple[str, str],
        order_column: str | None,
    ) -> None:
        self._log, self._broker = log, selection.broker
        self._offset, self._broker_columns, self._order_column = offset, broker_columns, order_column

    def offsets(self, version: int) -> DataFrame | None:
        """Read the physical offsets of the store's rows in a version; None if there are no rows."""
        if self._broker is None:
            return self._log.rows(version, [self._offset])
        rows = self._log.rows(version, [self._offset, *self._broker_columns])
        cluster, name = map(column, self._broker_columns)
        broker = self._broker
        return None if rows is None else rows.where((cluster == broker.cluster) & (name == broker.name))

    def find_lost_row(self, snapshot: TableSnapshot, app_id: str) -> str | None:
        """Tell where the newest row of a selection was, if it is not there any more, or was not at some time."""
        watermark = snapshot.transaction_version(app_id + WATERMARK_SUFFIX)
        if watermark < _FIRST_LOST:
            return self._format_row(_lost_version(watermark))
        return self._format_row(watermark) if watermark >= 0 and self._is_lost(snapshot, watermark) else None

    def lost_watermarks(self, snapshot: TableSnapshot, app_ids: Iterable[str], begin: int, end: int) -> dict[str, int]:
        """Return the transaction versions that mark the newest rows of selections that are gone.

        Args:
            snapshot: the version that a transaction reads.
            app_ids: of the others, with ``WATERMARK_SUFFIX`` behind them.
            begin: physical offset of the first row that the transaction may land.
            end: exclusive.
        """
        watermarks = {name: snapshot.transaction_version(name) for name in app_ids}
        return {
            name: _lost_version(watermark)
            for name, watermark in watermarks.items()
            if watermark >= 0 and self._may_hide(watermark, begin, end) and self._is_lost(snapshot, watermark)
        }

    def _may_hide(self, watermark: int, begin: int, end: int) -> bool:
        """Return whether rows of a range may be taken for the newest one of another selection."""
        if self._order_column is None:
            return begin <= watermark < end
        return self._order_column != self._offset or watermark < end

    def _is_lost(self, snapshot: TableSnapshot, watermark: int) -> bool:
        if self._order_column is None:
            rows, is_at_or_after = self.offsets(snapshot.version), column(self._offset) == watermark
        else:
            order = column(self._order_column)
            rows = self._log.rows(snapshot.version, [self._order_column])
            is_at_or_after = (order if self._order_column == self._offset else F.unix_millis(order)) >= watermark
        return rows is None or rows.where(is_at_or_after).isEmpty()

    def _format_row(self, watermark: int) -> str:
        return f"at {watermark}" if self._order_column in {None, self._offset} else f"stored at {watermark} ms"
