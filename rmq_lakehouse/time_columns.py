"""Columns of days and hours that tables have beside the times of messages, for partitions; all in UTC."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

DATE: Final = "date"
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """Day or hour of a message's time.

    Attributes:
        unit_us: length of a day or an hour, in microseconds.
    """

    source: str
    unit_us: int

    @property
    def is_day(self) -> bool:
        """Whether values are dates; an hour is the time at which it begins."""
        return self.unit_us == _DAY_US


TIME_COLUMNS: Final = {
    DATE: TimeColumn("store_timestamp", _DAY_US),
    "hour": TimeColumn("store_timestamp", _HOUR_US),
    "born_date": TimeColumn("born_timestamp", _DAY_US),
    "born_hour": TimeColumn("born_timestamp", _HOUR_US),
}
"""By name in the table."""


def time_column(name: str, rows: pa.RecordBatch) -> pa.Array:
    """Compute a column of days or hours of a batch of messages."""
    column = TIME_COLUMNS[name]
    times = rows.column(column.source)
    return times.cast(pa.date32()) if column.is_day else pc.floor_temporal(times, unit="hour")


def time_column_type(name: str) -> pa.DataType:
    """Return the type of a column of days or hours."""
    return pa.date32() if TIME_COLUMNS[name].is_day else pa.timestamp("us", "UTC")
