"""Column statistics of a file, as the log of a Delta table keeps them: minimum, maximum and null count."""

from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_PREFIX_CHARACTERS: Final = 32  # characters that Delta keeps of a text


class ColumnStats:
    """Statistics of one column in one file.

    Attributes:
        nulls: how many values are null.
    """

    def __init__(self) -> None:
        self.nulls = 0
        self._kind: pa.DataType = pa.null()
        self._bounds: list[pa.Scalar] = []

    def add(self, values: pa.ChunkedArray) -> None:
        """Add values of the column."""
        self.nulls += values.null_count
        self._kind = values.type
        min_max = pc.min_max(values)
        self._bounds += [bound for bound in (min_max["min"], min_max["max"]) if bound.is_valid]

    def bounds(self) -> tuple[str | int | None, str | int | None]:
        """Return a lower and an upper bound of all values; None where the log is to say nothing."""
        if not self._bounds:
            return None, None
        min_max = pc.min_max(pa.array([bound.as_py() for bound in self._bounds], self._kind))
        smallest, largest = min_max["min"].as_py(), min_max["max"].as_py()
        if isinstance(smallest, datetime):
            return _format_time(smallest), _format_time(largest)
        if isinstance(smallest, str):
            # The prefix of a text is a lower bound; an upper bound would have to be made up.
            return smallest[:_PREFIX_CHARACTERS], largest if len(largest) <= _PREFIX_CHARACTERS else None
        return smallest, largest


def _format_time(time: datetime) -> str:
    """Format a time in milliseconds, which is what a record's times have."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
