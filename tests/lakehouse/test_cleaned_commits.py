"""How far a selection has landed where the commits that told so are cleaned up; without a session."""

from typing import Any

from rmq_lakehouse.exactly_once import with_high_watermark
from rmq_lakehouse.progress import ExportProgress, TableCommit, read_progress
from rmq_lakehouse.table_log import CommitAttempt

APP = "rmq-export:store:0"
OTHER = TableCommit("SET TBLPROPERTIES", None, {}, None)


class Log:
    """A table's log whose commits before one are gone."""

    def __init__(self, first: int, commits: dict[int, TableCommit]) -> None:
        self._first, self._commits = first, commits

    def read_commit(self, version: int) -> TableCommit | None:
        return None if version < self._first else self._commits.get(version, OTHER)


def progress_of(log: Log, lost: str | None) -> ExportProgress:
    return read_progress(log, 5, APP, 900, lambda app_id: lost if app_id == APP else None, is_complete=True)


def test_the_newest_row_tells_whether_the_table_was_restored() -> None:
    assert progress_of(Log(4, {}), None) == ExportProgress(900, 900)
    found = progress_of(Log(4, {}), "at 800")
    assert (found.verified_offset, found.recorded_offset) == (-1, 900)
    assert "its newest row, at 800, is missing" in str(found.fault)
    assert "--from-offset 0 exports missing messages again, --from-offset 900 goes on without them" in found.remedy


def test_where_the_commits_are_there_the_row_is_not_asked_for() -> None:
    landed = TableCommit("WRITE", None, {APP: 900}, "note")
    assert progress_of(Log(0, {2: landed}), "at 800") == ExportProgress(900, 900, metadata="note")  # deleted on purpose
    restored = {1: TableCommit("WRITE", None, {APP: 500}, "note"), 2: landed, 3: TableCommit("RESTORE", 1, {}, None)}
    assert progress_of(Log(0, restored), "at 800").verified_offset == 500


def versions(newest: int | None, last: int | None) -> dict[str, int]:
    transaction: Any = None  # it is not asked
    attempt = CommitAttempt(transaction, 0, 900, newest is not None, APP, {APP: 900}, None, None, watermark=newest)
    return dict(with_high_watermark(attempt, last).versions)


def test_a_commit_tells_of_the_newest_row_that_is_there_after_it() -> None:
    assert versions(None, 800) == {APP: 900, f"{APP}:newest": 800}
    assert versions(None, None) == {APP: 900}  # what was told stays true
    assert versions(700, 300) == {APP: 900, f"{APP}:newest": 700}  # what had been lost before it lands again
    assert versions(-1, 300) == {APP: 900, f"{APP}:newest": 300}
    assert versions(-1, None) == {APP: 900, f"{APP}:newest": -1}  # it is gone, and stays so
