"""Columns of the raw table."""

import pytest

from rmq_lakehouse.raw import RawExport
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.table_log import TableSpec


@pytest.mark.parametrize(
    ("columns", "decompresses", "has_flag"),
    [
        (("body",), False, True),
        (("body",), True, False),
        (("tags",), False, False),
        (("body", "sys_flag"), False, True),
    ],
)
def test_bodies_come_with_the_flag_that_says_whether_they_are_compressed(
    columns: tuple[str, ...], decompresses: bool, has_flag: bool
) -> None:
    selection = ExportSelection("store", "store")
    export = RawExport("table", None, selection, columns, TableSpec(("topic",)), decompresses=decompresses)  # type: ignore[arg-type] # no table is opened
    assert ("sys_flag" in export.source_options()["columns"].split(",")) is has_flag
