"""One version of an Iceberg table, and what the snapshots that led to it say of exports."""

from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from rmq_formats.lakehouse.standing import Commit

TRANSACTION: Final = "rmq.txn."  # before an application id, in snapshots and table properties
LOG_MARK: Final = "rmq.log-mark"


class IcebergSnapshot:
    """One version of a table, numbered by its sequence number, which grows through rollbacks too.

    Args:
        table: as it was loaded; None if there is none.
    """

    def __init__(self, table: Table | None) -> None:
        self._table = table
        self._line: dict[int, Snapshot] = {}
        self._oldest = 0
        current = None if table is None else table.current_snapshot()
        self._version = -1 if table is None else 0 if current is None else current.sequence_number or 0
        while table is not None and current is not None:
            self._oldest = current.sequence_number or 0
            self._line[self._oldest] = current
            parent = current.parent_snapshot_id  # of one that has expired there is none, or one that is not found
            current = None if parent is None else table.snapshot_by_id(parent)

    @property
    def version(self) -> int:
        """Sequence number; 0 if nothing was committed yet, -1 if there is no table."""
        return self._version

    def transaction_version(self, app_id: str) -> int:
        """Return the last version that was committed for ``app_id``, in this version or one rolled back; -1 if none."""
        found = None if self._table is None else self._table.properties.get(TRANSACTION + app_id)
        return -1 if found is None else _number(found)

    def app_ids(self) -> list[str]:
        """List all application ids that have a transaction version."""
        properties = {} if self._table is None else self._table.properties
        return [name.removeprefix(TRANSACTION) for name in properties if name.startswith(TRANSACTION)]

    def drops_transactions(self) -> bool:
        """Return False: properties stay."""
        return False

    def commit(self, version: int) -> Commit | None:
        """Return what a snapshot says that led to this version; None if it has expired."""
        found = self._line.get(version)
        if found is None:  # of another branch, or one that was rolled back
            return None if 0 < version < self._oldest else Commit("", None, {}, None)
        summary = {} if found.summary is None else found.summary.additional_properties
        versions = {
            name.removeprefix(TRANSACTION): _number(value)
            for name, value in summary.items()
            if name.startswith(TRANSACTION)
        }
        return Commit("append", None, versions, summary.get(LOG_MARK))

    def since_last_export(self) -> list[Snapshot]:
        """List the snapshots from this version back to the last that says where an export stands; none if none does.

        Where a selection was rolled back, back to its last one, too: nothing else tells that it was.
        """
        line = list(self._line.values())
        wanted = [0] if line else []
        for app_id in self.app_ids():
            versions = [one.versions.get(app_id) for number in self._line if (one := self.commit(number))]
            last = next((at for at, version in enumerate(versions) if version is not None), None)
            if last is not None and versions[last] != self.transaction_version(app_id):
                wanted.append(last)
            elif last is None and self._oldest <= 1:  # the whole line is there, and has none
                wanted.append(len(line) - 1)
        places = [at for at, one in enumerate(line) if _is_export(one)]
        return line[: max(places[0], *wanted) + 1] if places else []


def _is_export(snapshot: Snapshot) -> bool:
    told = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return any(name.startswith(TRANSACTION) for name in told)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # another program's
        return -1
