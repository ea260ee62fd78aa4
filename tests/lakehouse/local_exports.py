"""Exports on one machine, within the tests' process, to a table of one store."""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from rmq_cli.export_arguments import export_parser
from rmq_lakehouse.local import command
from rmq_lakehouse.local.raw import LocalRunner


class LocalExporter:
    """Runs ``rmq export`` on one store."""

    def __init__(self, store: Path, table: Path) -> None:
        self.store, self.table = store, table

    def run(self, *arguments: str, table: bool = True) -> tuple[dict[str, Any], int]:
        """Return the report and the exit code."""
        where = ["--table", str(self.table)] if table else []
        words = ["--store", str(self.store), *where, *arguments]
        parsed = export_parser("rmq export").parse_args(words)
        return command.export(command.check(parsed), LocalRunner(1))

    def offsets(self) -> list[int]:
        """Return the physical offsets of the table's rows."""
        return sorted(
            DeltaTable(self.table).to_pyarrow_table(columns=["physical_offset"])["physical_offset"].to_pylist()
        )
