"""Partitions of a table by columns, by days and hours of its times, and by Iceberg's transforms."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.errors import OptionError

DATE: Final = "date"
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_PART: Final = re.compile(r"[^,()]*(?:\([^()]*\))?[^,()]*")
_TRANSFORM: Final = re.compile(
    r"(identity|years?|months?|days?|hours?)\(\s*([^,()]+?)\s*\)|(bucket|truncate)\(\s*([1-9][0-9]{0,8})\s*,\s*([^,()]+?)\s*\)",
    re.ASCII,
)
TIME_TRANSFORMS: Final = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """Day or hour of a message's time; ``unit_us`` is its length in microseconds."""

    source: str
    unit_us: int

    @property
    def is_day(self) -> bool:
        """Values are dates; else they are the times at which hours begin."""
        return self.unit_us == _DAY_US


TIME_COLUMNS: Final = {
    DATE: TimeColumn("store_timestamp", _DAY_US),
    "hour": TimeColumn("store_timestamp", _HOUR_US),
    "born_date": TimeColumn("born_timestamp", _DAY_US),
    "born_hour": TimeColumn("born_timestamp", _HOUR_US),
}
"""Columns of days and hours that tables have beside the times of messages, by name; all in UTC."""


def time_column(name: str, rows: pa.RecordBatch) -> pa.Array:
    """Compute a column of days or hours of a batch of messages."""
    column = TIME_COLUMNS[name]
    times = rows.column(column.source)
    return times.cast(pa.date32()) if column.is_day else pc.floor_temporal(times, unit="hour")


def time_column_type(name: str) -> pa.DataType:
    """Return the type of a column of days or hours."""
    return pa.date32() if TIME_COLUMNS[name].is_day else pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Partition:
    """Column that partitions a table, as it is (``identity``) or through a transform of Iceberg.

    ``width`` is the number of buckets, or of characters that ``truncate`` leaves.
    """

    column: str
    transform: str = "identity"
    width: int | None = None

    @classmethod
    def of_iceberg(cls, column: str, transform: str) -> "Partition":
        """Build the partition by a column and a transform of Iceberg's metadata, such as ``bucket[16]``."""
        name, _, width = transform.removesuffix("]").partition("[")
        return cls(column, name, int(width) if width else None)

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        width = "" if self.width is None else f"{self.width}, "
        return f"{self.transform}({width}{self.column})"

    @property
    def field_name(self) -> str:
        """Name of Iceberg's partition field, as Iceberg's own ``ALTER TABLE … ADD PARTITION FIELD`` gives it."""
        if self.transform == "identity":
            return self.column
        suffix = {"truncate": "trunc"}.get(self.transform, self.transform)
        return f"{self.column}_{suffix}" + ("" if self.width is None else f"_{self.width}")

    @property
    def iceberg_transform(self) -> str:
        return self.transform if self.width is None else f"{self.transform}[{self.width}]"


def parse_partition(text: str) -> Partition:
    """Parse a column's name or ``transform(column)``; plural names such as ``hours`` are Spark's."""
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        return Partition(text)
    if match[3]:
        return Partition(match[5], match[3], int(match[4]))
    return Partition(match[2], match[1] if match[1] == "identity" else match[1].removesuffix("s"))


def partition_texts(text: str) -> tuple[str, ...]:
    """Parse a comma list of partitions. Raises ValueError."""
    parts, position = [], 0
    while position <= len(text):
        match = _PART.match(text, position)
        part = match[0].strip() if match else ""
        position = len(text) if match is None else match.end()
        if not part or text[position : position + 1] not in ("", ","):
            raise ValueError("expected columns or transforms, such as topic,hour or bucket(16, uniq_key)")
        if "(" in part and _TRANSFORM.fullmatch(part) is None:
            raise ValueError(
                f"{part!r} is no transform: give identity, year, month, day or hour of a column, bucket(N, column) "
                "or truncate(N, column)"
            )
        parts.append(str(parse_partition(part)))
        position += 1
    return tuple(parts)


def check_columns_exist(names: Iterable[str], columns: Collection[str]) -> None:
    """Refuse columns that the table does not have. Raises OptionError."""
    for name in names:
        if name not in columns:
            raise OptionError(f"unknown column {name!r}; there are {', '.join(columns)}")


def check_distinct(partitions: Sequence[str], option: str) -> None:
    """Refuse two partitions by one thing. Raises OptionError."""
    sources: set[tuple[str, str]] = set()
    for text in partitions:
        partition = parse_partition(text)
        source = partition.column, "time" if partition.transform in TIME_TRANSFORMS else partition.transform
        if source in sources:
            raise OptionError(f"{option} {text}: {partition.column} already makes such partitions. Leave one out")
        sources.add(source)


def check_plain(partitions: Sequence[str], option: str) -> None:
    """Refuse transforms, which Delta does not have. Raises OptionError."""
    for text in partitions:
        if parse_partition(text).transform != "identity":
            raise OptionError(
                f"{option} {text}: Delta has no partition transforms. Give columns, such as {', '.join(TIME_COLUMNS)}"
            )


def source_columns(partitions: Sequence[str]) -> tuple[str, ...]:
    """List the columns of messages that partitions and clustering are made of."""
    columns = (parse_partition(text).column for text in partitions)
    return tuple(dict.fromkeys(TIME_COLUMNS[name].source if name in TIME_COLUMNS else name for name in columns))
