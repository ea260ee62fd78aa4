"""How far a selection has landed where the commits that told so are cleaned up; without a session."""

from typing import Any

from rmq_formats.lakehouse.once import Turn
from rmq_formats.lakehouse.standing import Commit, Standing, standing

APP = "rmq-export:store:0"
OTHER = Commit("SET TBLPROPERTIES", None, {}, None)


class Log:
    """A table's log whose commits before one are gone."""

    def __init__(self, first: int, commits: dict[int, Commit]) -> None:
        self._first, self._commits = first, commits

    def commit(self, version: int) -> Commit | None:
        return None if version < self._first else self._commits.get(version, OTHER)


def stand(log: Log, lost: str | None) -> Standing:
    return standing(log, 5, APP, 900, lambda app_id: lost if app_id == APP else None, is_complete=True)


def test_the_newest_row_tells_whether_the_table_was_restored() -> None:
    assert stand(Log(4, {}), None) == Standing(900, 900)
    found = stand(Log(4, {}), "at 800")
    assert (found.landed, found.claimed) == (-1, 900)
    assert "its newest row, at 800, is gone" in str(found.fault)
    assert "--from-offset 0 lands again what is missing, --from-offset 900 goes on without it" in str(found.fault)


def test_where_the_commits_are_there_the_row_is_not_asked_for() -> None:
    landed = Commit("WRITE", None, {APP: 900}, "note")
    assert stand(Log(0, {2: landed}), "at 800") == Standing(900, 900, note="note")  # deleted on purpose
    restored = {1: Commit("WRITE", None, {APP: 500}, "note"), 2: landed, 3: Commit("RESTORE", 1, {}, None)}
    assert stand(Log(0, restored), "at 800").landed == 500


def versions(newest: int | None, last: int | None) -> dict[str, int]:
    transaction: Any = None  # it is not asked
    turn = Turn(transaction, 0, 900, newest is not None, APP, {APP: 900}, None, None, newest=newest)
    return dict(turn.landing(last).versions)


def test_a_commit_tells_of_the_newest_row_that_is_there_after_it() -> None:
    assert versions(None, 800) == {APP: 900, f"{APP}:newest": 800}
    assert versions(None, None) == {APP: 900}  # what was told stays true
    assert versions(700, 300) == {APP: 900, f"{APP}:newest": 700}  # what had been lost before it lands again
    assert versions(-1, 300) == {APP: 900, f"{APP}:newest": 300}
    assert versions(-1, None) == {APP: 900, f"{APP}:newest": -1}  # it is gone, and stays so
