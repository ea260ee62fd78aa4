"""High watermark of an export: the newest row that was committed. A RESTORE removes this row.

A transaction version of each selection records the watermark. RESTORE leaves the transaction version unchanged and
removes the row, so a missing row shows a RESTORE whose commit was cleaned up.

The export of another selection may commit that very row again, but not the other rows that RESTORE removed. So before
an export commits rows, it looks up the watermark rows of the other selections, and records which ones are missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_lakehouse.table_log import RowRange, TableLog, TableSnapshot

WATERMARK_SUFFIX: Final = ":newest"  # after an application id: physical offset of the newest row committed
WATERMARK_LOST: Final = -1  # the row is missing, and the selection's own export knows it
_FIRST_LOST: Final = -1  # a smaller version encodes a row that another selection's export found missing


def _lost_version(offset: int) -> int:
    """Encode the watermark of a missing row as a transaction version; applied twice, it returns the watermark."""
    return -2 - offset


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """High watermarks of the selections of one store in a table; attributes as of ``ExactlyOnceTable``."""

    log: TableLog
    offset: str
    order_column: str | None
    broker_texts: Mapping[str, str]

    def has_offsets(self, version: int, first: int, last: int | None = None) -> bool:
        """Return whether a table version has rows of the store from a physical offset on, up to ``last`` if given."""
        return self.log.has_rows(version, RowRange(self.offset, first, last, texts=self.broker_texts))

    def find_lost_row(self, snapshot: TableSnapshot, app_id: str) -> str | None:
        """Return where the watermark row of a selection was, if the table lacks it or has lacked it; else None."""
        watermark = snapshot.transactions.get(app_id + WATERMARK_SUFFIX, -1)
        if watermark < _FIRST_LOST:
            return self._format_row(_lost_version(watermark))
        return self._format_row(watermark) if watermark >= 0 and self._is_lost(snapshot, watermark) else None

    def lost_watermarks(self, snapshot: TableSnapshot, app_ids: Iterable[str], begin: int, end: int) -> dict[str, int]:
        """Return the transaction versions that record the missing watermark rows of other selections.

        Args:
            app_ids: application ids of the other selections, with ``WATERMARK_SUFFIX``.
            begin: physical offset of the first row that the transaction may commit; ``end`` is exclusive.
        """
        watermarks = {name: snapshot.transactions.get(name, -1) for name in app_ids}
        return {
            name: _lost_version(watermark)
            for name, watermark in watermarks.items()
            if watermark >= 0 and self._may_hide(watermark, begin, end) and self._is_lost(snapshot, watermark)
        }

    def _may_hide(self, watermark: int, begin: int, end: int) -> bool:
        """Return whether a row of a range may be taken for the watermark row of another selection."""
        if self.order_column is None:
            return begin <= watermark < end
        return self.order_column != self.offset or watermark < end

    def _is_lost(self, snapshot: TableSnapshot, watermark: int) -> bool:
        if self.order_column is None:
            return not self.has_offsets(snapshot.version, watermark, watermark)
        later_rows = RowRange(self.order_column, watermark, is_time=self.order_column != self.offset)
        return not self.log.has_rows(snapshot.version, later_rows)

    def _format_row(self, watermark: int) -> str:
        return f"at {watermark}" if self.order_column in {None, self.offset} else f"stored at {watermark} ms"
