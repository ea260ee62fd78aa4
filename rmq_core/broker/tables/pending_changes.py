"""Changes of a table that its file does not have yet, for a revert after a failed write."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rmq_core.broker.tables.table_file import TableFile

T = TypeVar("T")


class WrittenTable(Protocol):
    """Table whose changes take effect after the write of its file."""

    file: TableFile

    def revert(self, since: int, until: int) -> None:
        """Revert the changes after one number up to another."""


@dataclass(slots=True)
class _Change(Generic[T]):
    number: int
    name: str
    before: T | None
    after: T | None


class PendingChanges(Generic[T]):
    """Changes of a table since the last write of its file."""

    def __init__(self, table: dict[str, T]) -> None:
        self._table = table
        self._changes: list[_Change[T]] = []

    def note(self, number: int, name: str, before: T | None, after: T | None) -> None:
        """Record a change of an entry, by its number as the file counts changes; None for no entry."""
        self._changes.append(_Change(number, name, before, after))

    @property
    def names(self) -> set[str]:
        """Entries with a change that the file lacks."""
        return {change.name for change in self._changes}

    def drop(self, written: int) -> None:
        """Remove the changes up to a number, which the file has."""
        self._changes = [change for change in self._changes if change.number > written]

    def revert(self, since: int, until: int) -> list[str]:
        """Revert changes after one number up to another, but of entries changed since; return the reverted names."""
        names = []
        for change in reversed([change for change in self._changes if since < change.number <= until]):
            self._changes.remove(change)
            later = next((other for other in self._changes if other.name == change.name and other.number > until), None)
            if later is not None:
                later.before = change.before
            elif change.before is None:
                self._table.pop(change.name, None)
                names.append(change.name)
            else:
                self._table[change.name] = change.before
                names.append(change.name)
        return names
