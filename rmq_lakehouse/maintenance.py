"""Maintenance of exported tables: deletes old messages, compacts small files, deletes the files of old versions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_formats.errors import OptionError
from rmq_lakehouse.table_log import TableLog

_SAFE_VACUUM_HOURS: Final = 168  # Delta's own bound: an export or reader that runs longer would lose its files


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintenance of each table of a run.

    Attributes:
        optimize: compact files to the target size of ``files``, and cluster a table with clustering columns.
        retention_days: delete rows of messages that were stored longer ago; None deletes none.
        vacuum_hours: delete files that no version has had for so long; None deletes none.

    Raises:
        OptionError: files in use would be deleted; the message names the option.
    """

    optimize: bool
    retention_days: int | None
    vacuum_hours: int | None

    def __post_init__(self) -> None:
        if self.retention_days is not None and self.retention_days < 1:
            raise OptionError(f"--retention {self.retention_days}: expected a number of days, 1 or more")
        if self.vacuum_hours is not None and self.vacuum_hours < _SAFE_VACUUM_HOURS:
            raise OptionError(
                f"--vacuum {self.vacuum_hours}: at least {_SAFE_VACUUM_HOURS} hours; younger files may be in use by "
                "a reader"
            )

    def do(self, open_table: Callable[[str], TableLog], tables: Mapping[str, str]) -> None:
        """Maintain the tables of an export, given with their columns of store times. Raises StoreError."""
        for table, time_column in tables.items():
            table_log = open_table(table)
            if self.retention_days is not None:
                table_log.delete_older(time_column, self.retention_days)
            if self.optimize:
                table_log.compact(time_column)
            if self.vacuum_hours is not None:
                table_log.vacuum(self.vacuum_hours)
