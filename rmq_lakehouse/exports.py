"""Exports and their counts, without the way they read messages: by Spark, or on one machine without."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.store_log import StoreLog


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """Counts of the messages that an export has committed.

    Attributes:
        bytes: bytes of these messages in the log.
        damaged: ranges of the log without a sound record, and bodies that do not inflate.
        undecoded: messages whose body does not decode by the spec, or which the table refuses.
    """

    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    undecoded: int = 0
    files: int = 0

    def to_dict(self) -> dict[str, int]:
        """Convert to the members of the JSON report that a broker and the whole run have in common."""
        return {name: getattr(self, name) for name in ("messages", "bytes", "damaged", "undecoded")}

    def with_missing_as_damaged(self, messages: int | None) -> "ExportCounts":
        """Count expected messages without a record as damaged; None if the expected number is unknown."""
        lost = 0 if messages is None else messages - self.messages - self.damaged - self.undecoded
        return replace(self, damaged=self.damaged + max(0, lost))

    def __add__(self, other: "ExportCounts") -> "ExportCounts":
        return ExportCounts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class ExportTables(Protocol):
    """Tables to which an export commits a selection of a store's messages, without the way it reads them."""

    name: str
    tables: dict[str, str]
    """Their paths, each with its column of store times."""
    selection: ExportSelection

    def check(self) -> None:
        """Refuse existing tables that do not fit the export. Raises StoreError."""
        ...

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log other than the one that the tables were exported from. Raises StoreError."""
        for table in self.exactly_once_tables:
            table.check_log(log)

    def prepare(self) -> None:
        """Create the tables that do not exist. Raises StoreError."""
        ...

    def resume_offset(self) -> int:
        """Return the smallest offset of the first pending row; -1 if nothing was committed. Raises StoreError."""
        return min(table.resume_offset() for table in self.exactly_once_tables)

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        """Tables of the export."""
        ...
