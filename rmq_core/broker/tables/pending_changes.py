"""Changes of a table that its file does not have yet, so that those which cannot be written can be taken back."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rmq_core.broker.tables.table_file import TableFile

T = TypeVar("T")


class WrittenTable(Protocol):
    """A table whose changes are in force once its file has them.

    Attributes:
        file: where it is kept.
    """

    file: TableFile

    def take_back(self, since: int, until: int) -> None:
        """Take back the changes behind one number up to another; see ``PendingChanges.take_back``."""


@dataclass(slots=True)
class _Change(Generic[T]):
    number: int
    name: str
    before: T | None
    after: T | None


class PendingChanges(Generic[T]):
    """The changes of a table since its file was written last."""

    def __init__(self, table: dict[str, T]) -> None:
        self._table = table
        self._changes: list[_Change[T]] = []

    def note(self, number: int, name: str, before: T | None, after: T | None) -> None:
        """Note that an entry has changed; None where there is none.

        Args:
            number: of the change, as the file counts them.
            name: of the entry.
            before: the entry that was there.
            after: the entry that is there now.
        """
        self._changes.append(_Change(number, name, before, after))

    def drop(self, written: int) -> None:
        """Forget the changes up to a number: the file has them."""
        self._changes = [change for change in self._changes if change.number > written]

    def take_back(self, since: int, until: int) -> list[str]:
        """Take back the changes behind one number up to another; a later change of the same entry stays.

        Returns:
            The names of the entries that have changed back.
        """
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
