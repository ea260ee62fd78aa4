"""Directory of a Delta table, and other tables there, whose files a VACUUM would delete."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmq_lakehouse.directories import DELTA_LOG, METADATA, check_new_table, check_vacuum, table_around, table_within

_LEVELS: Final = 2  # limit: levels of an object store's directories that are searched for other tables


@dataclass(frozen=True, slots=True)
class DeltaDirectory:
    """Directory of one table.

    Attributes:
        files: Hadoop's file system of the directory.
        path: of the directory, or its URI.
        local_path: path in this machine's file system; None if Hadoop has it in another one.
        is_uniform: whether Delta itself keeps Iceberg metadata there.
    """

    jvm: Any
    files: Any
    path: str
    local_path: str | None
    is_uniform: bool

    def other_table(self) -> str | None:
        """Describe an Iceberg table of this very directory; None without one."""
        return None if self.is_uniform else self._matching(f"{METADATA}/*.metadata.json*", "an Iceberg table")

    def check_new(self, name: str) -> None:
        """Refuse the directory for a new table if another table has it, or is around it. Raises StoreError."""
        around = None if self.local_path is None else table_around(Path(self.local_path))
        check_new_table(name, around, self.other_table())

    def check_vacuum(self, name: str) -> None:
        """Refuse a VACUUM that would delete files of another table. Raises StoreError."""
        check_vacuum(name, self.other_table() or self._table_within())

    def _table_within(self) -> str | None:
        if self.local_path is not None:
            return table_within(Path(self.local_path), ignored=(METADATA,) if self.is_uniform else ())
        patterns = (f"{'*/' * depth}{DELTA_LOG}" for depth in range(1, _LEVELS + 1))
        return next(filter(None, (self._matching(pattern, "a Delta table") for pattern in patterns)), None)

    def _matching(self, pattern: str, kind: str) -> str | None:
        """Describe a table by the first path below the directory that matches a pattern of Hadoop's."""
        make_path = self.jvm.org.apache.hadoop.fs.Path
        matches = self.files.globStatus(make_path(make_path(_escaped(self.path)), pattern))
        return f"{kind} ({matches[0].getPath()})" if matches else None


def _escaped(path: str) -> str:
    """Write a path so that Hadoop's patterns take each of its characters as it is."""
    return re.sub(r"([*?\[\]{}\\^])", r"\\\1", path)
